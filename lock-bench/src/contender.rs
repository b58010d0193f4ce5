//! Who is measured: the store itself, distlock, and whoever else is added.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, floor, ours::Distlock};

/// One way to have locks in a store.
#[async_trait]
pub trait Contender: Send + Sync {
    /// A stable name for scripts: `distlock`, `floor`, or a library's own.
    fn name(&self) -> &'static str;

    /// What it gives besides speed.
    fn features(&self) -> Features;

    /// How many locks and waiters it can have at once; `None` when there is no such limit.
    fn most(&self) -> Option<usize> {
        None
    }

    /// The commands that it sends to Redis, in lower case, not those of its scripts.
    fn commands(&self) -> &'static [&'static str] {
        &[]
    }

    /// Opens it with connections of its own.
    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>>;
}

/// A contender on its store.
#[async_trait]
pub trait Locks: Send + Sync {
    /// Acquires the lock of `key` and waits for as long as it takes.
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>>;

    /// Acquires the lock of `key` as one who may hold it already; `None` when that is not possible.
    async fn enter(&self, _key: &str) -> Option<Result<Box<dyn Held>>> {
        None
    }

    /// Renews a lock, if it is left to the user; `None` when it is not.
    async fn renew(&self, _key: &str) -> Option<Result<()>> {
        None
    }

    /// Ends its connections, and takes away what it made for itself in the store.
    async fn close(&self) {}
}

/// A lock that is held.
#[async_trait]
pub trait Held: Send {
    /// Gives the lock back.
    async fn release(self: Box<Self>) -> Result<()>;
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The memory of one process.
    Memory,
    /// A file of one machine.
    Sqlite,
    /// Redis or Valkey.
    Redis,
    /// Postgres.
    Postgres,
    /// etcd.
    Etcd,
}

impl Kind {
    /// The kind that the scheme of a store URL names.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when it names none. The URL is not repeated: it may hold a password.
    pub fn of(url: &str) -> Result<Self> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme);
        match scheme.unwrap_or_default().to_ascii_lowercase().as_str() {
            "memory" => Ok(Self::Memory),
            "sqlite" => Ok(Self::Sqlite),
            "redis" | "rediss" | "valkey" | "valkeys" | "unix" => Ok(Self::Redis),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "etcd" | "etcds" => Ok(Self::Etcd),
            _ => Err(Error::Usage(
                "the store URL has to begin with `memory:`, `sqlite:`, `redis:`, `postgres:` or `etcd:`"
                    .to_owned(),
            )),
        }
    }

    /// Whether a store of this kind can be shared by processes.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::Memory
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
        })
    }
}

/// A store to open.
#[derive(Clone, Serialize, Deserialize)]
pub struct Target {
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub url: String,
    /// The length of a lease; of whole seconds, since etcd knows no others.
    pub ttl: Duration,
    /// What all names of this run begin with.
    pub prefix: String,
    /// How many locks and waiters there will be at once.
    pub size: usize,
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("kind", &self.kind)
            .field("ttl", &self.ttl)
            .field("prefix", &self.prefix)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// What a contender gives, in a few words each: `yes`, `no`, or how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Features {
    /// Whether a lock of somebody who died becomes free.
    pub expiry: &'static str,
    /// Whether who comes first is served first.
    pub order: &'static str,
    /// Whether a grant has a fencing token.
    pub token: &'static str,
    /// Whether the holder is told when the lock is lost.
    pub loss: &'static str,
    /// Whether locks are renewed in the background.
    pub renewal: &'static str,
    /// How many connections locks and waiters need.
    pub connections: &'static str,
    /// How a waiter learns that it is its turn.
    pub waiting: &'static str,
}

/// Who is measured on a store of a kind.
pub type Roster = fn(Kind) -> Vec<Box<dyn Contender>>;

/// The bare store, and distlock on it.
pub fn ours(kind: Kind) -> Vec<Box<dyn Contender>> {
    let mut all: Vec<Box<dyn Contender>> = Vec::new();
    all.extend(floor::of(kind));
    all.push(Box::new(Distlock));
    all
}
