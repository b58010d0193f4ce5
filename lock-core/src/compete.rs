//! Competing for a lock: attempts, and waiting between them.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    Asker, Attempt, Busy, Claim, Error, Grant, HoldId, LockGuard, LockKey, Moment, OwnerId, Result,
    StoreError, Ttl, Wait,
    client::Inner,
    held::{Granted, Held, Terms},
    metrics::Metrics,
    pending::Pending,
    reentry::Entry,
};

/// An acquisition under way, and the terms on which it competes.
#[derive(Debug)]
pub(crate) struct Compete<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) key: LockKey,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ttl: Ttl,
    pub(crate) asker: Arc<Asker>,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) manual: bool,
    /// An owner that may hold the lock already; without one it is a stranger's.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) started: Moment,
}

impl Compete<'_> {
    pub(crate) async fn acquire(&self) -> Result<LockGuard> {
        match self.owner {
            None => self.compete(OwnerId::random()).await,
            Some(owner) => self.enter(owner).await,
        }
    }

    /// Enters a lock that the owner holds in this process, or competes for it.
    async fn enter(&self, owner: OwnerId) -> Result<LockGuard> {
        let inner = self.inner;
        let mut now = self.started;
        loop {
            match inner.entered.enter(owner, &self.key, inner, now)? {
                Entry::Entered(held) => {
                    let waited = now.since(self.started);
                    return Ok(LockGuard::new(inner.clone(), held, waited, 0));
                }
                Entry::First(place) => {
                    let guard = self.compete(owner).await?;
                    place.entered(guard.held());
                    return Ok(guard);
                }
                // Another task of the same owner is acquiring it; what it gets is ours too.
                Entry::Wait(over) => {
                    if !self.within_wait(over).await {
                        return Err(self.refused(Ok(Busy::default())));
                    }
                    now = inner.clock.now();
                }
            }
        }
    }

    /// Tries, and waits for its turn, until the lock is granted or the wait is over.
    async fn compete(&self, owner: OwnerId) -> Result<LockGuard> {
        let failed = |why| Error::store("acquire", &self.key, why);
        // First, so that whatever is acquired will be looked after.
        self.inner.watchdog.start().map_err(failed)?;
        let mut pending = Pending::new(self.inner, self.claim(owner));
        let (mut failures, mut idle_wakes) = (0, 0);
        let mut made_whole = false;
        loop {
            let sent = self.inner.clock.now();
            self.metrics.attempt();
            let refusal = match pending.attempt().await {
                // It may have been granted for the claim window only, and nobody may renew it.
                Ok(Attempt::Granted(grant))
                    if self.needs_whole_lease() && grant.ttl < self.ttl && !made_whole =>
                {
                    made_whole = true;
                    continue;
                }
                Ok(Attempt::Granted(grant)) => match self.granted(&mut pending, sent, grant)? {
                    Some(guard) => return Ok(guard),
                    None => Err(StoreError::transient(
                        "the answer came after the lease had run out",
                    )),
                },
                Ok(Attempt::Busy(busy)) => {
                    if pending.attempts() == 1 {
                        self.metrics.busy(&busy);
                    }
                    Ok(busy)
                }
                Err(why) if why.is_transient() => Err(why),
                Err(why) => return Err(failed(why)),
            };
            let time_is_left = match &refusal {
                Ok(busy) => {
                    failures = 0;
                    self.within_wait(self.turn(pending.claim(), busy, &mut idle_wakes))
                        .await
                }
                Err(why) => {
                    failures += 1;
                    tracing::debug!(key = %self.key, %why, failures, "attempt failed");
                    self.within_wait(self.inner.sleep(backoff(failures))).await
                }
            };
            if !time_is_left {
                pending.give_up().await;
                return Err(self.refused(refusal));
            }
        }
    }

    fn needs_whole_lease(&self) -> bool {
        self.manual || !self.min_hold.is_zero()
    }

    fn claim(&self, owner: OwnerId) -> Claim {
        Claim {
            key: self.key.clone(),
            owner,
            hold: match self.owner {
                // It enters once, and its id is as random as any: the system's source is slow.
                None => HoldId::from_u128(owner.as_u128()),
                Some(_) => HoldId::random(),
            },
            ttl: self.ttl,
            queue: self.wait != Wait::No,
            asker: self.asker.clone(),
        }
    }

    /// Makes a guard of a grant; `None` when it came too late to be trusted.
    fn granted(
        &self,
        pending: &mut Pending<'_>,
        sent: Moment,
        grant: Grant,
    ) -> Result<Option<LockGuard>> {
        let inner = self.inner;
        let granted = Granted {
            sent,
            ttl: grant.ttl,
        };
        let now = inner.clock.now();
        if granted.deadline() <= now {
            pending.start_over();
            return Ok(None);
        }
        if grant.holds > inner.options.max_holds {
            let limit = inner.options.max_holds;
            let key = self.key.clone();
            return Err(Error::TooManyHolds { key, limit });
        }
        let terms = Terms {
            token: grant.token,
            others: grant.holds.saturating_sub(1),
            max_hold: self.max_hold,
            kept_until: now + self.min_hold,
            manual: self.manual,
            renew_every: inner.options.renew_every,
            reentrant: self.owner.is_some(),
            stray: pending.has_strays(),
            holding: self.metrics.holding(sent),
        };
        let id = inner.watchdog.next_id();
        let held = Arc::new(Held::new(id, pending.claim().clone(), granted, terms));
        inner.watchdog.watch(held.clone(), granted);
        // After `watch`, so that a shutdown sees either the guard or this refusal.
        if let Err(closed) = inner.check_open() {
            inner.watchdog.forget(id);
            return Err(closed);
        }
        pending.settle();
        let waited = now.since(self.started);
        tracing::debug!(key = %self.key, token = %grant.token, owner = %held.claim.owner, ?waited, "lock acquired");
        Ok(Some(LockGuard::new(
            inner.clone(),
            held,
            waited,
            pending.attempts(),
        )))
    }

    /// Returns when another attempt is worthwhile: told by the store, or at the latest when the
    /// lock could have become free without a word.
    async fn turn(&self, claim: &Claim, busy: &Busy, idle_wakes: &mut u32) {
        let told = tokio::select! {
            () = self.inner.store.wait(claim, busy) => true,
            () = self.inner.sleep(safety_retry(busy)) => false,
        };
        if told {
            // A wake-up that brings no grant is rare; a store that gives many must not be
            // asked in a tight loop.
            *idle_wakes += 1;
            if *idle_wakes > 3 {
                self.inner
                    .sleep(jitter(Duration::from_millis(1) * (*idle_wakes).min(100)))
                    .await;
            }
        } else {
            *idle_wakes = 0;
        }
    }

    /// Awaits `future` while the wait lasts and the client is open; `false` when it is over.
    async fn within_wait(&self, future: impl Future<Output = ()>) -> bool {
        let limit = match self.wait {
            Wait::No => return false,
            Wait::AtMost(limit) => self.started + limit,
            Wait::Forever => Moment::NEVER,
        };
        tokio::select! {
            biased;
            () = self.inner.closed() => false,
            () = future => true,
            () = self.inner.clock.sleep_until(limit) => false,
        }
    }

    fn refused(&self, why: Result<Busy, StoreError>) -> Error {
        if let Err(closed) = self.inner.check_open() {
            return closed;
        }
        let key = self.key.clone();
        match why {
            Ok(busy) if self.wait == Wait::No => Error::Busy {
                key,
                busy: Box::new(busy),
            },
            Ok(busy) => Error::Timeout {
                key,
                waited: self.inner.clock.now().since(self.started),
                busy: Some(Box::new(busy)),
            },
            Err(why) => Error::store("acquire", &self.key, why),
        }
    }
}

/// How long the first waiter has to claim, at every store.
const CLAIM_WINDOW: Duration = Duration::from_secs(2);

/// How long a waiter sleeps at most when nobody wakes it: until the lease has ended and those
/// ahead have had their time; and whatever happens, a look every 2 s by the first in the queue
/// and every 10 s by the tenth and later, so that a lost wake-up costs no more.
fn safety_retry(busy: &Busy) -> Duration {
    let ahead = busy
        .position
        .map_or(0, |position| position.saturating_sub(1))
        .min(4);
    let free = busy.remaining + CLAIM_WINDOW * ahead;
    let look = CLAIM_WINDOW * (ahead + 1);
    free.min(look) + jitter(Duration::from_millis(5) + free.min(look) / 5)
}

/// The pause after a failed attempt: 25 ms to 2 s, doubling, with full jitter.
fn backoff(failures: u32) -> Duration {
    let step = Duration::from_millis(25) * 2_u32.saturating_pow(failures.min(8));
    jitter(step.min(Duration::from_secs(2)))
}

fn jitter(most: Duration) -> Duration {
    most.mul_f64(rand::random_range(0.1..1.0))
}
