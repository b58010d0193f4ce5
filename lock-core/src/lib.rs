//! The core of [distlock](https://docs.rs/distlock): the contract that every store keeps, and the
//! client that applications use on top of it.
//!
//! * An application uses [`LockClient`], [`LockGuard`] and [`Owner`].
//! * The author of a store implements [`DistributedLock`] and runs the `conformance` suite.
//! * [`MemoryLock`] is the store for tests, and the reference model.

// The documentation says which feature an item needs; only docs.rs has what that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod answer;
mod capabilities;
mod claim;
mod client;
mod clock;
mod compete;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod fence;
mod finding;
mod guard;
mod handoff;
mod held;
mod id;
mod info;
mod key;
mod lease;
mod lost;
mod memory;
mod metrics;
mod millis;
mod once;
mod owner;
mod pending;
mod reentry;
mod store;
mod ticket;
mod token;
mod ttl;
mod wait;
mod watchdog;

/// What `lease.rs` is made of; `tests/lease.rs` puts loom's own in their place.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use acquire::Acquire;
pub use answer::{Attempt, Busy, Grant, Holder, Release, Renewal};
pub use capabilities::{Capabilities, Durability, Fairness, TokenSource};
pub use claim::{Asker, Claim};
pub use client::{LockClient, LockClientBuilder, ShutdownReport};
pub use clock::{Clock, ManualClock, Moment, SystemClock};
pub use error::{Error, RunError, StoreError, StoreErrorKind};
pub use fence::{FenceGate, Passage};
pub use finding::{Finding, Severity};
pub use guard::LockGuard;
pub use handoff::Handoff;
pub use id::{HoldId, InvalidId, OwnerId};
pub use info::{LockInfo, LockPage, Page, Waiter};
pub use key::{InvalidKey, LockKey};
pub use lost::LostReason;
pub use memory::MemoryLock;
pub use once::Outcome;
pub use owner::Owner;
pub use store::DistributedLock;
pub use ticket::{Fenced, Ticket};
pub use token::FencingToken;
pub use ttl::{InvalidTtl, Ttl};
pub use wait::Wait;

/// What calls of the client return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
