//! What the watchdog has to do, and when: plain state without I/O, clocks or tasks.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Claim, LostReason, Moment, Release, Renewal, StoreError,
    held::{Granted, Held},
};

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    watched: HashMap<u64, Watched>,
    due: BTreeSet<(Moment, u64)>,
    /// Renewals whose answer is not in yet, also of guards that were released meanwhile.
    in_flight: HashSet<u64>,
    withdrawals: Vec<Withdrawal>,
    withdrawing: usize,
    /// Until when the watchdog sleeps.
    asleep_until: Moment,
    closing: bool,
}

#[derive(Debug)]
struct Watched {
    held: Arc<Held>,
    /// Its key in `due`.
    at: Moment,
    renew_at: Moment,
    failures: u32,
    warned: bool,
}

/// A claim to take back.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    claim: Claim,
    /// The guard it belonged to: its renewal comes home first.
    held: Option<u64>,
    /// Whether a request that could still grant the claim may be under way.
    uncertain: bool,
    at: Moment,
    give_up: Moment,
    tries: u32,
    /// Whether the store has confirmed a release of it.
    confirmed: bool,
    /// Whether it is for later; a client that ends leaves it to its lease.
    kept: bool,
}

impl Withdrawal {
    /// The store's last word on the claim is known: one release, repeated only if it fails.
    pub(crate) fn certain(claim: Claim, held: Option<u64>, now: Moment, give_up: Moment) -> Self {
        Self {
            claim,
            held,
            uncertain: false,
            at: now,
            give_up: give_up.max(now + Duration::from_secs(1)),
            tries: 0,
            confirmed: false,
            kept: false,
        }
    }

    /// An attempt may be under way and be applied later: release again and again until a grant
    /// by it would have ended by itself.
    pub(crate) fn uncertain(claim: Claim, now: Moment, operation_timeout: Duration) -> Self {
        Self {
            give_up: now + claim.ttl.as_duration() + operation_timeout,
            claim,
            held: None,
            uncertain: true,
            at: now,
            tries: 0,
            confirmed: false,
            kept: false,
        }
    }

    /// The same, not before its time has come.
    pub(crate) fn not_before(self, at: Moment) -> Self {
        Self {
            at,
            give_up: self.give_up.max(at + Duration::from_secs(1)),
            kept: true,
            ..self
        }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Whether this is the release of a guard that was dropped, before any repetition.
    pub(crate) fn is_first_for_guard(&self) -> bool {
        self.held.is_some() && self.tries == 0
    }

    /// The time after the first try: 50, 200, 450 ms, ..., at most 30 s between two.
    fn pause(&self) -> Duration {
        let tries = u64::from(self.tries.min(25));
        Duration::from_millis(50 * tries * tries).min(Duration::from_secs(30))
    }
}

/// One round of work.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) renew: Vec<Arc<Held>>,
    pub(crate) withdraw: Vec<Withdrawal>,
    /// When to look again at the latest.
    pub(crate) next: Moment,
    /// The client is gone and nothing is left to do.
    pub(crate) finished: bool,
}

