//! How long to wait for a lock.

use std::time::Duration;

/// How long an acquire waits for a lock that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one attempt, and no place in the queue.
    No,
    /// In the queue, at most so long; zero is the same as [`Wait::No`].
    AtMost(Duration),
    /// In the queue, until it is granted.
    Forever,
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        if limit.is_zero() {
            Self::No
        } else {
            Self::AtMost(limit)
        }
    }
}
