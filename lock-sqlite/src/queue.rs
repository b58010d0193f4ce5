//! The waiters of this process for one file: who may go on, and who looks after all of them.
//!
//! The order of the queue is in the file. This is a plain structure behind one lock.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lock_core::{Claim, HoldId, LockKey, OwnerId};
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Waiters {
    claim_window: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<LockKey, Vec<Place>>,
    watches: u64,
    leader: Option<Leader>,
    /// Something happened that the file's version does not show to the leader, or a leader may
    /// have left while it was about to tell.
    look: bool,
    /// When the places have to give a sign of life next.
    beat_due: Option<Instant>,
}

/// The place of a claim that may not be in the queue.
const NOWHERE: i64 = 0;

/// A handle of this process on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleId(u64);

impl HandleId {
    pub(crate) fn new() -> Self {
        static HANDLES: AtomicU64 = AtomicU64::new(0);
        Self(HANDLES.fetch_add(1, Ordering::Relaxed))
    }
}

/// A claim in the queue of the file.
#[derive(Debug)]
struct Place {
    seq: i64,
    handle: HandleId,
    hold: HoldId,
    owner: OwnerId,
    turn: Arc<Notify>,
    /// Since when it may try again.
    told: Option<Instant>,
    watched: bool,
}

/// The waiter that looks at the file for all.
#[derive(Debug)]
struct Leader {
    watch: u64,
    turn: Arc<Notify>,
    seen: Instant,
}

/// What a waiter has to do now.
pub(crate) enum Role {
    /// Its claim may be tried again.
    Done,
    /// Look at the file, for all waiters.
    Lead,
    /// Sleep until notified; look again after [`TAKE_OVER`].
    Follow,
}

/// How long a leader may be silent. It is when the application does not poll its future.
pub(crate) const TAKE_OVER: Duration = Duration::from_millis(400);

impl Waiters {
    pub(crate) fn new(claim_window: Duration) -> Self {
        Self {
            claim_window,
            state: Mutex::default(),
        }
    }

    /// The claim is on its way into the queue of the file; whatever comes of it, it may be there.
    pub(crate) fn joining(&self, handle: HandleId, claim: &Claim) {
        let mut state = self.state.lock();
        let due = Instant::now() + self.beat();
        state.beat_due = Some(state.beat_due.map_or(due, |other| other.min(due)));
        if state.find(claim).is_none() {
            let places = state.places.entry(claim.key.clone()).or_default();
            places.push(Place {
                seq: NOWHERE,
                handle,
                hold: claim.hold,
                owner: claim.owner,
                turn: Arc::new(Notify::new()),
                told: Some(Instant::now()),
                watched: false,
            });
        }
    }

    /// The claim is in the queue of the file, at `seq`.
    pub(crate) fn joined(&self, handle: HandleId, claim: &Claim, seq: i64) {
        if let Some(place) = self.state.lock().find(claim) {
            place.seq = seq;
            place.handle = handle;
            place.told = None;
        }
    }

    /// The claim is in the queue no more. Whether it was.
    pub(crate) fn left(&self, claim: &Claim) -> bool {
        let mut state = self.state.lock();
        let Some(places) = state.places.get_mut(&claim.key) else {
            return false;
        };
        // Not by the hold alone: a stranger's claim changes nothing.
        let is_its = |place: &Place| (place.owner, place.hold) == (claim.owner, claim.hold);
        let Some(at) = places.iter().position(is_its) else {
            return false;
        };
        places.swap_remove(at).turn.notify_one();
        if places.is_empty() {
            state.places.remove(&claim.key);
        }
        true
    }

    /// It is the turn of the waiter at `seq`, if it is one of this process.
    pub(crate) fn tell(&self, key: &LockKey, seq: i64) -> bool {
        self.tell_those(key, |place| place.seq == seq)
    }

    /// The owner holds the lock, so its other claims may enter.
    pub(crate) fn tell_owner(&self, key: &LockKey, owner: OwnerId) {
        self.tell_those(key, |place| place.owner == owner);
    }

    /// The queue of the lock is not what this process thinks.
    pub(crate) fn tell_all(&self, key: &LockKey) {
        self.tell_those(key, |_| true);
    }

    fn tell_those(&self, key: &LockKey, which: impl Fn(&Place) -> bool) -> bool {
        let mut state = self.state.lock();
        let places = state.places.get_mut(key).into_iter().flatten();
        let mut found = false;
        for place in places.filter(|place| which(place)) {
            found = true;
            if place.told.is_none() {
                place.told = Some(Instant::now());
                place.turn.notify_one();
            }
        }
        found
    }

    /// Makes the leader look at the file.
    pub(crate) fn look(&self) {
        let mut state = self.state.lock();
        state.look = true;
        if let Some(leader) = &state.leader {
            leader.turn.notify_one();
        }
    }

