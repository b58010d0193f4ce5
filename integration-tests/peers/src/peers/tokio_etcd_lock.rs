//! tokio-etcd-lock: a key on a lease, and a watch on the key for each waiter.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client_old::Client;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_etcd_lock::{Lease, acquire_lease};

use super::etcd_rpc::endpoints;

pub(crate) struct TokioEtcdLock;

#[async_trait]
impl Contender for TokioEtcdLock {
    fn name(&self) -> &'static str {
        "tokio-etcd-lock"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "no: all waiters ask at once",
            token: "no",
            loss: "no",
            renewal: "yes, a stream for each lease",
            connections: "one in all",
            waiting: "a watch for each",
        }
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let client = Client::connect(endpoints(target), None).await;
        Ok(Arc::new(Open {
            client: client.map_err(failed)?,
            leases: Arc::default(),
            prefix: target.prefix.clone(),
            ttl: target.ttl.as_secs() as i64,
        }))
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::failed("tokio-etcd-lock", why)
}

struct Open {
    client: Client,
    /// Those that nobody uses: a lease is meant to be kept for many locks, one after the other.
    leases: Arc<Mutex<Vec<Lease>>>,
    prefix: String,
    ttl: i64,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let (mut client, leases) = (self.client.clone(), self.leases.clone());
        let kept = leases.lock().pop();
        let mut lease = match kept {
            Some(lease) => lease,
            None => acquire_lease(&mut client, self.ttl).await.map_err(failed)?,
        };
        let name = format!("{}/tokio/{key}", self.prefix);
        let (granted, is_granted) = oneshot::channel();
        let (release, is_released) = oneshot::channel::<()>();
        // Its guard borrows the lease and the name.
        let holding = tokio::spawn(async move {
            let held = lease.with_lock(&mut client, &name, || async {
                let _ = granted.send(());
                let _ = is_released.await;
            });
            held.await.map_err(failed)?;
            leases.lock().push(lease);
            Ok(())
        });
        match is_granted.await {
            Ok(()) => Ok(Box::new(Guard { release, holding })),
            Err(_) => match holding.await.map_err(failed)? {
                Ok(()) => Err(failed("it ended before it was granted")),
                Err(why) => Err(why),
            },
        }
    }

    async fn close(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        for lease in leases {
            let _ = lease.release(&mut self.client.clone()).await;
        }
    }
}

struct Guard {
    release: oneshot::Sender<()>,
    holding: JoinHandle<Result<()>>,
}

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        let _ = self.release.send(());
        self.holding.await.map_err(failed)?
    }
}
