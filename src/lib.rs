//! A distributed lock over the store an application already runs.
//!
//! One contract, [`DistributedLock`], and one client, [`LockClient`], for every store. The store
//! is chosen by a URL, and compiled in by a feature of the same name:
//!
//! | URL | feature |
//! | --- | --- |
//! | `memory:` | always there |
//! | `sqlite:`, `sqlite:///path` | `sqlite` |
//! | `redis://`, `valkey://`, `unix://`; `rediss://`, `valkeys://` for TLS | `redis`, and `tls` |
//! | `postgres://`, `postgresql://` | `postgres` |
//! | `etcd://`; `etcds://` for TLS | `etcd`, and `tls` |
//!
//! With the feature `config`, `LockConfig` takes the URL and every option from files and the
//! environment.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let client = distlock::connect("memory:").await?;
//! let guard = client.acquire("orders/42").await?;
//! println!("fencing token {}", guard.token());
//! guard.release().await?;
//! # Ok::<(), distlock::Error>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// The documentation says which feature an item needs; only docs.rs has what that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connect;
#[cfg(feature = "config")]
mod settings;

pub use connect::{connect, open};
pub use lock_core::*;
#[cfg(feature = "config")]
pub use settings::*;

#[cfg(feature = "etcd")]
#[doc(inline)]
pub use lock_etcd as etcd;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use lock_postgres as postgres;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use lock_redis as redis;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use lock_sqlite as sqlite;

/// The examples of the README and of the book are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../docs/concepts.md")]
    struct Concepts;
    #[doc = include_str!("../docs/recipes.md")]
    struct Recipes;
    #[doc = include_str!("../docs/operating.md")]
    struct Operating;
    #[doc = include_str!("../docs/coming-from.md")]
    struct ComingFrom;
    #[cfg(feature = "config")]
    #[doc = include_str!("../docs/configuration.md")]
    struct Configuration;
}
