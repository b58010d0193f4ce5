//! Who plays a part in a behaviour: a claim and the handle it goes through.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{PATIENCE, Subject};
use crate::{
    Asker, Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, Grant, HoldId,
    LockClient, LockInfo, LockKey, OwnerId, Release, Renewal, Ttl,
};

/// Longer than any behaviour takes, so that nothing expires by accident.
pub(super) const LONG: Duration = Duration::from_secs(900);

/// Short enough to wait for its end; the store may grant more.
pub(super) const SHORT: Duration = Duration::from_millis(300);

/// A key that no other test uses, under a name that tells the behaviour.
pub(super) fn key(name: &str) -> LockKey {
    LockKey::new(format!("conformance/{name}/{}", HoldId::random())).expect("a valid key")
}

pub(super) fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("a valid ttl")
}

/// A client with a handle of its own and the default options.
pub(super) async fn client(subject: &dyn Subject) -> LockClient {
    LockClient::new(subject.open().await)
}

#[derive(Clone)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) store: Arc<dyn DistributedLock>,
    pub(super) claim: Claim,
}

impl Actor {
    /// A new owner with a handle of its own, who asks for a long lease and does not queue.
    pub(super) async fn open(subject: &dyn Subject, key: &LockKey, name: &'static str) -> Self {
        Self::on(&subject.open().await, key, name)
    }

    /// A new owner on a handle that others use as well.
    pub(super) fn on(store: &Arc<dyn DistributedLock>, key: &LockKey, name: &'static str) -> Self {
        let asker = Asker::this_process(Some(name)).expect("a valid name");
        Self {
            name,
            store: store.clone(),
            claim: Claim {
                key: key.clone(),
                owner: OwnerId::random(),
                hold: HoldId::random(),
                ttl: ttl(LONG),
                queue: false,
                asker: Arc::new(asker),
            },
        }
    }

    /// Another owner on the same handle and key.
    pub(super) fn rival(&self, name: &'static str) -> Self {
        Self::on(&self.store, &self.claim.key, name)
    }

    /// Another hold of the same owner on the same handle.
    pub(super) fn second_hold(&self, name: &'static str) -> Self {
        let mut other = self.rival(name);
        other.claim.owner = self.claim.owner;
        other
    }

    /// The same claim through another handle.
    pub(super) async fn elsewhere(&self, subject: &dyn Subject) -> Self {
        Self {
            store: subject.open().await,
            ..self.clone()
        }
    }

    pub(super) fn with_ttl(mut self, length: Duration) -> Self {
        self.claim.ttl = ttl(length);
        self
    }

    pub(super) fn queueing(mut self) -> Self {
        self.claim.queue = true;
        self
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    pub(super) async fn tries(&self) -> Attempt {
        let attempt = self.store.try_acquire(&self.claim).await;
        attempt.unwrap_or_else(|error| panic!("{}: the attempt failed: {error}", self.name))
    }

    /// One attempt, which has to be granted.
    pub(super) async fn enters(&self) -> Grant {
        match self.tries().await {
            Attempt::Granted(grant) => grant,
            Attempt::Busy(busy) => panic!("{} should get the lock: {busy:?}", self.name),
        }
    }

    /// One attempt, which must not be granted.
    pub(super) async fn is_refused(&self) -> Busy {
        match self.tries().await {
            Attempt::Busy(busy) => busy,
            Attempt::Granted(grant) => panic!("{} must not get the lock: {grant:?}", self.name),
        }
    }

    /// Takes its place in the queue, at `position`.
    pub(super) async fn queues_at(&self, position: u32) {
        let busy = self.is_refused().await;
        assert_eq!(busy.position, Some(position), "the place of {}", self.name);
    }

    /// Waits as the client does: woken by the store, with a timer as the second way.
    pub(super) async fn waits(&self) -> Grant {
        self.waits_with(Duration::from_secs(1)).await
    }

    /// Waits with a timer of `retry`.
    pub(super) async fn waits_with(&self, retry: Duration) -> Grant {
        assert!(self.claim.queue, "{} has to queue", self.name);
        let start = Instant::now();
        loop {
            let busy = match self.tries().await {
                Attempt::Granted(grant) => return grant,
                Attempt::Busy(busy) => busy,
            };
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "{} waits in vain: {busy:?}", self.name);
            let nap = busy.remaining.clamp(Duration::from_millis(10), retry);
            let _ = timeout(nap, self.store.wait(&self.claim, &busy)).await;
        }
    }

    /// Tries without queueing until it gets the lock.
    pub(super) async fn keeps_trying(&self) -> Grant {
        let start = Instant::now();
        loop {
            let busy = match self.tries().await {
                Attempt::Granted(grant) => return grant,
                Attempt::Busy(busy) => busy,
            };
            let tried = start.elapsed();
            assert!(tried < PATIENCE, "{} tries in vain: {busy:?}", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn renew(&self) -> Renewal {
        let renewal = self.store.renew(&self.claim).await;
        renewal.unwrap_or_else(|error| panic!("{}: the renewal failed: {error}", self.name))
    }

    /// One renewal, which has to succeed; the granted ttl.
    pub(super) async fn renews(&self) -> Ttl {
        match self.renew().await {
            Renewal::Renewed { ttl } => ttl,
            gone => panic!("{} should still hold the lock: {gone:?}", self.name),
        }
    }

    pub(super) async fn release(&self) -> Release {
        let release = self.store.release(&self.claim).await;
        release.unwrap_or_else(|error| panic!("{}: the release failed: {error}", self.name))
    }

    /// One release, which has to give up a hold; how many the owner has left.
    pub(super) async fn leaves(&self) -> u32 {
        match self.release().await {
            Release::Released { holds } => holds,
            other => panic!("{} should hold the lock until now: {other:?}", self.name),
        }
    }

    /// An operator's forced release, of the grant with `token` when there is one.
    pub(super) async fn force(&self, token: Option<FencingToken>) -> bool {
        let ended = self.store.force_release(&self.claim.key, token).await;
        ended.unwrap_or_else(|error| panic!("{}: cannot force: {error}", self.name))
    }

    /// What everybody sees of the lock.
    pub(super) async fn looks(&self) -> Option<LockInfo> {
        let info = self.store.inspect(&self.claim.key).await;
        info.unwrap_or_else(|error| panic!("{}: cannot inspect: {error}", self.name))
    }

    /// What everybody sees of a lock that is in use.
    pub(super) async fn sees(&self) -> LockInfo {
        let info = self.looks().await;
        info.unwrap_or_else(|| panic!("{} should see a lock in use", self.name))
    }
}

/// Waits until `what` is so.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asserts that a lease of `ttl`, asked for at `sent`, has not ended before its time.
///
/// One thousandth and a millisecond are for two clocks that do not run alike.
pub(super) fn assert_not_early(sent: Instant, ttl: Ttl) {
    let (ran, ttl) = (sent.elapsed(), ttl.as_duration());
    let least = ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1));
    assert!(ran >= least, "a lease of {ttl:?} ended after {ran:?}");
}

/// Measures for how long the machine stood still at most.
///
/// A watchdog that gets no time loses its locks, as it has to; that is no fault of the store.
pub(super) struct Stalls(Arc<AtomicU64>);

impl Stalls {
    pub(super) fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest) = watched.upgrade() {
                longest.fetch_max(last.elapsed().as_millis() as u64, Ordering::SeqCst);
                last = Instant::now();
                drop(longest);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self(longest)
    }

    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// Polls `future` at most `polls` times and drops it; its output if it came to its end.
pub(super) async fn poll_times<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left > 0 {
            left -= 1;
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}
