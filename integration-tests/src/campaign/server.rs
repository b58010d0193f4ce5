//! The server, or the file, that the clients' locks are in.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use crate::{
    clock::ShiftedClock,
    history::wall_millis,
    process::Process,
    servers::{postgres::PostgresServer, redis::RedisServer},
};

/// Which store a campaign is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A Redis that writes every change to its log before it answers
    Redis,
    /// A Postgres
    Postgres,
    /// A file
    Sqlite,
}

/// The store itself, on a clock of its own where it has one.
#[derive(Debug)]
pub(super) enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
    Sqlite(TempDir),
}

impl Server {
    pub(super) fn start(kind: StoreKind, clock: &ShiftedClock) -> Self {
        match kind {
            StoreKind::Redis => {
                let mut server = RedisServer::durable();
                server.move_to(clock);
                Self::Redis(server)
            }
            StoreKind::Postgres => {
                let mut server = PostgresServer::with(&["max_connections=200"]);
                server.move_to(clock);
                Self::Postgres(server)
            }
            StoreKind::Sqlite => Self::Sqlite(tempfile::tempdir().expect("a temporary folder")),
        }
    }

    /// `HOST:PORT`, when it is a server.
    pub(super) fn address(&self) -> Option<String> {
        match self {
            Self::Redis(server) => Some(server.address()),
            Self::Postgres(server) => Some(server.address()),
            Self::Sqlite(_) => None,
        }
    }

    /// The URL of the store for clients that reach it at `address`.
    pub(super) fn url(&self, address: Option<&str>) -> String {
        let address = address.unwrap_or_default();
        match self {
            Self::Redis(_) => format!("redis://{address}"),
            Self::Postgres(_) => format!("postgres://postgres@{address}/postgres"),
            Self::Sqlite(_) => format!("sqlite://{}", self.file().display()),
        }
    }

    /// The file of the locks, of a store in a file.
    pub(super) fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => folder.path().join("locks.db"),
            _ => PathBuf::new(),
        }
    }

    pub(super) async fn version(&self) -> String {
        match self {
            Self::Redis(server) => format!("Redis {}", server.info("redis_version")),
            Self::Postgres(server) => {
                let version: String = server.value("SHOW server_version").await;
                format!("Postgres {version}")
            }
            Self::Sqlite(_) => {
                let mut memory = SqliteConnection::connect("sqlite::memory:")
                    .await
                    .expect("SQLite opens");
                let version: String = sqlx::query_scalar("SELECT sqlite_version()")
                    .fetch_one(&mut memory)
                    .await
                    .expect("a version");
                format!("SQLite {version}")
            }
        }
    }

    /// By how many milliseconds the server's clock is ahead of this process'.
    pub(super) async fn is_ahead(&self) -> Option<i64> {
        let micros = match self {
            Self::Redis(server) => {
                let time = server.command(&["TIME"]);
                let (seconds, micros) = time.split_once('\n')?;
                1_000_000 * seconds.parse::<i64>().ok()? + micros.parse::<i64>().ok()?
            }
            Self::Postgres(server) => {
                let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint";
                server.value::<i64>(now).await
            }
            Self::Sqlite(_) => return None,
        };
        Some(micros / 1000 - wall_millis())
    }

    /// Stops it where it is for so long; whether it stood still.
    pub(super) async fn pause(&self, time: Duration) -> bool {
        match self {
            Self::Redis(server) => server.pause(),
            Self::Postgres(server) => server.pause(),
            Self::Sqlite(_) => return false,
        }
        tokio::time::sleep(time).await;
        let stood = self.is_stopped();
        match self {
            Self::Redis(server) => server.resume(),
            Self::Postgres(server) => server.resume(),
            Self::Sqlite(_) => {}
        }
        stood
    }

    fn is_stopped(&self) -> bool {
        match self {
            Self::Redis(server) => server.process().is_some_and(Process::is_stopped),
            Self::Postgres(server) => server.process().is_some_and(Process::is_stopped),
            Self::Sqlite(_) => false,
        }
    }

    /// Kills it, and starts it again with its data after so long.
    pub(super) async fn restart(&mut self, down: Duration) -> bool {
        let before = self.pid();
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.kill(),
            Self::Sqlite(_) => {}
        }
        tokio::time::sleep(down).await;
        tokio::task::block_in_place(|| match self {
            Self::Redis(server) => server.launch(),
            Self::Postgres(server) => server.launch(),
            Self::Sqlite(_) => {}
        });
        before.is_some() && before != self.pid()
    }

    fn pid(&self) -> Option<i32> {
        let process = match self {
            Self::Redis(server) => server.process(),
            Self::Postgres(server) => server.process(),
            Self::Sqlite(_) => None,
        };
        process.map(|process| process.pid().as_raw_nonzero().get())
    }

    /// A connection to the file, past the library.
    pub(super) async fn connect(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.file())
            .busy_timeout(Duration::from_secs(20));
        SqliteConnection::connect_with(&options)
            .await
            .expect("the file opens")
    }
}
