//! The server, or the file, that the clients' locks are in.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::TTLS;
use crate::{
    clock::ShiftedClock,
    history::wall_millis,
    process::Process,
    servers::{etcd::EtcdCluster, postgres::PostgresServer, redis::RedisServer},
};

/// Which store a campaign is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A Redis that writes every change to its log before it answers
    Redis,
    /// A Postgres
    Postgres,
    /// An etcd of one member
    Etcd,
    /// An etcd of three members, which can be cut off from each other
    Etcd3,
    /// A file
    Sqlite,
}

impl StoreKind {
    /// The longest lease that is granted.
    pub(super) fn longest_lease(self) -> Duration {
        match self {
            // Whole seconds.
            Self::Etcd | Self::Etcd3 => Duration::from_secs(1),
            _ => TTLS[TTLS.len() - 1],
        }
    }

    /// How long nobody may get a lock when all faults are over: the longest lease, 2 s for a waiter
    /// that died, up to 2 s of back-off after failures, and a second.
    ///
    /// A waiter in etcd costs its lease; leases begin anew with a new leader, for whose election
    /// there is a second, and are looked at twice a second.
    pub(super) fn recovery(self) -> Duration {
        let patience = Duration::from_secs(2 + 1);
        match self {
            Self::Etcd | Self::Etcd3 => {
                let lease = self.longest_lease() + Duration::from_millis(500);
                2 * lease + Duration::from_secs(1) + patience
            }
            _ => self.longest_lease() + Duration::from_secs(2) + patience,
        }
    }
}

/// The store itself, on a clock of its own where it has one.
#[derive(Debug)]
pub(super) enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
    Etcd(EtcdCluster),
    Sqlite(TempDir),
}

impl Server {
    pub(super) fn start(kind: StoreKind, clock: &ShiftedClock) -> Self {
        match kind {
            StoreKind::Redis => {
                // Written before it answers, but not to the disk: the process is killed, not the
                // machine, and a busy disk would be another test. A short log is soon read.
                let log = ["--appendonly", "yes", "--appendfsync", "no"];
                let short = ["--auto-aof-rewrite-min-size", "1mb"];
                let mut server = RedisServer::with(&[&log[..], &short].concat());
                server.move_to(clock);
                Self::Redis(server)
            }
            StoreKind::Postgres => {
                let mut server = PostgresServer::with(&["max_connections=200"]);
                server.move_to(clock);
                Self::Postgres(server)
            }
            StoreKind::Etcd => Self::Etcd(EtcdCluster::one()),
            StoreKind::Etcd3 => Self::Etcd(EtcdCluster::divisible()),
            StoreKind::Sqlite => Self::Sqlite(tempfile::tempdir().expect("a temporary folder")),
        }
    }

    /// `HOST:PORT` of each member, when it is a server.
    pub(super) fn addresses(&self) -> Vec<String> {
        match self {
            Self::Redis(server) => vec![server.address()],
            Self::Postgres(server) => vec![server.address()],
            Self::Etcd(cluster) => cluster.addresses(),
            Self::Sqlite(_) => Vec::new(),
        }
    }

    /// The URL of the store for clients that reach its members at `addresses`.
    pub(super) fn url(&self, addresses: &[String]) -> String {
        let addresses = addresses.join(",");
        match self {
            Self::Redis(_) => format!("redis://{addresses}"),
            Self::Postgres(_) => format!("postgres://postgres@{addresses}/postgres"),
            Self::Etcd(_) => format!("etcd://{addresses}"),
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
            Self::Etcd(cluster) => {
                let status = cluster.admin().await.status().await;
                let version = status.expect("a status").version().to_owned();
                format!("etcd {version}, {} member(s)", cluster.size())
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
            Self::Etcd(_) | Self::Sqlite(_) => return None,
        };
        Some(micros / 1000 - wall_millis())
    }

    /// Stops it, or one of its members, where it is for so long; whether it stood still.
    pub(super) async fn pause(&self, time: Duration, dice: u64) -> bool {
        let member = self.member(dice);
        match self {
            Self::Redis(server) => server.pause(),
            Self::Postgres(server) => server.pause(),
            Self::Etcd(cluster) => cluster.pause(member),
            Self::Sqlite(_) => {}
        }
        tokio::time::sleep(time).await;
        let stood = self.process(member).is_some_and(Process::is_stopped);
        match self {
            Self::Redis(server) => server.resume(),
            Self::Postgres(server) => server.resume(),
            Self::Etcd(cluster) => cluster.resume(member),
            Self::Sqlite(_) => {}
        }
        stood
    }

    /// Kills it, or one of its members, and starts it again with its data after so long; whether
    /// it is another process.
    pub(super) async fn restart(&mut self, down: Duration, dice: u64) -> bool {
        let member = self.member(dice);
        let pid = |server: &Self| server.process(member).map(Process::pid);
        let before = pid(self);
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.kill(),
            Self::Etcd(cluster) => cluster.kill(member),
            Self::Sqlite(_) => {}
        }
        tokio::time::sleep(down).await;
        tokio::task::block_in_place(|| match self {
            Self::Redis(server) => server.launch(),
            Self::Postgres(server) => server.launch(),
            Self::Etcd(cluster) => cluster.restart(member),
            Self::Sqlite(_) => {}
        });
        before.is_some() && before != pid(self)
    }

    fn process(&self, member: usize) -> Option<&Process> {
        match self {
            Self::Redis(server) => server.process(),
            Self::Postgres(server) => server.process(),
            Self::Etcd(cluster) => cluster.process(member),
            Self::Sqlite(_) => None,
        }
    }

    fn member(&self, dice: u64) -> usize {
        match self {
            Self::Etcd(cluster) => dice as usize % cluster.size(),
            _ => 0,
        }
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
