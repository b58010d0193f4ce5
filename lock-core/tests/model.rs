//! Random histories on the store in memory, next to a model that is as simple as can be.
//!
//! The model knows nothing of queues: no claim here queues. It keeps a list of grants and looks
//! everything up in it.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use lock_core::{
    Asker, Attempt, Claim, DistributedLock, FencingToken, HoldId, LockKey, ManualClock, MemoryLock,
    OwnerId, Page, Release, Renewal, Ttl,
};
use proptest::prelude::*;

const OWNERS: usize = 3;
const HOLDS: usize = 2;
const KEYS: usize = 2;

/// Which of the claims: key, owner, hold.
type Who = (usize, usize, usize);

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(Who, u64),
    Renew(Who, u64),
    RenewAll([Who; 3], u64),
    Release(Who),
    /// Without a token, with that of the present grant, or with another one.
    Force(usize, Option<bool>),
    Advance(u64),
    /// Looks only.
    Inspect,
}

fn who() -> impl Strategy<Value = Who> {
    (0..KEYS, 0..OWNERS, 0..HOLDS)
}

fn step() -> impl Strategy<Value = Step> {
    let ttl = || 1..400_u64;
    prop_oneof![
        4 => (who(), ttl()).prop_map(|(who, ttl)| Step::Acquire(who, ttl)),
        3 => (who(), ttl()).prop_map(|(who, ttl)| Step::Renew(who, ttl)),
        1 => ([who(), who(), who()], ttl()).prop_map(|(who, ttl)| Step::RenewAll(who, ttl)),
        3 => who().prop_map(Step::Release),
        1 => (0..KEYS, any::<Option<bool>>()).prop_map(|(key, token)| Step::Force(key, token)),
        3 => prop_oneof![0..30_u64, 30..500_u64].prop_map(Step::Advance),
        1 => Just(Step::Inspect),
    ]
}

/// A grant of one key, past or present.
#[derive(Debug)]
struct Granted {
    owner: usize,
    token: FencingToken,
    holds: Vec<usize>,
    /// In milliseconds of the model's time; the lease is over at this moment.
    ends: u64,
}

/// What should be: for each key all grants there were; only the last can be alive.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    grants: [Vec<Granted>; KEYS],
}

impl Model {
    fn alive(&mut self, key: usize) -> Option<&mut Granted> {
        let now = self.now;
        let last = self.grants[key].last_mut()?;
        (last.ends > now && !last.holds.is_empty()).then_some(last)
    }

    /// The lease that a request for `ttl` asks for: at least 10 ms, the store's shortest.
    fn ends(&self, ttl: u64) -> u64 {
        self.now + ttl.max(10)
    }
}

