//! sqlx's `PgAdvisoryLock`: a lock of the session, so a connection for each lock and each waiter.

use std::sync::Arc;

use async_trait::async_trait;
use lock_bench::{Contender, Error, Features, Held, Locks, Result, Target};
use sqlx::{
    PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPoolOptions},
};

pub(crate) struct Advisory;

/// More do not fit into a server.
pub(super) const MOST: usize = 300;

#[async_trait]
impl Contender for Advisory {
    fn name(&self) -> &'static str {
        "sqlx-advisory"
    }

    fn features(&self) -> Features {
        Features {
            expiry: "when its connection breaks",
            order: "first come, first served",
            token: "no",
            loss: "no",
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
            .map_err(failed)?;
        Ok(Arc::new(Open {
            pool,
            prefix: target.prefix.clone(),
        }))
    }
}

fn failed(why: sqlx::Error) -> Error {
    Error::failed("sqlx", why)
}

struct Open {
    pool: PgPool,
    prefix: String,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let lock = PgAdvisoryLock::new(format!("{}:{key}", self.prefix));
        let connection = self.pool.acquire().await.map_err(failed)?;
        let guard = lock.acquire(connection).await.map_err(failed)?;
        Ok(Box::new(Guard(guard)))
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

struct Guard(PgAdvisoryLockGuard<PoolConnection<Postgres>>);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release_now().await.map(drop).map_err(failed)
    }
}
