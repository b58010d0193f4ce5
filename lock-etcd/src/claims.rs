//! What this process knows of its claims: shortcuts only, the keys in the store decide.

use std::{collections::HashMap, time::Duration};

use lock_core::{Clock, Moment, SystemClock};
use parking_lot::Mutex;

use crate::record::Id;

/// A claim that was made or seen here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) state: State,
    /// The key that its hold is in: its own, or that of an earlier hold of the owner.
    pub(crate) key: String,
    pub(crate) is_own: bool,
    pub(crate) lease: i64,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    /// How many holds the key has.
    pub(crate) holds: u32,
    /// A request that puts its key with its lease may still be under way.
    pub(crate) stray: bool,
    /// Until when the lease certainly runs, as far as it was known when it was put in the queue.
    pub(crate) covered: Option<Moment>,
    /// The handle it came through.
    pub(crate) handle: u64,
}

impl Known {
    /// Its own key, whether that is there or not.
    pub(crate) fn own_key(&self) -> Option<&str> {
        self.is_own.then_some(self.key.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// An attempt is under way, or its answer was lost.
    Trying,
    /// It has a place in the queue.
    Queued,
    /// It was told that it holds the lock.
    Held,
}

#[derive(Debug)]
struct Slot {
    known: Known,
    /// The last sign that somebody wants it, for claims in the queue.
    seen: Moment,
    waiting: u32,
}

/// The claims of all handles of a store.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<Id, Slot>>);

/// A claim in the queue that nobody asks about for so long is not kept alive: the client of
/// lock-core asks every ten seconds.
const INTEREST: Duration = Duration::from_secs(15);

impl Claims {
    pub(crate) fn find(&self, id: &Id) -> Option<Known> {
        let mut claims = self.0.lock();
        let slot = claims.get_mut(id)?;
        slot.seen = SystemClock.now();
        Some(slot.known.clone())
    }

    pub(crate) fn set(&self, id: &Id, known: Known) {
        let seen = SystemClock.now();
        let mut claims = self.0.lock();
        match claims.get_mut(id) {
            Some(slot) => {
                slot.known = known;
                slot.seen = seen;
            }
            None => {
                let slot = Slot {
                    known,
                    seen,
                    waiting: 0,
                };
                claims.insert(id.clone(), slot);
            }
        }
    }

    pub(crate) fn forget(&self, id: &Id) -> Option<Known> {
        self.0.lock().remove(id).map(|slot| slot.known)
    }

    /// Somebody waits for the claim, or does so no longer.
    pub(crate) fn waits(&self, id: &Id, waits: bool) {
        if let Some(slot) = self.0.lock().get_mut(id) {
            slot.waiting = if waits {
                slot.waiting + 1
            } else {
                slot.waiting.saturating_sub(1)
            };
            slot.seen = SystemClock.now();
        }
    }

    /// The leases of those in the queue of a handle that somebody still wants.
    pub(crate) fn queued(&self, handle: u64, now: Moment) -> Vec<i64> {
        let claims = self.0.lock();
        let queued = claims.values().filter(|slot| {
            slot.known.handle == handle
                && slot.known.state == State::Queued
                && (slot.waiting > 0 || now.since(slot.seen) < INTEREST)
        });
        queued.map(|slot| slot.known.lease).collect()
    }

    /// Takes the claims of a handle that are in the queue.
    pub(crate) fn take_queued(&self, handle: u64) -> Vec<Known> {
        let mut claims = self.0.lock();
        let queued = claims
            .extract_if(|_, slot| slot.known.handle == handle && slot.known.state == State::Queued);
        queued.map(|(_, slot)| slot.known).collect()
    }

    /// Forgets what was left behind: claims without a live lease that nobody waits for.
    pub(crate) fn tidy(&self, now: Moment, is_alive: impl Fn(i64) -> bool) {
        self.0.lock().retain(|_, slot| {
            slot.waiting > 0 || now.since(slot.seen) < INTEREST || is_alive(slot.known.lease)
        });
    }
}
