//! Distributed locks in Redis or Valkey: the store [`RedisLock`].
//!
//! Every verb is one script and one round trip. Waiters queue in the server, first come, first
//! served; a release hands the lock to the first one and tells its process alone, so that nothing
//! polls and no herd wakes. A store uses one connection for commands and, while somebody waits,
//! one for wake-ups, however many locks and waiters there are.
//!
//! It needs Redis 6.2 or Valkey 7.2 at least, as one server. What holds after a crash, a clock
//! step or a fail-over depends on how that server is set up:
//! [`capabilities`](lock_core::DistributedLock::capabilities) reports what weakens it.
//!
//! ```no_run
//! use std::sync::Arc;
//! use lock_core::LockClient;
//! use lock_redis::RedisLock;
//!
//! # async fn example() -> lock_core::Result<()> {
//! let store = RedisLock::connect("redis://127.0.0.1/").await?;
//! let client = LockClient::new(Arc::new(store));
//! let guard = client.acquire("orders/42").await?;
//! // ... work that nobody else may do meanwhile ...
//! guard.release().await?;
//! # Ok(()) }
//! ```

// The documentation says which feature an item needs; only docs.rs has what that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod calls;
mod config;
mod connection;
mod error;
mod fence;
mod handover;
mod health;
mod lane;
mod record;
mod scripts;
mod store;
mod wakeup;

pub use config::RedisLockBuilder;
pub use fence::ScriptFence;
pub use redis;
pub use store::RedisLock;
