//! The number that a protected resource can check.

use std::{fmt, num::NonZeroU64, str::FromStr};

use serde::{Deserialize, Serialize};

/// A number that is larger for every new grant of a key, and the same for re-entry and renewal.
///
/// A resource that remembers the largest token it has seen, and refuses smaller ones, cannot be
/// damaged by a holder that went on past its lease. It is never zero, so that zero can mean
/// "none yet". The idea is Gray and Cheriton's, the name is Kleppmann's ("How to do distributed
/// locking", 2016).
///
/// ```
/// use lock_core::FencingToken;
///
/// let token: FencingToken = "41".parse().unwrap();
/// assert!(FencingToken::new(42).unwrap() > token);
/// assert_eq!(FencingToken::new(0), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The token of a number; `None` for zero.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The token as a number.
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for FencingToken {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.as_u64()
    }
}
