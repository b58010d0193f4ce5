//! What an operator sees.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Asker, Holder, LockKey, OwnerId, millis};

/// A lock that somebody holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// The lock.
    pub key: LockKey,
    /// Who holds it; `None` while it is on its way to the first waiter.
    pub holder: Option<Holder>,
    /// Who waits, in the order of the queue.
    pub waiters: Vec<Waiter>,
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The owner that would get it.
    pub owner: OwnerId,
    /// Who is asking.
    #[serde(flatten)]
    pub asker: Arc<Asker>,
    /// How long it has waited, by the store's clock.
    #[serde(rename = "waiting_for_ms", with = "millis")]
    pub waiting_for: Duration,
}

/// Which part of a list to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// About how many locks to return, at least 1; a store may return a few more or fewer.
    pub limit: usize,
    /// Where to go on: [`LockPage::next`] of the page before, or `None` to begin.
    pub cursor: Option<String>,
}

impl Default for Page {
    /// The first 100.
    fn default() -> Self {
        Self {
            limit: 100,
            cursor: None,
        }
    }
}

/// One page of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPage {
    /// The locks; the order is the store's.
    pub locks: Vec<LockInfo>,
    /// The cursor of the next page; `None` at the end. A page may be empty and not the last.
    pub next: Option<String>,
}
