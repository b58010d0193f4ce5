//! Planted bugs: a store with a mistake that real lock libraries have made.
//!
//! The suite and the campaign are run on them to show that they find each; docs/proof.md says
//! which check found which.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use clap::ValueEnum;
use lock_core::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, Grant, HoldId, LockInfo,
    LockKey, LockPage, OwnerId, Page, Release, Renewal, StoreError, Ttl,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// a release does not ask whose the lock is
    ReleaseWithoutOwner,
    /// a release of one hold ends them all
    ReleaseEndsAllHolds,
    /// the deadline counts from the reply instead of the request
    DeadlineFromReply,
    /// the store grants half of the lease that it promises
    HalfALease,
    /// the end of a lease follows the client's wall clock
    ClientsClock,
    /// one failed renewal ends the watchdog
    OneFailureEndsWatchdog,
    /// a renewal is answered without asking the store
    RenewalNotSent,
    /// a renewal that comes too late takes the lock again
    RenewalRecreates,
    /// a renewal never says that the lock is gone
    LossNotTold,
    /// tokens come from a counter that a restart of the client resets
    TokenFromRestart,
    /// tokens are the time in whole seconds
    TokenTooCoarse,
    /// a wake-up is taken for a grant
    WakeUpIsGrant,
    /// a grant that comes after its caller has gone is not undone
    LateGrantStays,
    /// an attempt that failed is reported as refused
    ErrorIsBusy,
    /// a repeated attempt counts as another hold
    RepeatCountsTwice,
    /// each attempt of a waiter puts it at the end of the queue
    QueueForgetsOrder,
    /// a waiter that died keeps its place
    DeadWaiterStays,
    /// names differ in nothing but case and are one lock
    NamesFolded,
}

impl Bug {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }
}

impl fmt::Display for Bug {
    /// In words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        f.write_str(&help.map(ToString::to_string).unwrap_or_default())
    }
}

/// A store with a bug.
#[derive(Debug)]
pub struct Sabotaged {
    store: Arc<dyn DistributedLock>,
    bug: Bug,
    shared: Arc<Shared>,
    /// The tokens of this handle since it was opened.
    granted: Mutex<HashMap<(LockKey, OwnerId), u64>>,
}

/// What all handles of one store have in common.
#[derive(Debug)]
pub struct Shared {
    started: (Instant, SystemTime),
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Holds whose renewal has failed once.
    failed: HashSet<HoldId>,
    /// Claims whose attempt was answered.
    answered: HashSet<HoldId>,
    /// Claims that were woken up.
    woken: HashSet<HoldId>,
    /// The last token that was seen, of all keys.
    last_token: u64,
    /// Claims in the queue.
    queued: Vec<Claim>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            started: (Instant::now(), SystemTime::now()),
            memory: Mutex::default(),
        }
    }
}

impl Sabotaged {
    /// Plants `bug` into a handle; handles of one store get the same `shared`.
    pub fn new(store: Arc<dyn DistributedLock>, bug: Bug, shared: Arc<Shared>) -> Self {
        Self {
            store,
            bug,
            shared,
            granted: Mutex::default(),
        }
    }

    /// The claim as the store gets to see it.
    fn distort(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.bug {
            Bug::HalfALease => claim.ttl = millis(claim.ttl.as_millis() / 2),
            Bug::ClientsClock => {
                let (begin, wall) = self.shared.started;
                let here = match SystemTime::now().duration_since(wall) {
                    Ok(ahead) => ahead.as_millis() as i64,
                    Err(back) => -(back.duration().as_millis() as i64),
                };
                let ahead = here - begin.elapsed().as_millis() as i64;
                claim.ttl = millis(claim.ttl.as_millis().saturating_add_signed(ahead));
            }
            Bug::NamesFolded => {
                if let Ok(key) = LockKey::new(claim.key.as_str().to_lowercase()) {
                    claim.key = key;
                }
            }
            Bug::RepeatCountsTwice if self.shared.memory.lock().answered.contains(&claim.hold) => {
                claim.hold = HoldId::random();
            }
            _ => {}
        }
        claim
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let memory = &self.shared.memory;
        match self.bug {
            Bug::WakeUpIsGrant if memory.lock().woken.remove(&claim.hold) => {
                let token = memory.lock().last_token + 1;
                return Ok(granted(token, claim.ttl, 1));
            }
            Bug::DeadWaiterStays => {
                let dead = memory.lock().queued.clone();
                for other in dead.iter().filter(|other| other.key == claim.key) {
                    let mut other = other.clone();
                    other.ttl = Ttl::MAX;
                    self.store.try_acquire(&other).await?;
                }
            }
            _ => {}
        }
        let answer = self.store.try_acquire(&self.distort(claim)).await;
        match (self.bug, answer) {
            (Bug::ErrorIsBusy, Err(_)) => Ok(Attempt::Busy(Busy::default())),
            (Bug::QueueForgetsOrder, Ok(Attempt::Busy(_))) if claim.queue => {
                self.store.release(claim).await?;
                self.store.try_acquire(claim).await
            }
            (_, answer) => answer,
        }
    }

