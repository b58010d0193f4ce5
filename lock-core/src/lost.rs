//! Why a lock is held no longer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the client can no longer prove that it holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before it was renewed: renewal is manual, or this process stood still.
    Expired,
    /// Another owner holds the lock.
    TakenOver,
    /// The grant was ended by somebody other than the holder: an operator, or a store that lost
    /// or evicted it.
    ForceReleased,
    /// The lease ran out while the store did not answer renewals.
    Unreachable,
    /// The longest allowed hold is over.
    MaxHold,
    /// The client was shut down, or this is the copy of a guard in a forked child.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease expired",
            Self::TakenOver => "another owner holds it",
            Self::ForceReleased => "its grant was ended by somebody else",
            Self::Unreachable => "its lease expired while the store could not be reached",
            Self::MaxHold => "the longest allowed hold is over",
            Self::Closed => "the client is closed",
        })
    }
}
