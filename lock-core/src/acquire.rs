//! Competing for a lock: attempts, waiting, and taking back what was given up.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    Asker, Attempt, Busy, Claim, Error, Grant, HoldId, LockClient, LockGuard, LockKey, Moment,
    OwnerId, Result, RunError, StoreError, Ttl, Wait,
    client::Inner,
    held::{Granted, Held, Terms},
    reentry::Entry,
    watchdog::Withdrawal,
};

/// An acquisition that is being described; [`acquire`](Acquire::acquire) makes it.
///
/// What is not set comes from the client.
#[derive(Debug)]
#[must_use = "nothing is acquired before `acquire`, `try_acquire` or `run` is called"]
pub struct Acquire {
    client: LockClient,
    key: Result<LockKey>,
    ttl: Duration,
    wait: Wait,
    max_hold: Option<Duration>,
    label: Option<String>,
    owner: Option<OwnerId>,
    manual: bool,
}

impl Acquire {
    pub(crate) fn new(client: LockClient, key: Result<LockKey>) -> Self {
        let options = &client.inner.options;
        Self {
            key,
            ttl: options.ttl,
            wait: options.wait,
            max_hold: options.max_hold,
            label: None,
            owner: None,
            manual: false,
            client,
        }
    }

    /// The length of the lease, above zero and at most [`Ttl::MAX`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait while the lock is busy; a [`Duration`] is a limit.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    /// The longest time that the lock may be held in all, above zero, however often it is renewed.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// A name for people who look at the lock, instead of the client's label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Acquires for an owner that may hold the lock already, here or in another process.
    ///
    /// Without an owner every acquisition is a stranger to every other.
    pub fn owner(mut self, owner: impl Into<OwnerId>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The watchdog does not renew this lock; [`LockGuard::renew`] does.
    pub fn manual_renewal(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Acquires the lock and waits for it if it is busy.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidKey`], [`Error::InvalidConfig`], [`Error::Closed`]: nothing was sent.
    /// * [`Error::Busy`] when the caller does not wait, [`Error::Timeout`] when the wait is over.
    /// * [`Error::TooManyHolds`] or [`Error::Lost`] on re-entry.
    /// * [`Error::Store`]: a permanent failure at once, a transient one when the wait is over. The
    ///   claim is taken back in the background for as long as it might still be granted.
    ///
    /// It returns within the wait plus the client's operation time-out.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any await point: the claim is then taken back in the
    /// background, and so is a grant that comes late.
    pub async fn acquire(self) -> Result<LockGuard> {
        let inner = self.client.inner.clone();
        inner.check_open()?;
        let key = self.key?;
        let claim = Claim {
            key,
            owner: self.owner.unwrap_or_else(OwnerId::random),
            hold: HoldId::random(),
            ttl: Ttl::new(self.ttl)?,
            queue: self.wait != Wait::No,
            asker: match self.label {
                Some(label) => Arc::new(Asker::this_process(Some(&label))?),
                None => inner.asker.clone(),
            },
        };
        if self.max_hold.is_some_and(|max| max.is_zero()) {
            return Err(Error::InvalidConfig {
                what: "max_hold is zero; it has to be longer".into(),
            });
        }
        inner
            .watchdog
            .start()
            .map_err(|why| Error::store("acquire", &claim.key, why))?;

        let compete = Compete {
            started: inner.clock.now(),
            inner: &inner,
            wait: self.wait,
            max_hold: self.max_hold,
            manual: self.manual,
            reentrant: self.owner.is_some(),
        };
        match self.owner {
            None => compete.acquire(claim).await,
            Some(_) => compete.enter(claim).await,
        }
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    ///
    /// As [`Acquire::acquire`] with [`Wait::No`].
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::acquire`].
    pub async fn try_acquire(self) -> Result<LockGuard> {
        self.wait(Wait::No).acquire().await
    }

    /// Acquires the lock, does `work` and releases it; stops the work when the lock is lost.
    ///
    /// Commit a database transaction inside `work`: whoever comes next must see its changes.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] as [`Acquire::acquire`]; [`RunError::Lost`] when the lock was
    /// lost before the work was done and the lock released.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, so is the work, and the lock is released in the background.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().await.map_err(RunError::NotAcquired)?;
        let key = guard.key().clone();
        let done = guard.run(work(&guard)).await?;
        match guard.release().await {
            Ok(()) => Ok(done),
            Err(Error::Lost { reason, .. }) => Err(RunError::Lost {
                key,
                reason,
                finished: Some(done),
            }),
            Err(why) => {
                // The work was done under the lock; what remains is to give it back.
                tracing::warn!(%key, %why, "the lock is released in the background");
                Ok(done)
            }
        }
    }
}

/// The terms on which an acquisition competes.
#[derive(Debug)]
struct Compete<'a> {
    inner: &'a Arc<Inner>,
    started: Moment,
    wait: Wait,
    max_hold: Option<Duration>,
    manual: bool,
    reentrant: bool,
}

