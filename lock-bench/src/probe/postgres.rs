//! Postgres: pg_stat_statements, where it is installed.

use sqlx::{ConnectOptions, PgConnection, postgres::PgConnectOptions};

use crate::{Error, Result};

pub(crate) struct Postgres {
    connection: PgConnection,
    counts: bool,
}

impl Postgres {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let options: PgConnectOptions = url.parse().map_err(failed)?;
        let options = options.disable_statement_logging();
        let mut connection = options.connect().await.map_err(failed)?;
        let counts = sqlx::query("SELECT 1 FROM pg_stat_statements LIMIT 1")
            .fetch_optional(&mut connection)
            .await
            .is_ok();
        Ok(Self { connection, counts })
    }

    pub(super) async fn version(&mut self) -> Result<String> {
        let version: (String,) = sqlx::query_as("SELECT current_setting('server_version')")
            .fetch_one(&mut self.connection)
            .await
            .map_err(failed)?;
        Ok(format!("Postgres {}", version.0))
    }

    pub(super) async fn requests(&mut self) -> Option<f64> {
        if !self.counts {
            return None;
        }
        let calls: (f64,) = sqlx::query_as(
            "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements
             WHERE query NOT LIKE '%pg_stat_statements%'",
        )
        .fetch_one(&mut self.connection)
        .await
        .ok()?;
        Some(calls.0)
    }
}

fn failed(why: sqlx::Error) -> Error {
    Error::failed("postgres", why)
}
