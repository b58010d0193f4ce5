//! Waking up, and what waiting costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::DistributedLock;
use sqlx::Row;

use crate::support::*;

/// A22, A33: a waiter in another process learns of a release without asking again.
#[tokio::test]
async fn a_release_wakes_another_process() {
    let file = File::new();
    let store = file.store().await;
    let mut times = Vec::new();
    for _ in 0..5 {
        let holder = claim("k", 600_000);
        granted(&store, &holder).await;
        let mut waiter = file.worker(&["hold", "k", "600000"]);
        until_waiters(&store, &holder.key, 1).await;
        // The client's own timer is at least 2 s away.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        store.release(&holder).await.unwrap();
        waiter.says();
        times.push(start.elapsed());
        waiter.go_on();
        waiter.ends_well();
    }
    times.sort_unstable();
    println!("release to grant in another process: {times:?}");
    assert!(times[0] < Duration::from_millis(500), "{times:?}");
}

/// A future that waits and is not polled any more does not keep the others from being woken.
#[tokio::test]
async fn a_waiter_that_is_not_polled_holds_up_nobody() {
    let file = File::new();
    let (store, other) = (file.store().await, file.store().await);
    let (idle, live) = (claim("idle", 600_000), claim("live", 600_000));
    granted(&store, &idle).await;
    granted(&store, &live).await;
    let idle_waiter = queued("idle", 600_000);
    let why = busy(&store, &idle_waiter).await;
    let mut not_polled = Box::pin(store.wait(&idle_waiter, &why));
    let polled_once = tokio::time::timeout(Duration::from_millis(100), &mut not_polled).await;
    assert!(polled_once.is_err());
    let waiter = queued("live", 600_000);
    let (grant, ()) = tokio::join!(acquire(&other, &waiter), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // By a program that tells nobody.
        let mut stranger = file.stranger().await;
        sqlx::query("UPDATE locks SET owner = NULL, holds = '', expires = 0 WHERE key = 'live'")
            .execute(&mut stranger)
            .await
            .unwrap();
    });
    assert_eq!(grant.holds, 1);
    drop(not_polled);
}

/// B20, A30: fifty waiters keep their places for longer than a sign of life lasts, with two
/// writes a second for all of them.
#[tokio::test]
async fn waiting_costs_next_to_nothing() {
    const WAITERS: usize = 50;
    let file = File::new();
    let store = Arc::new(file.store().await);
    let holder = claim("k", 600_000);
    granted(&*store, &holder).await;
    let mut waiting = tokio::task::JoinSet::new();
    let mut order = Vec::new();
    for place in 1..=WAITERS {
        let (store, waiter) = (store.clone(), queued("k", 600_000));
        order.push(waiter.owner);
        waiting.spawn(async move { acquire(&*store, &waiter).await });
        until_waiters(&file.store().await, &holder.key, place).await;
    }
    let mut stranger = file.stranger().await;
    let (start, mut writes, mut last) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(4500) {
        let version = sqlx::query("PRAGMA data_version")
            .fetch_one(&mut stranger)
            .await
            .unwrap();
        let version: i64 = version.get(0);
        writes += u32::from(version != last);
        last = version;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(writes > 3, "nobody gives a sign of life");
    assert!(writes < 20, "{writes} writes");
    let waiters = store.inspect(&holder.key).await.unwrap().unwrap().waiters;
    assert!(waiters.iter().map(|waiter| waiter.owner).eq(order));
    waiting.shutdown().await;
}
