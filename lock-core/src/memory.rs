//! The store in memory: one process, the complete contract; the reference model of the others.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Asker, Attempt, Busy, Capabilities, Claim, Clock, DistributedLock, Durability, FencingToken,
    Finding, Grant, HoldId, Holder, LockInfo, LockKey, LockPage, Moment, OwnerId, Page, Release,
    Renewal, StoreError, SystemClock, TokenSource, Ttl, Waiter,
};

/// Locks in the memory of this process, for tests and for programs of one process.
///
/// [`MemoryLock::handle`] and [`dedicated`](DistributedLock::dedicated) give more handles on the
/// same locks, as other processes would have on a server.
///
/// ```
/// use std::sync::Arc;
/// use lock_core::{LockClient, MemoryLock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let client = LockClient::new(Arc::new(MemoryLock::new()));
/// let guard = client.acquire("orders/42").await?;
/// assert!(guard.is_held());
/// guard.release().await?;
/// # Ok::<(), lock_core::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MemoryLock {
    shared: Arc<Shared>,
    closed: AtomicBool,
}

impl Default for MemoryLock {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryLock {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on a clock of your own, such as a [`ManualClock`](crate::ManualClock).
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                state: Mutex::default(),
            }),
            closed: AtomicBool::new(false),
        }
    }

    /// Another handle on the same locks.
    pub fn handle(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            closed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> Result<(parking_lot::MutexGuard<'_, State>, Moment), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::closed());
        }
        let state = self.shared.state.lock();
        let now = self.shared.clock.now();
        Ok((state, now))
    }
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    locks: BTreeMap<LockKey, Lock>,
    last_token: u64,
}

/// A lock that somebody holds or waits for; others are not in the map.
#[derive(Debug, Default)]
struct Lock {
    lease: Option<Lease>,
    queue: VecDeque<Queued>,
    /// While the lock is free and the queue is not empty: until when the first may claim it.
    reserved_until: Moment,
}

#[derive(Debug)]
struct Lease {
    owner: OwnerId,
    holds: Vec<HoldId>,
    token: FencingToken,
    asker: Arc<Asker>,
    since: Moment,
    expires: Moment,
}

#[derive(Debug)]
struct Queued {
    owner: OwnerId,
    hold: HoldId,
    asker: Arc<Asker>,
    since: Moment,
    turn: Arc<Notify>,
}

impl Lock {
    /// How long the first waiter has to claim a lock that became free.
    const CLAIM_WINDOW: Duration = Duration::from_secs(2);

    /// Ends what has run out by `now`.
    fn tidy(&mut self, now: Moment) {
        if let Some(lease) = &self.lease
            && lease.expires <= now
        {
            let at = lease.expires;
            self.lease = None;
            self.hand_over(at);
        }
        while self.lease.is_none() && !self.queue.is_empty() && self.reserved_until <= now {
            self.queue.pop_front();
            self.hand_over(self.reserved_until);
        }
    }

    /// The lock is free since `at`: the first waiter's turn.
    fn hand_over(&mut self, at: Moment) {
        self.reserved_until = at + Self::CLAIM_WINDOW;
        if let Some(first) = self.queue.front() {
            first.turn.notify_one();
        }
    }

    fn is_first(&self, hold: HoldId) -> bool {
        self.queue.front().is_none_or(|first| first.hold == hold)
    }

    fn grant(&mut self, claim: &Claim, ttl: Ttl, token: FencingToken, now: Moment) -> Attempt {
        let was_waiting = self.queue.len();
        self.queue.retain(|queued| queued.hold != claim.hold);
        let lease = self.lease.get_or_insert_with(|| Lease {
            owner: claim.owner,
            holds: Vec::new(),
            token,
            asker: claim.asker.clone(),
            since: now,
            expires: now,
        });
        lease.expires = lease.expires.max(now + ttl.as_duration());
        if !lease.holds.contains(&claim.hold) {
            lease.holds.push(claim.hold);
        }
        if was_waiting > self.queue.len() {
            // The owner's other claims in the queue may enter at once.
            for queued in self.queue.iter().filter(|q| q.owner == claim.owner) {
                queued.turn.notify_one();
            }
        }
        Attempt::Granted(Grant {
            token: lease.token,
            ttl,
            holds: lease.holds.len() as u32,
        })
    }

    fn holder(&self, now: Moment) -> Option<Holder> {
        self.lease.as_ref().map(|lease| Holder {
            owner: lease.owner,
            asker: lease.asker.clone(),
            token: lease.token,
            holds: lease.holds.len() as u32,
            held_for: now.since(lease.since),
            remaining: lease.expires.since(now),
        })
    }

    fn busy(&self, claim: &Claim, now: Moment) -> Busy {
        let holder = self.holder(now);
        let position = self.queue.iter().position(|q| q.hold == claim.hold);
        Busy {
            remaining: match &holder {
                Some(holder) => holder.remaining,
                None => self.reserved_until.since(now),
            },
            holder,
            position: position.map(|place| place as u32 + 1),
            queued: self.queue.len() as u32,
        }
    }

    fn info(&self, key: &LockKey, now: Moment) -> LockInfo {
        LockInfo {
            key: key.clone(),
            holder: self.holder(now),
            waiters: self
                .queue
                .iter()
                .map(|queued| Waiter {
                    owner: queued.owner,
                    asker: queued.asker.clone(),
                    waiting_for: now.since(queued.since),
                })
                .collect(),
        }
    }

