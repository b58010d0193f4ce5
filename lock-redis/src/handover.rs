//! A hand-over that a waiter is told of, and how old it is.
//!
//! A release grants the lock to the first waiter for the claim window, and says so in its notice,
//! with the server's time. A waiter that can bound the age of that against its own clock starts at
//! once, with what is left of the window; the client's renewal makes it a whole lease.

use std::time::Duration;

use lock_core::{Claim, FencingToken, Grant, Moment, Ttl};

/// What a notice says of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    token: FencingToken,
    /// µs since 1970 by the server's clock.
    at: u64,
}

/// The server's time as a reply told it, and a moment before that request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) sent: Moment,
    /// µs since 1970 by the server's clock.
    pub(crate) server: u64,
}

impl Reading {
    /// Two clocks drift apart: by no more than 10 ms in this time, at 500 ppm.
    const USABLE: Duration = Duration::from_secs(20);
}

impl Handover {
    /// The watchdog needs some time, in ms, to make it a whole lease.
    const USEFUL: u64 = 200;

    /// Reads `TOKEN@MICROS`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (token, at) = text.split_once('@')?;
        Some(Self {
            token: token.parse().ok()?,
            at: at.parse().ok()?,
        })
    }

    /// What is left of it for a claim; `None` when it is not young for certain.
    pub(crate) fn grant(
        self,
        claim: &Claim,
        window: Duration,
        reading: Reading,
        now: Moment,
    ) -> Option<Grant> {
        let here = now.since(reading.sent);
        let there = Duration::from_micros(self.at.checked_sub(reading.server)?);
        // It is less than this old. A server whose clock was set forward may seem ahead of us.
        let age = here.checked_sub(there)?;
        if here > Reading::USABLE || age > window / 2 {
            return None;
        }
        let left = u64::try_from((window - age).as_millis()).ok()?;
        if left < Self::USEFUL {
            return None;
        }
        Some(Grant {
            token: self.token,
            ttl: Ttl::from_millis(left).ok()?.min(claim.ttl),
            holds: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lock_core::{Asker, HoldId, LockKey, OwnerId};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(2);

    fn claim(ttl: u64) -> Claim {
        Claim {
            key: LockKey::new("key").unwrap(),
            owner: OwnerId::random(),
            hold: HoldId::random(),
            ttl: Ttl::from_millis(ttl).unwrap(),
            queue: true,
            asker: Arc::new(Asker::this_process(None).unwrap()),
        }
    }

    /// The ttl, in ms, of a hand-over `there` ms after the reading, looked at `here` ms after it.
    fn left(there: i64, here: u64) -> Option<u64> {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let (sent, server) = (at(50_000), 1_700_000_000_000_000_u64);
        let handover = Handover {
            token: "7".parse().unwrap(),
            at: server.checked_add_signed(there * 1000).unwrap(),
        };
        let grant = handover.grant(
            &claim(30_000),
            WINDOW,
            Reading { sent, server },
            at(50_000 + here),
        );
        grant.map(|grant| grant.ttl.as_millis())
    }

    #[test]
    fn what_is_left_counts_from_the_hand_over() {
        assert_eq!(left(100, 100), Some(2000));
        assert_eq!(left(100, 350), Some(1750));
        assert_eq!(left(0, 1000), Some(1000));
    }

    #[test]
    fn an_old_one_is_not_trusted() {
        assert_eq!(left(0, 1001), None);
        assert_eq!(left(100, 5000), None);
    }

    #[test]
    fn neither_is_one_from_a_clock_that_was_set() {
        assert_eq!(left(200, 100), None, "forward");
        assert_eq!(left(-1, 0), None, "back");
    }

    #[test]
    fn nor_one_after_a_long_silence() {
        assert_eq!(left(20_000, 20_000), Some(2000));
        assert_eq!(left(20_001, 20_001), None);
    }

    #[test]
    fn it_is_never_longer_than_asked_for() {
        let now = Moment::from_nanos(1);
        let reading = Reading {
            sent: now,
            server: 5,
        };
        let handover = Handover::read("7@5").unwrap();
        let grant = handover.grant(&claim(300), WINDOW, reading, now).unwrap();
        assert_eq!(grant.token.to_string(), "7");
        assert_eq!(grant.ttl.as_millis(), 300);
    }

    #[test]
    fn a_short_window_is_of_no_use() {
        let now = Moment::from_nanos(1);
        let reading = Reading {
            sent: now,
            server: 5,
        };
        let handover = Handover::read("7@5").unwrap();
        let grant = |window| handover.grant(&claim(30_000), window, reading, now);
        assert!(grant(Duration::from_millis(199)).is_none());
        assert!(grant(Duration::from_millis(200)).is_some());
    }

    #[test]
    fn only_whole_notices_are_read() {
        for text in ["", "7", "@", "7@", "@5", "7@5@", "-7@5", "7@5 "] {
            assert_eq!(Handover::read(text), None, "{text:?}");
        }
    }
}
