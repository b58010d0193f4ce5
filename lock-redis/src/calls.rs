//! Who waits and was called: one register for a store and its dedicated handles.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_core::{Claim, Clock, Grant, HoldId, SystemClock};
use parking_lot::Mutex;

use crate::handover::{Handover, Reading};

/// What is known of waiters between two attempts.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    claim_window: Duration,
    waiters: Arc<Mutex<HashMap<HoldId, Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    at: Instant,
    /// When it was in the queue for certain.
    queued: Option<Reading>,
    call: Option<Call>,
}

/// It has to look.
#[derive(Clone, Copy, Debug)]
struct Call {
    handover: Option<Handover>,
}

impl Calls {
    /// Waiters look again more often than this.
    const FORGOTTEN: Duration = Duration::from_secs(60);

    pub(crate) fn new(claim_window: Duration) -> Self {
        Self {
            claim_window,
            waiters: Arc::default(),
        }
    }

    /// A reply has told that this hold is in the queue.
    pub(crate) fn queued(&self, hold: HoldId, reading: Option<Reading>) {
        self.note(hold, |waiter| waiter.queued = reading);
    }

    /// A notice calls this hold; it may not wait yet, or not any more.
    pub(crate) fn call(&self, hold: HoldId, handover: Option<Handover>) {
        self.note(hold, |waiter| waiter.call = Some(Call { handover }));
    }

    /// Everybody has to look: a notice may be lost.
    pub(crate) fn call_all(&self) {
        for waiter in self.waiters.lock().values_mut() {
            waiter.call.get_or_insert(Call { handover: None });
        }
    }

    pub(crate) fn is_called(&self, hold: HoldId) -> bool {
        let waiters = self.waiters.lock();
        waiters
            .get(&hold)
            .is_some_and(|waiter| waiter.call.is_some())
    }

    /// It is released, or no waiter any more.
    pub(crate) fn forget(&self, hold: HoldId) {
        self.waiters.lock().remove(&hold);
    }

    /// The grant that a waiter was told of, if that is young for certain. Ends its call.
    pub(crate) fn take(&self, claim: &Claim) -> Option<Grant> {
        let waiter = self.waiters.lock().remove(&claim.hold)?;
        let handover = waiter.call?.handover?;
        handover.grant(claim, self.claim_window, waiter.queued?, SystemClock.now())
    }

    fn note(&self, hold: HoldId, what: impl FnOnce(&mut Waiter)) {
        let at = Instant::now();
        let mut waiters = self.waiters.lock();
        if waiters.len() == waiters.capacity() {
            // Before it grows: who was called late or has gone without a word.
            waiters.retain(|_, waiter| at.duration_since(waiter.at) < Self::FORGOTTEN);
        }
        let waiter = waiters.entry(hold).or_insert(Waiter {
            at,
            queued: None,
            call: None,
        });
        waiter.at = at;
        what(waiter);
    }
}
