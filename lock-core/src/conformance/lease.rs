//! Clause 5: the store's clock ends a lease, never earlier than its ttl after the request that
//! last granted or renewed it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::{
    Subject,
    actor::{Actor, LONG, SHORT, assert_not_early, key, ttl, until},
};
use crate::{Page, Release, Renewal, Ttl};

/// A holder that does nothing loses the lock, at its ttl and not before. Clause 5; A22, B37, B96.
pub async fn a_lease_ends_by_itself_and_never_early(subject: &dyn Subject) {
    let handle = subject.open().await;
    let rivals = subject.open().await;
    for millis in [1, 300, 999, 1500] {
        let key = key("lease");
        let length = Duration::from_millis(millis);
        let holder = Actor::on(&handle, &key, "holder").with_ttl(length);
        let sent = Instant::now();
        let granted = holder.enters().await.ttl;
        Actor::on(&rivals, &key, "rival").keeps_trying().await;
        assert_not_early(sent, granted.max(ttl(length)));
    }
}

/// Whatever ttl is asked for, from 1 ms to the longest: it is granted, or more, and rounded up;
/// nothing overflows. Clause 5; A38, B76, B91, B108.
pub async fn a_granted_ttl_is_never_shorter_than_asked(subject: &dyn Subject) {
    let handle = subject.open().await;
    let least = handle.capabilities().min_ttl;
    let lengths = [
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_millis(2),
        Duration::from_millis(999),
        Duration::from_millis(1001),
        Duration::from_millis(1500),
        Duration::from_secs(59),
        Duration::from_secs(86_400) + Duration::from_millis(1),
        Duration::from_secs(50 * 86_400),
        Ttl::MAX.as_duration() - Duration::from_millis(1),
        Ttl::MAX.as_duration(),
    ];
    for length in lengths {
        let key = key("ttl");
        let holder = Actor::on(&handle, &key, "holder").with_ttl(length);
        let asked = holder.claim.ttl;
        let granted = holder.enters().await.ttl;
        assert!(granted >= asked.max(least), "{granted} for {asked}");
        if let Renewal::Renewed { ttl } = holder.renew().await {
            assert!(ttl >= asked.max(least), "{ttl} for {asked}");
        } else {
            assert!(
                asked < self::ttl(LONG),
                "a lease of {asked} is over at once"
            );
        }
        if asked < self::ttl(LONG) {
            continue;
        }
        let held = holder.sees().await.holder.expect("a holder");
        let (shown, granted) = (held.remaining, granted.as_duration());
        assert!(shown <= granted, "{shown:?} of {granted:?}");
        assert!(shown + LONG >= granted, "{shown:?} of {granted:?}");
        holder.rival("rival").is_refused().await;
        assert_eq!(holder.leaves().await, 0);
    }
}

/// Renewals keep the lock past its ttl, and after the last one the lease runs its whole length.
/// Clause 5; B11.
pub async fn a_renewal_starts_the_lease_anew(subject: &dyn Subject) {
    let key = key("renewed");
    let holder = Actor::open(subject, &key, "holder")
        .await
        .with_ttl(Duration::from_secs(1));
    let rival = Actor::open(subject, &key, "rival").await;
    let mut sent = Instant::now();
    let mut ttl = holder.enters().await.ttl;
    let start = sent;
    while start.elapsed() < ttl.as_duration() * 5 / 2 {
        tokio::time::sleep(ttl.as_duration() / 10).await;
        let now = Instant::now();
        match holder.renew().await {
            Renewal::Renewed { ttl: granted } => (sent, ttl) = (now, granted),
            Renewal::Gone { .. } => assert_not_early(sent, ttl),
        }
    }
    rival.keeps_trying().await;
    assert_not_early(sent, ttl);
}

