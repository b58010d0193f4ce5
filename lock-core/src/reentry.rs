//! Re-entry inside a process: what each owner holds here, so that entering again asks nobody.

use std::{
    collections::{HashMap, hash_map},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{Error, LockKey, Moment, OwnerId, Result, client::Inner, held::Held};

/// The locks that explicit owners hold, or are acquiring, in this process.
#[derive(Debug, Default)]
pub(crate) struct Entered(Mutex<HashMap<(OwnerId, LockKey), Slot>>);

#[derive(Debug)]
enum Slot {
    /// One task is at it; the others of the owner wait for what it gets.
    Acquiring(Arc<Notify>),
    Held(Arc<Held>),
}

/// What an owner finds.
pub(crate) enum Entry {
    /// It holds the lock, now once more.
    Entered(Arc<Held>),
    /// It does not; this caller is the one to acquire it.
    First(Place),
    /// Another task is acquiring it for the same owner; the future ends when that is decided.
    Wait(OwnedNotified),
}

impl Entered {
    pub(crate) fn enter(
        &self,
        owner: OwnerId,
        key: &LockKey,
        inner: &Arc<Inner>,
        now: Moment,
    ) -> Result<Entry> {
        let mut slots = self.0.lock();
        match slots.entry((owner, key.clone())) {
            hash_map::Entry::Vacant(vacant) => {
                let decided = Arc::new(Notify::new());
                let name = vacant.key().clone();
                vacant.insert(Slot::Acquiring(decided.clone()));
                let inner = inner.clone();
                Ok(Entry::First(Place {
                    inner,
                    name,
                    decided,
                }))
            }
            hash_map::Entry::Occupied(slot) => match slot.get() {
                Slot::Acquiring(decided) => Ok(Entry::Wait(decided.clone().notified_owned())),
                Slot::Held(held) => {
                    enter_again(held, inner, now)?;
                    Ok(Entry::Entered(held.clone()))
                }
            },
        }
    }

    /// One guard less; `true` when it was the last.
    pub(crate) fn leave(&self, held: &Arc<Held>) -> bool {
        if !held.reentrant {
            return true;
        }
        let mut slots = self.0.lock();
        if held.guards.fetch_sub(1, Ordering::Relaxed) > 1 {
            return false;
        }
        let name = (held.claim.owner, held.claim.key.clone());
        if let hash_map::Entry::Occupied(slot) = slots.entry(name)
            && matches!(slot.get(), Slot::Held(other) if Arc::ptr_eq(other, held))
        {
            slot.remove();
        }
        true
    }
}

fn enter_again(held: &Held, inner: &Inner, now: Moment) -> Result<()> {
    let key = &held.claim.key;
    if let Some(reason) = held.lost(now) {
        return Err(Error::Lost {
            key: key.clone(),
            reason,
        });
    }
    let limit = inner.options.max_holds;
    let holds = held
        .guards
        .load(Ordering::Relaxed)
        .saturating_add(held.others);
    if holds >= limit {
        return Err(Error::TooManyHolds {
            key: key.clone(),
            limit,
        });
    }
    held.guards.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The right to acquire a lock for an owner; given back when it is dropped.
pub(crate) struct Place {
    inner: Arc<Inner>,
    name: (OwnerId, LockKey),
    decided: Arc<Notify>,
}

impl Place {
    /// The lock is acquired: the owner's other tasks may enter it.
    pub(crate) fn entered(self, held: &Arc<Held>) {
        let mut slots = self.inner.entered.0.lock();
        slots.insert(self.name.clone(), Slot::Held(held.clone()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut slots = self.inner.entered.0.lock();
        if let hash_map::Entry::Occupied(slot) = slots.entry(self.name.clone())
            && matches!(slot.get(), Slot::Acquiring(decided) if Arc::ptr_eq(decided, &self.decided))
        {
            slot.remove();
        }
        drop(slots);
        self.decided.notify_waiters();
    }
}
