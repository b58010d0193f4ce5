//! The same random history against the store in memory, which is the reference, and another one.

use std::{future::Future, sync::Arc, time::Duration};

use lock_core::{
    Asker, Attempt, Claim, DistributedLock, HoldId, LockInfo, LockKey, MemoryLock, OwnerId,
    Release, Renewal, StoreError, Ttl,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// How a store hands a free lock over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// It waits for the claim of the first waiter, as the store in memory does. Here that comes
    /// soon.
    Reserves,
    /// The first waiter holds it before it knows. Here it claims at once in both stores.
    Grants,
}

/// Compares the answers of `histories` random histories of 80 steps with those of the reference:
/// contract clauses 1 to 4, 7 and 8. Half of the requests go through `other`: a hold acquires
/// through one of the two, and everything else through either.
///
/// A history in which a free lock waits for its claim for more than 1.5 s is void, since claim
/// windows end at different moments.
///
/// # Panics
///
/// On the first answer that differs, with the seed of its history; and when half of the histories
/// were void.
pub async fn compare(
    store: &dyn DistributedLock,
    other: &dyn DistributedLock,
    hand_over: HandOver,
    histories: u64,
) {
    let mut void = 0;
    for seed in 0..histories {
        let mut history = History::new(seed, hand_over);
        for _ in 0..80 {
            if !history.step(store, other).await {
                void += 1;
                break;
            }
        }
    }
    assert!(
        void * 2 < histories,
        "the machine is too slow: {void} of {histories} histories are void"
    );
}

/// What can be compared: everything but times and the numbers of tokens.
#[derive(Debug, PartialEq)]
enum Seen {
    Granted {
        holds: u32,
        same_token: bool,
    },
    Busy {
        holder: Option<OwnerId>,
        holds: u32,
        position: Option<u32>,
        queued: u32,
    },
    Renewed,
    Gone {
        taken_over: bool,
    },
    Release(Release),
    Forced(bool),
    Info(Option<(Option<OwnerId>, u32, Vec<OwnerId>)>),
}

/// Both stores give the answers of one history.
struct History {
    seed: u64,
    random: StdRng,
    /// Since when the lock waits for the claim of the first waiter.
    free: Option<Instant>,
    hand_over: HandOver,
    memory: MemoryLock,
    key: LockKey,
    owners: Vec<OwnerId>,
    holds: Vec<HoldId>,
    asker: Arc<Asker>,
    /// The claims in the queue.
    queueing: Vec<Claim>,
    /// The last tokens, of the reference and of the store.
    tokens: (u64, u64),
}

