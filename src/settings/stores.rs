//! What only one store has.

use std::time::Duration;

use serde::Deserialize;

/// The section `redis`; the options of [`RedisLockBuilder`](crate::redis::RedisLockBuilder).
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// How long one command may take, connecting included.
    #[serde(with = "humantime_serde")]
    pub operation_timeout: Duration,
    /// How long the first waiter has to claim a lock that became free.
    #[serde(with = "humantime_serde")]
    pub claim_window: Duration,
    /// How long the last token of a lock is remembered after its grant.
    #[serde(with = "humantime_serde")]
    pub token_retention: Duration,
}

#[cfg(feature = "redis")]
impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            operation_timeout: Duration::from_secs(3),
            claim_window: Duration::from_secs(2),
            token_retention: Duration::from_secs(2 * 60 * 60),
        }
    }
}

/// The section `postgres`; the options of
/// [`PostgresLockBuilder`](crate::postgres::PostgresLockBuilder).
#[cfg(feature = "postgres")]
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// The schema of the tables.
    pub schema: String,
    /// What to do about the tables.
    pub schema_mode: SchemaConfig,
    /// The server's own address, to be told on when `url` is a pooler.
    pub listen_url: Option<super::StoreUrl>,
    /// Whether waiters are told, instead of looking every `poll_interval`.
    pub listen: bool,
    /// Whether a pooler is in between.
    pub pooler: PoolerConfig,
    /// How safe a commit is before it is answered.
    pub synchronous_commit: SynchronousCommitConfig,
    /// How long one statement or the making of a connection may take.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// How many requests go out in one statement at most.
    pub batch_limit: u32,
    /// How often this process looks for rows that nobody uses any more; `None` is never.
    #[serde(with = "super::text::interval")]
    pub sweep_interval: Option<Duration>,
    /// How long a row is kept after its lock was last held.
    #[serde(with = "humantime_serde")]
    pub keep_idle: Duration,
    /// How often waiters look where they cannot be told.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
}

#[cfg(feature = "postgres")]
impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            schema: "public".to_owned(),
            schema_mode: SchemaConfig::Ensure,
            listen_url: None,
            listen: true,
            pooler: PoolerConfig::Detect,
            synchronous_commit: SynchronousCommitConfig::ServerDefault,
            request_timeout: Duration::from_secs(5),
            batch_limit: 256,
            sweep_interval: Some(Duration::from_secs(60)),
            keep_idle: Duration::from_secs(600),
            poll_interval: Duration::from_millis(100),
        }
    }
}

/// As [`SchemaMode`](crate::postgres::SchemaMode).
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SchemaConfig {
    /// Creates what is missing.
    Ensure,
    /// Fails when something is missing.
    Check,
}

/// As [`Pooler`](crate::postgres::Pooler).
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolerConfig {
    /// Find out.
    Detect,
    /// The server itself, or a pooler in session mode.
    None,
    /// A pooler in transaction mode.
    Transaction,
}

/// As [`SynchronousCommit`](crate::postgres::SynchronousCommit).
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SynchronousCommitConfig {
    /// What the server, the database or the role is set to.
    ServerDefault,
    /// On disk, and on the synchronous standbys.
    On,
    /// Also visible on the synchronous standbys.
    RemoteApply,
    /// On the server's disk.
    Local,
    /// Not even on disk.
    Off,
}

/// The section `etcd`; the options of [`EtcdLockBuilder`](crate::etcd::EtcdLockBuilder).
#[cfg(feature = "etcd")]
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EtcdConfig {
    /// How long one request may take, connecting and other members included.
    #[serde(with = "humantime_serde")]
    pub operation_timeout: Duration,
    /// How many unused leases are kept for the next locks.
    pub lease_pool: u32,
}

#[cfg(feature = "etcd")]
impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            operation_timeout: Duration::from_secs(3),
            lease_pool: 128,
        }
    }
}

/// The section `sqlite`; the options of [`SqliteLockBuilder`](crate::sqlite::SqliteLockBuilder).
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// How long a call waits while another program keeps the file locked.
    #[serde(with = "humantime_serde")]
    pub busy_timeout: Duration,
    /// How often a process with waiters looks whether the file has changed.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// How long a waiter that gives no sign of life keeps its place.
    #[serde(with = "humantime_serde")]
    pub claim_window: Duration,
    /// How long a lock has to be unused before its row may be deleted.
    #[serde(with = "humantime_serde")]
    pub forget_after: Duration,
}

#[cfg(feature = "sqlite")]
impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(3),
            poll_interval: Duration::from_millis(10),
            claim_window: Duration::from_millis(1900),
            forget_after: Duration::from_secs(24 * 60 * 60),
        }
    }
}