    /// The grant as the client gets to see it.
    fn granted(&self, claim: &Claim, grant: Grant, took: Duration) -> Attempt {
        let token = match self.bug {
            Bug::TokenFromRestart => {
                let mut granted = self.granted.lock();
                let next = granted.len() as u64 + 1;
                *granted
                    .entry((claim.key.clone(), claim.owner))
                    .or_insert(next)
            }
            Bug::TokenTooCoarse => grant.token.as_u64() / 1_000_000,
            _ => grant.token.as_u64(),
        };
        let ttl = match self.bug {
            Bug::DeadlineFromReply => later(grant.ttl, took),
            Bug::HalfALease | Bug::ClientsClock => claim.ttl.max(grant.ttl),
            _ => grant.ttl,
        };
        granted(token, ttl, grant.holds)
    }

    fn renewed(&self, claim: &Claim, granted: Ttl, took: Duration) -> Renewal {
        let ttl = match self.bug {
            Bug::DeadlineFromReply => later(granted, took),
            Bug::HalfALease | Bug::ClientsClock => claim.ttl.max(granted),
            _ => granted,
        };
        Renewal::Renewed { ttl }
    }
}

fn granted(token: u64, ttl: Ttl, holds: u32) -> Attempt {
    let token = FencingToken::new(token.max(1)).unwrap_or_else(|| unreachable!("it is not 0"));
    Attempt::Granted(Grant { token, ttl, holds })
}

fn millis(millis: u64) -> Ttl {
    Ttl::from_millis(millis.clamp(10, Ttl::MAX.as_millis())).unwrap_or(Ttl::MAX)
}

fn later(ttl: Ttl, by: Duration) -> Ttl {
    millis(ttl.as_millis() + by.as_millis() as u64)
}

#[async_trait]
impl DistributedLock for Sabotaged {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let begin = Instant::now();
        let answer = self.attempt(claim).await?;
        let mut memory = self.shared.memory.lock();
        memory.answered.insert(claim.hold);
        Ok(match answer {
            Attempt::Granted(grant) => {
                if self.bug != Bug::DeadWaiterStays {
                    memory.queued.retain(|other| other.hold != claim.hold);
                }
                memory.last_token = memory.last_token.max(grant.token.as_u64());
                self.granted(claim, grant, begin.elapsed())
            }
            Attempt::Busy(busy) => {
                if claim.queue && !memory.queued.iter().any(|other| other.hold == claim.hold) {
                    memory.queued.push(claim.clone());
                }
                Attempt::Busy(busy)
            }
        })
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let failed_before = self.shared.memory.lock().failed.contains(&claim.hold);
        match self.bug {
            Bug::RenewalNotSent => {
                let ttl = claim.ttl.max(self.capabilities().min_ttl);
                return Ok(Renewal::Renewed { ttl });
            }
            Bug::OneFailureEndsWatchdog if failed_before => {
                return Err(StoreError::transient("the watchdog has ended"));
            }
            _ => {}
        }
        let begin = Instant::now();
        let answer = self.store.renew(&self.distort(claim)).await;
        match (self.bug, answer) {
            (_, Ok(Renewal::Renewed { ttl })) => Ok(self.renewed(claim, ttl, begin.elapsed())),
            (Bug::RenewalRecreates, Ok(Renewal::Gone { taken_over: false })) => {
                let claim = Claim {
                    queue: false,
                    ..claim.clone()
                };
                match self.store.try_acquire(&claim).await? {
                    Attempt::Granted(grant) => Ok(Renewal::Renewed { ttl: grant.ttl }),
                    Attempt::Busy(_) => Ok(Renewal::Gone { taken_over: true }),
                }
            }
            (Bug::LossNotTold, Ok(Renewal::Gone { .. })) => Err(StoreError::transient("no answer")),
            (Bug::OneFailureEndsWatchdog, Err(why)) if why.is_transient() => {
                self.shared.memory.lock().failed.insert(claim.hold);
                Err(why)
            }
            (_, answer) => answer,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        {
            let mut memory = self.shared.memory.lock();
            if self.bug == Bug::LateGrantStays && !memory.answered.contains(&claim.hold) {
                return Ok(Release::NotHeld);
            }
            memory.queued.retain(|other| other.hold != claim.hold);
        }
        let claim = match self.bug {
            Bug::NamesFolded => &self.distort(claim),
            _ => claim,
        };
        let answer = self.store.release(claim).await?;
        match (self.bug, answer) {
            (Bug::ReleaseWithoutOwner, Release::NotHeld)
            | (Bug::ReleaseEndsAllHolds, Release::Released { .. }) => {
                self.store.force_release(&claim.key, None).await?;
                Ok(Release::Released { holds: 0 })
            }
            (_, answer) => Ok(answer),
        }
    }

    async fn wait(&self, claim: &Claim, busy: &Busy) {
        self.store.wait(claim, busy).await;
        self.shared.memory.lock().woken.insert(claim.hold);
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        self.store.inspect(key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        self.store.list(prefix, page).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        self.store.force_release(key, token).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        let store = self.store.dedicated().await?;
        Ok(Arc::new(Self::new(store, self.bug, self.shared.clone())))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}
