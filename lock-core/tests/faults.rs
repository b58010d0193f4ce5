//! What the client makes of a store that fails, on the memory store behind a faulty front.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{Fault, Faulty, MS, eventually, is_free};
use lock_core::{
    Error, LockClient, LostReason, MemoryLock, RunError, StoreError, StoreErrorKind, Wait,
};

fn setup() -> (MemoryLock, Faulty, LockClient) {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::builder(faulty.store())
        .operation_timeout(300 * MS)
        .build()
        .unwrap();
    (store, faulty, client)
}

fn rival(store: &MemoryLock) -> LockClient {
    LockClient::new(Arc::new(store.handle()))
}

fn store_error(error: &Error) -> &StoreError {
    error
        .store_error()
        .unwrap_or_else(|| panic!("not a store error: {error}"))
}

/// A1: applied, reply lost: an error that names the store, and the lock is free within a second
/// although its ttl is long. B04, B111.
#[tokio::test]
async fn a1_acquire_whose_reply_is_lost_leaves_nothing() {
    let (store, faulty, client) = setup();
    faulty.faults.acquire.set_for(1, Fault::Swallow);
    let error = client.try_acquire("k").await.unwrap_err();
    assert!(store_error(&error).is_transient());
    assert!(error.is_retryable());
    eventually("the late grant is undone", async || {
        is_free(&store, "k").await
    })
    .await;
}

/// A1, B07: within its wait the client repeats the same claim, which is one hold.
#[tokio::test]
async fn b07_acquire_is_repeated_and_counts_once() {
    let (store, faulty, client) = setup();
    faulty.faults.acquire.set_for(1, Fault::Swallow);
    let guard = client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    assert_eq!((guard.attempts(), guard.holds()), (2, 1));
    guard.release().await.unwrap();
    assert!(is_free(&store, "k").await);
}

/// A2: the request is applied after its caller gave up, and again after the lock was released.
#[tokio::test]
async fn a2_a_request_that_is_applied_late_is_undone() {
    let (store, faulty, client) = setup();
    faulty.faults.acquire.set_for(1, Fault::Delayed(700 * MS));
    let error = client
        .lock("k")
        .ttl(60_000 * MS)
        .try_acquire()
        .await
        .unwrap_err();
    store_error(&error);
    let info = async || store_holder(&store).await.is_some();
    eventually("the late request is applied", info).await;
    eventually("the late grant is undone", async || {
        is_free(&store, "k").await
    })
    .await;

    // The second attempt is granted before the first is applied, and released at once.
    faulty.faults.acquire.set_for(1, Fault::Delayed(900 * MS));
    let guard = client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
    assert!(is_free(&store, "k").await);
    eventually("the stray request is applied", info).await;
    eventually("the stray grant is undone", async || {
        is_free(&store, "k").await
    })
    .await;
}

async fn store_holder(store: &MemoryLock) -> Option<lock_core::Holder> {
    use lock_core::DistributedLock;
    let key = "k".parse().unwrap();
    store
        .inspect(&key)
        .await
        .unwrap()
        .and_then(|info| info.holder)
}

/// A3, B91: the answer comes when the lease has run out: no guard is made of it.
#[tokio::test]
async fn a3_an_answer_after_the_ttl_is_not_a_grant() {
    let (store, faulty, client) = setup();
    faulty.faults.acquire.set_for(1, Fault::Late(200 * MS));
    let error = client
        .lock("k")
        .ttl(100 * MS)
        .try_acquire()
        .await
        .unwrap_err();
    assert!(store_error(&error).is_transient(), "{error}");
    eventually("nothing is left", async || is_free(&store, "k").await).await;

    faulty.faults.acquire.set_for(1, Fault::Late(200 * MS));
    let guard = client
        .lock("k")
        .ttl(100 * MS)
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    assert!(guard.is_held());
}

