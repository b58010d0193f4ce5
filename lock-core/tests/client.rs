//! The client, its guards and the watchdog on the memory store.

use std::{sync::Arc, time::Duration};

use lock_core::{Error, LockClient, LostReason, MemoryLock, Wait};

const MS: Duration = Duration::from_millis(1);

fn client(store: &MemoryLock) -> LockClient {
    LockClient::new(Arc::new(store.handle()))
}

#[tokio::test]
async fn a_lock_is_kept_alive_and_freed() {
    let store = MemoryLock::new();
    let (a, b) = (client(&store), client(&store));
    let guard = a.lock("k").ttl(200 * MS).acquire().await.unwrap();
    tokio::time::sleep(1000 * MS).await;
    assert!(guard.is_held());
    let busy = b.try_acquire("k").await.unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    guard.release().await.unwrap();
    let other = b.try_acquire("k").await.unwrap();
    drop(other);
    let third = a.lock("k").wait(5000 * MS).acquire().await.unwrap();
    third.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_woken() {
    let store = MemoryLock::new();
    let (a, b) = (client(&store), client(&store));
    let guard = a.acquire("k").await.unwrap();
    let waiter = tokio::spawn(async move { b.lock("k").wait(Wait::Forever).acquire().await });
    while a.inspect("k").await.unwrap().unwrap().waiters.is_empty() {
        tokio::time::sleep(MS).await;
    }
    guard.release().await.unwrap();
    let got = waiter.await.unwrap().unwrap();
    assert!(got.attempts() == 2);
}

#[tokio::test]
async fn max_hold_ends_the_trust() {
    let store = MemoryLock::new();
    let a = client(&store);
    let guard = a
        .lock("k")
        .ttl(200 * MS)
        .max_hold(500 * MS)
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    drop(guard);
    let b = client(&store);
    drop(b.lock("k").wait(5000 * MS).acquire().await.unwrap());
    let report = a.shutdown().await;
    assert!(report.is_clean());
}
