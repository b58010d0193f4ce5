//! The client's view of a lease, under every interleaving of the threads that change it: the
//! module itself, on loom's atomics instead of the standard ones.

use std::time::Duration;

use lock_core::{LostReason, Moment};
use loom::{model, sync::Arc, thread};

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/lease.rs"]
mod lease;

use lease::Lease;

const REASONS: [LostReason; 6] = [
    LostReason::Expired,
    LostReason::TakenOver,
    LostReason::ForceReleased,
    LostReason::Unreachable,
    LostReason::MaxHold,
    LostReason::Closed,
];

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

/// A lease until 10, shared.
fn lease() -> Arc<Lease> {
    Arc::new(Lease::until(at(10)))
}

#[test]
fn every_reason_survives_the_word() {
    model(|| {
        for reason in REASONS {
            let lease = Lease::until(at(5));
            assert!(lease.lose(reason));
            assert_eq!(lease.state(), Err(reason));
        }
    });
}

/// A27.
#[test]
fn a27_a_loss_is_final() {
    model(|| {
        let lease = lease();
        assert!(!lease.expire(at(9), LostReason::Expired));
        assert!(lease.expire(at(10), LostReason::Expired));
        assert!(!lease.lose(LostReason::TakenOver));
        assert!(!lease.extend(at(1), at(100)));
        assert_eq!(lease.state(), Err(LostReason::Expired));
    });
}

/// A7.
#[test]
fn a7_a_late_extension_does_not_revive() {
    model(|| {
        let lease = lease();
        assert!(!lease.extend(at(10), at(100)));
        assert_eq!(lease.valid_for(at(10)), Duration::ZERO);
        assert!(lease.extend(at(9), at(100)));
        let older = lease.extend(at(9), at(50));
        assert!(older, "an older answer changes nothing");
        assert_eq!(lease.state(), Ok(at(100)));
    });
}

/// A7: a renewal's answer and the end of the lease meet; exactly one of them wins.
#[test]
fn a7_an_extension_races_the_end() {
    model(|| {
        let lease = lease();
        let renewal = thread::spawn({
            let lease = lease.clone();
            move || lease.extend(at(9), at(100))
        });
        let ended = lease.expire(at(10), LostReason::Expired);
        let extended = renewal.join().unwrap_or_default();
        assert_ne!(ended, extended);
        let state = lease.state();
        assert_eq!(
            state,
            if ended {
                Err(LostReason::Expired)
            } else {
                Ok(at(100))
            }
        );
    });
}

/// A43: two say that the lock is lost, and a third renews it; one reason stays.
#[test]
fn a43_of_two_losses_one_is_told() {
    model(|| {
        let lease = lease();
        let watchdog = thread::spawn({
            let lease = lease.clone();
            move || lease.lose(LostReason::TakenOver)
        });
        let renewal = thread::spawn({
            let lease = lease.clone();
            move || lease.extend(at(9), at(100))
        });
        let expired = lease.expire(at(100), LostReason::Expired);
        let taken = watchdog.join().unwrap_or_default();
        let _ = renewal.join();
        assert!(
            expired != taken,
            "the caller that ends it is the one to tell"
        );
        let reason = if expired {
            LostReason::Expired
        } else {
            LostReason::TakenOver
        };
        assert_eq!(lease.state(), Err(reason));
    });
}

/// Who has once seen the lock as lost never sees it as held again.
#[test]
fn what_was_seen_as_lost_stays_lost() {
    model(|| {
        let lease = lease();
        let renewal = thread::spawn({
            let lease = lease.clone();
            move || lease.extend(at(9), at(100))
        });
        let watchdog = thread::spawn({
            let lease = lease.clone();
            move || lease.lose(LostReason::ForceReleased)
        });
        let (first, second) = (lease.state(), lease.state());
        assert!(first.is_ok() || first == second);
        let (_, lost) = (renewal.join(), watchdog.join());
        assert!(lost.unwrap_or_default());
    });
}
