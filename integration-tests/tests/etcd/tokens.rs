//! Fencing tokens: create revisions.

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, Error, FencingToken, Release};

use crate::support::*;

/// B67, B68: tokens grow over releases, ends by force, restarts of the server, compactions, and
/// do not with re-entry; nothing is kept for them.
#[tokio::test]
async fn b67_b68_tokens_grow_and_leave_nothing() {
    let mut cluster = EtcdCluster::one();
    let mut last = 0;
    for round in 0..12 {
        let store = store(&cluster).await;
        let claim = claim("orders");
        let token = granted(&*store, &claim).await.token.as_u64();
        assert!(token > last, "{token} after {last}");
        last = token;
        let entered = granted(&*store, &again(&claim)).await;
        assert_eq!((entered.token.as_u64(), entered.holds), (token, 2));
        let key = key_of(&cluster, claim.owner).await;
        assert_eq!(key.create_revision() as u64, token);
        match round % 3 {
            0 => assert!(store.force_release(&claim.key, None).await.unwrap()),
            1 => cluster
                .admin()
                .await
                .lease_revoke(key.lease())
                .await
                .map(drop)
                .unwrap(),
            _ => {
                let released = store.release(&claim).await.unwrap();
                assert_eq!(released, Release::Released { holds: 1 });
                assert!(store.force_release(&claim.key, None).await.unwrap());
            }
        }
        if round % 4 == 0 {
            cluster.restart(0);
        }
        if round % 4 == 2 {
            let now = revision(&cluster).await;
            cluster.admin().await.compact(now, None).await.unwrap();
        }
        assert!(keys(&cluster).await.is_empty());
        eventually("it answers", async || {
            store.inspect(&claim.key).await.is_ok()
        })
        .await;
        store.close().await.unwrap();
    }
}

/// A resource that takes a write only with a token that is not behind.
#[derive(Default)]
struct Resource(Option<FencingToken>);

impl Resource {
    fn write(&mut self, token: FencingToken) -> bool {
        let accepted = self.0.is_none_or(|last| token >= last);
        if accepted {
            self.0 = Some(token);
        }
        accepted
    }
}

/// E19, A14: a restored backup brings old revisions back, and with them old tokens: who held a
/// lock learns that it is lost, the resource refuses the tokens that are behind, and takes them
/// again when the operator has raised the revision past the last one.
#[tokio::test]
async fn e19_a_restored_backup_lowers_tokens_until_the_operator_raises_them() {
    let mut cluster = EtcdCluster::one();
    let mut resource = Resource::default();
    let backup = cluster.back_up();
    let client = client(&cluster).await;
    for _ in 0..50 {
        let guard = client.acquire("orders").await.unwrap();
        assert!(resource.write(guard.token()));
        guard.release().await.unwrap();
    }
    let held = client.lock("held").ttl(ms(3000)).acquire().await.unwrap();
    let last = resource.0.unwrap();
    cluster.restore(&backup);
    tokio::time::timeout(PATIENCE, held.lost()).await.unwrap();
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    let guard = client
        .lock("orders")
        .wait(PATIENCE)
        .acquire()
        .await
        .unwrap();
    assert!(guard.token() < last);
    assert!(!resource.write(guard.token()));
    guard.release().await.unwrap();

    // As docs/guarantees.md tells the operator to.
    let mut admin = cluster.admin().await;
    while revision(&cluster).await as u64 <= last.as_u64() {
        admin.put("bump", "", None).await.unwrap();
    }
    let guard = client.acquire("orders").await.unwrap();
    assert!(guard.token() > last && resource.write(guard.token()));
}

/// E19: a cluster that starts again empty: the holder learns it, and a waiter goes on
/// by itself.
#[tokio::test]
async fn e19_an_empty_cluster_is_noticed_and_waiters_go_on() {
    let mut cluster = EtcdCluster::one();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.lock("l").ttl(ms(3000)).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(60_000)).acquire().await });
    queued(&**holder.store(), "l", 1).await;
    cluster.restart_empty();
    tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(guard.release().await.is_err());
    assert!(next.is_held());
}
