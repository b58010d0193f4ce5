//! A store between the client and the store under test, which counts, delays and distorts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, LockInfo, LockKey, LockPage,
    Page, Release, Renewal, StoreError,
};

/// How waiters hear of their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// Never.
    Deaf = 1,
    /// All the time, for nothing.
    Restless,
}

/// What all handles of one spy have seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) attempts: AtomicUsize,
    pub(super) renewals: AtomicUsize,
    pub(super) releases: AtomicUsize,
    /// When the last attempt or renewal reached the spy.
    pub(super) last: Mutex<Option<Instant>>,
    hearing: AtomicU8,
    /// How much later than the store attempts and renewals are answered, in milliseconds.
    delay: AtomicUsize,
}

impl Seen {
    pub(super) fn requests(&self) -> usize {
        [&self.attempts, &self.renewals, &self.releases]
            .map(|count| count.load(Ordering::SeqCst))
            .iter()
            .sum()
    }

    pub(super) fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    pub(super) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    pub(super) fn answers_later(&self, by: Duration) {
        self.delay.store(by.as_millis() as usize, Ordering::SeqCst);
    }

    /// When the last attempt or renewal was on its way to the store.
    pub(super) fn last(&self) -> Instant {
        self.last.lock().expect("there was a request")
    }

    async fn pass<T>(
        &self,
        count: &AtomicUsize,
        requests: usize,
        answer: impl Future<Output = T>,
    ) -> T {
        count.fetch_add(requests, Ordering::SeqCst);
        *self.last.lock() = Some(Instant::now());
        let answer = answer.await;
        let delay = self.delay.load(Ordering::SeqCst);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        }
        answer
    }
}

#[derive(Clone, Debug)]
pub(super) struct Spy {
    store: Arc<dyn DistributedLock>,
    pub(super) seen: Arc<Seen>,
}

impl Spy {
    pub(super) fn on(store: Arc<dyn DistributedLock>) -> Self {
        let seen = Arc::default();
        Self { store, seen }
    }

    pub(super) fn hearing(self, hearing: Hearing) -> Self {
        self.seen.hearing.store(hearing as u8, Ordering::SeqCst);
        self
    }

    pub(super) fn store(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl DistributedLock for Spy {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let answer = self.store.try_acquire(claim);
        self.seen.pass(&self.seen.attempts, 1, answer).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let answer = self.store.renew(claim);
        self.seen.pass(&self.seen.renewals, 1, answer).await
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        let answers = self.store.renew_all(claims);
        self.seen
            .pass(&self.seen.renewals, claims.len(), answers)
            .await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        self.seen.releases.fetch_add(1, Ordering::SeqCst);
        self.store.release(claim).await
    }

    async fn wait(&self, claim: &Claim, busy: &Busy) {
        let hearing = self.seen.hearing.load(Ordering::SeqCst);
        if hearing == Hearing::Deaf as u8 {
            std::future::pending().await
        } else if hearing == Hearing::Restless as u8 {
            let nap = Duration::from_micros(rand::random_range(0..3000));
            let _ = tokio::time::timeout(nap, self.store.wait(claim, busy)).await;
        } else {
            self.store.wait(claim, busy).await;
        }
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
        let seen = self.seen.clone();
        Ok(Arc::new(Self { store, seen }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}
