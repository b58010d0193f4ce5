//! Clauses 2 and 3: a repeat changes nothing, another hold of the owner enters once more.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{
    Subject,
    actor::{Actor, SHORT, assert_not_early, key},
};
use crate::{Attempt, Release, Renewal};

/// A repeat of a hold gives the same token and the same count, through any handle, and one
/// release undoes all of them. Clause 2; A1, B07, B111.
pub async fn the_same_hold_again_is_the_same_grant(subject: &dyn Subject) {
    let key = key("repeat");
    let holder = Actor::open(subject, &key, "holder").await;
    let elsewhere = holder.elsewhere(subject).await;
    let grant = holder.enters().await;
    assert_eq!(grant.holds, 1);
    for again in [&holder, &elsewhere, &holder] {
        let repeated = again.enters().await;
        assert_eq!((repeated.token, repeated.holds), (grant.token, 1));
    }
    assert_eq!(elsewhere.leaves().await, 0);
    assert_eq!(holder.looks().await, None);
    holder.rival("next").enters().await;
}

/// Copies of one attempt that arrive at the same time count once. Clause 2; A1, B07.
pub async fn simultaneous_repeats_count_once(subject: &dyn Subject) {
    let handles = [subject.open().await, subject.open().await];
    for _ in 0..10 {
        let key = key("copies");
        let first = Actor::on(&handles[0], &key, "first");
        let copies = (0..8).map(|place| {
            let mut copy = first.clone();
            copy.store = handles[place % 2].clone();
            tokio::spawn(async move { copy.enters().await })
        });
        let grants: Vec<_> = join_all(copies)
            .await
            .into_iter()
            .map(|g| g.expect("no panic"))
            .collect();
        for grant in &grants {
            assert_eq!((grant.token, grant.holds), (grants[0].token, 1));
        }
        assert_eq!(first.leaves().await, 0);
    }
}

/// A repeat is a promise of a whole ttl from now. Clauses 2 and 5; A1.
pub async fn a_repeat_starts_the_lease_anew(subject: &dyn Subject) {
    let key = key("repeat-lease");
    let holder = Actor::open(subject, &key, "holder")
        .await
        .with_ttl(Duration::from_secs(1));
    let rival = Actor::open(subject, &key, "rival").await;
    let ttl = holder.enters().await.ttl;
    tokio::time::sleep(ttl.as_duration() / 2).await;
    let sent = Instant::now();
    let ttl = holder.enters().await.ttl;
    rival.keeps_trying().await;
    assert_not_early(sent, ttl);
}

/// A queued claim that is repeated keeps its place and is queued once. Clauses 2 and 8; A1.
pub async fn a_queued_claim_again_keeps_its_place(subject: &dyn Subject) {
    let key = key("repeat-queued");
    let holder = Actor::open(subject, &key, "holder").await;
    let first = Actor::open(subject, &key, "first").await.queueing();
    let second = Actor::open(subject, &key, "second").await.queueing();
    holder.enters().await;
    first.queues_at(1).await;
    second.queues_at(2).await;
    for _ in 0..3 {
        first.queues_at(1).await;
        first.elsewhere(subject).await.queues_at(1).await;
        second.queues_at(2).await;
    }
    assert_eq!(holder.sees().await.waiters.len(), 2);
}

/// Another hold of the holding owner is granted at once with the same token, in any process that
/// knows the owner, and the lock is free when the last hold is gone. Clause 3; A26, B44, B92.
pub async fn another_hold_of_the_owner_enters_once_more(subject: &dyn Subject) {
    let key = key("re-entry");
    let outer = Actor::open(subject, &key, "outer").await;
    let inner = outer.second_hold("inner").elsewhere(subject).await;
    let rival = Actor::open(subject, &key, "rival").await;
    let grant = outer.enters().await;
    let again = inner.enters().await;
    assert_eq!((grant.holds, again.holds), (1, 2));
    assert_eq!(again.token, grant.token);
    // A repeat of either counts nothing.
    assert_eq!(inner.enters().await.holds, 2);
    assert_eq!(outer.enters().await.holds, 2);
    assert_eq!(rival.is_refused().await.holder.expect("a holder").holds, 2);
    assert_eq!(inner.leaves().await, 1);
    rival.is_refused().await;
    assert_eq!(outer.leaves().await, 0);
    rival.enters().await;
}

/// The first hold may leave before the others. Clause 3; A26, B44.
pub async fn holds_may_leave_in_any_order(subject: &dyn Subject) {
    let key = key("any-order");
    let first = Actor::open(subject, &key, "first").await;
    let second = first.second_hold("second");
    let third = first.second_hold("third");
    let rival = first.rival("rival");
    let token = first.enters().await.token;
    second.enters().await;
    third.enters().await;
    assert_eq!(first.leaves().await, 2);
    rival.is_refused().await;
    third.renews().await;
    assert_eq!(second.leaves().await, 1);
    let again = first.enters().await;
    assert_eq!((again.token, again.holds), (token, 2));
    assert_eq!(third.leaves().await, 1);
    rival.is_refused().await;
    assert_eq!(first.leaves().await, 0);
    rival.enters().await;
}