    /// The handle is closed: its waiters give no more signs of life.
    pub(crate) fn forget(&self, handle: HandleId) {
        self.state.lock().places.retain(|_, places| {
            places.retain(|place| {
                if place.handle == handle {
                    place.turn.notify_one();
                }
                place.handle != handle
            });
            !places.is_empty()
        });
    }

    pub(crate) fn take_look(&self) -> bool {
        std::mem::take(&mut self.state.lock().look)
    }

    /// The locks that this process waits for.
    pub(crate) fn keys(&self) -> Vec<LockKey> {
        let state = self.state.lock();
        let waiting = |places: &Vec<Place>| places.iter().any(|place| place.told.is_none());
        let keys = state.places.iter().filter(|(_, places)| waiting(places));
        keys.map(|(key, _)| key.clone()).collect()
    }

    /// The places that have to give a sign of life now. Who was told and did not come is given up.
    pub(crate) fn beat_if_due(&self, now: Instant) -> Option<Vec<i64>> {
        let mut state = self.state.lock();
        if state.beat_due.is_none_or(|due| due > now) {
            return None;
        }
        state.places.retain(|_, places| {
            places.retain(|place| {
                let late = |told| now.saturating_duration_since(told) > self.claim_window;
                place.watched || !place.told.is_some_and(late)
            });
            !places.is_empty()
        });
        state.beat_due = Some(now + self.beat());
        let waiting = state.places.values().flatten();
        let waiting = waiting.filter(|place| place.told.is_none());
        Some(waiting.map(|place| place.seq).collect())
    }

    /// After a sign of life of `asked`: those that are not among `there` have lost their place.
    pub(crate) fn have_beaten(&self, asked: &[i64], there: &[i64]) {
        let there: HashSet<_> = there.iter().collect();
        let lost: HashSet<_> = asked.iter().filter(|seq| !there.contains(seq)).collect();
        if lost.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for place in state.places.values_mut().flatten() {
            if lost.contains(&place.seq) {
                place.told = Some(Instant::now());
                place.turn.notify_one();
            }
        }
    }

    /// Begins to wait for the turn of a claim; `None` when it is not in the queue.
    pub(crate) fn watch<'a>(self: &'a Arc<Self>, claim: &'a Claim) -> Option<Watch<'a>> {
        let mut state = self.state.lock();
        state.watches += 1;
        let id = state.watches;
        let place = state.find(claim)?;
        place.watched = true;
        let turn = place.turn.clone();
        // A release that came before this is not to be missed.
        state.look = true;
        if let Some(leader) = &state.leader {
            leader.turn.notify_one();
        }
        Some(Watch {
            waiters: self,
            claim,
            id,
            turn,
        })
    }

    fn beat(&self) -> Duration {
        self.claim_window.mul_f64(0.3)
    }
}

impl State {
    fn find(&mut self, claim: &Claim) -> Option<&mut Place> {
        let places = self.places.get_mut(&claim.key)?;
        places.iter_mut().find(|place| place.hold == claim.hold)
    }
}

/// A waiter that waits now.
pub(crate) struct Watch<'a> {
    waiters: &'a Waiters,
    claim: &'a Claim,
    id: u64,
    pub(crate) turn: Arc<Notify>,
}

impl Watch<'_> {
    /// What to do now; a leader has to ask more often than every [`TAKE_OVER`].
    pub(crate) fn role(&self) -> Role {
        let mut state = self.waiters.state.lock();
        if state.find(self.claim).is_none_or(|p| p.told.is_some()) {
            return Role::Done;
        }
        let now = Instant::now();
        match &mut state.leader {
            Some(leader) if leader.watch == self.id => leader.seen = now,
            Some(leader) if now.saturating_duration_since(leader.seen) < TAKE_OVER => {
                return Role::Follow;
            }
            vacant => {
                *vacant = Some(Leader {
                    watch: self.id,
                    turn: self.turn.clone(),
                    seen: now,
                });
                state.look = true;
            }
        }
        Role::Lead
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
        if let Some(place) = state.find(self.claim) {
            place.watched = false;
        }
        if state.leader.as_ref().is_some_and(|l| l.watch == self.id) {
            state.leader = None;
            let mut others = state.places.values().flatten();
            if let Some(next) = others.find(|place| place.watched && place.told.is_none()) {
                next.turn.notify_one();
            }
        }
    }
}

/// The waiters of all handles of this process for the file at a path.
pub(crate) fn waiters_of(path: &std::path::Path, claim_window: Duration) -> Arc<Waiters> {
    static FILES: Mutex<Vec<(std::path::PathBuf, Weak<Waiters>)>> = Mutex::new(Vec::new());
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut files = FILES.lock();
    files.retain(|(_, waiters)| waiters.strong_count() > 0);
    let same = files
        .iter()
        .filter(|(other, _)| *other == path)
        .filter_map(|(_, waiters)| waiters.upgrade())
        .find(|waiters| waiters.claim_window == claim_window);
    if let Some(waiters) = same {
        return waiters;
    }
    let waiters = Arc::new(Waiters::new(claim_window));
    files.push((path, Arc::downgrade(&waiters)));
    waiters
}