    fn is_idle(&self) -> bool {
        self.lease.is_none() && self.queue.is_empty()
    }
}

impl State {
    /// The lock as it is now; call [`State::forget_idle`] when it may have become idle.
    fn lock(&mut self, key: &LockKey, now: Moment) -> Option<&mut Lock> {
        let lock = self.locks.get_mut(key)?;
        lock.tidy(now);
        Some(lock)
    }

    fn forget_idle(&mut self, key: &LockKey) {
        if self.locks.get(key).is_some_and(Lock::is_idle) {
            self.locks.remove(key);
        }
    }

    fn next_token(&mut self, now: Moment) -> FencingToken {
        self.last_token = (self.last_token + 1).max(now.as_nanos() / 1000);
        FencingToken::new(self.last_token).unwrap_or_else(|| unreachable!("it is at least 1"))
    }
}

#[async_trait]
impl DistributedLock for MemoryLock {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", TokenSource::ServerClock, Durability::Volatile)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let ttl = claim.ttl.max(self.capabilities().min_ttl);
        let (mut state, now) = self.state()?;
        let token = state.next_token(now);
        let lock = state.locks.entry(claim.key.clone()).or_default();
        lock.tidy(now);
        let free = match &lock.lease {
            Some(lease) => lease.owner == claim.owner,
            None => lock.is_first(claim.hold),
        };
        if free {
            return Ok(lock.grant(claim, ttl, token, now));
        }
        if claim.queue && !lock.queue.iter().any(|q| q.hold == claim.hold) {
            lock.queue.push_back(Queued {
                owner: claim.owner,
                hold: claim.hold,
                asker: claim.asker.clone(),
                since: now,
                turn: Arc::new(Notify::new()),
            });
        }
        Ok(Attempt::Busy(lock.busy(claim, now)))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let ttl = claim.ttl.max(self.capabilities().min_ttl);
        let (mut state, now) = self.state()?;
        let lease = state
            .lock(&claim.key, now)
            .and_then(|lock| lock.lease.as_mut());
        let answer = match lease {
            Some(lease) if lease.owner != claim.owner => Renewal::Gone { taken_over: true },
            Some(lease) if lease.holds.contains(&claim.hold) => {
                lease.expires = lease.expires.max(now + ttl.as_duration());
                Renewal::Renewed { ttl }
            }
            _ => Renewal::Gone { taken_over: false },
        };
        state.forget_idle(&claim.key);
        Ok(answer)
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let (mut state, now) = self.state()?;
        let Some(lock) = state.lock(&claim.key, now) else {
            return Ok(Release::NotHeld);
        };
        let mut answer = Release::NotHeld;
        if let Some(lease) = lock.lease.as_mut().filter(|l| l.owner == claim.owner)
            && let Some(place) = lease.holds.iter().position(|hold| *hold == claim.hold)
        {
            lease.holds.swap_remove(place);
            let holds = lease.holds.len() as u32;
            if holds == 0 {
                lock.lease = None;
                lock.hand_over(now);
            }
            answer = Release::Released { holds };
        } else if let Some(place) = lock
            .queue
            .iter()
            .position(|q| q.hold == claim.hold && q.owner == claim.owner)
        {
            lock.queue.remove(place);
            if place == 0 && lock.lease.is_none() {
                lock.hand_over(now);
            }
            answer = Release::Withdrawn;
        }
        state.forget_idle(&claim.key);
        Ok(answer)
    }

    async fn wait(&self, claim: &Claim, _busy: &Busy) {
        let turn = {
            let Ok((mut state, now)) = self.state() else {
                return;
            };
            state.lock(&claim.key, now).and_then(|lock| {
                let queued = lock.queue.iter().find(|q| q.hold == claim.hold)?;
                Some(queued.turn.clone())
            })
        };
        if let Some(turn) = turn {
            turn.notified().await;
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        let (mut state, now) = self.state()?;
        let info = state
            .lock(key, now)
            .filter(|lock| !lock.is_idle())
            .map(|lock| lock.info(key, now));
        state.forget_idle(key);
        Ok(info)
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        let (mut state, now) = self.state()?;
        for lock in state.locks.values_mut() {
            lock.tidy(now);
        }
        state.locks.retain(|_, lock| !lock.is_idle());
        let after = page.cursor.as_deref().unwrap_or("");
        let limit = page.limit.max(1);
        let mut found = state
            .locks
            .iter()
            .filter(|(key, _)| key.as_str().starts_with(prefix) && key.as_str() > after);
        let locks: Vec<_> = found
            .by_ref()
            .take(limit)
            .map(|(key, lock)| lock.info(key, now))
            .collect();
        let next = match found.next() {
            Some(_) => locks.last().map(|last| last.key.as_str().to_owned()),
            None => None,
        };
        Ok(LockPage { locks, next })
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        let (mut state, now) = self.state()?;
        let Some(lock) = state.lock(key, now) else {
            return Ok(false);
        };
        let ends = lock
            .lease
            .as_ref()
            .is_some_and(|lease| token.is_none_or(|token| token == lease.token));
        if ends {
            lock.lease = None;
            lock.hand_over(now);
        }
        state.forget_idle(key);
        Ok(ends)
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        drop(self.state()?);
        Ok(Finding::of_capabilities(&self.capabilities()))
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        Ok(Arc::new(self.handle()))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
