//! Settings as data: what a file or the environment says of a lock client.

mod check;
mod connect;
mod keys;
mod load;
#[cfg(test)]
mod page;
#[cfg(any(
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod stores;
mod text;
mod url;

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::{LockClient, Result, Wait};

pub use load::LockConfigLoader;
#[cfg(feature = "etcd")]
pub use stores::EtcdConfig;
#[cfg(feature = "redis")]
pub use stores::RedisConfig;
#[cfg(feature = "sqlite")]
pub use stores::SqliteConfig;
#[cfg(feature = "postgres")]
pub use stores::{PoolerConfig, PostgresConfig, SchemaConfig, SynchronousCommitConfig};
pub use url::StoreUrl;

/// A store and how to use it, as read from TOML, YAML, JSON or the environment.
///
/// `docs/configuration.md` lists every key with its unit, range and default. Durations are text
/// with a unit, such as `500ms`, `30s` or `1h 30m`.
///
/// ```
/// # use distlock::LockConfig;
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("locks.toml");
/// # std::fs::write(&file, r#"
/// url = "memory:"          # or DISTLOCK_URL in the environment, which wins
/// ttl = "20s"
/// wait = "5s"
/// max_hold = "10m"
/// # "#)?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let locks = LockConfig::load(&file)?.connect().await?;
/// let guard = locks.acquire("orders/42").await?;
/// # guard.release().await?;
/// # Ok::<(), distlock::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is deserialised by serde, so it can be a part of an application's own settings:
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     workers: u32,
///     locks: distlock::LockConfig,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let settings: Settings = serde_json::from_str(
///     r#"{"workers": 8, "locks": {"url": "memory:", "ttl": "20s"}}"#,
/// )?;
/// assert_eq!(settings.locks.ttl.as_secs(), 20);
/// settings.locks.check()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LockConfig {
    /// The store, which has to be named.
    pub url: StoreUrl,
    /// What separates applications on one store; `None` is the store's own default.
    pub prefix: Option<String>,
    /// The length of a lease.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// How long an acquire waits: a duration, `none` or `forever`.
    #[serde(with = "text::wait")]
    pub wait: Wait,
    /// The longest time that a lock may be held in all.
    #[serde(with = "humantime_serde")]
    pub max_hold: Option<Duration>,
    /// How long after a grant or a renewal the lease is renewed; `None` is a third of the ttl.
    #[serde(with = "humantime_serde")]
    pub renewal: Option<Duration>,
    /// How long one request to the store may take.
    #[serde(with = "humantime_serde")]
    pub operation_timeout: Duration,
    /// How often an owner may enter one lock.
    pub max_holds: u32,
    /// A name for people who look at a lock, and the label `client` of metrics.
    pub label: Option<String>,
    /// Whether every metric is labelled with the lock's key.
    pub metrics_by_key: bool,
    /// Certificates for a store that is reached by TLS.
    pub tls: Option<TlsConfig>,
    /// What only Redis has.
    #[cfg(feature = "redis")]
    pub redis: Option<RedisConfig>,
    /// What only Postgres has.
    #[cfg(feature = "postgres")]
    pub postgres: Option<PostgresConfig>,
    /// What only etcd has.
    #[cfg(feature = "etcd")]
    pub etcd: Option<EtcdConfig>,
    /// What only SQLite has.
    #[cfg(feature = "sqlite")]
    pub sqlite: Option<SqliteConfig>,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            url: StoreUrl::default(),
            prefix: None,
            ttl: Duration::from_secs(30),
            wait: Wait::AtMost(Duration::from_secs(30)),
            max_hold: None,
            renewal: None,
            operation_timeout: Duration::from_secs(5),
            max_holds: 1000,
            label: None,
            metrics_by_key: false,
            tls: None,
            #[cfg(feature = "redis")]
            redis: None,
            #[cfg(feature = "postgres")]
            postgres: None,
            #[cfg(feature = "etcd")]
            etcd: None,
            #[cfg(feature = "sqlite")]
            sqlite: None,
        }
    }
}

/// Files in PEM form for a connection by TLS.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// The authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client's own certificate.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

impl LockConfig {
    /// Settings for the store of `url`, everything else at its default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: StoreUrl::new(url),
            ..Self::default()
        }
    }

    /// The settings of a file and, above it, of the variables that begin with `DISTLOCK_`.
    ///
    /// # Errors
    ///
    /// As [`LockConfigLoader::load`].
    pub fn load(file: impl Into<PathBuf>) -> Result<Self> {
        Self::loader().file(file).environment("DISTLOCK").load()
    }

    /// The settings of the variables that begin with `DISTLOCK_`: `DISTLOCK_URL`, `DISTLOCK_TTL`,
    /// `DISTLOCK_REDIS__CLAIM_WINDOW`.
    ///
    /// # Errors
    ///
    /// As [`LockConfigLoader::load`].
    pub fn from_env() -> Result<Self> {
        Self::loader().environment("DISTLOCK").load()
    }

    /// Settings from several files, or from variables of another name.
    pub fn loader() -> LockConfigLoader {
        LockConfigLoader::default()
    }

    /// Whether the settings can be used; sends nothing. [`connect`](Self::connect) asks it first.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig), which names the key, its value and
    /// what it may be.
    pub fn check(&self) -> Result<()> {
        check::check(self).map_err(Into::into)
    }

    /// Connects to the store, and makes a client with these options.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`](crate::Error::InvalidConfig) as [`check`](Self::check), for a
    ///   certificate that cannot be read, and for a store that is not compiled in.
    /// * [`Error::Store`](crate::Error::Store) when the store cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(&self) -> Result<LockClient> {
        self.check()?;
        let store = connect::open(self).await?;
        self.client(store)
    }
}
