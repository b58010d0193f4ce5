//! A store whose answers can be lost, late, wrong or fatal.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use lock_core::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, LockInfo, LockKey, LockPage,
    MemoryLock, Page, Release, Renewal, StoreError,
};
use parking_lot::Mutex;

pub const MS: Duration = Duration::from_millis(1);

/// What happens to requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Fails at once; not applied.
    Refuse,
    /// Fails for good; not applied.
    Forbid,
    /// Never answered; not applied.
    Hang,
    /// Applied, but never answered.
    Swallow,
    /// Applied, answered so much later.
    Late(Duration),
    /// Applied so much later, also when the caller has given up.
    Delayed(Duration),
    /// Panics.
    Panic,
}

/// One kind of request.
#[derive(Debug, Default)]
pub struct Verb {
    fault: Mutex<Fault>,
    /// How many requests the fault is for; then it is over.
    left: AtomicUsize,
    pub calls: AtomicUsize,
}

impl Verb {
    pub fn set(&self, fault: Fault) {
        self.set_for(usize::MAX, fault);
    }

    pub fn set_for(&self, requests: usize, fault: Fault) {
        *self.fault.lock() = fault;
        self.left.store(requests, Ordering::SeqCst);
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn next(&self) -> Fault {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let one_less = |left: usize| left.checked_sub(usize::from(left != usize::MAX));
        match self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
        {
            Ok(_) => *self.fault.lock(),
            Err(_) => Fault::None,
        }
    }

    async fn pass<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.next() {
            Fault::None => request.await,
            Fault::Refuse => Err(StoreError::transient("refused by the test")),
            Fault::Forbid => Err(StoreError::permanent("forbidden by the test")),
            Fault::Hang => std::future::pending().await,
            Fault::Swallow => {
                request.await?;
                std::future::pending().await
            }
            Fault::Late(by) => {
                let answer = request.await;
                tokio::time::sleep(by).await;
                answer
            }
            Fault::Delayed(by) => tokio::spawn(async move {
                tokio::time::sleep(by).await;
                request.await
            })
            .await
            .unwrap(),
            Fault::Panic => panic!("the store panics for the test"),
        }
    }
}

/// The faults and counts of every handle of one [`Faulty`] store.
#[derive(Debug, Default)]
pub struct Faults {
    pub acquire: Verb,
    pub renew: Verb,
    pub release: Verb,
    pub dedicated: Verb,
    /// Panics in the renewal of this key.
    pub poisoned: Mutex<Option<LockKey>>,
    /// Wakes every waiter at once, over and over.
    pub garbage_wakes: AtomicBool,
    /// How many batches of renewals were sent.
    pub batches: AtomicUsize,
}

#[derive(Clone, Debug)]
pub struct Faulty {
    store: Arc<MemoryLock>,
    pub faults: Arc<Faults>,
}

impl Faulty {
    pub fn new(store: &MemoryLock) -> Self {
        Self {
            store: Arc::new(store.handle()),
            faults: Arc::default(),
        }
    }

    pub fn store(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl DistributedLock for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let (store, claim) = (self.store.clone(), claim.clone());
        self.faults
            .acquire
            .pass(async move { store.try_acquire(&claim).await })
            .await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        assert_ne!(
            self.faults.poisoned.lock().as_ref(),
            Some(&claim.key),
            "poisoned"
        );
        let (store, claim) = (self.store.clone(), claim.clone());
        self.faults
            .renew
            .pass(async move { store.renew(&claim).await })
            .await
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        self.faults.batches.fetch_add(1, Ordering::SeqCst);
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(self.renew(claim).await);
        }
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let (store, claim) = (self.store.clone(), claim.clone());
        self.faults
            .release
            .pass(async move { store.release(&claim).await })
            .await
    }

    async fn wait(&self, claim: &Claim, busy: &Busy) {
        if !self.faults.garbage_wakes.load(Ordering::SeqCst) {
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
        let this = self.clone();
        self.faults
            .dedicated
            .pass(async move { Ok(this.store()) })
            .await
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// When it does not within 20 s, which no machine is too slow for.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let start = std::time::Instant::now();
    while !condition().await {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "never came true: {what}"
        );
        tokio::time::sleep(2 * MS).await;
    }
}

/// Whether nobody holds `key` or waits for it.
pub async fn is_free(store: &MemoryLock, key: &str) -> bool {
    store
        .inspect(&LockKey::new(key).unwrap())
        .await
        .unwrap()
        .is_none()
}
