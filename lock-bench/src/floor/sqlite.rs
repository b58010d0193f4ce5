//! Two statements, each a transaction of its own, on one connection: SQLite has one writer.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tempfile::TempDir;
use url::Url;
use uuid::Uuid;

use super::NOTHING;
use crate::{Contender, Error, Features, Held, Locks, Result, Target, record::FLOOR};

pub(super) struct Floor;

const NOW: &str = "CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)";

#[async_trait]
impl Contender for Floor {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn features(&self) -> Features {
        Features {
            connections: "one file",
            ..NOTHING
        }
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        // A file of its own on the same disk.
        let folder = tempfile::Builder::new()
            .prefix(".distlock-floor-")
            .tempdir_in(folder(&target.url)?)
            .map_err(|why| Error::failed("the floor's folder", why))?;
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("floor.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .disable_statement_logging();
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .map_err(failed)?;
        sqlx::query(
            "CREATE TABLE locks (key TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL,
                                 expires INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        )
        .execute(&pool)
        .await
        .map_err(failed)?;
        Ok(Arc::new(Open {
            pool,
            ttl: target.ttl.as_millis() as i64,
            insert: format!(
                "INSERT INTO locks (key, owner, expires) VALUES (?1, ?2, {NOW} + ?3) ON CONFLICT DO NOTHING"
            ),
            renew: format!("UPDATE locks SET expires = {NOW} + ?2 WHERE key = ?1"),
            _folder: folder,
        }))
    }
}

fn folder(url: &str) -> Result<PathBuf> {
    let url =
        Url::parse(url).map_err(|_| Error::Usage("the SQLite URL cannot be read".to_owned()))?;
    let path = url.to_file_path().ok().or_else(|| {
        let path = url.path().to_owned();
        (!path.is_empty()).then(|| PathBuf::from(path))
    });
    let folder = path.as_deref().and_then(|path| path.parent());
    let folder = folder.ok_or_else(|| {
        Error::Usage("name a file for the benchmark, such as `sqlite:///tmp/bench.db`".to_owned())
    })?;
    Ok(match folder.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => folder.to_owned(),
    })
}

fn failed(why: sqlx::Error) -> Error {
    Error::failed("sqlite", why)
}

struct Open {
    pool: SqlitePool,
    ttl: i64,
    insert: String,
    renew: String,
    /// Deleted with it.
    _folder: TempDir,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let owner = Uuid::new_v4().to_string();
        let inserted = sqlx::query(sqlx::AssertSqlSafe(self.insert.clone()))
            .bind(key)
            .bind(&owner)
            .bind(self.ttl)
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        if inserted.rows_affected() != 1 {
            return Err(Error::failed("the floor", "its key is taken"));
        }
        Ok(Box::new(Guard {
            pool: self.pool.clone(),
            key: key.to_owned(),
            owner,
        }))
    }

    async fn renew(&self, key: &str) -> Option<Result<()>> {
        let renewed = sqlx::query(sqlx::AssertSqlSafe(self.renew.clone()))
            .bind(key)
            .bind(self.ttl)
            .execute(&self.pool)
            .await;
        Some(renewed.map(drop).map_err(failed))
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

struct Guard {
    pool: SqlitePool,
    key: String,
    owner: String,
}

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        let deleted = sqlx::query("DELETE FROM locks WHERE key = ?1 AND owner = ?2")
            .bind(&self.key)
            .bind(&self.owner)
            .execute(&self.pool)
            .await;
        deleted.map(drop).map_err(failed)
    }
}
