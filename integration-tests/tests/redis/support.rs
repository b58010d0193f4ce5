//! What the tests share.

use std::{sync::Arc, time::Duration};

use integration_tests::servers::redis::RedisServer;
use lock_core::{
    Asker, Attempt, Busy, Claim, DistributedLock, Grant, HoldId, LockClient, LockClientBuilder,
    LockKey, OwnerId, Ttl,
};
use lock_redis::RedisLock;
use tokio::time::{Instant, sleep};

/// How long something that has to happen may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> RedisLock {
    RedisLock::connect(url).await.expect("a connection")
}

pub(crate) async fn store(server: &RedisServer) -> Arc<RedisLock> {
    Arc::new(open(&server.url()).await)
}

/// A client of its own, as another process would have.
pub(crate) async fn client(server: &RedisServer) -> LockClient {
    LockClient::new(store(server).await)
}

pub(crate) async fn client_at(url: &str) -> LockClientBuilder {
    LockClient::builder(Arc::new(open(url).await))
}

/// A claim of a new owner with a ttl of 30 s that does not queue.
pub(crate) fn claim(key: &str) -> Claim {
    Claim {
        key: LockKey::new(key).unwrap(),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(30_000).unwrap(),
        queue: false,
        asker: Arc::new(Asker::this_process(Some("test")).unwrap()),
    }
}

/// A claim of a new owner that queues.
pub(crate) fn queuing(key: &str) -> Claim {
    Claim {
        queue: true,
        ..claim(key)
    }
}

pub(crate) fn with_ttl(claim: Claim, millis: u64) -> Claim {
    Claim {
        ttl: Ttl::from_millis(millis).unwrap(),
        ..claim
    }
}

/// Another hold of the same owner.
pub(crate) fn again(claim: &Claim) -> Claim {
    Claim {
        hold: HoldId::random(),
        ..claim.clone()
    }
}

pub(crate) async fn granted(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.expect("an answer") {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

pub(crate) async fn busy(store: &dyn DistributedLock, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.expect("an answer") {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Waits until `check` is true.
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !check().await {
        assert!(Instant::now() < end, "it never happened: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until nobody holds the lock and nobody waits for it.
pub(crate) async fn free(store: &dyn DistributedLock, key: &str) {
    let key = LockKey::new(key).unwrap();
    eventually("the lock is free", async || {
        matches!(store.inspect(&key).await, Ok(None))
    })
    .await;
}

/// Waits until so many claims are in the queue of `key`.
pub(crate) async fn queued(store: &dyn DistributedLock, key: &str, count: usize) {
    let key = LockKey::new(key).unwrap();
    eventually("they are in the queue", async || {
        let info = store.inspect(&key).await.unwrap();
        info.is_some_and(|info| info.waiters.len() == count)
    })
    .await;
}

/// The owner that holds `key`.
pub(crate) async fn holder(store: &dyn DistributedLock, key: &str) -> Option<OwnerId> {
    let info = store.inspect(&LockKey::new(key).unwrap()).await.unwrap();
    Some(info?.holder?.owner)
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
