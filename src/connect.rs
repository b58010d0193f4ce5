//! From a URL to a store.

use std::sync::Arc;

use crate::{DistributedLock, Error, LockClient, MemoryLock, Result};

/// A client with the default options on the store of `url`.
///
/// # Errors
///
/// As [`open`].
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn connect(url: &str) -> Result<LockClient> {
    open(url).await.map(LockClient::new)
}

/// The store of `url`; the [crate's page](crate) lists the schemes.
///
/// `memory:` is a new store at every call, for the one who called.
///
/// # Errors
///
/// * [`Error::InvalidConfig`] for a URL that cannot be used; for a store that is not compiled in
///   it names the feature to enable. It does not repeat the URL, which may hold a password.
/// * [`Error::Store`] when the store cannot be reached or refuses.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn open(url: &str) -> Result<Arc<dyn DistributedLock>> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    match scheme.unwrap_or_default().to_ascii_lowercase().as_str() {
        "memory" => memory(url),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" => {
            lock_redis::RedisLock::connect(url).await.map(share)
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => lock_postgres::PostgresLock::connect(url).await.map(share),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => lock_etcd::EtcdLock::connect(url).await.map(share),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let store = lock_sqlite::SqliteLockBuilder::from_url(url).map_err(bad_url)?;
            store.open().await.map_err(unusable).map(share)
        }
        scheme => Err(not_known(scheme)),
    }
}

fn memory(url: &str) -> Result<Arc<dyn DistributedLock>> {
    match url.split_once(':') {
        Some((_, "" | "//")) => Ok(share(MemoryLock::new())),
        _ => Err(invalid(
            "the URL of the memory store is `memory:` and no more",
        )),
    }
}

fn share(store: impl DistributedLock) -> Arc<dyn DistributedLock> {
    Arc::new(store)
}

/// A URL that the store cannot read; nothing was sent.
#[cfg(feature = "sqlite")]
pub(crate) fn bad_url(why: crate::StoreError) -> Error {
    invalid(why.to_string())
}

#[cfg(feature = "sqlite")]
pub(crate) fn unusable(source: crate::StoreError) -> Error {
    Error::Store {
        operation: "open the store",
        key: None,
        source,
    }
}

/// Every scheme, and the feature that brings it.
const SCHEMES: [(&str, &str); 11] = [
    ("memory", ""),
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("valkey", "redis"),
    ("valkeys", "redis"),
    ("unix", "redis"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
];

#[cfg(feature = "config")]
pub(crate) fn is_scheme(scheme: &str) -> bool {
    SCHEMES.iter().any(|(known, _)| *known == scheme)
}

fn not_known(scheme: &str) -> Error {
    match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => invalid(format!(
            "the store of `{scheme}:` URLs is not compiled in; enable the feature `{feature}`"
        )),
        // What stands before the first colon of a malformed URL may be anything: not repeated.
        None => invalid(format!(
            "the store URL has to begin with one of {}",
            SCHEMES.map(|(known, _)| format!("`{known}:`")).join(", ")
        )),
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidConfig { what: what.into() }
}