/// A4: the reply of a release is lost; the repetitions never touch the next holder.
#[tokio::test]
async fn a4_release_whose_reply_is_lost_is_repeated_harmlessly() {
    let (store, faulty, client) = setup();
    let guard = client.acquire("k").await.unwrap();
    faulty.faults.release.set_for(2, Fault::Swallow);
    let rival = rival(&store);
    let waiting = tokio::spawn(async move { rival.acquire("k").await });
    let error = guard.release().await.unwrap_err();
    assert!(store_error(&error).is_transient());
    let theirs = waiting.await.unwrap().unwrap();
    eventually("the release is repeated", async || {
        faulty.faults.release.calls() >= 3
    })
    .await;
    assert!(theirs.is_held());
    assert_eq!(store_holder(&store).await.unwrap().token, theirs.token());
}

/// B18, B103: a release that the store refuses is an error of its kind, renewal has stopped, and
/// the client goes on releasing until it is done.
#[tokio::test]
async fn b18_a_refused_release_is_retried_in_the_background() {
    let (store, faulty, client) = setup();
    let guard = client.lock("k").ttl(10_000 * MS).acquire().await.unwrap();
    faulty.faults.release.set_for(3, Fault::Refuse);
    let error = guard.release().await.unwrap_err();
    assert_eq!(store_error(&error).kind(), StoreErrorKind::Transient);
    assert!(error.to_string().contains("release lock k"), "{error}");
    eventually("released in the end", async || is_free(&store, "k").await).await;
    assert_eq!(faulty.faults.renew.calls(), 0);
}

/// A8, B03, B30: renewals are applied but their replies lost: the deadline does not move, `lost`
/// fires by the local clock, and the late release does not touch the next holder.
#[tokio::test]
async fn a8_unanswered_renewals_end_in_unreachable() {
    let (store, faulty, client) = setup();
    let guard = client.lock("k").ttl(600 * MS).acquire().await.unwrap();
    faulty.faults.renew.set(Fault::Hang);
    guard.expiring().await;
    assert!(guard.is_held(), "expiring comes before lost");
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    assert!(!guard.is_held());
    let theirs = rival(&store)
        .lock("k")
        .wait(20_000 * MS)
        .acquire()
        .await
        .unwrap();
    assert!(theirs.token() > guard.token());
    let error = guard.release().await.unwrap_err();
    assert!(matches!(
        error,
        Error::Lost {
            reason: LostReason::Unreachable,
            ..
        }
    ));
    assert!(theirs.is_held());
    assert_eq!(store_holder(&store).await.unwrap().token, theirs.token());
}

/// A9, B47: one failed renewal, or a few, are retried inside what is left of the lease.
#[tokio::test]
async fn a9_failed_renewals_are_retried() {
    let (_store, faulty, client) = setup();
    let guard = client.lock("k").ttl(1000 * MS).acquire().await.unwrap();
    for fault in [Fault::Refuse, Fault::Hang, Fault::Panic, Fault::Forbid] {
        let before = faulty.faults.renew.calls();
        faulty.faults.renew.set_for(1, fault);
        eventually("renewed after it", async || {
            faulty.faults.renew.calls() > before + 2
        })
        .await;
        assert!(guard.is_held(), "{fault:?}");
    }
    guard.release().await.unwrap();
}

/// A10, B02: after a loss the same key is renewed like any other.
#[tokio::test]
async fn b02_a_lock_that_was_lost_is_renewed_when_acquired_again() {
    let (store, faulty, client) = setup();
    let first = client.lock("k").ttl(300 * MS).acquire().await.unwrap();
    faulty.faults.renew.set(Fault::Refuse);
    first.lost().await;
    faulty.faults.renew.set(Fault::None);
    let second = client
        .lock("k")
        .ttl(300 * MS)
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    let calls = faulty.faults.renew.calls();
    eventually("renewed ten times", async || {
        faulty.faults.renew.calls() > calls + 10
    })
    .await;
    assert!(second.is_held());
    drop(first);
    assert!(second.is_held());
    assert_eq!(store_holder(&store).await.unwrap().token, second.token());
    second.release().await.unwrap();
}

/// B47 (c): a definite "no" ends it after that one answer, and nothing more is sent.
#[tokio::test]
async fn b47_a_renewal_that_finds_nothing_is_the_last() {
    let (store, faulty, client) = setup();
    let guard = client.lock("k").ttl(300 * MS).acquire().await.unwrap();
    assert!(rival(&store).force_release("k", None).await.unwrap());
    assert_eq!(guard.lost().await, LostReason::ForceReleased);
    let calls = faulty.faults.renew.calls();
    tokio::time::sleep(500 * MS).await;
    assert_eq!(faulty.faults.renew.calls(), calls);
    let releases = faulty.faults.release.calls();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert_eq!(
        faulty.faults.release.calls(),
        releases,
        "nothing is there to release"
    );
}

