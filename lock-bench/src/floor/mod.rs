//! The bare store: the same requests as a lock needs, from the same client library, and no more.

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use crate::{Contender, Features, Kind};

/// The floor of a kind of store, if its client is compiled in.
pub(crate) fn of(kind: Kind) -> Option<Box<dyn Contender>> {
    match kind {
        Kind::Memory => Some(Box::new(memory::Floor)),
        #[cfg(feature = "sqlite")]
        Kind::Sqlite => Some(Box::new(sqlite::Floor)),
        #[cfg(feature = "redis")]
        Kind::Redis => Some(Box::new(redis::Floor)),
        #[cfg(feature = "postgres")]
        Kind::Postgres => Some(Box::new(postgres::Floor)),
        #[cfg(feature = "etcd")]
        Kind::Etcd => Some(Box::new(etcd::Floor)),
        #[allow(unreachable_patterns, reason = "with all stores compiled in")]
        _ => None,
    }
}

const NOTHING: Features = Features {
    expiry: "no",
    order: "no",
    token: "no",
    loss: "no",
    renewal: "no",
    connections: "one in all",
    waiting: "cannot wait",
};
