//! What clients did, and when, as they saw it.
//!
//! All times are nanoseconds of the machine's clock since it was started, the time in suspend
//! included: the same for every process.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Now.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the wall clock shows, in milliseconds.
pub fn wall_millis() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// A line of a client's output.
///
/// An acquisition is asked for, then granted or refused, and a granted one ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An acquire is about to be called.
    Asked {
        /// The acquisition, different from all others of the process.
        id: u64,
        /// The lock.
        key: u32,
        /// When.
        at: u64,
    },
    /// The acquire has returned a guard.
    Granted {
        /// The acquisition.
        id: u64,
        /// When it had returned.
        at: u64,
        /// The guard's token.
        token: u64,
        /// The guard's owner.
        owner: String,
    },
    /// The acquire has failed, or was dropped.
    Refused {
        /// The acquisition.
        id: u64,
        /// When.
        at: u64,
        /// The kind of the error, or `dropped`.
        why: String,
    },
    /// The hold is over.
    Ended {
        /// The acquisition.
        id: u64,
        /// A moment before the guard said for the last time that it is held.
        held_until: u64,
        /// When the release, or what ended it otherwise, had returned.
        at: u64,
        /// `released`, `dropped`, `lost`, or the kind of an error.
        how: String,
        /// Accesses of the resource that were refused.
        refused: u32,
    },
    /// A task has looked whether it holds its lock, and is about to write, as it was told to say.
    Hesitating,
    /// The runtime's only thread has stood still, as it was told to.
    Blocked,
    /// What the wall clock shows, as it was asked for.
    Clock {
        /// In milliseconds.
        millis: i64,
    },
}

/// A grant, put together from its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// The lock.
    pub key: u32,
    /// Who held it.
    pub owner: String,
    /// With which token.
    pub token: u64,
    /// Which process, counted over the whole run.
    pub process: u32,
    /// When the acquire was called.
    pub asked: u64,
    /// When it had returned; from here it is held for certain ...
    pub granted: u64,
    /// ... until here, at least; the same as `granted` when nothing more is known.
    pub held_until: u64,
    /// When the lock was given up for certain; [`u64::MAX`] when that is not known.
    pub over: u64,
}
