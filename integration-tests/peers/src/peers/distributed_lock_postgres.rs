//! distributed-lock-postgres: a lock of the session, so a connection for each lock and each waiter.

use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock_core::{
    LockError,
    traits::{DistributedLock, LockHandle, LockProvider},
};
use distributed_lock_postgres::PostgresLockProvider;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use sqlx_old::{PgPool, postgres::PgPoolOptions};

use super::advisory::MOST;

pub(crate) struct DistributedLockPostgres;

#[async_trait]
impl Contender for DistributedLockPostgres {
    fn name(&self) -> &'static str {
        "distributed-lock-postgres"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "when its connection breaks",
            order: "first come, first served",
            token: "no",
            loss: "no: its signal never fires",
            renewal: "none needed; not behind a pooler",
            connections: "one for each lock and each waiter",
            waiting: "told by the store",
        }
    }

    fn most(&self) -> Option<usize> {
        Some(MOST)
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let pool = PgPoolOptions::new()
            .max_connections(target.size as u32)
            .test_before_acquire(false)
            .connect(&target.url)
            .await
            .map_err(|why| Error::failed("sqlx", why))?;
        let provider = PostgresLockProvider::builder().pool(pool.clone());
        Ok(Arc::new(Open {
            provider: provider.build().await.map_err(failed)?,
            pool,
            prefix: target.prefix.clone(),
        }))
    }
}

fn failed(why: LockError) -> Error {
    Error::failed("distributed-lock-postgres", why)
}

struct Open {
    provider: PostgresLockProvider,
    pool: PgPool,
    prefix: String,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let lock = self.provider.create_lock(&format!("{}:{key}", self.prefix));
        let handle = lock.acquire(None).await.map_err(failed)?;
        Ok(Box::new(Guard(handle)))
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

struct Guard<H>(H);

#[async_trait]
impl<H: LockHandle + Send> Held for Guard<H> {
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release().await.map_err(failed)
    }
}
