//! Leases of this process: in use, or kept for the next locks.
//!
//! Granting and revoking are the slow requests of etcd, so a lease is used again. One that may
//! have been given to a request that is still under way never is.

use std::{collections::HashMap, time::Duration};

use lock_core::{Clock, Moment, SystemClock, Ttl};
use parking_lot::Mutex;

/// How long a lease is at the server for a ttl of whole seconds.
///
/// One second more from ten seconds on: while the last keep-alive is younger than that, a lock
/// can be granted on the lease without another one. A shorter one is kept alive at each grant,
/// beside the transaction.
pub(crate) fn length_for(seconds: u64) -> u64 {
    if seconds < 10 { seconds } else { seconds + 1 }
}

/// The ttl that a lease of this length is used for.
pub(crate) fn used_for(length: u64) -> u64 {
    if length < 11 { length } else { length - 1 }
}

/// A lease that this process has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The length that the server gave it, in seconds.
    pub(crate) seconds: u64,
    /// When the last request was sent that has granted or renewed it.
    pub(crate) renewed: Moment,
    /// The raft term of the member that answered it, or an earlier one.
    pub(crate) term: u64,
}

impl Lease {
    /// Whether it certainly runs for `ttl` from `now` on.
    pub(crate) fn covers(&self, ttl: Ttl, now: Moment) -> bool {
        self.renewed + self.length() >= now + ttl.as_duration()
    }

    /// Until when it runs at least, given that the leader which has renewed it still led in
    /// `term`. One that led no longer may have renewed nothing.
    pub(crate) fn end(&self, term: u64) -> Option<Moment> {
        (self.term >= term).then(|| self.renewed + self.length())
    }

    /// As it is after a keep-alive that was sent at `sent`.
    pub(crate) fn with(mut self, sent: Moment, life: Life) -> Self {
        self.note(sent, life);
        self
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.renewed + self.length() <= now
    }

    /// The ttl that it is used for.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(used_for(self.seconds))
    }

    /// How long it still runs of the ttl that it is used for, as far as is known.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        (self.renewed + self.length()).since(now).min(self.ttl())
    }

    /// When it has to be kept alive while nobody renews it: those of waiters and those in the pool,
    /// with which no hold is lost. So not as early as a holder's, and in time to ask other members.
    pub(crate) fn due(&self) -> Moment {
        const IN_TIME: Duration = Duration::from_millis(1500);
        let length = self.length();
        let late = length.saturating_sub(IN_TIME.max(length * 3 / 10));
        self.renewed + late.max(length / 3)
    }

    fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn note(&mut self, sent: Moment, life: Life) {
        if sent >= self.renewed {
            self.renewed = sent;
            self.term = life.term;
        }
        self.seconds = life.seconds;
    }
}

/// What a keep-alive has brought: so many seconds from when it was sent, if the member that
/// answered belonged to the last term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) seconds: u64,
    pub(crate) term: u64,
}

impl Life {
    /// Whether it lasts for a ttl, by the term that another answer to this process tells of.
    pub(crate) fn is_enough(&self, ttl: Ttl, term: u64) -> bool {
        self.seconds * 1000 >= ttl.as_millis() && !self.is_doubtful(term)
    }

    /// Whether it may be the word of a leader that led no longer.
    pub(crate) fn is_doubtful(&self, term: u64) -> bool {
        self.term < term
    }
}

/// The leases of all handles of a store.
#[derive(Debug)]
pub(crate) struct Leases {
    state: Mutex<State>,
    most_unused: usize,
}

#[derive(Debug, Default)]
struct State {
    used: HashMap<i64, Lease>,
    /// By their length.
    unused: HashMap<u64, Vec<Unused>>,
    count: usize,
    closed: bool,
}

#[derive(Debug)]
struct Unused {
    lease: Lease,
    since: Moment,
}

/// What is due for the leases that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    pub(crate) renew: Vec<i64>,
    pub(crate) revoke: Vec<i64>,
    pub(crate) next: Option<Moment>,
}

/// How many unused leases of a length are kept when they have not been needed for a while.
const WARM: usize = 4;
const NOT_NEEDED: Duration = Duration::from_secs(60);
const LONG_NOT_NEEDED: Duration = Duration::from_secs(60 * 60);

impl Leases {
    pub(crate) fn new(most_unused: usize) -> Self {
        Self {
            state: Mutex::default(),
            most_unused,
        }
    }