/// tokio's timers stand still while the machine sleeps; a wake-up a second notices it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Agenda {
    /// Takes a lock under watch; `true` when the watchdog has to be woken for it.
    pub(crate) fn watch(&mut self, held: Arc<Held>, granted: Granted) -> bool {
        let id = held.id;
        let mut watched = Watched {
            at: Moment::NEVER,
            renew_at: Moment::NEVER,
            failures: 0,
            warned: false,
            held,
        };
        watched.plan_renewal(granted);
        if granted.ttl < watched.held.claim.ttl && !watched.held.manual {
            watched.renew_at = watched.renew_at.min(granted.sent + Watched::WHOLE_SOON);
        }
        let at = watched.index(id, &mut self.due);
        self.watched.insert(id, watched);
        at < self.asleep_until
    }

    /// Lets go of a lock: no renewal is sent for it from now on.
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(watched) = self.watched.remove(&id) {
            self.due.remove(&(watched.at, id));
        }
    }

    /// Looks at a lock again after somebody else has renewed it.
    pub(crate) fn renewed(&mut self, id: u64, granted: Granted) {
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.warned = false;
            if !self.in_flight.contains(&id) {
                watched.plan_renewal(granted);
            }
            watched.index(id, &mut self.due);
        }
    }

    /// Lets go of everything, for a shutdown.
    pub(crate) fn forget_all(&mut self) -> Vec<Arc<Held>> {
        self.due.clear();
        self.watched
            .drain()
            .map(|(_, watched)| watched.held)
            .collect()
    }

    pub(crate) fn is_in_flight(&self, id: u64) -> bool {
        self.in_flight.contains(&id)
    }

    pub(crate) fn watched(&self) -> usize {
        self.watched.len()
    }

    pub(crate) fn withdraw(&mut self, withdrawal: Withdrawal) {
        self.withdrawals.push(withdrawal);
    }

    /// The client is gone: finish soon. What is uncertain is repeated for two seconds more.
    pub(crate) fn close(&mut self, now: Moment) {
        self.closing = true;
        self.withdrawals.retain(|w| !w.kept || w.at <= now);
        for withdrawal in &mut self.withdrawals {
            withdrawal.give_up = withdrawal.give_up.min(now + Duration::from_secs(2));
        }
    }

    /// Whether the store has confirmed every withdrawal that is not for later; some may be
    /// repeated for safety.
    pub(crate) fn has_withdrawn(&self) -> bool {
        self.withdrawing == 0
            && self
                .withdrawals
                .iter()
                .all(|w| w.confirmed || w.kept && w.tries == 0)
    }

    /// What there is to do at `now`.
    pub(crate) fn round(&mut self, now: Moment) -> Round {
        let mut renew = self.take_due(now);
        if !renew.is_empty() {
            self.take_early(now, &mut renew);
        }
        let in_flight = &self.in_flight;
        let (withdraw, later) = mem::take(&mut self.withdrawals)
            .into_iter()
            .partition::<Vec<_>, _>(|w| {
                w.at <= now && w.held.is_none_or(|id| !in_flight.contains(&id))
            });
        self.withdrawals = later;
        self.withdrawing += withdraw.len();

        // A withdrawal that waits for its renewal is looked at when that comes home.
        let next_withdrawal = self.withdrawals.iter().map(|w| w.at).filter(|at| *at > now);
        let next = self
            .due
            .first()
            .map(|(at, _)| (*at).min(now + LONGEST_SLEEP))
            .into_iter()
            .chain(next_withdrawal)
            .min()
            .unwrap_or(Moment::NEVER);
        self.asleep_until = next;
        Round {
            finished: self.closing
                && self.due.is_empty()
                && self.withdrawals.is_empty()
                && self.withdrawing == 0,
            renew,
            withdraw,
            next,
        }
    }

    /// Handles everything whose time has come.
    fn take_due(&mut self, now: Moment) -> Vec<Arc<Held>> {
        let mut renew = Vec::new();
        while let Some((at, id)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let Some(watched) = self.watched.get_mut(&id) else {
                continue;
            };
            if watched.held.lost(now).is_some() {
                self.watched.remove(&id);
                continue;
            }
            if !watched.warned && watched.held.expiring_at() <= now {
                watched.warned = true;
                watched.held.changed.notify_waiters();
            }
            if watched.renew_at <= now {
                watched.renew_at = Moment::NEVER;
                self.in_flight.insert(id);
                renew.push(watched.held.clone());
            }
            watched.index(id, &mut self.due);
        }
        renew
    }

    /// Adds renewals that are nearly due to a batch that goes out anyway.
    fn take_early(&mut self, now: Moment, renew: &mut Vec<Arc<Held>>) {
        let soon = (now, 0)..=(now + Watched::MOST_EARLY, u64::MAX);
        let early: Vec<u64> = self
            .due
            .range(soon)
            .map(|(_, id)| *id)
            .filter(|id| self.watched.get(id).is_some_and(|w| w.is_nearly_due(now)))
            .collect();
        for id in early {
            if let Some(watched) = self.watched.get_mut(&id) {
                watched.renew_at = Moment::NEVER;
                self.in_flight.insert(id);
                renew.push(watched.held.clone());
                watched.index(id, &mut self.due);
            }
        }
    }

    /// The answer to a renewal that was sent at `sent`.
    pub(crate) fn answered(
        &mut self,
        id: u64,
        sent: Moment,
        now: Moment,
        answer: Result<Renewal, StoreError>,
    ) {
        self.in_flight.remove(&id);
        let Some(watched) = self.watched.get_mut(&id) else {
            return; // released meanwhile
        };
        let held = &watched.held;
        match answer {
            Ok(Renewal::Renewed { ttl }) => {
                let granted = Granted { sent, ttl };
                if held.renewed(now, granted) {
                    watched.failures = 0;
                    watched.warned = false;
                    watched.plan_renewal(granted);
                }
            }
            Ok(Renewal::Gone { taken_over }) => {
                // The lease cannot have run out before the deadline: somebody has ended it.
                held.lost(now);
                let reason = match taken_over {
                    true => LostReason::TakenOver,
                    false => LostReason::ForceReleased,
                };
                held.lose(reason, now);
            }
            Err(why) => {
                held.failing.store(true, Ordering::Relaxed);
                watched.failures += 1;
                let left = held.lease.valid_for(now);
                watched.renew_at = now + retry_delay(left, watched.failures);
                tracing::debug!(key = %held.claim.key, %why, failures = watched.failures, ?left, "renewal failed");
            }
        }
        watched.index(id, &mut self.due);
    }

    /// The answer to a withdrawal.
    pub(crate) fn withdrawn(
        &mut self,
        mut withdrawal: Withdrawal,
        now: Moment,
        answer: Result<Release, StoreError>,
    ) {
        self.withdrawing -= 1;
        let done = match &answer {
            Ok(_) => !withdrawal.uncertain,
            Err(why) => !why.is_transient(),
        };
        let claim = &withdrawal.claim;
        tracing::debug!(key = %claim.key, ?answer, uncertain = withdrawal.uncertain, "withdrew a claim");
        withdrawal.tries += 1;
        withdrawal.confirmed |= answer.is_ok();
        withdrawal.at = now + withdrawal.pause();
        if self.closing {
            withdrawal.give_up = withdrawal.give_up.min(now + Duration::from_secs(2));
        }
        if !done && withdrawal.at <= withdrawal.give_up {
            self.withdrawals.push(withdrawal);
        } else if let Err(why) = answer {
            tracing::warn!(key = %claim.key, %why, "a claim could not be withdrawn; its lease will end by itself");
        }
    }
}

