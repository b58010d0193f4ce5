//! What applications do to locks, on the embedded store.

use std::{sync::Arc, time::Duration};

use distlock::{Error, LockClient, Wait};
use futures_util::future::join_all;
use tempfile::TempDir;

/// Far longer than any test, so that nothing is freed by the end of a lease.
const LONG: Duration = Duration::from_secs(600);
/// How long something that has to happen may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client, and the folder of its store.
async fn client() -> (LockClient, TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    let store = distlock::open(&url).await.expect("a store");
    let client = LockClient::builder(store).ttl(LONG).build();
    (client.expect("a client"), folder)
}

async fn is_free(locks: &LockClient, key: &str) {
    let free = async {
        while locks.inspect(key).await.expect("an answer").is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let freed = tokio::time::timeout(PATIENCE, free).await;
    freed.expect("the lock becomes free");
}

/// A21: the guard of a task that panics releases the lock.
#[tokio::test]
async fn a_panic_releases_the_lock() {
    let (locks, _folder) = client().await;
    let guard = locks.acquire("k").await.unwrap();
    let task = tokio::spawn(async move {
        let _guard = guard;
        panic!("under the lock");
    });
    assert!(task.await.unwrap_err().is_panic());
    let next = locks.lock("k").wait(PATIENCE).acquire().await.unwrap();
    next.release().await.unwrap();
}

/// A34: a wait of zero is one attempt; a short one ends soon; one without end is patient.
#[tokio::test]
async fn a_wait_is_as_long_as_it_says() {
    let (locks, _folder) = client().await;
    let guard = locks.acquire("k").await.unwrap();

    let none = locks.lock("k").wait(Duration::ZERO).acquire().await;
    assert!(matches!(none, Err(Error::Busy { .. })), "{none:?}");
    for short in [Duration::from_nanos(1), Duration::from_millis(20)] {
        match locks.lock("k").wait(short).acquire().await {
            Err(Error::Timeout { waited, .. }) => {
                assert!(waited >= short && waited < PATIENCE, "{waited:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(locks.inspect("k").await.unwrap().unwrap().waiters, []);

    for patient in [Wait::Forever, Duration::MAX.into()] {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.lock("k").wait(patient).acquire().await.unwrap();
            guard.release().await.unwrap();
        });
    }
    while locks.inspect("k").await.unwrap().unwrap().waiters.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
    is_free(&locks, "k").await;
}

/// A42, B100: locks that are taken in opposite order cost a wait, and nobody hangs.
#[tokio::test]
async fn locks_in_opposite_order_end_in_a_timeout() {
    let (locks, _folder) = client().await;
    let both_first = Arc::new(tokio::sync::Barrier::new(2));
    let tasks = [["a", "b"], ["b", "a"]].map(|[first, second]| {
        let (locks, both_first) = (locks.clone(), both_first.clone());
        async move {
            let _first = locks.acquire(first).await.unwrap();
            both_first.wait().await;
            let wait = Duration::from_millis(200);
            locks.lock(second).wait(wait).acquire().await.map(drop)
        }
    });
    let ends = tokio::time::timeout(PATIENCE, join_all(tasks))
        .await
        .unwrap();
    assert!(
        ends.iter()
            .any(|end| matches!(end, Err(Error::Timeout { .. }))),
        "{ends:?}"
    );
    for key in ["a", "b"] {
        is_free(&locks, key).await;
    }
}
