//! An INSERT and a DELETE of one row, prepared, on a pool of connections.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{
    AssertSqlSafe, ConnectOptions, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use uuid::Uuid;

use super::NOTHING;
use crate::{Contender, Error, Features, Held, Locks, Result, Target, record::FLOOR};

pub(super) struct Floor;

/// A pool of a usual size.
const CONNECTIONS: u32 = 10;

#[async_trait]
impl Contender for Floor {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn features(&self) -> Features {
        Features {
            connections: "a pool of ten",
            ..NOTHING
        }
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let options: PgConnectOptions = target.url.parse().map_err(failed)?;
        let options = options.disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .map_err(failed)?;
        let table = format!("distlock_floor_{}", target.prefix.replace(['-', '/'], "_"));
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {table}
             (key text COLLATE \"C\" PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL)"
        );
        let created = sqlx::raw_sql(AssertSqlSafe(create)).execute(&pool).await;
        created.map_err(failed)?;
        Ok(Arc::new(Open(Arc::new(Shared {
            insert: format!(
                "INSERT INTO {table} (key, owner, expires)
                 VALUES ($1, $2, clock_timestamp() + $3 * interval '1 ms') ON CONFLICT DO NOTHING"
            ),
            delete: format!("DELETE FROM {table} WHERE key = $1 AND owner = $2"),
            renew: format!(
                "UPDATE {table} SET expires = clock_timestamp() + $2 * interval '1 ms' WHERE key = $1"
            ),
            ttl: target.ttl.as_millis() as f64,
            pool,
            table,
        }))))
    }
}

fn failed(why: sqlx::Error) -> Error {
    Error::failed("postgres", why)
}

struct Open(Arc<Shared>);

struct Shared {
    pool: PgPool,
    table: String,
    insert: String,
    delete: String,
    renew: String,
    ttl: f64,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let owner = Uuid::new_v4().to_string();
        let inserted = sqlx::query(AssertSqlSafe(self.0.insert.clone()))
            .bind(key)
            .bind(&owner)
            .bind(self.0.ttl)
            .execute(&self.0.pool)
            .await
            .map_err(failed)?;
        if inserted.rows_affected() != 1 {
            return Err(Error::failed("the floor", "its key is taken"));
        }
        Ok(Box::new(Guard {
            shared: self.0.clone(),
            key: key.to_owned(),
            owner,
        }))
    }

    async fn renew(&self, key: &str) -> Option<Result<()>> {
        let renewed = sqlx::query(AssertSqlSafe(self.0.renew.clone()))
            .bind(key)
            .bind(self.0.ttl)
            .execute(&self.0.pool)
            .await;
        Some(renewed.map(drop).map_err(failed))
    }

    async fn close(&self) {
        let drop = format!("DROP TABLE IF EXISTS {}", self.0.table);
        let _ = sqlx::raw_sql(AssertSqlSafe(drop))
            .execute(&self.0.pool)
            .await;
        self.0.pool.close().await;
    }
}

struct Guard {
    shared: Arc<Shared>,
    key: String,
    owner: String,
}

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        let deleted = sqlx::query(AssertSqlSafe(self.shared.delete.clone()))
            .bind(&self.key)
            .bind(&self.owner)
            .execute(&self.shared.pool)
            .await;
        deleted.map(drop).map_err(failed)
    }
}