/// A renewal for less than what is left changes nothing. Clauses 5 and 7; B08.
pub async fn a_renewal_never_shortens_the_lease(subject: &dyn Subject) {
    let key = key("not-shortened");
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let brief = holder.clone().with_ttl(SHORT);
    let batch = [brief.claim.clone()];
    let ttl = brief.renews().await;
    let renewals = brief.store.renew_all(&batch).await;
    assert!(
        matches!(renewals[..], [Ok(Renewal::Renewed { .. })]),
        "{renewals:?}"
    );
    tokio::time::sleep(ttl.as_duration() * 3 / 2).await;
    holder.rival("rival").is_refused().await;
    holder.renews().await;
    holder.leaves().await;
}

/// A renewal grants the ttl it asks for, also when the first grant was shorter. Clause 5; B11,
/// B76.
pub async fn a_renewal_takes_its_own_ttl(subject: &dyn Subject) {
    let key = key("own-ttl");
    let holder = Actor::open(subject, &key, "holder")
        .await
        .with_ttl(Duration::from_secs(3));
    let longer = holder.clone().with_ttl(LONG);
    let start = Instant::now();
    let first = holder.enters().await.ttl;
    match longer.renew().await {
        Renewal::Renewed { ttl } => assert!(ttl >= longer.claim.ttl),
        Renewal::Gone { .. } => {
            // The machine stood still.
            assert_not_early(start, first);
            longer.enters().await;
        }
    }
    tokio::time::sleep(first.as_duration() * 5 / 4).await;
    holder.rival("rival").is_refused().await;
    longer.renews().await;
}

/// A renewal after the end is `Gone` for certain: it creates nothing and prolongs nothing of
/// another owner's. Clauses 5 and 7; A6, B12, B77.
pub async fn a_renewal_after_the_end_is_gone(subject: &dyn Subject) {
    let key = key("after-the-end");
    let late = Actor::open(subject, &key, "late").await.with_ttl(SHORT);
    let next = Actor::open(subject, &key, "next").await;
    late.enters().await;
    until("the lease ends", || async { late.looks().await.is_none() }).await;
    for _ in 0..2 {
        assert_eq!(late.renew().await, Renewal::Gone { taken_over: false });
        assert_eq!(late.looks().await, None);
    }
    let grant = next.enters().await;
    let longest = late.clone().with_ttl(Ttl::MAX.as_duration());
    assert_eq!(longest.renew().await, Renewal::Gone { taken_over: true });
    let held = next.sees().await.holder.expect("a holder");
    assert_eq!((held.owner, held.token), (next.claim.owner, grant.token));
    assert!(
        held.remaining <= grant.ttl.as_duration(),
        "{:?}",
        held.remaining
    );
    next.leaves().await;
    assert_eq!(late.renew().await, Renewal::Gone { taken_over: false });
    assert_eq!(late.looks().await, None);
}

/// A lease that nobody looks at ends all the same: whatever comes first afterwards finds it gone.
/// Clauses 4, 5 and 7; A5, A6, A27, B12, B81.
pub async fn an_unwatched_lease_ends_as_well(subject: &dyn Subject) {
    let handle = subject.open().await;
    let abandon = || async {
        let actor = Actor::on(&handle, &key("unwatched"), "actor").with_ttl(SHORT);
        let grant = actor.enters().await;
        (actor, grant)
    };
    let abandoned = join_all((0..9).map(|_| abandon())).await;
    let ttl = abandoned[0].1.ttl.as_duration();
    tokio::time::sleep(ttl * 3 / 2).await;
    let mut abandoned = abandoned.into_iter();
    let mut next = || abandoned.next().expect("one for each verb");

    let (late, _) = next();
    assert_eq!(late.renew().await, Renewal::Gone { taken_over: false });
    let (late, _) = next();
    let renewals = handle.renew_all(std::slice::from_ref(&late.claim)).await;
    assert!(
        matches!(renewals[..], [Ok(Renewal::Gone { taken_over: false })]),
        "{renewals:?}"
    );
    let (late, _) = next();
    assert_eq!(late.release().await, Release::NotHeld);
    let (late, _) = next();
    assert_eq!(late.looks().await, None);
    let (late, _) = next();
    let listed = handle.list(late.claim.key.as_str(), Page::default()).await;
    assert_eq!(listed.expect("a list").locks, []);
    let (late, _) = next();
    assert!(!late.force(None).await, "there is no grant to end");
    let (late, old) = next();
    assert!(late.rival("rival").enters().await.token > old.token);
    // The same hold, or another one of the owner: a new grant, not a re-entry.
    let (late, old) = next();
    let new = late.clone().with_ttl(LONG).enters().await;
    assert!(
        new.token > old.token && new.holds == 1,
        "{new:?} after {old:?}"
    );
    let (late, old) = next();
    let new = late.second_hold("second").enters().await;
    assert!(
        new.token > old.token && new.holds == 1,
        "{new:?} after {old:?}"
    );
    assert_eq!(late.release().await, Release::NotHeld);
}

