//! The length of a lease.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// The length of a lease: whole milliseconds, from 1 ms to [`Ttl::MAX`].
///
/// A fraction of a millisecond is rounded up, so that a ttl never becomes zero. A store may grant
/// more than was asked for when its unit is coarser; what counts is the ttl of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u64);

impl Ttl {
    /// The longest lease: 366 days.
    pub const MAX: Self = Self(366 * 24 * 60 * 60 * 1000);

    /// Checks `ttl` and rounds it up to whole milliseconds.
    ///
    /// # Errors
    ///
    /// [`InvalidTtl`] when it is zero or longer than [`Ttl::MAX`].
    pub fn new(ttl: Duration) -> Result<Self, InvalidTtl> {
        Self::from_millis(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }

    /// A ttl of `millis` milliseconds.
    ///
    /// # Errors
    ///
    /// As [`Ttl::new`].
    pub const fn from_millis(millis: u64) -> Result<Self, InvalidTtl> {
        if millis == 0 || millis > Self::MAX.0 {
            Err(InvalidTtl)
        } else {
            Ok(Self(millis))
        }
    }

    /// The length in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The length as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// The ttl is zero or longer than [`Ttl::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ttl has to be from 1 ms to 366 days")]
pub struct InvalidTtl;

impl TryFrom<u64> for Ttl {
    type Error = InvalidTtl;
    fn try_from(millis: u64) -> Result<Self, InvalidTtl> {
        Self::from_millis(millis)
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> Self {
        ttl.0
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Self {
        ttl.as_duration()
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_duration(), f)
    }
}
