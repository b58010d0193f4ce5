//! Clause 7: only owner and hold renew and release; any other changes nothing.

use super::{
    Subject,
    actor::{Actor, SHORT, key, until},
};
use crate::{LockInfo, OwnerId, Release, Renewal};

/// The parts of an answer that time does not change.
fn parts(info: &LockInfo) -> (Option<(OwnerId, u64, u32)>, Vec<OwnerId>) {
    let holder = info
        .holder
        .as_ref()
        .map(|h| (h.owner, h.token.as_u64(), h.holds));
    (holder, info.waiters.iter().map(|w| w.owner).collect())
}

/// A release by another owner changes nothing and says so. Clause 7; A5, B18, B62, B95.
pub async fn a_stranger_cannot_release(subject: &dyn Subject) {
    let key = key("stranger-release");
    let holder = Actor::open(subject, &key, "holder").await;
    let stranger = Actor::open(subject, &key, "stranger").await;
    holder.enters().await;
    let before = holder.sees().await;
    for forged in [&stranger, &holder.rival("neighbour")] {
        assert_eq!(forged.release().await, Release::NotHeld);
        forged.is_refused().await;
        assert_eq!(forged.release().await, Release::NotHeld);
    }
    assert_eq!(parts(&holder.sees().await), parts(&before));
    holder.renews().await;
    assert_eq!(holder.leaves().await, 0);
}

/// A renewal by another owner is gone, and the holder's lease stays as it was. Clause 7; A6, B47.
pub async fn a_stranger_cannot_renew(subject: &dyn Subject) {
    let key = key("stranger-renew");
    let holder = Actor::open(subject, &key, "holder").await;
    let stranger = Actor::open(subject, &key, "stranger").await;
    let granted = holder.enters().await.ttl.as_duration();
    let before = holder.sees().await;
    let stranger = stranger.with_ttl(granted * 100);
    assert_eq!(stranger.renew().await, Renewal::Gone { taken_over: true });
    let after = holder.sees().await;
    assert_eq!(parts(&after), parts(&before));
    assert!(after.holder.expect("a holder").remaining <= granted);
    holder.renews().await;
}

/// A hold that the owner never took, or only asked for, renews and releases nothing. Clause 7;
/// A28, B126.
pub async fn an_unknown_hold_of_the_owner_changes_nothing(subject: &dyn Subject) {
    let key = key("unknown-hold");
    let holder = Actor::open(subject, &key, "holder").await;
    let unknown = holder.second_hold("unknown");
    holder.enters().await;
    let before = holder.sees().await;
    assert_eq!(unknown.renew().await, Renewal::Gone { taken_over: false });
    assert_eq!(unknown.release().await, Release::NotHeld);
    assert_eq!(parts(&holder.sees().await), parts(&before));
    assert_eq!(holder.leaves().await, 0);
}

/// The hold's id alone is not enough: the owner has to be right as well. Clause 7; A40, B95.
pub async fn a_known_hold_of_another_owner_changes_nothing(subject: &dyn Subject) {
    let key = key("forged-owner");
    let holder = Actor::open(subject, &key, "holder").await;
    let mut forged = holder.rival("forged");
    forged.claim.hold = holder.claim.hold;
    holder.enters().await;
    let before = holder.sees().await;
    assert_eq!(forged.renew().await, Renewal::Gone { taken_over: true });
    assert_eq!(forged.release().await, Release::NotHeld);
    forged.is_refused().await;
    assert_eq!(parts(&holder.sees().await), parts(&before));
    assert_eq!(holder.leaves().await, 0);
}

/// A release that comes after the lease ended leaves the next owner's alone. Clause 7; A4, A5,
/// B17, B53, B96.
pub async fn a_late_release_leaves_the_next_owner_alone(subject: &dyn Subject) {
    let key = key("late-release");
    let late = Actor::open(subject, &key, "late").await.with_ttl(SHORT);
    let next = Actor::open(subject, &key, "next").await;
    late.enters().await;
    until("the lease ends", || async { late.looks().await.is_none() }).await;
    assert_eq!(late.release().await, Release::NotHeld);
    let grant = next.enters().await;
    for _ in 0..2 {
        assert_eq!(late.release().await, Release::NotHeld);
    }
    let held = next.sees().await.holder.expect("a holder");
    assert_eq!(
        (held.owner, held.token, held.holds),
        (next.claim.owner, grant.token, 1)
    );
    next.rival("third").is_refused().await;
    assert_eq!(next.leaves().await, 0);
}

/// The same owner and hold under another key are another claim. Clauses 7 and 10.
pub async fn a_claim_is_about_one_key_only(subject: &dyn Subject) {
    let here = Actor::open(subject, &key("here"), "here").await;
    let mut there = here.clone();
    there.claim.key = key("there");
    here.enters().await;
    assert_eq!(there.release().await, Release::NotHeld);
    assert_eq!(there.renew().await, Renewal::Gone { taken_over: false });
    assert_eq!(there.enters().await.holds, 1);
    assert_eq!(there.leaves().await, 0);
    here.renews().await;
    assert_eq!(here.leaves().await, 0);
}

/// A place in the queue is given up by its owner and hold only, and nothing else with it.
/// Clauses 7 and 8; B82.
pub async fn only_the_waiter_withdraws_its_claim(subject: &dyn Subject) {
    let key = key("withdraw");
    let holder = Actor::open(subject, &key, "holder").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    holder.enters().await;
    waiter.queues_at(1).await;
    let before = holder.sees().await;
    let mut forged = waiter.rival("forged").queueing();
    forged.claim.hold = waiter.claim.hold;
    assert_eq!(forged.release().await, Release::NotHeld);
    assert_eq!(
        waiter.second_hold("unknown").release().await,
        Release::NotHeld
    );
    assert!(matches!(waiter.renew().await, Renewal::Gone { .. }));
    assert_eq!(parts(&holder.sees().await), parts(&before));
    assert_eq!(waiter.release().await, Release::Withdrawn);
    assert_eq!(waiter.release().await, Release::NotHeld);
    let after = holder.sees().await;
    assert_eq!(parts(&after).0, parts(&before).0);
    assert_eq!(after.waiters, []);
}

/// A release or renewal of a lock that nobody ever held says so and leaves nothing. Clause 7;
/// B51, B126.
pub async fn releasing_what_nobody_holds_changes_nothing(subject: &dyn Subject) {
    let actor = Actor::open(subject, &key("nobody"), "actor").await;
    for queue in [false, true] {
        let mut actor = actor.clone();
        actor.claim.queue = queue;
        assert_eq!(actor.release().await, Release::NotHeld);
        assert_eq!(actor.renew().await, Renewal::Gone { taken_over: false });
        assert_eq!(actor.looks().await, None);
    }
    actor.rival("other").enters().await;
}
