//! The server's own locks: a lease, Lock, Unlock, and the end of the lease.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use etcd_client::{Client, LockOptions};
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use tokio::task::JoinHandle;

pub(crate) struct EtcdRpc;

#[async_trait]
impl Contender for EtcdRpc {
    fn name(&self) -> &'static str {
        "etcd-lock-rpc"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "first come, first served",
            token: "the revision of its key",
            loss: "no",
            renewal: "by hand; here by a stream for each",
            connections: "one in all",
            waiting: "told by the store",
        }
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        Ok(Arc::new(Open {
            client: Client::connect(endpoints(target), None)
                .await
                .map_err(failed)?,
            prefix: target.prefix.clone(),
            ttl: target.ttl,
        }))
    }
}

/// Of a private server, which has neither users nor TLS.
pub(super) fn endpoints(target: &Target) -> Vec<String> {
    let hosts = target.url.trim_start_matches("etcd://");
    hosts.split(',').map(str::to_owned).collect()
}

fn failed(why: etcd_client::Error) -> Error {
    Error::failed("etcd's Lock", why)
}

struct Open {
    client: Client,
    prefix: String,
    ttl: Duration,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let mut client = self.client.clone();
        let lease = client
            .lease_grant(self.ttl.as_secs() as i64, None)
            .await
            .map_err(failed)?
            .id();
        // It has to live while it waits, too.
        let keeping = Keeping(tokio::spawn(keep(client.clone(), lease, self.ttl)));
        let on_lease = LockOptions::new().with_lease(lease);
        let name = format!("{}/rpc/{key}", self.prefix);
        let locked = client.lock(name, Some(on_lease)).await.map_err(failed)?;
        Ok(Box::new(Guard {
            key: locked.key().to_owned(),
            client,
            lease,
            keeping,
        }))
    }
}

/// What is left to its user.
async fn keep(mut client: Client, lease: i64, ttl: Duration) {
    tokio::time::sleep(ttl / 3).await;
    let Ok((mut keeper, mut answers)) = client.lease_keep_alive(lease).await else {
        return;
    };
    while keeper.keep_alive().await.is_ok() && answers.message().await.is_ok() {
        tokio::time::sleep(ttl / 3).await;
    }
}

/// Ends when it is dropped.
struct Keeping(JoinHandle<()>);

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Guard {
    client: Client,
    key: Vec<u8>,
    lease: i64,
    keeping: Keeping,
}

#[async_trait]
impl Held for Guard {
    async fn release(mut self: Box<Self>) -> Result<()> {
        self.keeping.0.abort();
        let key = std::mem::take(&mut self.key);
        self.client.unlock(key).await.map_err(failed)?;
        let ended = self.client.lease_revoke(self.lease).await;
        ended.map(drop).map_err(failed)
    }
}