/// B09, B134: a panic in the store's renewal kills neither the process nor the other guards.
#[tokio::test]
async fn b134_a_panic_in_a_renewal_stays_with_its_lock() {
    let (_store, faulty, client) = setup();
    let poisoned = client
        .lock("poisoned")
        .ttl(400 * MS)
        .acquire()
        .await
        .unwrap();
    let healthy = client
        .lock("healthy")
        .ttl(400 * MS)
        .acquire()
        .await
        .unwrap();
    *faulty.faults.poisoned.lock() = Some(poisoned.key().clone());
    assert_eq!(poisoned.lost().await, LostReason::Unreachable);
    let calls = faulty.faults.renew.calls();
    eventually("the other goes on", async || {
        faulty.faults.renew.calls() > calls + 5
    })
    .await;
    assert!(healthy.is_held());
}

/// A36: the watchdog's handle hangs for ever: it is replaced before the lease is over.
#[tokio::test]
async fn a36_a_dead_handle_is_replaced_in_time() {
    let (_store, faulty, client) = setup();
    let guard = client.lock("k").ttl(1500 * MS).acquire().await.unwrap();
    eventually("it renews", async || faulty.faults.renew.calls() > 0).await;
    let handles = faulty.faults.dedicated.calls();
    faulty.faults.renew.set_for(1, Fault::Hang);
    eventually("a new handle", async || {
        faulty.faults.dedicated.calls() > handles
    })
    .await;
    eventually("it renews again", async || guard.valid_for() > 1200 * MS).await;
    assert!(guard.is_held());
}

/// B10: work that outlives its lease keeps its own result, and no time goes into releasing.
#[tokio::test]
async fn b10_the_result_of_work_that_came_too_late_is_kept() {
    let (_store, faulty, client) = setup();
    faulty.faults.release.set(Fault::Hang);
    let outcome = client
        .lock("k")
        .ttl(100 * MS)
        .manual_renewal()
        .run(async |_| {
            std::thread::sleep(200 * MS);
            Err::<(), _>("business")
        })
        .await;
    let Err(RunError::Lost {
        finished, reason, ..
    }) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(finished, Some(Err("business")));
    assert_eq!(reason, LostReason::Expired);
}

/// B10: work that waits is stopped when the lock is lost.
#[tokio::test]
async fn b10_work_is_stopped_when_the_lock_is_lost() {
    let (_store, _faulty, client) = setup();
    let outcome = client
        .lock("k")
        .ttl(100 * MS)
        .manual_renewal()
        .run(async |_| std::future::pending::<()>().await)
        .await;
    assert!(
        matches!(outcome, Err(RunError::Lost { finished: None, .. })),
        "{outcome:?}"
    );
}

/// B14: busy, unreachable and refused are different errors, each at its time.
#[tokio::test]
async fn b14_kinds_of_failure_stay_apart() {
    let (store, faulty, client) = setup();
    let held = rival(&store).acquire("k").await.unwrap();
    let busy = client.try_acquire("k").await.unwrap_err();
    assert!(matches!(&busy, Error::Busy { busy, .. } if busy.holder.is_some()));
    let timeout = client.lock("k").wait(50 * MS).acquire().await.unwrap_err();
    let Error::Timeout {
        waited,
        busy: Some(seen),
        ..
    } = &timeout
    else {
        panic!("{timeout:?}");
    };
    assert!(*waited >= 50 * MS);
    assert_eq!(seen.holder.as_ref().unwrap().token, held.token());

    faulty.faults.acquire.set(Fault::Refuse);
    let down = client
        .lock("other")
        .wait(50 * MS)
        .acquire()
        .await
        .unwrap_err();
    assert!(store_error(&down).is_transient() && down.is_retryable());

    faulty.faults.acquire.set(Fault::Forbid);
    let start = Instant::now();
    let refused = client
        .lock("other")
        .wait(60_000 * MS)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(store_error(&refused).kind(), StoreErrorKind::Permanent);
    assert!(!refused.is_retryable());
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "it does not wait for a refusal to pass"
    );
}

