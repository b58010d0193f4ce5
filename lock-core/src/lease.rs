//! The client's own view of a lease.

use std::time::Duration;

use crate::{
    LostReason, Moment,
    atomic::{AtomicU64, Ordering},
};

/// Until when a lease may be trusted, or why no longer.
///
/// One word, so that of an extension and a loss exactly one wins, and a loss is final: a lease
/// that was seen as lost is never seen as held again.
#[derive(Debug)]
pub(crate) struct Lease(AtomicU64);

/// The bit that a [`Moment`] never has set; the rest is the place of the reason in [`REASONS`].
const LOST: u64 = 1 << 63;

const REASONS: [LostReason; 6] = [
    LostReason::Expired,
    LostReason::TakenOver,
    LostReason::ForceReleased,
    LostReason::Unreachable,
    LostReason::MaxHold,
    LostReason::Closed,
];

impl Lease {
    pub(crate) fn until(deadline: Moment) -> Self {
        Self(AtomicU64::new(deadline.as_nanos()))
    }

    /// The deadline, or how the lease was lost.
    pub(crate) fn state(&self) -> Result<Moment, LostReason> {
        decode(self.0.load(Ordering::Acquire))
    }

    /// How long the lease may still be trusted.
    pub(crate) fn valid_for(&self, now: Moment) -> Duration {
        self.state()
            .map_or(Duration::ZERO, |deadline| deadline.since(now))
    }

    /// Moves the deadline on, never back; `false` when the lease had run out before `now`.
    pub(crate) fn extend(&self, now: Moment, deadline: Moment) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let old = decode(word).ok().filter(|old| *old > now)?;
                Some(old.max(deadline).as_nanos())
            })
            .is_ok()
    }

    /// Ends the lease if its deadline has passed; `true` when this call was the one to end it.
    pub(crate) fn expire(&self, now: Moment, reason: LostReason) -> bool {
        self.end(reason, |deadline| deadline <= now)
    }

    /// Ends the lease; `true` when this call was the one to end it.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        self.end(reason, |_| true)
    }

    fn end(&self, reason: LostReason, when: impl Fn(Moment) -> bool) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                decode(word).ok().filter(|deadline| when(*deadline))?;
                Some(encode(reason))
            })
            .is_ok()
    }
}

fn encode(reason: LostReason) -> u64 {
    let place = REASONS.iter().position(|r| *r == reason);
    LOST | place.unwrap_or_default() as u64
}

fn decode(word: u64) -> Result<Moment, LostReason> {
    if word & LOST == 0 {
        Ok(Moment::from_nanos(word))
    } else {
        Err(REASONS[(word & !LOST) as usize])
    }
}
