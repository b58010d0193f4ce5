//! rslock: Redlock, here on one server.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use rslock::{LockGuard, LockManager};

pub(crate) struct Rslock;

#[async_trait]
impl Contender for Rslock {
    fn name(&self) -> &'static str {
        "rslock"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "no",
            token: "no",
            loss: "no",
            renewal: "by hand, or in `using`",
            connections: "one in all",
            waiting: "asks again after up to 200 ms",
        }
    }

    fn commands(&self) -> &'static [&'static str] {
        &["set", "evalsha", "eval"]
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        Ok(Arc::new(Open {
            manager: LockManager::new(vec![target.url.clone()]),
            prefix: target.prefix.clone(),
            ttl: target.ttl,
        }))
    }
}

struct Open {
    manager: LockManager,
    prefix: String,
    ttl: Duration,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let key = format!("{}:rslock:{key}", self.prefix);
        let guard = self.manager.acquire(key.as_bytes(), self.ttl).await;
        let guard = guard.map_err(|why| Error::failed("rslock", why))?;
        Ok(Box::new(Guard(guard)))
    }
}

struct Guard(LockGuard);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await;
        Ok(())
    }
}
