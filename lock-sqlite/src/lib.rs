//! The embedded store of [distlock](https://docs.rs/distlock): locks in one SQLite file, for any
//! number of processes on one machine, with nothing to install.
//!
//! ```
//! use lock_core::{Asker, Attempt, Claim, DistributedLock, HoldId, OwnerId, Ttl};
//! use lock_sqlite::SqliteLock;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("locks.db");
//! let store = SqliteLock::open(&path).await?;
//! let claim = Claim {
//!     key: "orders/42".parse()?,
//!     owner: OwnerId::random(),
//!     hold: HoldId::random(),
//!     ttl: Ttl::from_millis(30_000)?,
//!     queue: false,
//!     asker: Asker::this_process(None)?.into(),
//! };
//! assert!(matches!(store.try_acquire(&claim).await?, Attempt::Granted(_)));
//! store.release(&claim).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Applications hand the store to a `LockClient`, which waits, renews and cleans up.
//!
//! The file has to be on a local disk: SQLite's write-ahead log needs memory that all processes
//! share, so a network file system or two machines on one file do not work.

mod config;
mod connection;
mod disk;
mod error;
mod health;
mod queue;
mod rows;
mod schema;
mod statements;
mod store;
mod wakeup;

pub use config::SqliteLockBuilder;
pub use store::SqliteLock;
