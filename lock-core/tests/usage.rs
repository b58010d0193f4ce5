//! How applications use locks, rightly and wrongly, on the memory store.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{Fault, Faulty, MS, eventually, is_free};
use lock_core::{Error, FencingToken, LockClient, LostReason, MemoryLock, OwnerId, Wait};
use parking_lot::Mutex;
use tokio::time::timeout;

fn client(store: &MemoryLock) -> LockClient {
    LockClient::new(Arc::new(store.handle()))
}

/// B16: a guard may be moved to other tasks and threads, renewed all the while, and released
/// there.
#[tokio::test]
async fn b16_a_guard_moves_between_tasks_and_threads() {
    let store = MemoryLock::new();
    let client = client(&store);
    let guard = client.lock("k").ttl(200 * MS).acquire().await.unwrap();
    let guard = tokio::spawn(async move {
        tokio::time::sleep(500 * MS).await;
        guard
    })
    .await
    .unwrap();
    assert!(guard.is_held());
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || handle.block_on(guard.release()))
        .await
        .unwrap()
        .unwrap();
    assert!(is_free(&store, "k").await);
}

/// B125: work that is cut off by a time-out, by losing a race or by an abort frees its lock at
/// once, though its ttl is long.
#[tokio::test]
async fn b125_cancelled_work_frees_its_lock() {
    let store = MemoryLock::new();
    let client = client(&store);
    let work = |key: &'static str| {
        let client = client.clone();
        async move {
            let guard = client.lock(key).ttl(60_000 * MS).acquire().await.unwrap();
            std::future::pending::<()>().await;
            guard.release().await.unwrap();
        }
    };
    assert!(timeout(50 * MS, work("timeout")).await.is_err());
    tokio::select! {
        () = work("race") => {}
        () = tokio::time::sleep(50 * MS) => {}
    }
    let task = tokio::spawn(work("abort"));
    eventually("it is held", async || !is_free(&store, "abort").await).await;
    task.abort();
    let run = client.run("run", async |_| std::future::pending::<()>().await);
    assert!(timeout(50 * MS, run).await.is_err());
    for key in ["timeout", "race", "abort", "run"] {
        eventually(key, async || is_free(&store, key).await).await;
    }
}

/// B113, B125: a shutdown waits for what is being taken back, and no longer.
#[tokio::test]
async fn b113_shutdown_waits_for_withdrawals() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    faulty.faults.acquire.set_for(1, Fault::Swallow);
    let acquire = client.lock("k").ttl(60_000 * MS).acquire();
    assert!(timeout(50 * MS, acquire).await.is_err());
    let start = Instant::now();
    let report = client.shutdown().await;
    assert!(report.is_clean(), "{report:?}");
    assert!(is_free(&store, "k").await);
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "not the operation time-out"
    );
}

/// A21, B31: a task that panics with a guard frees the lock.
#[tokio::test]
async fn a21_a_panic_frees_the_lock() {
    let store = MemoryLock::new();
    let client = client(&store);
    let guard = client.acquire("k").await.unwrap();
    let task = tokio::spawn(async move {
        let _guard = guard;
        panic!("for the test");
    });
    assert!(task.await.unwrap_err().is_panic());
    eventually("released", async || is_free(&store, "k").await).await;
}

/// B19: a lease that ended leaves nothing locked in this process.
#[tokio::test]
async fn b19_nothing_local_outlives_a_lost_lock() {
    let store = MemoryLock::new();
    let client = client(&store);
    let owner = client.owner();
    let guard = owner
        .lock("k")
        .ttl(50 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    guard.lost().await;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    let other = client.lock("k").wait(20_000 * MS).acquire().await.unwrap();
    other.release().await.unwrap();
    let again = owner.lock("k").wait(20_000 * MS).acquire().await.unwrap();
    again.release().await.unwrap();
}

/// B99: a guard that is not renewed ends by the local clock, with the store up or down.
#[tokio::test]
async fn b99_validity_needs_no_store() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    for fault in [Fault::None, Fault::Hang] {
        let start = Instant::now();
        let guard = client
            .lock(format!("{fault:?}"))
            .ttl(400 * MS)
            .manual_renewal()
            .acquire()
            .await
            .unwrap();
        faulty.faults.renew.set(fault);
        faulty.faults.release.set(fault);
        while guard.is_held() {
            assert!(guard.valid_for() <= (400 * MS).saturating_sub(start.elapsed()) + 5 * MS);
            tokio::time::sleep(10 * MS).await;
        }
        assert_eq!(guard.lost().await, LostReason::Expired);
    }
}

/// B15, B79: the wait is bounded by itself and by nothing else.
#[tokio::test]
async fn b79_the_wait_is_the_wait() {
    let store = MemoryLock::new();
    let client = client(&store);
    let held = client.lock("k").ttl(300 * MS).acquire().await.unwrap();
    // Longer than several ttls of both sides, and then granted.
    let patient = {
        let client = client.clone();
        tokio::spawn(async move {
            client
                .lock("k")
                .ttl(200 * MS)
                .wait(60_000 * MS)
                .acquire()
                .await
        })
    };
    let start = Instant::now();
    let error = client
        .lock("k")
        .ttl(60_000 * MS)
        .wait(700 * MS)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(start.elapsed() >= 700 * MS);
    assert!(start.elapsed() < 20_000 * MS, "not the ttl");
    for none in [Wait::No, Wait::from(Duration::ZERO)] {
        let error = client.lock("k").wait(none).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
    }
    let waiting = client.inspect("k").await.unwrap().unwrap().waiters.len();
    assert_eq!(waiting, 1, "who gave up has left the queue");
    held.release().await.unwrap();
    patient.await.unwrap().unwrap().release().await.unwrap();
}

