//! Jobs that many instances start at once: done once, whatever becomes of who does them.

#![allow(clippy::unwrap_used)]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Fault, Faulty, MS, eventually, is_free};
use lock_core::{Error, LockClient, LostReason, ManualClock, MemoryLock, Outcome, RunError};

const TICK: Duration = Duration::from_secs(60);
const SKEW: Duration = Duration::from_secs(20);

fn setup() -> (ManualClock, MemoryLock) {
    let clock = ManualClock::new();
    let store = MemoryLock::with_clock(Arc::new(clock.clone()));
    (clock, store)
}

/// An instance of the application; all have the time of the test.
fn instance(clock: &ManualClock, store: &MemoryLock) -> LockClient {
    LockClient::builder(Arc::new(store.handle()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap()
}

/// Whether the instance does the job at its tick.
async fn ticks(instance: &LockClient) -> bool {
    let job = instance.lock("job").min_hold(SKEW);
    match job.run_once(async |_| ()).await.unwrap() {
        Outcome::Done(()) => true,
        Outcome::Skipped(busy) => {
            assert!(busy.holder.is_some());
            false
        }
    }
}

/// A fast job, and clocks that differ: each tick is done by one instance, and the next tick too.
#[tokio::test]
async fn a_fast_job_is_done_once_a_tick() {
    let (clock, store) = setup();
    let [early, punctual, late] = [(); 3].map(|()| instance(&clock, &store));
    for _ in 0..5 {
        assert!(ticks(&early).await);
        clock.advance(SKEW / 2);
        assert!(!ticks(&punctual).await);
        clock.advance(SKEW / 2 - MS);
        assert!(!ticks(&late).await);
        clock.advance(TICK - SKEW + MS);
        // The watchdog releases in the background; the lease of 30 s is over by now, too.
        eventually("it is free", async || is_free(&store, "job").await).await;
    }
}

/// A job that takes longer than `min_hold` is released when it is done.
#[tokio::test]
async fn a_long_job_is_released_at_its_end() {
    let (clock, store) = setup();
    let instance = instance(&clock, &store);
    let job = instance.lock("job").ttl(2 * TICK).min_hold(SKEW);
    let done = job.run_once(async |_| clock.advance(SKEW)).await;
    assert_eq!(done.unwrap(), Outcome::Done(()));
    assert!(is_free(&store, "job").await);
}

/// Panicked, dropped, lost: it is held all the same, and released when the time has come.
#[tokio::test]
async fn a_job_that_does_not_end_well_is_not_done_again() {
    let (clock, store) = setup();
    let first = instance(&clock, &store);
    let job = || first.lock("job").ttl(2 * TICK).min_hold(SKEW);

    let panicking = job();
    let panicked = tokio::spawn(async move {
        let _ = panicking.run_once(async |_| panic!("on purpose")).await;
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert!(!ticks(&first).await);
    clock.advance(SKEW);
    eventually("it is free", async || is_free(&store, "job").await).await;

    let mut endless = Box::pin(job().run_once(async |_| std::future::pending::<()>().await));
    let polled = futures_util::poll!(&mut endless);
    assert!(polled.is_pending());
    drop(endless);
    assert!(!ticks(&first).await);
    clock.advance(SKEW);
    eventually("it is free", async || is_free(&store, "job").await).await;
}

/// Whatever becomes of the client, the lock is held by its lease.
#[tokio::test]
async fn a_client_that_ends_leaves_the_lock_to_its_lease() {
    let (clock, store) = setup();
    let (first, other) = (instance(&clock, &store), instance(&clock, &store));
    assert!(ticks(&first).await);
    let report = first.shutdown().await;
    assert!(report.is_clean(), "{report:?}");
    clock.advance(SKEW - MS);
    assert!(!ticks(&other).await);
    clock.advance(TICK);

    let third = instance(&clock, &store);
    let guard = third.lock("job").min_hold(SKEW).acquire().await.unwrap();
    let report = third.shutdown().await;
    assert_eq!((report.kept, report.released), (1, 0), "{report:?}");
    assert_eq!(guard.lost().await, LostReason::Closed);
    drop(guard);
    assert!(!ticks(&other).await);
}

/// A forced release ends it, as it ends every hold.
#[tokio::test]
async fn an_operator_may_end_it() {
    let (clock, store) = setup();
    let instance = instance(&clock, &store);
    assert!(ticks(&instance).await);
    assert!(instance.force_release("job", None).await.unwrap());
    assert!(ticks(&instance).await);
}

/// A store that fails is no reason to skip: that is an error.
#[tokio::test]
async fn a_store_that_fails_is_an_error() {
    let faulty = Faulty::new(&MemoryLock::new());
    faulty.faults.acquire.set(Fault::Forbid);
    let client = LockClient::new(faulty.store());
    let job = client.lock("job").min_hold(SKEW);
    let failed = job.run_once(async |_| ()).await;
    assert!(
        matches!(failed, Err(RunError::NotAcquired(Error::Store { .. }))),
        "{failed:?}"
    );
}
