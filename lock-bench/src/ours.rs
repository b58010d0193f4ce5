//! distlock itself.

use std::sync::Arc;

use async_trait::async_trait;
use distlock::{LockClient, LockGuard, Owner, Wait};
use parking_lot::Mutex;

use crate::{Contender, Features, Held, Locks, Result, Target};

pub(crate) struct Distlock;

#[async_trait]
impl Contender for Distlock {
    fn name(&self) -> &'static str {
        "distlock"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "first come, first served",
            token: "yes",
            loss: "yes",
            renewal: "yes, in batches",
            connections: "a few in all",
            waiting: "told by the store",
        }
    }

    fn commands(&self) -> &'static [&'static str] {
        &[
            "evalsha",
            "eval",
            "script|load",
            "subscribe",
            "ping",
            "role",
        ]
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let store = distlock::open(&target.url).await?;
        let client = LockClient::builder(store)
            .ttl(target.ttl)
            .wait(Wait::Forever)
            .build()?;
        Ok(Arc::new(Open {
            owner: client.owner(),
            client: Mutex::new(Some(client)),
            prefix: target.prefix.clone(),
        }))
    }
}

struct Open {
    /// Until it is closed.
    client: Mutex<Option<LockClient>>,
    owner: Owner,
    prefix: String,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let client = self.client.lock().clone();
        let client = client.ok_or_else(closed)?;
        let guard = client.acquire(format!("{}/{key}", self.prefix)).await?;
        Ok(Box::new(Guard(guard)))
    }

    async fn enter(&self, key: &str) -> Option<Result<Box<dyn Held>>> {
        let lock = self.owner.lock(format!("{}/{key}", self.prefix));
        let guard = lock.acquire().await;
        Some(match guard {
            Ok(guard) => Ok(Box::new(Guard(guard))),
            Err(why) => Err(why.into()),
        })
    }

    async fn close(&self) {
        let client = self.client.lock().take();
        if let Some(client) = client {
            let store = client.store().clone();
            client.shutdown().await;
            let _ = store.close().await;
        }
    }
}

fn closed() -> crate::Error {
    crate::Error::failed("distlock", "it is closed")
}

struct Guard(LockGuard);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        Ok(self.0.release().await?)
    }
}
