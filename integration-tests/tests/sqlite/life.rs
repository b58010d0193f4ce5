//! The life of one lock: granted, entered again, renewed, released, lost.

use std::time::Duration;

use lock_core::{
    Claim, DistributedLock, Error, HoldId, LockKey, Page, Release, Renewal, StoreErrorKind,
};
use sqlx::Row;

use crate::support::*;

#[tokio::test]
async fn the_life_of_a_lock() {
    let file = File::new();
    let store = file.store().await;
    let first = claim("orders/42", 30_000);
    let grant = granted(&store, &first).await;
    assert_eq!(grant.holds, 1);
    assert_eq!(granted(&store, &first).await, grant);
    let inner = Claim {
        hold: HoldId::random(),
        ..first.clone()
    };
    let again = granted(&store, &inner).await;
    assert_eq!((again.token, again.holds), (grant.token, 2));

    let other = claim("orders/42", 30_000);
    let why = busy(&store, &other).await;
    let holder = why.holder.expect("a holder");
    assert_eq!((holder.owner, holder.holds), (first.owner, 2));
    assert_eq!((why.position, why.queued), (None, 0));
    assert!(why.remaining > Duration::from_secs(20));

    assert_eq!(
        store.renew(&first).await.unwrap(),
        Renewal::Renewed { ttl: first.ttl }
    );
    assert_eq!(
        store.renew(&other).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
    assert_eq!(store.release(&other).await.unwrap(), Release::NotHeld);
    assert_eq!(
        store.release(&first).await.unwrap(),
        Release::Released { holds: 1 }
    );
    assert_eq!(store.release(&first).await.unwrap(), Release::NotHeld);
    assert_eq!(
        store.release(&inner).await.unwrap(),
        Release::Released { holds: 0 }
    );
    assert_eq!(store.inspect(&first.key).await.unwrap(), None);
    assert_eq!(
        store.renew(&first).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    assert!(granted(&store, &other).await.token > grant.token);
}

#[tokio::test]
async fn waiters_are_served_in_order() {
    let file = File::new();
    let store = file.store().await;
    let holder = claim("k", 30_000);
    let first = queued("k", 30_000);
    let second = queued("k", 30_000);
    granted(&store, &holder).await;
    assert_eq!(busy(&store, &first).await.position, Some(1));
    let why = busy(&store, &second).await;
    assert_eq!((why.position, why.queued), (Some(2), 2));
    let (order, ()) = tokio::join!(
        async {
            let waits = [&second, &first].map(|claim| acquire(&store, claim));
            let [second_wait, first_wait] = waits;
            let second_wait = async {
                let grant = second_wait.await;
                (grant, std::time::Instant::now())
            };
            let first_wait = async {
                let grant = first_wait.await;
                let at = std::time::Instant::now();
                store.release(&first).await.unwrap();
                (grant, at)
            };
            tokio::join!(first_wait, second_wait)
        },
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.release(&holder).await.unwrap();
            // Free, but it is the first waiter's turn.
            let barger = claim("k", 1000);
            busy(&store, &barger).await;
        }
    );
    assert!(order.0.1 < order.1.1);
    assert!(order.0.0.token < order.1.0.token);
    assert_eq!(
        store.inspect(&holder.key).await.unwrap().unwrap().waiters,
        []
    );
}

#[tokio::test]
async fn lists_exact_prefixes_in_pages() {
    let file = File::new();
    let store = file.store().await;
    for key in [
        "a",
        "ab",
        "a/b",
        "a%b",
        "a_b",
        "a*b",
        "A",
        "a[b",
        "é",
        "a\u{10FFFF}",
        "b",
    ] {
        granted(&store, &claim(key, 30_000)).await;
    }
    let keys = |page: lock_core::LockPage| -> Vec<String> {
        page.locks.iter().map(|l| l.key.to_string()).collect()
    };
    let all = store.list("a", Page::default()).await.unwrap();
    assert_eq!(
        keys(all),
        ["a", "a%b", "a*b", "a/b", "a[b", "a_b", "ab", "a\u{10FFFF}"]
    );
    for prefix in ["a%", "a_", "a*", "a[", "A", "é"] {
        let page = store.list(prefix, Page::default()).await.unwrap();
        assert_eq!(page.locks.len(), 1, "{prefix}");
    }
    let mut seen = Vec::new();
    let mut page = Page {
        limit: 3,
        cursor: None,
    };
    loop {
        let found = store.list("", page.clone()).await.unwrap();
        assert!(found.locks.len() <= 3);
        page.cursor = found.next.clone();
        seen.extend(keys(found));
        if page.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 11);
    assert!(seen.is_sorted());
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let file = File::new();
    let store = file.store().await;
    let held = claim("k", 30_000);
    granted(&store, &held).await;
    store.close().await.unwrap();
    let error = store.renew(&held).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Closed);
    assert!(store.dedicated().await.is_err());
    let other = file.store().await;
    let info = other.inspect(&LockKey::new("k").unwrap()).await.unwrap();
    assert!(info.is_some_and(|info| info.holder.is_some()));
}