/// The store, with the claims of all who take part.
struct World {
    store: MemoryLock,
    clock: ManualClock,
    keys: [LockKey; KEYS],
    owners: [OwnerId; OWNERS],
    holds: [[HoldId; HOLDS]; OWNERS],
    asker: Arc<Asker>,
    model: Model,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            store: MemoryLock::with_clock(Arc::new(clock.clone())),
            clock,
            keys: ["a", "ab"].map(|name| LockKey::new(name).unwrap()),
            owners: std::array::from_fn(|_| OwnerId::random()),
            holds: std::array::from_fn(|_| std::array::from_fn(|_| HoldId::random())),
            asker: Arc::new(Asker::this_process(None).unwrap()),
            model: Model::default(),
        }
    }

    fn claim(&self, (key, owner, hold): Who, ttl: u64) -> Claim {
        Claim {
            key: self.keys[key].clone(),
            owner: self.owners[owner],
            hold: self.holds[owner][hold],
            ttl: Ttl::from_millis(ttl).unwrap(),
            queue: false,
            asker: self.asker.clone(),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Acquire(who, ttl) => self.acquire(who, ttl)?,
            Step::Renew(who, ttl) => {
                let answer = now(self.store.renew(&self.claim(who, ttl)));
                self.renewed(who, ttl, answer.unwrap())?;
            }
            Step::RenewAll(all, ttl) => {
                let claims = all.map(|who| self.claim(who, ttl));
                let answers = now(self.store.renew_all(&claims));
                prop_assert_eq!(answers.len(), all.len());
                for (who, answer) in all.into_iter().zip(answers) {
                    self.renewed(who, ttl, answer.unwrap())?;
                }
            }
            Step::Release(who) => self.release(who)?,
            Step::Force(key, token) => self.force(key, token)?,
            Step::Advance(by) => {
                self.clock.advance(Duration::from_millis(by));
                self.model.now += by;
            }
            Step::Inspect => {}
        }
        self.look()
    }

    fn acquire(&mut self, who: Who, ttl: u64) -> Result<(), TestCaseError> {
        let (key, owner, hold) = who;
        let ends = self.model.ends(ttl);
        let answer = now(self.store.try_acquire(&self.claim(who, ttl))).unwrap();
        let latest = self.model.grants[key].last().map(|grant| grant.token);
        let Some(alive) = self.model.alive(key) else {
            let Attempt::Granted(grant) = answer else {
                return Err(TestCaseError::fail(format!("it is free: {answer:?}")));
            };
            prop_assert!(
                Some(grant.token) > latest,
                "{} after {latest:?}",
                grant.token
            );
            prop_assert_eq!((grant.holds, grant.ttl.as_millis()), (1, ttl.max(10)));
            self.model.grants[key].push(Granted {
                owner,
                token: grant.token,
                holds: vec![hold],
                ends,
            });
            return Ok(());
        };
        match answer {
            Attempt::Granted(grant) => {
                prop_assert_eq!(alive.owner, owner, "two owners");
                if !alive.holds.contains(&hold) {
                    alive.holds.push(hold);
                }
                alive.ends = alive.ends.max(ends);
                prop_assert_eq!(grant.token, alive.token);
                prop_assert_eq!(grant.holds as usize, alive.holds.len());
            }
            Attempt::Busy(busy) => {
                prop_assert_ne!(alive.owner, owner, "the owner is refused");
                let told = busy.holder.unwrap();
                prop_assert_eq!(told.owner, self.owners[alive.owner]);
                prop_assert_eq!((busy.position, busy.queued), (None, 0));
            }
        }
        Ok(())
    }

    fn renewed(&mut self, who: Who, ttl: u64, answer: Renewal) -> Result<(), TestCaseError> {
        let (key, owner, hold) = who;
        let ends = self.model.ends(ttl);
        let expected = match self.model.alive(key) {
            Some(alive) if alive.owner != owner => Renewal::Gone { taken_over: true },
            Some(alive) if alive.holds.contains(&hold) => {
                alive.ends = alive.ends.max(ends);
                let ttl = Ttl::from_millis(ttl.max(10)).unwrap();
                Renewal::Renewed { ttl }
            }
            _ => Renewal::Gone { taken_over: false },
        };
        prop_assert_eq!(answer, expected);
        Ok(())
    }

    fn release(&mut self, who: Who) -> Result<(), TestCaseError> {
        let (key, owner, hold) = who;
        let answer = now(self.store.release(&self.claim(who, 1))).unwrap();
        let expected = match self.model.alive(key) {
            Some(alive) if alive.owner == owner && alive.holds.contains(&hold) => {
                alive.holds.retain(|other| *other != hold);
                let holds = alive.holds.len() as u32;
                Release::Released { holds }
            }
            _ => Release::NotHeld,
        };
        prop_assert_eq!(answer, expected);
        Ok(())
    }

    fn force(&mut self, key: usize, token: Option<bool>) -> Result<(), TestCaseError> {
        let latest = self.model.grants[key].last().map(|grant| grant.token);
        let token = match token {
            None => None,
            Some(true) => Some(latest.unwrap_or(FencingToken::new(1).unwrap())),
            // That of an earlier grant, or one that never was.
            Some(false) => match &self.model.grants[key][..] {
                [.., before, _] => Some(before.token),
                _ => FencingToken::new(u64::MAX),
            },
        };
        let ended = now(self.store.force_release(&self.keys[key], token)).unwrap();
        let expected = match self.model.alive(key) {
            Some(alive) if token.is_none_or(|token| token == alive.token) => {
                alive.holds.clear();
                true
            }
            _ => false,
        };
        prop_assert_eq!(ended, expected);
        Ok(())
    }

    /// What everybody sees is what the model says, to the millisecond.
    fn look(&mut self) -> Result<(), TestCaseError> {
        let mut in_use = Vec::new();
        for key in 0..KEYS {
            let seen = now(self.store.inspect(&self.keys[key])).unwrap();
            let time = self.model.now;
            let alive = self.model.alive(key);
            prop_assert_eq!(seen.is_some(), alive.is_some(), "key {}: {:?}", key, seen);
            let (Some(seen), Some(alive)) = (seen, alive) else {
                continue;
            };
            let held = seen.holder.unwrap();
            prop_assert_eq!(held.token, alive.token);
            prop_assert_eq!(held.holds as usize, alive.holds.len());
            prop_assert_eq!(held.remaining, Duration::from_millis(alive.ends - time));
            prop_assert_eq!(held.owner, self.owners[alive.owner]);
            prop_assert_eq!(seen.waiters, []);
            in_use.push(self.keys[key].clone());
        }
        let listed = now(self.store.list("a", Page::default())).unwrap().locks;
        let listed: Vec<_> = listed.into_iter().map(|info| info.key).collect();
        prop_assert_eq!(listed, in_use);
        Ok(())
    }
}

/// The store in memory answers at once.
fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Clauses 1 to 5 and 7. A5, A6, A26, A28, A40, B07, B12, B51, B62, B67: whatever three owners
    /// with two holds each do to two keys, the store answers as the model does.
    #[test]
    fn the_store_in_memory_is_the_model(history in proptest::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in history {
            world.step(step)?;
        }
    }
}
