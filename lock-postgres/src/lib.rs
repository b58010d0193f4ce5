//! Locks in Postgres, for [distlock](https://docs.rs/distlock).
//!
//! [`PostgresLock`] keeps a lock as a row: no connection and no session state per lock, so it works
//! behind a transaction pooler. A process uses one connection for its requests, one for its
//! renewals and one to be told; requests that come while a statement is under way go out together
//! in the next one.
//!
//! Expiry is by the server's clock, read after the row is locked. Waiters queue in a table, first
//! come, first served, and are woken by `NOTIFY`, or find out by polling where there is no
//! `LISTEN`.
//!
//! When the data is in the same database, two more modes tie a lock to a transaction:
//! [`PostgresLock::lock_in_transaction`] and [`PostgresLock::verify_in`].

// The documentation says which feature an item needs; only docs.rs has what that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod config;
mod connection;
mod error;
mod fence;
mod health;
mod metrics;
mod request;
mod schema;
mod store;
mod sweeper;
mod transaction;
mod view;
mod wakeup;

pub use config::{Pooler, PostgresLockBuilder, SchemaMode, SynchronousCommit};
pub use fence::RowFence;
pub use store::PostgresLock;
