//! The watchdog's rounds beside guards that come and go, under many orders of their steps.
//!
//! [`shuttle`] takes the place of the threads: between any two steps another thread may go on, in
//! orders drawn at random. Time stands still, so that nothing but a wake-up can help a thread
//! that sleeps; whoever sleeps for ever is found as a deadlock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, pending, ready};
use parking_lot::Mutex;
use shuttle::{
    future::{block_on, yield_now},
    thread,
};
use tokio::sync::Notify;

use super::{Watchdog, Withdrawal, rounds::rounds};
use crate::{
    Asker, Attempt, Busy, Capabilities, Claim, Clock, DistributedLock, Durability, FencingToken,
    HoldId, LockInfo, LockKey, LockPage, LostReason, Moment, OwnerId, Page, Release, Renewal,
    StoreError, TokenSource, Ttl,
    held::{Granted, Held, Terms},
    metrics::Metrics,
};

/// Orders that are tried of each test.
const ORDERS: usize = 2_000;

const TTL: Ttl = match Ttl::from_millis(30_000) {
    Ok(ttl) => ttl,
    Err(_) => panic!("a valid ttl"),
};

const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

/// Tries `guards`, each in a thread of its own, beside a watchdog that ends after them.
fn in_any_order(guards: &[fn(&Stage)]) {
    // Its timers never fire: nobody drives them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let guards = guards.to_vec();
    shuttle::check_random(
        move || {
            let stage = Arc::new(Stage::new());
            let shared = stage.watchdog.shared.clone();
            let watchdog = thread::spawn(move || block_on(rounds(&shared)));
            let guards: Vec<_> = guards
                .iter()
                .map(|guard| {
                    let (guard, stage) = (*guard, stage.clone());
                    thread::spawn(move || guard(&stage))
                })
                .collect();
            for guard in guards {
                guard.join().expect("no panic");
            }
            let store = stage.store.clone();
            drop(stage);
            watchdog.join().expect("no panic");
            store.is_settled();
        },
        ORDERS,
    );
}

/// A33: whatever is watched is renewed, however deep the watchdog sleeps.
#[test]
fn a33_what_is_due_wakes_the_watchdog() {
    fn guard(stage: &Stage) {
        let held = stage.hold(TTL.as_duration() / 2);
        block_on(stage.store.renewed(held.claim.hold));
        assert_eq!(held.lost(NOW), None);
        stage.leave(&held);
    }
    in_any_order(&[guard, guard, guard]);
}

/// B01, A5: when a guard has left, no renewal of it is under way, and none is sent.
#[test]
fn b01_no_renewal_outlives_its_guard() {
    fn guard(stage: &Stage) {
        let held = stage.hold(TTL.as_duration() / 2);
        stage.leave(&held);
    }
    fn renewed_by_hand(stage: &Stage) {
        let held = stage.hold(TTL.as_duration() / 2);
        thread::yield_now();
        stage.watchdog.renewed(held.id, GRANTED_NOW);
        stage.leave(&held);
    }
    in_any_order(&[guard, renewed_by_hand, guard]);
}

/// B41, A19: a guard that is dropped is released, after its renewal and before the watchdog ends.
#[test]
fn b41_what_is_dropped_is_released() {
    fn dropped(stage: &Stage) {
        let held = stage.hold(TTL.as_duration() / 2);
        stage.watchdog.forget(held.id);
        let give_up = NOW + TTL.as_duration();
        let claim = held.claim();
        stage.store.expects_release(claim.hold);
        let withdrawal = Withdrawal::certain(claim, Some(held.id), NOW, give_up);
        stage.watchdog.withdraw(withdrawal);
    }
    in_any_order(&[dropped, dropped, dropped]);
}

/// A27: a lock whose renewal says that it is gone is lost once, and not renewed again.
#[test]
fn a27_what_is_gone_is_lost_and_left_alone() {
    fn robbed(stage: &Stage) {
        let held = stage.hold_unless(TTL.as_duration() / 2, true);
        block_on(async {
            loop {
                let changed = held.changed.notified();
                if held.lost(NOW).is_some() {
                    break;
                }
                changed.await;
            }
        });
        assert_eq!(held.lost(NOW), Some(LostReason::TakenOver));
        stage.leave(&held);
    }
    fn guard(stage: &Stage) {
        let held = stage.hold(TTL.as_duration() / 2);
        stage.leave(&held);
    }
    in_any_order(&[robbed, guard, robbed]);
}

const GRANTED_NOW: Granted = Granted {
    sent: NOW,
    ttl: TTL,
};

/// A watchdog whose rounds run in a thread of the test.
struct Stage {
    watchdog: Watchdog,
    store: Steps,
    metrics: Arc<Metrics>,
}