impl Watched {
    /// How much before its time a renewal may join a batch at most.
    const MOST_EARLY: Duration = Duration::from_millis(250);

    /// How soon a lock that was handed over for a short time gets its whole lease: not at once,
    /// since many are released before.
    const WHOLE_SOON: Duration = Duration::from_millis(20);

    /// The next renewal is a third of the ttl after the last, 10 % more or less, so that locks
    /// that were taken together spread.
    fn plan_renewal(&mut self, granted: Granted) {
        if !self.held.manual {
            let due = self.held.renewal_due(granted.ttl.as_duration());
            self.renew_at = granted.sent + rand::random_range(due);
        }
    }

    fn is_nearly_due(&self, now: Moment) -> bool {
        let early = (self.held.ttl() / 30).min(Self::MOST_EARLY);
        self.renew_at <= now + early
    }

    /// Puts the lock where its next event is, and says when that is.
    fn index(&mut self, id: u64, due: &mut BTreeSet<(Moment, u64)>) -> Moment {
        due.remove(&(self.at, id));
        let deadline = self.held.lease.state().unwrap_or_default();
        let warning = if self.warned {
            Moment::NEVER
        } else {
            self.held.expiring_at()
        };
        self.at = deadline.min(warning).min(self.renew_at);
        due.insert((self.at, id));
        self.at
    }
}

/// A failed renewal is tried again inside what is left of the lease: soon at first, then in steps
/// that double, never more than a quarter of what is left.
fn retry_delay(left: Duration, failures: u32) -> Duration {
    let step = left / 32 * 2_u32.saturating_pow(failures.min(5));
    (step.min(left / 4)).mul_f64(rand::random_range(0.5..1.0))
}
