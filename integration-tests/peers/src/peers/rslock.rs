//! rslock: Redlock, here on one server.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use rslock::{Lock, LockManager};
use tokio::task::JoinHandle;

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
            renewal: "by hand; here by a task for each",
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
        let lock = self
            .manager
            .acquire_no_guard(key.as_bytes(), self.ttl)
            .await;
        let lock = Arc::new(lock.map_err(|why| Error::failed("rslock", why))?);
        Ok(Box::new(Guard {
            renewing: tokio::spawn(renew(self.manager.clone(), lock.clone(), self.ttl)),
            manager: self.manager.clone(),
            lock,
        }))
    }
}

/// What is left to its user.
async fn renew(manager: LockManager, lock: Arc<Lock>, ttl: Duration) {
    loop {
        tokio::time::sleep(ttl / 3).await;
        if manager.extend(&lock, ttl).await.is_err() {
            return;
        }
    }
}

struct Guard {
    manager: LockManager,
    lock: Arc<Lock>,
    renewing: JoinHandle<()>,
}

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        self.renewing.abort();
        self.manager.unlock(&self.lock).await;
        Ok(())
    }
}