impl Stage {
    fn new() -> Self {
        let store = Steps::default();
        let metrics = Arc::new(Metrics::new("steps", None, false));
        let limit = Duration::from_secs(5);
        Self {
            watchdog: Watchdog::new(
                Arc::new(store.clone()),
                Arc::new(Still),
                metrics.clone(),
                limit,
            ),
            store,
            metrics,
        }
    }

    fn claim(&self) -> Claim {
        Claim {
            key: LockKey::new("k").expect("a key"),
            owner: OwnerId::random(),
            hold: HoldId::random(),
            ttl: TTL,
            queue: false,
            asker: Arc::new(Asker::new(None, "host".into(), 1).expect("an asker")),
        }
    }

    /// A lock that was granted so long ago, under watch from now on.
    fn hold(&self, age: Duration) -> Arc<Held> {
        self.hold_unless(age, false)
    }

    fn hold_unless(&self, age: Duration, is_robbed: bool) -> Arc<Held> {
        let claim = self.claim();
        self.store.grant(claim.hold, is_robbed);
        let granted = Granted {
            sent: NOW - age,
            ttl: TTL,
        };
        let terms = Terms {
            token: FencingToken::new(1).expect("a token"),
            others: 0,
            max_hold: None,
            kept_until: NOW,
            manual: false,
            renew_every: None,
            reentrant: false,
            stray: false,
            holding: self.metrics.holding(granted.sent),
        };
        let id = self.watchdog.next_id();
        let held = Arc::new(Held::new(id, claim, granted, terms));
        self.watchdog.watch(held.clone(), granted);
        thread::yield_now();
        held
    }

    /// As a guard's release does, up to the request.
    fn leave(&self, held: &Held) {
        self.watchdog.forget(held.id);
        thread::yield_now();
        block_on(self.watchdog.landed(held.id));
        self.store.left(held.claim.hold);
    }
}

/// A clock that stands still.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        NOW
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'_, ()> {
        match at <= NOW {
            true => Box::pin(ready(())),
            false => Box::pin(pending()),
        }
    }
}

/// A store that takes its time, and knows what must not be asked.
#[derive(Clone, Debug, Default)]
struct Steps {
    holds: Arc<Mutex<BTreeMap<HoldId, Step>>>,
    changed: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    is_robbed: bool,
    renewing: bool,
    renewals: u32,
    left: bool,
    to_be_released: bool,
    released: u32,
}

impl Steps {
    fn grant(&self, hold: HoldId, is_robbed: bool) {
        let step = Step {
            is_robbed,
            ..Step::default()
        };
        self.holds.lock().insert(hold, step);
    }

    fn expects_release(&self, hold: HoldId) {
        self.holds.lock().entry(hold).or_default().to_be_released = true;
    }

    async fn renewed(&self, hold: HoldId) {
        loop {
            let changed = self.changed.notified();
            if self.holds.lock()[&hold].renewals > 0 {
                return;
            }
            changed.await;
        }
    }

    fn left(&self, hold: HoldId) {
        let mut holds = self.holds.lock();
        let step = holds.get_mut(&hold).expect("a hold");
        assert!(!step.renewing, "a renewal is under way");
        step.left = true;
    }

    fn is_settled(&self) {
        for (hold, step) in &*self.holds.lock() {
            let is_released = step.released > 0;
            assert_eq!(step.to_be_released, is_released, "{hold}: {step:?}");
            assert!(!step.renewing && step.renewals <= 1, "{hold}: {step:?}");
        }
    }
}

#[async_trait]
impl DistributedLock for Steps {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("steps", TokenSource::ServerClock, Durability::Volatile)
    }

    async fn try_acquire(&self, _: &Claim) -> Result<Attempt, StoreError> {
        unreachable!("a watchdog acquires nothing")
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let is_robbed = {
            let mut holds = self.holds.lock();
            let step = holds.get_mut(&claim.hold).expect("a hold");
            assert!(!step.left && step.released == 0, "renewed after its end");
            assert!(!step.renewing, "renewed twice at a time");
            step.renewing = true;
            step.is_robbed
        };
        yield_now().await;
        {
            let mut holds = self.holds.lock();
            let step = holds.get_mut(&claim.hold).expect("a hold");
            step.renewing = false;
            step.renewals += 1;
        }
        self.changed.notify_waiters();
        Ok(match is_robbed {
            true => Renewal::Gone { taken_over: true },
            false => Renewal::Renewed { ttl: TTL },
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        yield_now().await;
        let mut holds = self.holds.lock();
        let step = holds.get_mut(&claim.hold).expect("a hold");
        assert!(!step.renewing, "released while it is renewed");
        step.released += 1;
        Ok(Release::Released { holds: 0 })
    }

    async fn wait(&self, _: &Claim, _: &Busy) {}

    async fn inspect(&self, _: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        Ok(None)
    }

    async fn list(&self, _: &str, _: Page) -> Result<LockPage, StoreError> {
        Ok(LockPage::default())
    }

    async fn force_release(
        &self,
        _: &LockKey,
        _: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        Ok(Arc::new(self.clone()))
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