/// A second hold with a shorter ttl takes nothing from the first, nor does its release.
/// Clauses 3 and 5; B08.
pub async fn a_second_hold_never_shortens_the_lease(subject: &dyn Subject) {
    let key = key("short-second");
    let outer = Actor::open(subject, &key, "outer").await;
    let inner = outer.second_hold("inner").with_ttl(SHORT);
    let other = outer.second_hold("other").with_ttl(SHORT);
    outer.enters().await;
    let ttl = inner.enters().await.ttl;
    other.enters().await;
    other.leaves().await;
    tokio::time::sleep(ttl.as_duration() * 3 / 2).await;
    outer.rival("rival").is_refused().await;
    assert_eq!(inner.leaves().await, 1);
    outer.rival("rival").is_refused().await;
    outer.renews().await;
    assert_eq!(outer.leaves().await, 0);
}

/// A second hold with a longer ttl makes the lease longer. Clauses 3 and 5; B08.
pub async fn a_second_hold_prolongs_the_lease(subject: &dyn Subject) {
    let key = key("long-second");
    let outer = Actor::open(subject, &key, "outer").await.with_ttl(SHORT);
    let inner = outer.second_hold("inner");
    let ttl = outer.enters().await.ttl;
    inner.enters().await;
    tokio::time::sleep(ttl.as_duration() * 3 / 2).await;
    outer.rival("rival").is_refused().await;
    inner.renews().await;
}

/// The holding owner enters again although others wait. Clauses 3 and 8; B44.
pub async fn re_entry_does_not_wait_behind_the_queue(subject: &dyn Subject) {
    let key = key("re-entry-queue");
    let outer = Actor::open(subject, &key, "outer").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    outer.enters().await;
    waiter.queues_at(1).await;
    let inner = outer.second_hold("inner").queueing();
    assert_eq!(inner.enters().await.holds, 2);
    assert_eq!(waiter.is_refused().await.queued, 1);
    let waiter = tokio::spawn(async move { waiter.waits().await });
    assert_eq!(outer.leaves().await, 1);
    assert_eq!(inner.leaves().await, 0);
    waiter.await.expect("the waiter gets the lock");
}

/// When a queued claim is granted, the other queued claims of its owner enter as well.
/// Clauses 3 and 8; B44.
pub async fn queued_claims_of_one_owner_enter_together(subject: &dyn Subject) {
    let key = key("together");
    let holder = Actor::open(subject, &key, "holder").await;
    let first = Actor::open(subject, &key, "first").await.queueing();
    let stranger = Actor::open(subject, &key, "stranger").await.queueing();
    let second = first
        .second_hold("second")
        .queueing()
        .elsewhere(subject)
        .await;
    holder.enters().await;
    first.queues_at(1).await;
    stranger.queues_at(2).await;
    second.queues_at(3).await;
    let waiting = [first.clone(), second.clone()]
        .map(|actor| tokio::spawn(async move { actor.waits().await }));
    holder.leaves().await;
    let grants: Vec<_> = join_all(waiting)
        .await
        .into_iter()
        .map(|g| g.expect("a grant"))
        .collect();
    assert_eq!(grants[0].token, grants[1].token);
    assert_eq!(holder.sees().await.holder.expect("a holder").holds, 2);
    assert_eq!(holder.sees().await.waiters.len(), 1);
    first.leaves().await;
    second.leaves().await;
    stranger.waits().await;
}

/// A hold that was released cannot be released again, and the others stay. Clauses 2 and 3; A4,
/// A28, B60, B95.
pub async fn a_release_counts_once(subject: &dyn Subject) {
    let key = key("release-once");
    let outer = Actor::open(subject, &key, "outer").await;
    let inner = outer.second_hold("inner");
    outer.enters().await;
    inner.enters().await;
    assert_eq!(inner.leaves().await, 1);
    for _ in 0..3 {
        assert_eq!(inner.release().await, Release::NotHeld);
        assert!(matches!(
            inner.renew().await,
            Renewal::Gone { taken_over: false }
        ));
    }
    outer.rival("rival").is_refused().await;
    assert_eq!(outer.sees().await.holder.expect("a holder").holds, 1);
    assert_eq!(outer.leaves().await, 0);
    assert_eq!(outer.release().await, Release::NotHeld);
}

/// A lease that ends takes all holds with it; the next one starts with one hold and a new token.
/// Clauses 3 and 5; A27.
pub async fn all_holds_end_with_the_lease(subject: &dyn Subject) {
    let key = key("holds-end");
    let outer = Actor::open(subject, &key, "outer").await.with_ttl(SHORT);
    let inner = outer.second_hold("inner").with_ttl(SHORT);
    outer.enters().await;
    let token = inner.enters().await.token;
    super::actor::until("the lease ends", || async { outer.looks().await.is_none() }).await;
    for actor in [&outer, &inner] {
        assert_eq!(actor.renew().await, Renewal::Gone { taken_over: false });
        assert_eq!(actor.release().await, Release::NotHeld);
    }
    let late = outer.second_hold("late");
    let Attempt::Granted(grant) = late.tries().await else {
        panic!("the lock is free");
    };
    assert_eq!(grant.holds, 1);
    assert!(grant.token > token, "a new grant has a larger token");
    assert_eq!(outer.release().await, Release::NotHeld);
    assert!(matches!(inner.renew().await, Renewal::Gone { .. }));
    late.renews().await;
}
