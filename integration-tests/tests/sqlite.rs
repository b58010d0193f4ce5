//! The SQLite store on real files and with real processes.
#![allow(clippy::unwrap_used)]

use std::{path::PathBuf, sync::Arc, time::Duration};

use lock_core::{
    Asker, Attempt, Busy, Claim, DistributedLock, Grant, HoldId, LockKey, OwnerId, Page, Release,
    Renewal, StoreErrorKind, Ttl,
};
use lock_sqlite::SqliteLock;
use tempfile::TempDir;

/// A file of its own for each test.
struct File(TempDir);

impl File {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    async fn store(&self) -> SqliteLock {
        SqliteLock::open(self.path()).await.expect("a new file")
    }
}

fn claim(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key.parse().unwrap(),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        queue: false,
        asker: Arc::new(Asker::this_process(Some("test")).unwrap()),
    }
}

fn queued(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        queue: true,
        ..claim(key, ttl_ms)
    }
}

async fn granted(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

async fn busy(store: &dyn DistributedLock, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Waits for the turn of a claim as a client does.
async fn acquire(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    loop {
        match store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant,
            Attempt::Busy(busy) => store.wait(claim, &busy).await,
        }
    }
}

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