impl Compete<'_> {
    /// Enters a lock that the owner holds in this process, or acquires it for the owner.
    async fn enter(&self, claim: Claim) -> Result<LockGuard> {
        loop {
            match self.inner.entered.enter(&claim, self.inner)? {
                Entry::Entered(held) => {
                    let waited = self.inner.clock.now().since(self.started);
                    return Ok(LockGuard::new(self.inner.clone(), held, waited, 0));
                }
                Entry::First(place) => {
                    let guard = self.acquire(claim).await?;
                    place.entered(guard.held());
                    return Ok(guard);
                }
                // Another task of the same owner is acquiring it; what it gets is ours too.
                Entry::Wait(over) => {
                    if !self.within_wait(over).await {
                        return Err(self.refused(&claim.key, Ok(Busy::default())));
                    }
                }
            }
        }
    }

    async fn acquire(&self, claim: Claim) -> Result<LockGuard> {
        let mut pending = Pending::new(self.inner, claim);
        let (mut failures, mut idle_wakes) = (0, 0);
        loop {
            let sent = self.inner.clock.now();
            let refusal = match pending.attempt().await {
                Ok(Attempt::Granted(grant)) => match self.granted(&mut pending, sent, grant)? {
                    Some(guard) => return Ok(guard),
                    None => Err(StoreError::transient(
                        "the answer came after the lease had run out",
                    )),
                },
                Ok(Attempt::Busy(busy)) => Ok(busy),
                Err(why) if why.is_transient() => Err(why),
                Err(why) => return Err(Error::store("acquire", &pending.claim.key, why)),
            };
            let time_is_left = match &refusal {
                Ok(busy) => {
                    failures = 0;
                    self.within_wait(self.turn(&pending.claim, busy, &mut idle_wakes))
                        .await
                }
                Err(why) => {
                    failures += 1;
                    tracing::debug!(key = %pending.claim.key, %why, failures, "attempt failed");
                    self.within_wait(self.inner.sleep(backoff(failures))).await
                }
            };
            if !time_is_left {
                pending.give_up().await;
                return Err(self.refused(&pending.claim.key, refusal));
            }
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
            let key = pending.claim.key.clone();
            return Err(Error::TooManyHolds { key, limit });
        }
        let terms = Terms {
            token: grant.token,
            others: grant.holds.saturating_sub(1),
            max_hold: self.max_hold,
            manual: self.manual,
            reentrant: self.reentrant,
            stray: pending.stray,
        };
        let id = inner.watchdog.next_id();
        let held = Arc::new(Held::new(id, pending.claim.clone(), granted, terms));
        inner.watchdog.watch(held.clone(), granted);
        // After `watch`, so that a shutdown sees either the guard or this refusal.
        if let Err(closed) = inner.check_open() {
            inner.watchdog.forget(id);
            return Err(closed);
        }
        pending.settle();
        let waited = now.since(self.started);
        tracing::debug!(key = %held.claim.key, token = %grant.token, owner = %held.claim.owner, ?waited, "lock acquired");
        Ok(Some(LockGuard::new(
            inner.clone(),
            held,
            waited,
            pending.attempts,
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

    fn refused(&self, key: &LockKey, why: Result<Busy, StoreError>) -> Error {
        if let Err(closed) = self.inner.check_open() {
            return closed;
        }
        let key = key.clone();
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
            Err(why) => Error::store("acquire", &key, why),
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

/// A claim on its way; what is not over when it is dropped is taken back.
#[derive(Debug)]
struct Pending<'a> {
    inner: &'a Arc<Inner>,
    claim: Claim,
    state: State,
    attempts: u32,
    /// Whether an attempt was given up while it may have been under way: it may still be applied.
    stray: bool,
}

/// What the store has of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing, or nothing that is ours to take back.
    Over,
    /// An attempt that is not answered.
    Unknown,
    /// A hold or a place in the queue.
    Known,
}

impl<'a> Pending<'a> {
    fn new(inner: &'a Arc<Inner>, claim: Claim) -> Self {
        Self {
            inner,
            claim,
            state: State::Over,
            attempts: 0,
            stray: false,
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, StoreError> {
        let before = self.state;
        self.attempts += 1;
        self.state = State::Unknown;
        let limit = self.inner.options.operation_timeout;
        let answer = match timeout(limit, self.inner.store.try_acquire(&self.claim)).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::transient(format!("no answer within {limit:?}"))),
        };
        match &answer {
            Ok(Attempt::Granted(_)) => self.state = State::Known,
            Ok(Attempt::Busy(_)) if self.claim.queue => self.state = State::Known,
            Ok(Attempt::Busy(_)) => self.state = State::Over,
            Err(why) if why.is_transient() => self.stray = true,
            Err(_) => self.state = before,
        }
        answer
    }

    /// Takes the claim back in the background and goes on with a fresh one.
    fn start_over(&mut self) {
        self.withdraw();
        self.settle();
        self.claim.hold = HoldId::random();
    }

    /// Takes the claim back and waits for it, unless that has to be done in the background.
    async fn give_up(&mut self) {
        if self.state == State::Known && !self.stray {
            let limit = self.inner.options.operation_timeout;
            if let Ok(Ok(_)) = timeout(limit, self.inner.store.release(&self.claim)).await {
                self.state = State::Over;
            }
        }
    }

    /// The claim is a guard's now, stray attempts included.
    fn settle(&mut self) {
        self.state = State::Over;
        self.stray = false;
    }

    fn withdraw(&self) {
        let now = self.inner.clock.now();
        let claim = self.claim.clone();
        let withdrawal = if self.stray || self.state == State::Unknown {
            Withdrawal::uncertain(claim, now, self.inner.options.operation_timeout)
        } else if self.state == State::Known {
            let end = now + claim.ttl.as_duration();
            Withdrawal::certain(claim, None, now, end)
        } else {
            return;
        };
        self.inner.watchdog.withdraw(withdrawal);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