/// A34: a wait of a nanosecond is over after one attempt.
#[tokio::test]
async fn a34_the_shortest_wait_makes_one_attempt() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let held = client.acquire("k").await.unwrap();
    let calls = faulty.faults.acquire.calls();
    let wait = Duration::from_nanos(1);
    let error = client.lock("k").wait(wait).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(faulty.faults.acquire.calls(), calls + 1);
    held.release().await.unwrap();
    client
        .lock("k")
        .wait(wait)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// A42, B100: two tasks that nest the same locks in opposite order end by their wait, and
/// leave nothing behind.
#[tokio::test]
async fn a42_locks_nested_in_opposite_order_time_out() {
    let store = MemoryLock::new();
    let client = client(&store);
    let meet = Arc::new(tokio::sync::Barrier::new(2));
    let nest = |outer: &'static str, inner: &'static str| {
        let (client, meet) = (client.clone(), meet.clone());
        tokio::spawn(async move {
            let outer = client.acquire(outer).await.unwrap();
            meet.wait().await;
            let inner = client.lock(inner).wait(300 * MS).acquire().await;
            drop(outer);
            inner.map(drop)
        })
    };
    let (one, two) = (nest("a", "b"), nest("b", "a"));
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    assert!(one.is_err() || two.is_err());
    for failed in [one, two].into_iter().filter_map(Result::err) {
        assert!(matches!(failed, Error::Timeout { .. }), "{failed}");
    }
    for key in ["a", "b"] {
        eventually(key, async || is_free(&store, key).await).await;
    }
}

/// B17, B92: tasks of one thread and one client are strangers unless they share an owner.
#[tokio::test(flavor = "current_thread")]
async fn b17_identity_is_explicit() {
    let store = MemoryLock::new();
    let client = client(&store);
    let late = client
        .lock("k")
        .ttl(50 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    late.lost().await;
    let holder = client.lock("k").wait(20_000 * MS).acquire().await.unwrap();
    assert!(matches!(late.release().await, Err(Error::Lost { .. })));
    assert!(holder.is_held());
    assert!(matches!(
        client.try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
    let stranger = client.owner();
    assert!(matches!(
        stranger.lock("k").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    // The same owner, handed on explicitly to another task.
    let same = client.owner_from(holder.owner());
    let entered = tokio::spawn(async move { same.lock("k").try_acquire().await });
    assert_eq!(entered.await.unwrap().unwrap().token(), holder.token());
}

/// A40: owners are random, never repeated.
#[test]
fn a40_owners_are_unique() {
    let ids: std::collections::HashSet<OwnerId> = (0..10_000).map(|_| OwnerId::random()).collect();
    assert_eq!(ids.len(), 10_000);
}

/// A table in a database whose transactions commit at their end.
#[derive(Default)]
struct Database {
    stock: Mutex<u32>,
    /// The largest token of each row, and whose it was.
    fence: Mutex<BTreeMap<&'static str, (FencingToken, OwnerId)>>,
}

impl Database {
    /// `UPDATE … WHERE token < $token OR token = $token AND owner = $owner`.
    fn write(&self, row: &'static str, token: FencingToken, owner: OwnerId) -> bool {
        let mut fence = self.fence.lock();
        let last = fence.entry(row).or_insert((token, owner));
        let allowed = token > last.0 || (token, owner) == *last;
        if allowed {
            *last = (token, owner);
        }
        allowed
    }
}

/// B122: with the lock around the transaction, whoever comes next reads what was committed.
#[tokio::test]
async fn b122_the_lock_is_outside_the_transaction() {
    let store = MemoryLock::new();
    let client = client(&store);
    let database = Arc::new(Database::default());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (client, database) = (client.clone(), database.clone());
            tokio::spawn(async move {
                let transaction = async |_: &_| {
                    let seen = *database.stock.lock();
                    tokio::time::sleep(5 * MS).await;
                    *database.stock.lock() = seen + 1; // the commit
                };
                client
                    .lock("stock")
                    .wait(Wait::Forever)
                    .run(transaction)
                    .await
                    .unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*database.stock.lock(), 20);
}

/// A12, A13, B30: a resource that remembers the last token and its owner refuses a late writer,
/// and a stranger with the same token.
#[tokio::test]
async fn a12_a_fenced_resource_refuses_a_late_writer() {
    let store = MemoryLock::new();
    let client = client(&store);
    let database = Database::default();
    let late = client
        .lock("k")
        .ttl(50 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    assert!(database.write("row", late.token(), late.owner()));
    late.lost().await;
    let next = client.lock("k").wait(20_000 * MS).acquire().await.unwrap();
    assert!(database.write("row", next.token(), next.owner()));
    assert!(!database.write("row", late.token(), late.owner()));
    assert!(!database.write("row", next.token(), OwnerId::random()));
    assert!(database.write("row", next.token(), next.owner()));
}
