//! Clauses 5, 6, 7 and 12 through a guard: it is renewed, it knows when it is lost, and it goes
//! wherever it is dropped.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{task::JoinSet, time::timeout};

use super::{
    PATIENCE, Subject,
    actor::{Actor, LONG, SHORT, Stalls, client, key, until},
    spy::Spy,
};
use crate::{Attempt, Error, FencingToken, Handoff, LockClient, LostReason, Outcome, RunError};

/// The watchdog keeps a lock for ten ttls, though the client it came from is gone; nobody else
/// gets in, and the release is in order. Clauses 5 and 6; A9, A10, B99.
pub async fn renewals_keep_a_lock_for_many_ttls(subject: &dyn Subject) {
    let key = key("ten-ttls");
    let rival = Actor::open(subject, &key, "rival").await;
    let stalls = Stalls::watch();
    let client = client(subject).await;
    let guard = client
        .lock(&key)
        .ttl(Duration::from_secs(1))
        .acquire()
        .await
        .expect("the lock");
    drop(client);
    let (start, token) = (Instant::now(), guard.token());
    while start.elapsed() < guard.ttl() * 10 && guard.is_held() {
        if let Attempt::Granted(grant) = rival.tries().await {
            assert!(!guard.is_held(), "two owners: {grant:?}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if stalls.longest() >= guard.ttl() / 2 {
        return renewals_stalled(guard).await;
    }
    assert!(guard.is_held(), "lost after {:?}", start.elapsed());
    assert_eq!(guard.token(), token);
    guard.release().await.expect("it was held");
    rival.enters().await;
}

/// The machine stood still for half a ttl: what remains to be checked is that it is noticed.
async fn renewals_stalled(guard: crate::LockGuard) {
    let held = guard.is_held();
    assert_eq!(guard.release().await.is_ok(), held);
}

/// Nobody else is granted the lock before its holder knows that it is lost. Clause 6; A11, B03,
/// B30, B99.
pub async fn a_lock_is_lost_before_anybody_else_gets_it(subject: &dyn Subject) {
    let client = client(subject).await;
    let rivals = subject.open().await;
    let mut rounds = JoinSet::new();
    for round in 0..12 {
        let (client, rivals) = (client.clone(), rivals.clone());
        rounds.spawn(async move {
            let key = key("lost-first");
            let ttl = SHORT + Duration::from_millis(25 * round);
            let acquire = client.lock(&key).ttl(ttl).manual_renewal();
            let guard = acquire.acquire().await.expect("the lock");
            let lost = async {
                let reason = guard.lost().await;
                (reason, Instant::now())
            };
            let rival = Actor::on(&rivals, &key, "rival");
            let taken = async {
                let grant = rival.keeps_trying().await;
                assert!(
                    !guard.is_held() && guard.valid_for().is_zero(),
                    "two owners"
                );
                grant
            };
            let ((reason, _), grant) = tokio::join!(lost, taken);
            assert_eq!(reason, LostReason::Expired);
            assert!(grant.token > guard.token());
            assert!(!guard.is_held(), "what is lost stays lost");
            let late = guard.release().await;
            assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
            rival.renews().await;
        });
    }
    rounds.join_all().await;
}

/// The local deadline counts from before the request, of an acquire and of a renewal, however
/// late the answer comes. Clause 6; A3, A7, B24, B91.
pub async fn the_deadline_counts_from_before_the_request(subject: &dyn Subject) {
    let spy = Spy::on(subject.open().await);
    let client = LockClient::new(spy.store());
    let key = key("deadline");
    let ttl = Duration::from_secs(20);
    spy.seen.answers_later(Duration::from_secs(2));
    let acquire = client.lock(&key).ttl(ttl).manual_renewal();
    let guard = acquire.acquire().await.expect("the lock");
    assert!(Instant::now() + guard.valid_for() < spy.seen.last() + guard.ttl());
    assert!(guard.is_held());
    spy.seen.answers_later(Duration::from_secs(1));
    guard.renew(ttl * 2).await.expect("it is held");
    assert!(guard.ttl() >= ttl * 2);
    assert!(Instant::now() + guard.valid_for() < spy.seen.last() + guard.ttl());
    assert!(guard.valid_for() > ttl, "the renewal counts");
    guard.release().await.expect("it was held");
}

/// A guard that is renewed by hand moves its own deadline and the store's, never back.
/// Clauses 5 and 6; B11, B76, B108.
pub async fn a_guard_renews_by_hand(subject: &dyn Subject) {
    let key = key("by-hand");
    let client = client(subject).await;
    let viewer = Actor::open(subject, &key, "viewer").await;
    let acquire = client.lock(&key).ttl(LONG).manual_renewal();
    let guard = acquire.acquire().await.expect("the lock");
    assert!(guard.valid_for() < LONG && guard.valid_for() > LONG / 2);
    guard.renew(LONG * 2).await.expect("it is held");
    let longer = guard.valid_for();
    assert!(longer > LONG && longer < LONG * 2);
    guard.renew(SHORT).await.expect("it is held");
    assert!(guard.valid_for() > LONG, "a lease is never shortened");
    guard.ensure(LONG).await.expect("it is held");
    guard.ensure(LONG * 3).await.expect("it is renewed");
    assert!(guard.valid_for() >= LONG * 3 - PATIENCE);
    let held = viewer.sees().await.holder.expect("a holder");
    assert!(held.remaining >= guard.valid_for());
    guard.release().await.expect("it was held");
}

/// A forced release is noticed by the next renewal, long before the lease would have ended.
/// Clauses 6 and 7; A43, B09, B51.
pub async fn a_forced_release_is_noticed(subject: &dyn Subject) {
    let key = key("noticed");
    let client = client(subject).await;
    let operator = Actor::open(subject, &key, "operator").await;
    // A loss at the deadline would have another reason.
    let ttl = Duration::from_secs(12);
    let guard = client
        .lock(&key)
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    let token = guard.token();
    assert!(operator.force(Some(token)).await);
    let reason = timeout(PATIENCE, guard.lost())
        .await
        .expect("it is noticed");
    assert_eq!(reason, LostReason::ForceReleased);
    assert!(!guard.is_held());
    let next = operator.enters().await;
    assert!(next.token > token);
    let late = guard.release().await;
    assert!(
        matches!(
            late,
            Err(Error::Lost {
                reason: LostReason::ForceReleased,
                ..
            })
        ),
        "{late:?}"
    );
    operator.renews().await;
}

/// A lock that somebody else took after a forced release is lost, and not touched any more.
/// Clauses 6 and 7; B47, B77, B96.
pub async fn a_taken_lock_is_left_alone(subject: &dyn Subject) {
    let key = key("taken");
    let client = client(subject).await;
    let next = Actor::open(subject, &key, "next").await;
    let ttl = Duration::from_secs(6);
    let guard = client
        .lock(&key)
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    assert!(next.force(None).await);
    let granted = next.enters().await.ttl.as_duration();
    let reason = timeout(PATIENCE, guard.lost())
        .await
        .expect("it is noticed");
    // The renewal may have come between the two.
    assert!(
        matches!(reason, LostReason::TakenOver | LostReason::ForceReleased),
        "{reason:?}"
    );
    drop(guard);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = next.sees().await.holder.expect("a holder");
    assert_eq!((held.owner, held.holds), (next.claim.owner, 1));
    assert!(held.remaining <= granted);
    next.rival("third").is_refused().await;
}

/// A hold ends at `max_hold`, also when its guard was leaked, and then others get in. Clauses 6
/// and 12; A25, B31, B77.
pub async fn max_hold_ends_a_hold(subject: &dyn Subject) {
    let client = client(subject).await;
    let rivals = subject.open().await;
    let limit = Duration::from_millis(1500);
    let acquire = |key| client.lock(key).ttl(Duration::from_secs(1)).max_hold(limit);
    let (watched, leaked) = (key("max-hold"), key("leaked"));
    let start = Instant::now();
    let guard = acquire(&watched).acquire().await.expect("the lock");
    std::mem::forget(acquire(&leaked).acquire().await.expect("the lock"));
    let reason = timeout(PATIENCE, guard.lost()).await.expect("it ends");
    assert_eq!(reason, LostReason::MaxHold);
    assert!(start.elapsed() >= limit, "lost after {:?}", start.elapsed());
    for key in [&watched, &leaked] {
        Actor::on(&rivals, key, "rival").keeps_trying().await;
        assert!(start.elapsed() >= limit, "free after {:?}", start.elapsed());
    }
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

/// A lock is held for its `min_hold`, whatever becomes of its guard, and not for its whole lease.
/// Clause 6.
pub async fn min_hold_outlasts_the_guard(subject: &dyn Subject) {
    let client = client(subject).await;
    let rivals = subject.open().await;
    let time = Duration::from_millis(1500);
    let acquire = |key| client.lock(key).ttl(LONG).min_hold(time);
    let (released, dropped, done) = (key("released"), key("dropped"), key("done"));
    let start = Instant::now();
    let guard = acquire(&released).acquire().await.expect("the lock");
    guard.release().await.expect("it was held");
    drop(acquire(&dropped).acquire().await.expect("the lock"));
    let outcome = acquire(&done).run_once(async |guard| guard.is_held()).await;
    assert_eq!(outcome.expect("it is done"), Outcome::Done(true));
    let again = acquire(&done).run_once(async |_| true).await;
    let is_skipped = matches!(again, Ok(Outcome::Skipped(_)));
    assert!(is_skipped || start.elapsed() >= time, "{again:?}");
    for key in [&released, &dropped] {
        Actor::on(&rivals, key, "rival").keeps_trying().await;
        assert!(start.elapsed() >= time, "free after {:?}", start.elapsed());
    }
}

/// Who has waited holds a lock for its `min_hold` by its lease alone, too. Clause 6.
pub async fn min_hold_is_leased_after_a_wait(subject: &dyn Subject) {
    let key = key("leased");
    let client = client(subject).await;
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let time = Duration::from_secs(600);
    let acquire = client.lock(&key).ttl(SHORT).min_hold(time).wait(PATIENCE);
    let waiting = tokio::spawn(acquire.acquire());
    until("it queues", || async {
        !holder.sees().await.waiters.is_empty()
    })
    .await;
    holder.leaves().await;
    let guard = waiting.await.expect("no panic").expect("its turn comes");
    assert!(guard.ttl() >= time, "{:?}", guard.ttl());
    drop(guard);
    drop(client);
    holder.is_refused().await;
    let remaining = holder.sees().await.holder.expect("a holder").remaining;
    assert!(remaining > time / 2, "{remaining:?}");
}

/// Work under a lock is stopped when the lock is lost, and its result is its own otherwise.
/// Clause 6; B10.
pub async fn work_stops_when_its_lock_is_lost(subject: &dyn Subject) {
    let key = key("work");
    let client = client(subject).await;
    let operator = Actor::open(subject, &key, "operator").await;
    let done = client.run(&key, async |guard| guard.token()).await;
    let token = done.expect("the work is done");
    assert_eq!(operator.looks().await, None);
    let acquire = client.lock(&key).ttl(Duration::from_secs(6));
    let stopped = acquire.run(async |guard| {
        assert!(guard.token() > token);
        assert!(operator.force(None).await);
        std::future::pending::<()>().await
    });
    let stopped = timeout(PATIENCE, stopped)
        .await
        .expect("the work is stopped");
    assert!(
        matches!(stopped, Err(RunError::Lost { finished: None, .. })),
        "{stopped:?}"
    );
    operator.enters().await;
}

/// A guard may go with a panic, an aborted task, a thread or a plain drop: the lock is released
/// long before its ttl. Clause 12; A21, B16, B31, B41, B125.
pub async fn a_dropped_guard_is_released(subject: &dyn Subject) {
    let client = client(subject).await;
    let viewers = subject.open().await;
    let keys: Vec<_> = (0..6).map(|_| key("dropped")).collect();
    let guards = join_all(keys.iter().map(|key| client.lock(key).ttl(LONG).acquire())).await;
    let mut guards = guards.into_iter().map(|guard| guard.expect("the lock"));
    let mut next = || guards.next().expect("a guard");

    drop(next());
    let panicking = next();
    let panicked = tokio::spawn(async move {
        let _held = panicking;
        std::panic::resume_unwind(Box::new("for the test"));
    });
    assert!(panicked.await.is_err());
    let aborted = next();
    let task = tokio::spawn(async move {
        let _held = aborted;
        std::future::pending::<()>().await
    });
    tokio::task::yield_now().await;
    task.abort();
    let moved = next();
    std::thread::spawn(move || drop(moved))
        .join()
        .expect("a thread without a runtime");
    let blocking = next();
    tokio::task::spawn_blocking(move || drop(blocking))
        .await
        .expect("a blocking task");
    let working = next();
    let work = async move {
        let _held = working;
        std::future::pending::<()>().await
    };
    assert!(timeout(Duration::from_millis(20), work).await.is_err());

    for key in &keys {
        Actor::on(&viewers, key, "next").keeps_trying().await;
    }
}

/// A guard whose runtime has ended is released by whoever drops it. Clause 12; A19, A20, B41.
pub async fn a_guard_outlives_its_runtime(subject: &dyn Subject) {
    let client = client(subject).await;
    let viewer = Actor::open(subject, &key("outlived"), "viewer").await;
    let name = viewer.claim.key.clone();
    let (send, receive) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let guard = runtime.block_on(client.lock(name).ttl(LONG).acquire());
        runtime.shutdown_background();
        send.send(()).ok();
        drop(guard.expect("the lock"));
        drop(client);
    });
    receive.await.expect("the lock is acquired");
    viewer.keeps_trying().await;
    thread.join().expect("no panic");
}

/// After a release or a drop no renewal is sent, nothing is reported lost, and the lock is free at
/// once. Clauses 6 and 7; B01, B58, B111.
pub async fn no_renewal_outlives_its_guard(subject: &dyn Subject) {
    let spy = Spy::on(subject.open().await);
    let client = LockClient::new(spy.store());
    let viewers = subject.open().await;
    let stalls = Stalls::watch();
    let ttl = Duration::from_secs(1);
    let mut rounds = JoinSet::new();
    for round in 0..40_u64 {
        let (client, viewers) = (client.clone(), viewers.clone());
        rounds.spawn(async move {
            let key = key("released");
            let guard = client
                .lock(&key)
                .ttl(ttl)
                .acquire()
                .await
                .expect("the lock");
            // Around the time of the first renewal.
            tokio::time::sleep(guard.ttl() / 4 + guard.ttl() / 200 * round as u32).await;
            let next = Actor::on(&viewers, &key, "next");
            if round % 2 == 0 {
                drop(guard);
                next.keeps_trying().await;
                Ok(())
            } else {
                let released = guard.release().await;
                if released.is_ok() {
                    next.enters().await;
                }
                released
            }
        });
    }
    let released = rounds.join_all().await;
    assert_eq!(client.held(), 0);
    let longest = viewers.capabilities().min_ttl.as_duration().max(ttl);
    for released in released {
        if stalls.longest() < longest / 2 {
            released.expect("a guard that is released in time is not lost");
        }
    }
    let before = spy.seen.renewals();
    tokio::time::sleep(longest).await;
    assert_eq!(spy.seen.renewals(), before, "a renewal without a guard");
}

/// A lock moves to another process: there it is renewed and released, here no longer. Clauses 3
/// and 7; B95.
pub async fn a_lock_is_handed_over(subject: &dyn Subject) {
    let key = key("handed-over");
    let spy = Spy::on(subject.open().await);
    let here = LockClient::new(spy.store());
    let there = client(subject).await;
    let rival = Actor::open(subject, &key, "rival").await;
    let guard = here
        .lock(&key)
        .ttl(Duration::from_secs(2))
        .acquire()
        .await
        .expect("the lock");
    let (token, owner) = (guard.token(), guard.owner());
    let handoff = guard.detach().expect("it is held once");
    assert_eq!((handoff.key(), handoff.token()), (&key, token));
    let attached = there.attach(&handoff, None).await.expect("it is held");
    assert_eq!((attached.token(), attached.owner()), (token, owner));
    let before = spy.seen.requests();
    tokio::time::sleep(attached.ttl() * 2).await;
    assert_eq!(spy.seen.requests(), before, "nothing more comes from here");
    rival.is_refused().await;
    let forged = Handoff {
        token: FencingToken::new(token.as_u64() + 1).expect("above zero"),
        ..handoff.clone()
    };
    let refused = there.attach(&forged, None).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    assert!(attached.is_held());
    attached.release().await.expect("it was held");

    let stale = there.attach(&handoff, None).await;
    assert!(matches!(stale, Err(Error::Lost { .. })), "{stale:?}");
    let next = rival.enters().await;
    let stale = there.attach(&handoff, None).await;
    assert!(
        matches!(
            stale,
            Err(Error::Lost {
                reason: LostReason::TakenOver,
                ..
            })
        ),
        "{stale:?}"
    );
    assert_eq!(
        rival.sees().await.holder.expect("a holder").token,
        next.token
    );
    rival.renews().await;
}

/// A lock that was lost is acquired again like any other: with a larger token, and renewed.
/// Clauses 4 and 6; A10, B02, B19.
pub async fn a_lost_lock_can_be_acquired_again(subject: &dyn Subject) {
    let key = key("again");
    let client = Arc::new(client(subject).await);
    let rival = Actor::open(subject, &key, "rival").await;
    let lost = client
        .lock(&key)
        .ttl(SHORT)
        .manual_renewal()
        .acquire()
        .await
        .expect("the lock");
    timeout(PATIENCE, lost.lost())
        .await
        .expect("the lease ends");
    let stalls = Stalls::watch();
    let again = client
        .lock(&key)
        .ttl(Duration::from_secs(1))
        .wait(PATIENCE)
        .acquire()
        .await;
    let again = again.expect("the lock is free");
    assert!(again.token() > lost.token());
    assert!(matches!(lost.release().await, Err(Error::Lost { .. })));
    tokio::time::sleep(again.ttl() * 3).await;
    if stalls.longest() < again.ttl() / 2 {
        rival.is_refused().await;
        assert!(again.is_held());
        again.release().await.expect("it was held");
    }
    until("it is free", || async { rival.looks().await.is_none() }).await;
}
