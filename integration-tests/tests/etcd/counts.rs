//! Many locks and many waiters: requests, revisions, watches.

use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::DistributedLock;
use tokio::time::{Instant, sleep};

use crate::support::*;

/// Clause 11 and the "Idle": a thousand held locks with a ttl of 30 s do not move the
/// revision, and cost their keep-alives; a thousand waiters on one key share few watches and
/// cost little.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_and_a_thousand_waiters_are_cheap() {
    const WAITERS: i64 = 1000;
    let cluster = EtcdCluster::one();
    let (holders, waiters) = (client(&cluster).await, client(&cluster).await);
    let held = join_all((0..1000).map(|n| holders.acquire(format!("held {n}")))).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let busy = holders.acquire("busy").await.unwrap();
    let rate = async |time: Duration| {
        let (before, begin) = (requests(&cluster), Instant::now());
        sleep(time).await;
        (requests(&cluster) - before) as f64 / begin.elapsed().as_secs_f64()
    };

    let (revision_before, renewed) = (revision(&cluster).await, keep_alives(&cluster));
    let holding = rate(ms(12_000)).await; // more than ttl / 3: all are renewed once
    assert!(keep_alives(&cluster) - renewed >= 1000);
    assert_eq!(revision(&cluster).await, revision_before);
    assert!(held.iter().all(|guard| guard.is_held()));
    assert!(holding <= 400.0, "{holding} requests a second");

    let waiting = (0..WAITERS).map(|_| {
        let waiters = waiters.clone();
        let wait = Duration::from_secs(300);
        tokio::spawn(async move { waiters.lock("busy").wait(wait).acquire().await })
    });
    let waiting: Vec<_> = waiting.collect();
    // Of the holders, of the busy lock, of those who wait for it.
    let end = Instant::now() + ms(120_000);
    while count(&cluster).await != 1000 + 1 + WAITERS {
        assert!(Instant::now() < end, "they are not in the queue");
        sleep(ms(100)).await;
    }
    let revision_before = revision(&cluster).await;
    let both = rate(ms(12_000)).await;
    assert_eq!(revision(&cluster).await, revision_before);
    assert!(
        both - holding <= 700.0,
        "{} requests a second",
        both - holding
    );
    let watchers = cluster.metric(0, "etcd_debugging_mvcc_watcher_total", &[]);
    let streams = cluster.metric(0, "etcd_debugging_mvcc_watch_stream_total", &[]);
    println!(
        "1,000 held: {holding:.0} requests/s; {WAITERS} waiting: {:.0} more; {watchers} watchers on {streams} streams",
        both - holding
    );
    assert!(streams <= 6.0, "{streams} streams");
    for task in waiting {
        task.abort();
    }
    drop((held, busy));
    for client in [holders, waiters] {
        let left = client.shutdown().await;
        assert!(left.is_clean(), "{left:?}");
    }
    eventually("no lease is left", async || {
        leases(&cluster).await.is_empty()
    })
    .await;
    assert!(keys(&cluster).await.is_empty());
}

/// A30, B128, and the "Contention": at most 6 requests a hand-over, for 16 waiters and
/// for 200.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_a_hand_over_costs_at_most_six_requests() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    for tasks in [16_usize, 200] {
        let rounds = 800 / tasks + 1;
        let warm = client.acquire("l").await.unwrap();
        let all = (0..tasks).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let lock = client.lock("l").wait(Duration::from_secs(120));
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        });
        let all: Vec<_> = all.collect();
        queued(&**client.store(), "l", tasks).await;
        let before = requests(&cluster);
        warm.release().await.unwrap();
        for task in all {
            task.await.unwrap();
        }
        let each = (requests(&cluster) - before) as f64 / (tasks * rounds) as f64;
        println!("{tasks} tasks: {each:.2} requests a hand-over");
        assert!(each <= 6.0, "{tasks} tasks: {each} requests a hand-over");
    }
}

/// An uncontended lock costs two requests, one transaction each.
#[tokio::test]
async fn an_uncontended_lock_costs_two_transactions() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let pair = async || {
        let claim = queuing("l");
        granted(&*store, &claim).await;
        store.release(&claim).await.unwrap();
    };
    for _ in 0..10 {
        pair().await;
    }
    eventually("the pool is full", async || {
        let before = requests(&cluster);
        sleep(ms(100)).await;
        requests(&cluster) == before
    })
    .await;
    let (requests_before, transactions) = (requests(&cluster), cluster.calls("Txn"));
    let moved = revision(&cluster).await;
    for _ in 0..20 {
        pair().await;
    }
    assert_eq!(revision(&cluster).await - moved, 40);
    assert_eq!(cluster.calls("Txn") - transactions, 40);
    let all = requests(&cluster) - requests_before;
    // Two to read the revision, and keep-alives of the leases in the pool that were just due.
    assert!(all <= 40 + 2 + 10, "{all} requests");
}

/// B20, B128: waiters are woken, and look seldom for themselves.
#[tokio::test]
async fn b20_waiters_do_not_poll() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let guard = client.acquire("l").await.unwrap();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.acquire("l").await.unwrap().release().await })
        })
        .collect();
    queued(&**client.store(), "l", 50).await;
    let before = requests(&cluster);
    sleep(ms(5000)).await;
    let rate = (requests(&cluster) - before) as f64 / 5.0;
    assert!(rate <= 50.0, "{rate} requests a second");
    guard.release().await.unwrap();
    for task in waiting {
        task.await.unwrap().unwrap();
    }
}