/// A renewal at the very end of the lease either holds for a whole ttl or is gone; never both.
/// Clauses 1, 5 and 7; A7.
pub async fn a_renewal_that_races_the_end_is_decided_once(subject: &dyn Subject) {
    let handles = join_all((0..3).map(|_| subject.open())).await;
    let mut rounds = JoinSet::new();
    for round in 0..24 {
        let handles = handles.clone();
        rounds.spawn(async move {
            let key = key("race");
            let holder = Actor::on(&handles[0], &key, "holder").with_ttl(SHORT);
            let rival = Actor::on(&handles[1], &key, "rival");
            let sent = Instant::now();
            let ttl = holder.enters().await.ttl;
            let racing = async {
                // From a little before the end to a little after it.
                let at =
                    ttl.as_duration() + Duration::from_millis(round) - Duration::from_millis(12);
                tokio::time::sleep(at.saturating_sub(sent.elapsed())).await;
                (Instant::now(), holder.renew().await)
            };
            let entering = async { rival.keeps_trying().await };
            let ((renewed, renewal), grant) = tokio::join!(racing, entering);
            match renewal {
                Renewal::Renewed { ttl } => assert_not_early(renewed, ttl),
                Renewal::Gone { .. } => assert_not_early(sent, ttl),
            }
            let seen = Actor::on(&handles[2], &key, "witness").sees().await;
            let held = seen.holder.expect("a holder");
            assert_eq!((held.owner, held.token), (rival.claim.owner, grant.token));
            assert_eq!(holder.renew().await, Renewal::Gone { taken_over: true });
        });
    }
    rounds.join_all().await;
}

/// A batch answers each claim in its place, as single renewals would. Clauses 2, 5 and 7; A7, A8.
pub async fn renewals_in_a_batch_are_answered_in_order(subject: &dyn Subject) {
    let handle = subject.open().await;
    assert!(handle.renew_all(&[]).await.is_empty());
    let mut actors = Vec::new();
    let mut expected = Vec::new();
    for place in 0..40 {
        let actor = Actor::on(&handle, &key("batch"), "actor");
        match place % 4 {
            // Held, and a second hold of it in the same batch.
            0 => {
                let second = actor.second_hold("second");
                actor.enters().await;
                second.enters().await;
                actors.push(second);
                expected.push(None);
                expected.push(None);
            }
            1 => expected.push(Some(false)),
            2 => {
                actor.rival("rival").enters().await;
                expected.push(Some(true));
            }
            _ => {
                actor.second_hold("first").enters().await;
                expected.push(Some(false));
            }
        }
        actors.push(actor);
    }
    let claims: Vec<_> = actors.iter().map(|actor| actor.claim.clone()).collect();
    let answers = handle.renew_all(&claims).await;
    assert_eq!(answers.len(), claims.len());
    for (place, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
        let gone = match answer {
            Ok(Renewal::Renewed { ttl }) => {
                assert!(*ttl >= claims[place].ttl);
                None
            }
            Ok(Renewal::Gone { taken_over }) => Some(*taken_over),
            Err(error) => panic!("renewal {place} failed: {error}"),
        };
        assert_eq!(gone, *expected, "the answer to renewal {place}");
    }
}
