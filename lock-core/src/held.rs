//! A lock that this process holds; what its guards and the watchdog share.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{Claim, FencingToken, LostReason, Moment, Ttl, lease::Lease, metrics::Holding};

#[derive(Debug)]
pub(crate) struct Held {
    /// Its name at the watchdog.
    pub(crate) id: u64,
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    /// Holds of the same owner elsewhere, as far as is known.
    pub(crate) others: u32,
    pub(crate) lease: Lease,
    /// The guards in this process; more than one by re-entry.
    pub(crate) guards: AtomicU32,
    /// Told when the lease is about to end, or has ended.
    pub(crate) changed: Notify,
    /// When the longest allowed hold is over.
    pub(crate) cap: Moment,
    /// Until when it is not released.
    pub(crate) kept_until: Moment,
    /// How long before the end of trust `expiring` fires: a third of this, or of the ttl that was
    /// granted last.
    longest: Duration,
    pub(crate) manual: bool,
    renew_every: Option<Duration>,
    /// Whether the owner may enter it again in this process.
    pub(crate) reentrant: bool,
    /// Whether an attempt that was given up may still be applied, also after the release.
    pub(crate) stray: bool,
    /// Asked for at the next renewal, in milliseconds.
    asked: AtomicU64,
    /// Granted by the last answer, in milliseconds.
    granted: AtomicU64,
    /// Whether the last renewal failed.
    pub(crate) failing: AtomicBool,
    pub(crate) holding: Holding,
}

/// When a request was sent, and the ttl that was granted to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) sent: Moment,
    pub(crate) ttl: Ttl,
}

impl Granted {
    /// The end of trust, which lies before the end of the lease at the store: counted from
    /// before the request was sent, less 1 % of the ttl for clocks of different speed and 2 ms
    /// for the store's rounding (the margin of the Redlock description).
    pub(crate) fn deadline(self) -> Moment {
        let ttl = self.ttl.as_duration();
        self.sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
    }
}

/// What [`Held::new`] needs besides the claim.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) token: FencingToken,
    pub(crate) others: u32,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) kept_until: Moment,
    pub(crate) manual: bool,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) reentrant: bool,
    pub(crate) stray: bool,
    pub(crate) holding: Holding,
}

impl Held {
    pub(crate) fn new(id: u64, claim: Claim, granted: Granted, terms: Terms) -> Self {
        let cap = terms
            .max_hold
            .map_or(Moment::NEVER, |max| granted.sent + max);
        Self {
            id,
            token: terms.token,
            others: terms.others,
            lease: Lease::until(granted.deadline().min(cap)),
            guards: AtomicU32::new(1),
            changed: Notify::new(),
            cap,
            kept_until: terms.kept_until,
            longest: terms.max_hold.unwrap_or(Duration::MAX),
            manual: terms.manual,
            renew_every: terms.renew_every,
            reentrant: terms.reentrant,
            stray: terms.stray,
            asked: AtomicU64::new(claim.ttl.as_millis()),
            granted: AtomicU64::new(granted.ttl.as_millis()),
            failing: AtomicBool::new(false),
            holding: terms.holding,
            claim,
        }
    }

    /// The claim with the ttl that the next renewal asks for.
    pub(crate) fn claim(&self) -> Claim {
        let mut claim = self.claim.clone();
        if let Ok(ttl) = Ttl::from_millis(self.asked.load(Ordering::Relaxed)) {
            claim.ttl = ttl;
        }
        claim
    }

    /// The ttl that the store granted last.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.granted.load(Ordering::Relaxed))
    }

    /// How long after a grant of `ttl` its renewal is due: somewhere in between.
    pub(crate) fn renewal_due(&self, ttl: Duration) -> Range<Duration> {
        renewal_due(self.renew_every, ttl)
    }

    /// Later renewals ask for `ttl`.
    pub(crate) fn ask(&self, ttl: Ttl) {
        self.asked.store(ttl.as_millis(), Ordering::Relaxed);
    }

    /// The store has renewed; `false` when the answer came after the end of trust.
    pub(crate) fn renewed(&self, now: Moment, granted: Granted) -> bool {
        let in_time = self.lease.extend(now, granted.deadline().min(self.cap));
        if in_time {
            self.granted
                .store(granted.ttl.as_millis(), Ordering::Relaxed);
            self.failing.store(false, Ordering::Relaxed);
        }
        in_time
    }

    /// How it was lost; looks at the clock first.
    pub(crate) fn lost(&self, now: Moment) -> Option<LostReason> {
        let reason = if now >= self.cap {
            LostReason::MaxHold
        } else if self.failing.load(Ordering::Relaxed) {
            LostReason::Unreachable
        } else {
            LostReason::Expired
        };
        if self.lease.expire(now, reason) {
            self.tell_lost(reason, now);
        }
        self.lease.state().err()
    }

    /// It is lost now, unless it was before.
    pub(crate) fn lose(&self, reason: LostReason, now: Moment) {
        if self.lease.lose(reason) {
            self.tell_lost(reason, now);
        }
    }

    fn tell_lost(&self, reason: LostReason, now: Moment) {
        self.holding.lost(reason, now);
        if reason == LostReason::Closed {
            tracing::debug!(key = %self.claim.key, token = %self.token, "released by the client's shutdown");
        } else {
            tracing::warn!(key = %self.claim.key, token = %self.token, owner = %self.claim.owner, %reason, "lock lost");
        }
        self.changed.notify_waiters();
    }

    /// When `expiring` fires if nothing is renewed; never once it is lost.
    pub(crate) fn expiring_at(&self) -> Moment {
        match self.lease.state() {
            Ok(deadline) => deadline - self.ttl().min(self.longest) / 3,
            Err(_) => Moment::NEVER,
        }
    }

    /// Whether the store may still hold something for us, so that a release is worth sending.
    pub(crate) fn is_releasable(&self) -> bool {
        !matches!(
            self.lease.state(),
            Err(LostReason::TakenOver | LostReason::ForceReleased | LostReason::Closed)
        )
    }
}

fn renewal_due(every: Option<Duration>, ttl: Duration) -> Range<Duration> {
    match every {
        Some(every) if every < ttl => every.mul_f64(0.9)..every,
        _ => ttl.mul_f64(0.3)..ttl.mul_f64(1.1 / 3.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_come_at_a_third_of_the_ttl_or_when_it_was_said() {
        let seconds = Duration::from_secs;
        assert_eq!(renewal_due(None, seconds(30)), seconds(9)..seconds(11));
        let said = renewal_due(Some(seconds(20)), seconds(30));
        assert_eq!(said, seconds(18)..seconds(20));
        // Later than the lease is too late.
        let short = renewal_due(Some(seconds(20)), seconds(20));
        assert!(short.end < seconds(10));
    }
}
