//! What a store says of itself.

use serde::Serialize;

use crate::Ttl;

/// What a store guarantees; where it is weaker than the contract, it says so here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name, such as `redis`.
    pub store: &'static str,
    /// In which order waiters are served.
    pub fairness: Fairness,
    /// The shortest lease; a shorter ttl is rounded up to it.
    pub min_ttl: Ttl,
    /// Where fencing tokens come from.
    pub tokens: TokenSource,
    /// What a granted lock survives.
    pub durability: Durability,
    /// What weakens the guarantees as the store is set up now, in sentences for people.
    pub warnings: Vec<String>,
}

impl Capabilities {
    /// A store that keeps the whole contract, with no warnings; change the fields that differ.
    pub fn new(store: &'static str, tokens: TokenSource, durability: Durability) -> Self {
        Self {
            store,
            fairness: Fairness::Fifo,
            min_ttl: MIN_TTL,
            tokens,
            durability,
            warnings: Vec::new(),
        }
    }
}

const MIN_TTL: Ttl = match Ttl::from_millis(10) {
    Ok(ttl) => ttl,
    Err(_) => unreachable!(),
};

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served, over all processes.
    Fifo,
    /// No order.
    None,
}

/// Where fencing tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenSource {
    /// The larger of the last token plus one and the store's clock in microseconds.
    ServerClock,
    /// A revision of a replicated log.
    Revision,
}

/// What a granted lock survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: it is in the memory of one process or of a server without persistence.
    Volatile,
    /// A restart of the store on the same disk.
    Disk,
    /// The loss of a minority of the store's members.
    Replicated,
}