/// A35: an outage is met with capped, jittered attempts, not a storm.
#[tokio::test]
async fn a35_an_outage_is_no_storm() {
    let (_store, faulty, client) = setup();
    faulty.faults.acquire.set(Fault::Refuse);
    let error = client
        .lock("k")
        .wait(3000 * MS)
        .acquire()
        .await
        .unwrap_err();
    store_error(&error);
    let calls = faulty.faults.acquire.calls();
    assert!((3..=40).contains(&calls), "{calls} attempts in 3 s");
}

/// A33: wake-ups that mean nothing cost a bounded number of attempts and no safety.
#[tokio::test]
async fn a33_garbage_wake_ups_are_slowed_down() {
    let (store, faulty, client) = setup();
    let held = rival(&store).acquire("k").await.unwrap();
    faulty.faults.garbage_wakes.store(true, Ordering::SeqCst);
    let waiting = tokio::spawn(async move { client.acquire("k").await });
    tokio::time::sleep(1000 * MS).await;
    let attempts = faulty.faults.acquire.calls();
    assert!(attempts < 300, "{attempts} attempts in a second");
    assert!(held.is_held() && !waiting.is_finished());
    held.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// B01, B58: release and drop stop the renewal first: none is sent afterwards, and a guard that
/// was released is never reported lost.
#[tokio::test]
async fn b01_no_renewal_outlives_its_guard() {
    let (store, faulty, client) = setup();
    for round in 0..300 {
        let guard = client
            .lock("k")
            .ttl(30 * MS)
            .wait(Wait::Forever)
            .acquire()
            .await
            .unwrap();
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_micros(9_700 + round)).await;
        }
        if round % 2 == 0 {
            match guard.release().await {
                Ok(())
                | Err(Error::Lost {
                    reason: LostReason::Expired,
                    ..
                }) => {}
                Err(why) => panic!("{why}"),
            }
        } else {
            drop(guard);
        }
    }
    eventually("all is free", async || is_free(&store, "k").await).await;
    let calls = faulty.faults.renew.calls();
    tokio::time::sleep(150 * MS).await;
    assert_eq!(faulty.faults.renew.calls(), calls);
    assert_eq!(client.held(), 0);
}

/// B113: a shutdown releases everything and says what it could not.
#[tokio::test]
async fn b113_shutdown_releases_and_reports() {
    let (store, faulty, client) = setup();
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(client.acquire(format!("k{n}")).await.unwrap());
    }
    let waiting = {
        let held = rival(&store).acquire("theirs").await.unwrap();
        let client = client.clone();
        (
            held,
            tokio::spawn(async move { client.lock("theirs").wait(Wait::Forever).acquire().await }),
        )
    };
    faulty.faults.release.set_for(1, Fault::Refuse);
    let report = client.clone().shutdown().await;
    assert_eq!(
        (report.released, report.failed.len()),
        (49, 1),
        "{report:?}"
    );
    assert!(!report.is_clean());
    assert!(matches!(waiting.1.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(client.acquire("k").await, Err(Error::Closed)));
    for guard in guards {
        assert_eq!(guard.lost().await, LostReason::Closed);
        assert!(matches!(
            guard.release().await,
            Err(Error::Lost {
                reason: LostReason::Closed,
                ..
            })
        ));
    }
    assert!(waiting.0.is_held());
}

/// B57: a drain refuses new work, keeps the lock of the old one alive, and ends with it.
#[tokio::test]
async fn b57_drain_waits_for_work_under_way() {
    let (store, _faulty, client) = setup();
    let guard = client.lock("k").ttl(200 * MS).acquire().await.unwrap();
    let drain = tokio::spawn(client.clone().drain(20_000 * MS));
    eventually("closed for new work", async || {
        matches!(client.try_acquire("other").await, Err(Error::Closed))
    })
    .await;
    tokio::time::sleep(600 * MS).await;
    assert!(guard.is_held(), "renewed for three ttls of draining");
    assert!(matches!(
        rival(&store).try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
    assert!(drain.await.unwrap().is_clean());
    assert!(is_free(&store, "k").await);
}