impl History {
    fn new(seed: u64, hand_over: HandOver) -> Self {
        Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            free: None,
            hand_over,
            memory: MemoryLock::new(),
            key: LockKey::new(format!("model {seed}")).expect("a valid key"),
            owners: (0..3).map(|_| OwnerId::random()).collect(),
            holds: (0..8).map(|_| HoldId::random()).collect(),
            asker: Arc::new(Asker::this_process(None).expect("a valid asker")),
            queueing: Vec::new(),
            tokens: (0, 0),
        }
    }

    /// One request to both; `false` when the history is void.
    async fn step(&mut self, store: &dyn DistributedLock, other: &dyn DistributedLock) -> bool {
        let claim = self.claim();
        let stores = [store, other];
        let store = stores[usize::from(self.random.random_bool(0.5))];
        let key = &claim.key;
        let (expected, found) = match self.random.random_range(0..100) {
            0..45 => self.attempt(stores, &claim).await,
            45..80 => {
                let claim = self.forged(&claim);
                (
                    self.memory.release(&claim).await.map(Seen::Release),
                    store.release(&claim).await.map(Seen::Release),
                )
            }
            80..90 => {
                let claim = self.forged(&claim);
                // A batch may wait for company.
                let renewed = match self.random.random_bool(0.1) {
                    true => store
                        .renew_all(std::slice::from_ref(&claim))
                        .await
                        .remove(0),
                    false => store.renew(&claim).await,
                };
                let expected = self.memory.renew(&claim).await;
                (expected.map(renewal), renewed.map(renewal))
            }
            90..93 => (
                self.memory.force_release(key, None).await.map(Seen::Forced),
                store.force_release(key, None).await.map(Seen::Forced),
            ),
            _ => (
                self.memory.inspect(key).await.map(info),
                store.inspect(key).await.map(info),
            ),
        };
        if !self.same(claim, expected, found) {
            return false;
        }
        if self.hand_over == HandOver::Grants || self.random.random_bool(0.5) {
            for claim in self.in_turn().await {
                let (expected, found) = self.attempt(stores, &claim).await;
                if !self.same(claim, expected, found) {
                    return false;
                }
            }
        }
        self.free = match self.in_turn().await.is_empty() {
            true => None,
            false => self.free.or_else(|| Some(Instant::now())),
        };
        true
    }

    fn claim(&mut self) -> Claim {
        let hold = self.random.random_range(0..self.holds.len());
        Claim {
            key: self.key.clone(),
            owner: self.owners[hold % self.owners.len()],
            hold: self.holds[hold],
            ttl: Ttl::from_millis(600_000).expect("a valid ttl"),
            queue: self.random.random_bool(0.7),
            asker: self.asker.clone(),
        }
    }

    /// Now and then, a stranger's claim that knows the hold.
    fn forged(&mut self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if self.random.random_bool(0.1) {
            claim.owner = OwnerId::random();
        }
        claim
    }

    async fn attempt(
        &mut self,
        stores: [&dyn DistributedLock; 2],
        claim: &Claim,
    ) -> (Result<Seen, StoreError>, Result<Seen, StoreError>) {
        let hold = self.holds.iter().position(|hold| *hold == claim.hold);
        let store = stores[hold.unwrap_or(0) % 2];
        let (expected, found) = (&mut self.tokens.0, &mut self.tokens.1);
        (
            seen(self.memory.try_acquire(claim), expected).await,
            seen(store.try_acquire(claim), found).await,
        )
    }

    /// `false` when it took too long to compare.
    fn same(
        &mut self,
        claim: Claim,
        expected: Result<Seen, StoreError>,
        found: Result<Seen, StoreError>,
    ) -> bool {
        let window = Duration::from_millis(1500);
        if self.free.is_some_and(|since| since.elapsed() > window) {
            return false;
        }
        let expected = expected.expect("memory does not fail");
        let found = found.expect("the server does not fail");
        assert_eq!(expected, found, "seed {}: {claim:?}", self.seed);
        match expected {
            Seen::Granted { .. } | Seen::Release(Release::Released { .. } | Release::Withdrawn) => {
                let id = (claim.owner, claim.hold);
                self.queueing
                    .retain(|other| (other.owner, other.hold) != id);
            }
            Seen::Busy { .. } if claim.queue && !self.is_queueing(&claim) => {
                self.queueing.push(claim);
            }
            _ => {}
        }
        true
    }

    fn is_queueing(&self, claim: &Claim) -> bool {
        self.queueing.iter().any(|other| other.hold == claim.hold)
    }

    /// The claims of the owner whose turn it is, when nobody holds the lock.
    async fn in_turn(&self) -> Vec<Claim> {
        match self.memory.inspect(&self.key).await {
            Ok(Some(info)) if info.holder.is_none() => {
                let next = info.waiters[0].owner;
                let its = self.queueing.iter().filter(|claim| claim.owner == next);
                its.cloned().collect()
            }
            _ => Vec::new(),
        }
    }
}

async fn seen(
    answer: impl Future<Output = Result<Attempt, StoreError>>,
    last: &mut u64,
) -> Result<Seen, StoreError> {
    Ok(match answer.await? {
        Attempt::Granted(grant) => {
            let token = grant.token.as_u64();
            assert!(token >= *last, "tokens go back");
            let same_token = token == *last;
            *last = token;
            Seen::Granted {
                holds: grant.holds,
                same_token,
            }
        }
        Attempt::Busy(busy) => Seen::Busy {
            holder: busy.holder.as_ref().map(|holder| holder.owner),
            holds: busy.holder.map_or(0, |holder| holder.holds),
            position: busy.position,
            queued: busy.queued,
        },
    })
}

fn renewal(answer: Renewal) -> Seen {
    match answer {
        Renewal::Renewed { .. } => Seen::Renewed,
        Renewal::Gone { taken_over } => Seen::Gone { taken_over },
    }
}

fn info(answer: Option<LockInfo>) -> Seen {
    Seen::Info(answer.map(|info| {
        let holder = info.holder.as_ref().map(|holder| holder.owner);
        let waiters = info.waiters.iter().map(|waiter| waiter.owner).collect();
        (
            holder,
            info.holder.map_or(0, |holder| holder.holds),
            waiters,
        )
    }))
}
