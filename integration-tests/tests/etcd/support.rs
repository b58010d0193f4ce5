//! What the tests share.

use std::{sync::Arc, time::Duration};

use etcd_client::{GetOptions, KeyValue};
use integration_tests::{proxy::Proxy, servers::etcd::EtcdCluster, taker::Taker};
use lock_core::{
    Asker, Attempt, Busy, Claim, DistributedLock, Grant, HoldId, LockClient, LockKey, OwnerId, Ttl,
};
use lock_etcd::EtcdLock;
use tokio::time::{Instant, sleep};

/// How long something that has to happen may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> EtcdLock {
    EtcdLock::connect(url).await.expect("a connection")
}

pub(crate) async fn store(cluster: &EtcdCluster) -> Arc<EtcdLock> {
    Arc::new(open(&cluster.url()).await)
}

/// A client of its own, as another process would have.
pub(crate) async fn client(cluster: &EtcdCluster) -> LockClient {
    client_at(&cluster.url()).await
}

pub(crate) async fn client_at(url: &str) -> LockClient {
    LockClient::new(Arc::new(open(url).await))
}

/// A client whose operations are given up after 500 ms.
pub(crate) async fn hasty(url: &str) -> LockClient {
    LockClient::builder(Arc::new(hasty_store(url).await))
        .operation_timeout(ms(800))
        .build()
        .unwrap()
}

pub(crate) async fn hasty_store(url: &str) -> EtcdLock {
    EtcdLock::builder(url)
        .unwrap()
        .operation_timeout(ms(500))
        .connect()
        .await
        .expect("a connection")
}

/// A proxy in front of a member.
pub(crate) async fn proxy(cluster: &EtcdCluster, member: usize) -> Proxy {
    Proxy::start(cluster.address(member)).await.unwrap()
}

/// The URL of what is behind a proxy.
pub(crate) fn through(proxy: &Proxy) -> String {
    format!("etcd://{}", proxy.address())
}

/// A client in a process of its own.
pub(crate) fn taker(cluster: &EtcdCluster) -> Taker {
    Taker::start(env!("CARGO_BIN_EXE_lock-taker"), cluster.url())
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
        let info = store.inspect(&key).await;
        info.is_ok_and(|info| info.is_some_and(|info| info.waiters.len() == count))
    })
    .await;
}

/// The owner that holds `key`.
pub(crate) async fn holder(store: &dyn DistributedLock, key: &str) -> Option<OwnerId> {
    let info = store.inspect(&LockKey::new(key).unwrap()).await.unwrap();
    Some(info?.holder?.owner)
}

/// All keys there are in a cluster, past the library.
pub(crate) async fn keys(cluster: &EtcdCluster) -> Vec<KeyValue> {
    let all = Some(GetOptions::new().with_all_keys());
    let mut admin = cluster.admin().await;
    admin.get("", all).await.unwrap().take_kvs()
}

/// How many keys there are in a cluster.
pub(crate) async fn count(cluster: &EtcdCluster) -> i64 {
    let count = Some(GetOptions::new().with_all_keys().with_count_only());
    let mut admin = cluster.admin().await;
    admin.get("", count).await.unwrap().count()
}

/// The key of an owner, past the library.
pub(crate) async fn key_of(cluster: &EtcdCluster, owner: OwnerId) -> KeyValue {
    let owner = format!("\"owner\":\"{owner}\"");
    let mut keys = keys(cluster).await.into_iter();
    let is_its = |kv: &KeyValue| kv.value_str().is_ok_and(|value| value.contains(&owner));
    keys.find(is_its).expect("a key of the owner")
}

/// All leases there are in a cluster.
pub(crate) async fn leases(cluster: &EtcdCluster) -> Vec<i64> {
    let mut admin = cluster.admin().await;
    let leases = admin.leases().await.unwrap();
    leases.leases().iter().map(|lease| lease.id()).collect()
}

/// What is left of a lease, in seconds; -1 when it has ended.
pub(crate) async fn time_to_live(cluster: &EtcdCluster, lease: i64) -> i64 {
    let mut admin = cluster.admin().await;
    admin.lease_time_to_live(lease, None).await.unwrap().ttl()
}

/// The revision of a cluster's data.
pub(crate) async fn revision(cluster: &EtcdCluster) -> i64 {
    let mut admin = cluster.admin().await;
    let answer = admin.get("none", None).await.unwrap();
    answer.header().unwrap().revision()
}

/// How many messages clients have sent, of any kind.
pub(crate) fn requests(cluster: &EtcdCluster) -> u64 {
    let members = 0..cluster.size();
    members
        .map(|member| cluster.metric(member, "grpc_server_msg_received_total", &[]) as u64)
        .sum()
}

/// How many keep-alives clients have sent.
pub(crate) fn keep_alives(cluster: &EtcdCluster) -> u64 {
    cluster.messages("LeaseKeepAlive")
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Makes keys and certificates; no argument has a blank in it.
pub(crate) fn openssl(arguments: &str) {
    let mut command = std::process::Command::new("openssl");
    let made = command.args(arguments.split_whitespace()).output();
    let made = made.expect("openssl");
    assert!(made.status.success(), "{made:?}");
}