    /// An unused lease of this length, from now on in use.
    pub(crate) fn take(&self, seconds: u64) -> Option<Lease> {
        let now = SystemClock.now();
        let mut state = self.state.lock();
        loop {
            // The one used last is the freshest.
            let lease = state.unused.get_mut(&seconds)?.pop()?.lease;
            state.count -= 1;
            if !lease.is_over(now) {
                state.used.insert(lease.id, lease);
                return Some(lease);
            }
        }
    }

    /// A new lease, in use.
    pub(crate) fn add(&self, lease: Lease) {
        self.state.lock().used.insert(lease.id, lease);
    }

    pub(crate) fn used(&self, id: i64) -> Option<Lease> {
        self.state.lock().used.get(&id).copied()
    }

    /// A keep-alive that was sent at `sent` was answered.
    pub(crate) fn renewed(&self, id: i64, sent: Moment, life: Life) {
        if let Some(lease) = self.state.lock().used.get_mut(&id) {
            lease.note(sent, life);
        }
    }

    /// The lease is over or given up; whether it was in use here.
    pub(crate) fn forget(&self, id: i64) -> bool {
        self.state.lock().used.remove(&id).is_some()
    }

    /// No key has the lease any more, and none will get it; `false` when it is not kept and has
    /// to be revoked.
    pub(crate) fn put_back(&self, id: i64) -> bool {
        let mut state = self.state.lock();
        let Some(lease) = state.used.remove(&id) else {
            return false;
        };
        if state.closed || state.count >= self.most_unused {
            return false;
        }
        state.count += 1;
        let since = SystemClock.now();
        let same = state.unused.entry(lease.seconds).or_default();
        same.push(Unused { lease, since });
        true
    }

    /// What there is to do for unused leases; those to renew count as in use meanwhile.
    pub(crate) fn upkeep(&self, now: Moment) -> Upkeep {
        let mut all = Upkeep::default();
        let mut state = self.state.lock();
        let state = &mut *state;
        // Left behind by claims that nobody released here.
        state.used.retain(|_, lease| !lease.is_over(now));
        for same in state.unused.values_mut() {
            let mut kept = Vec::with_capacity(same.len());
            let many = same.len();
            // The oldest are in front.
            for (place, unused) in same.drain(..).enumerate() {
                let warm = many - place <= WARM;
                let longest = if warm { LONG_NOT_NEEDED } else { NOT_NEEDED };
                if unused.lease.is_over(now) {
                    state.count -= 1;
                } else if now.since(unused.since) >= longest {
                    state.count -= 1;
                    all.revoke.push(unused.lease.id);
                } else {
                    if unused.lease.due() <= now {
                        all.renew.push(unused.lease.id);
                    }
                    let next = unused.lease.due().max(now + Duration::from_millis(200));
                    all.next = Some(all.next.map_or(next, |other: Moment| other.min(next)));
                    kept.push(unused);
                }
            }
            *same = kept;
        }
        state.unused.retain(|_, same| !same.is_empty());
        all
    }

    /// As [`renewed`](Self::renewed), for an unused one; `None` when it is gone.
    pub(crate) fn kept_alive(&self, id: i64, sent: Moment, life: Option<Life>) {
        let mut state = self.state.lock();
        if let (Some(lease), Some(life)) = (state.used.get_mut(&id), life) {
            // Taken meanwhile.
            lease.note(sent, life);
            return;
        }
        let mut lost = 0;
        for same in state.unused.values_mut() {
            let Some(place) = same.iter().position(|unused| unused.lease.id == id) else {
                continue;
            };
            match life {
                // They are sorted by their length.
                Some(life) => {
                    let lease = &mut same[place].lease;
                    let seconds = lease.seconds;
                    lease.note(sent, Life { seconds, ..life });
                }
                None => {
                    same.remove(place);
                    lost += 1;
                }
            }
        }
        state.count -= lost;
    }

    /// Keeps no unused lease from now on; those that were, to be revoked.
    pub(crate) fn close(&self) -> Vec<i64> {
        self.state.lock().closed = true;
        self.take_unused()
    }

    /// All unused leases, to be revoked.
    pub(crate) fn take_unused(&self) -> Vec<i64> {
        let mut state = self.state.lock();
        state.count = 0;
        let unused = state.unused.drain().flat_map(|(_, same)| same);
        unused.map(|unused| unused.lease.id).collect()
    }
}