/// B12, B96: a lease that has run out is neither renewed nor re-created nor released, also when
/// its guard is dropped.
#[tokio::test]
async fn a_lost_lock_stays_lost() {
    let file = File::new();
    let (late, client) = (file.client().await, file.client().await);
    let short = Duration::from_millis(300);
    let guard = late
        .lock("k")
        .ttl(short)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    let first = guard.token();
    let second = client.acquire("k").await.unwrap();
    assert!(second.token() > first);
    assert!(!guard.is_held());
    assert!(matches!(guard.renew(short).await, Err(Error::Lost { .. })));
    drop(guard);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = client.inspect("k").await.unwrap().unwrap().holder.unwrap();
    assert_eq!(held.token, second.token());
    assert!(matches!(
        late.try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
    second.release().await.unwrap();
    assert_eq!(client.inspect("k").await.unwrap(), None);
    assert!(late.acquire("k").await.unwrap().token() > first);
}

/// B17: two tasks of one thread are two owners.
#[tokio::test(flavor = "current_thread")]
async fn tasks_of_one_thread_are_strangers() {
    let file = File::new();
    let client = file.client().await;
    let short = Duration::from_millis(300);
    let guard = client
        .lock("k")
        .ttl(short)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    let next = tokio::spawn({
        let client = client.clone();
        async move { client.lock("k").wait(PATIENCE).acquire().await.unwrap() }
    });
    let next = next.await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    let held = client.inspect("k").await.unwrap().unwrap().holder.unwrap();
    assert_eq!(held.token, next.token());
    assert!(matches!(
        client.try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
}

/// B59: anybody sees the holder, and looking changes nothing, not a byte.
#[tokio::test]
async fn looking_changes_nothing() {
    let file = File::new();
    let (store, viewer) = (file.store().await, file.store().await);
    let held = claim("k", 60_000);
    let grant = granted(&store, &held).await;
    let mut stranger = file.stranger().await;
    let version = "PRAGMA data_version";
    let before: i64 = sqlx::query(version)
        .fetch_one(&mut stranger)
        .await
        .unwrap()
        .get(0);
    let holder = viewer
        .inspect(&held.key)
        .await
        .unwrap()
        .unwrap()
        .holder
        .unwrap();
    assert_eq!((holder.token, holder.owner), (grant.token, held.owner));
    assert_eq!(holder.asker, held.asker);
    assert!(holder.remaining <= Duration::from_secs(60));
    assert!(
        viewer
            .inspect(&LockKey::new("never").unwrap())
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        viewer.list("", Page::default()).await.unwrap().locks.len(),
        1
    );
    let after: i64 = sqlx::query(version)
        .fetch_one(&mut stranger)
        .await
        .unwrap()
        .get(0);
    assert_eq!(before, after);
}
