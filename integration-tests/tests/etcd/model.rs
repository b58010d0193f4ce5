//! The same random history against the store in memory and against etcd.

use std::sync::Arc;

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{
    Attempt, Claim, DistributedLock, HoldId, LockInfo, LockKey, MemoryLock, OwnerId, Release,
    Renewal, StoreError,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{claim, store};

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

fn attempt(answer: Result<Attempt, StoreError>, last: &mut u64) -> Seen {
    match answer.unwrap() {
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
    }
}

/// Without the place of a forged claim: the model tells it that of the hold, etcd none.
fn anonymous(mut seen: Seen, is_forged: bool) -> Seen {
    if let Seen::Busy { position, .. } = &mut seen
        && is_forged
    {
        *position = None;
    }
    seen
}

fn renewal(answer: Result<Renewal, StoreError>) -> Seen {
    match answer.unwrap() {
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

/// The reference model and etcd give the same answers, contract clauses 1 to 4, 7 and 8.
#[tokio::test]
async fn etcd_answers_as_the_model_does() {
    let cluster = EtcdCluster::one();
    let etcd = store(&cluster).await;
    let other: Arc<dyn DistributedLock> = etcd.dedicated().await.unwrap();
    for seed in 0..60 {
        let (mut queueing, mut history) = (Vec::new(), Vec::new());
        let mut random = StdRng::seed_from_u64(seed);
        let memory = MemoryLock::new();
        let key = LockKey::new(format!("model {seed}")).unwrap();
        let owners: Vec<_> = (0..3).map(|_| OwnerId::random()).collect();
        let holds: Vec<_> = (0..8).map(|_| HoldId::random()).collect();
        let (mut in_memory, mut in_etcd) = (0, 0);
        for step in 0..80 {
            let hold = random.random_range(0..holds.len());
            let mut claim = Claim {
                owner: owners[hold % owners.len()],
                hold: holds[hold],
                queue: random.random_bool(0.7),
                ..claim(key.as_str())
            };
            let is_forged = random.random_bool(0.05);
            if is_forged {
                claim.owner = OwnerId::random();
                claim.queue = false;
            }
            let etcd: &dyn DistributedLock = match random.random_bool(0.5) {
                true => &*etcd,
                false => &*other,
            };
            let (expected, found) = match random.random_range(0..100) {
                0..45 => (
                    anonymous(
                        attempt(memory.try_acquire(&claim).await, &mut in_memory),
                        is_forged,
                    ),
                    anonymous(
                        attempt(etcd.try_acquire(&claim).await, &mut in_etcd),
                        is_forged,
                    ),
                ),
                45..80 => (
                    Seen::Release(memory.release(&claim).await.unwrap()),
                    Seen::Release(etcd.release(&claim).await.unwrap()),
                ),
                80..90 => (
                    renewal(memory.renew(&claim).await),
                    renewal(etcd.renew_all(std::slice::from_ref(&claim)).await.remove(0)),
                ),
                90..93 => (
                    Seen::Forced(memory.force_release(&key, None).await.unwrap()),
                    Seen::Forced(etcd.force_release(&key, None).await.unwrap()),
                ),
                _ => (
                    info(memory.inspect(&key).await.unwrap()),
                    info(etcd.inspect(&key).await.unwrap()),
                ),
            };
            history.push(format!("{} of {}: {expected:?}", hold, hold % owners.len()));
            assert_eq!(expected, found, "seed {seed}, step {step}: {history:#?}");
            note(&mut queueing, claim, &expected);
            // In etcd the first waiter holds a lock as soon as it is free, in memory once it says
            // so. Here it says so at once.
            for claim in in_turn(&memory, &key, &queueing).await {
                let expected = attempt(memory.try_acquire(&claim).await, &mut in_memory);
                let found = attempt(etcd.try_acquire(&claim).await, &mut in_etcd);
                history.push(format!("its turn: {expected:?}"));
                assert_eq!(expected, found, "seed {seed}, step {step}: {history:#?}");
                note(&mut queueing, claim, &expected);
            }
        }
    }
}

/// Keeps the claims that are in the queue.
fn note(queueing: &mut Vec<Claim>, claim: Claim, answer: &Seen) {
    match answer {
        Seen::Busy { .. } if claim.queue => {
            if queueing.iter().all(|other| other.hold != claim.hold) {
                queueing.push(claim);
            }
        }
        Seen::Granted { .. } | Seen::Release(_) => {
            queueing.retain(|other| (other.owner, other.hold) != (claim.owner, claim.hold));
        }
        _ => {}
    }
}

/// The claims of the owner whose turn it is, when nobody holds the lock.
async fn in_turn(memory: &MemoryLock, key: &LockKey, queueing: &[Claim]) -> Vec<Claim> {
    match memory.inspect(key).await.unwrap() {
        Some(info) if info.holder.is_none() => {
            let next = info.waiters[0].owner;
            let its = queueing.iter().filter(|claim| claim.owner == next);
            its.cloned().collect()
        }
        _ => Vec::new(),
    }
}
