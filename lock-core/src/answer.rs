//! What a store answers.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Asker, FencingToken, OwnerId, Ttl, millis};

/// The answer to one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The owner holds the lock.
    Granted(Grant),
    /// Somebody else does, or is ahead in the queue.
    Busy(Busy),
}

/// A lease that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token of this grant; the same for every hold of one grant.
    pub token: FencingToken,
    /// The length that the store really granted, counted from the attempt.
    ///
    /// Less than was asked for only for a claim that has waited in the queue: a lock may be handed
    /// over for the claim window. Another attempt with the same claim, or a renewal, makes it
    /// whole.
    pub ttl: Ttl,
    /// How many holds the owner has now, this one included.
    pub holds: u32,
}

/// Why an attempt was not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Who holds the lock; `None` while it is on its way to the first waiter, at stores that wait
    /// for its claim.
    pub holder: Option<Holder>,
    /// How long the lock stays busy at most if nothing more happens: until the lease ends, or
    /// until the first waiter has had its time to claim.
    #[serde(rename = "remaining_ms", with = "millis")]
    pub remaining: Duration,
    /// The place of this claim in the queue, counted from 1; `None` when it does not queue.
    pub position: Option<u32>,
    /// How many claims are in the queue.
    pub queued: u32,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The owner.
    pub owner: OwnerId,
    /// Who asked for it.
    #[serde(flatten)]
    pub asker: Arc<Asker>,
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// How many holds the owner has.
    pub holds: u32,
    /// How long the owner has held it, by the store's clock.
    #[serde(rename = "held_for_ms", with = "millis")]
    pub held_for: Duration,
    /// How long the lease still runs if nobody renews it, by the store's clock.
    #[serde(rename = "remaining_ms", with = "millis")]
    pub remaining: Duration,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease now runs for at least this long.
    Renewed {
        /// The length that the store really granted, counted from when it got the request.
        ttl: Ttl,
    },
    /// The owner does not hold the lock any more, for certain.
    Gone {
        /// Whether another owner holds it now.
        taken_over: bool,
    },
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The hold was there until now.
    Released {
        /// How many holds the owner has left; the lock is free at 0.
        holds: u32,
    },
    /// The claim was in the queue and is no more.
    Withdrawn,
    /// There was neither a live hold nor a place in the queue.
    NotHeld,
}
