//! Distributed locks in etcd: the store [`EtcdLock`].
//!
//! A claim is a key that lives as long as its lease; the key that was created first holds the
//! lock, and the others are the queue. Acquiring and releasing a free lock is one transaction
//! each, on a lease that is used again and again. A waiter watches, and is told of its turn alone.
//! Renewals are keep-alives: they write nothing.
//!
//! It needs etcd 3.4 at least, with one member or several, and `protoc` to be built. A store uses
//! one connection for requests, renewals and wake-ups together.
//!
//! ```no_run
//! use std::sync::Arc;
//! use lock_core::LockClient;
//! use lock_etcd::EtcdLock;
//!
//! # async fn example() -> lock_core::Result<()> {
//! let store = EtcdLock::connect("etcd://one:2379,two:2379,three:2379").await?;
//! let client = LockClient::new(Arc::new(store));
//! let guard = client.acquire("orders/42").await?;
//! // ... work that nobody else may do meanwhile ...
//! guard.release().await?;
//! # Ok(()) }
//! ```

// The documentation says which feature an item needs; only docs.rs has what that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod claims;
mod config;
mod connection;
mod error;
mod fence;
mod handle;
mod health;
mod keepalive;
mod lease;
mod list;
mod record;
mod release;
mod renewal;
mod requests;
mod store;
mod upkeep;
mod view;
mod wakeup;

pub use config::EtcdLockBuilder;
pub use etcd_client;
pub use fence::TxnFence;
pub use store::EtcdLock;
