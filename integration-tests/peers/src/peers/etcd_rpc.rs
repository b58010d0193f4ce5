//! The server's own locks: a lease, Lock, Unlock, and the end of the lease.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Client, LockOptions};
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};

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
            renewal: "by hand",
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
            ttl: target.ttl.as_secs() as i64,
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
    ttl: i64,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let mut client = self.client.clone();
        let lease = client
            .lease_grant(self.ttl, None)
            .await
            .map_err(failed)?
            .id();
        let on_lease = LockOptions::new().with_lease(lease);
        let name = format!("{}/rpc/{key}", self.prefix);
        let locked = client.lock(name, Some(on_lease)).await.map_err(failed)?;
        Ok(Box::new(Guard {
            key: locked.key().to_owned(),
            client,
            lease,
        }))
    }
}

struct Guard {
    client: Client,
    key: Vec<u8>,
    lease: i64,
}

#[async_trait]
impl Held for Guard {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        self.client.unlock(key).await.map_err(failed)?;
        let ended = self.client.lease_revoke(self.lease).await;
        ended.map(drop).map_err(failed)
    }
}
