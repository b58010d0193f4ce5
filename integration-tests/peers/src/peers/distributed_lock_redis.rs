//! distributed-lock-redis: Redlock, here on one server, and a task for each lock that extends it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distributed_lock_core::{
    LockError,
    traits::{DistributedLock, LockHandle, LockProvider},
};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};

pub(crate) struct DistributedLockRedis;

/// It does not wait, whatever time it is given: on one server `acquire` asks once.
const PAUSE: Duration = Duration::from_millis(10);

#[async_trait]
impl Contender for DistributedLockRedis {
    fn name(&self) -> &'static str {
        "distributed-lock-redis"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "no",
            token: "no",
            loss: "yes",
            renewal: "yes, one by one",
            connections: "one in all",
            waiting: "fails when busy; asked again every 10 ms here",
        }
    }

    fn commands(&self) -> &'static [&'static str] {
        &["set", "evalsha", "eval"]
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let provider = RedisLockProvider::builder()
            .url(&target.url)
            .expiry(target.ttl)
            .extension_cadence(target.ttl / 3)
            .build()
            .await
            .map_err(failed)?;
        Ok(Arc::new(Open {
            provider,
            prefix: target.prefix.clone(),
        }))
    }
}

fn failed(why: LockError) -> Error {
    Error::failed("distributed-lock-redis", why)
}

struct Open {
    provider: RedisLockProvider,
    prefix: String,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let lock = self.provider.create_lock(&format!("{}:{key}", self.prefix));
        loop {
            if let Some(handle) = lock.try_acquire().await.map_err(failed)? {
                return Ok(Box::new(Guard(handle)));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

struct Guard(RedisLockHandle);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await.map_err(failed)
    }
}
