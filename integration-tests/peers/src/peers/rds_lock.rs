//! rds_lock: scripts on one Redis, and a task for each lock that extends it.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use rds_lock::Locker;
use redis_old::aio::MultiplexedConnection;

pub(crate) struct RdsLock;

#[async_trait]
impl Contender for RdsLock {
    fn name(&self) -> &'static str {
        "rds_lock"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            order: "no",
            token: "no",
            loss: "no: its task panics",
            renewal: "yes, one by one",
            connections: "one in all",
            waiting: "asks again every 100 ms",
        }
    }

    fn commands(&self) -> &'static [&'static str] {
        &["evalsha", "eval"]
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let client = redis_old::Client::open(target.url.as_str()).map_err(failed)?;
        let connection = client
            .get_multiplexed_async_connection()
            .await
            .map_err(failed)?;
        Ok(Arc::new(Open {
            connection,
            prefix: target.prefix.clone(),
            ttl: target.ttl.as_millis() as u64,
        }))
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::failed("rds_lock", why)
}

struct Open {
    connection: MultiplexedConnection,
    prefix: String,
    ttl: u64,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let locker = Locker::new(self.connection.clone())
            .to(self.ttl)
            .ext_int(self.ttl / 3)
            // Waits for ever.
            .rty_to(-1);
        let unlock = locker.lock(format!("{}:rds:{key}", self.prefix)).await;
        Ok(Box::new(Guard(Box::pin(unlock.map_err(failed)?))))
    }
}

/// The future that unlocks.
struct Guard<U>(Pin<Box<U>>);

#[async_trait]
impl<U, E> Held for Guard<U>
where
    U: Future<Output = Result<(), E>> + Send,
    E: std::fmt::Display + Send + Sync,
{
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.await.map_err(failed)
    }
}
