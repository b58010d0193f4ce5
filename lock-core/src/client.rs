//! The application's side of a store.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{self, StreamExt};
use tokio::{sync::Notify, time::timeout};

use crate::{
    Acquire, Asker, Capabilities, Clock, DistributedLock, Error, FencingToken, LockGuard, LockInfo,
    LockKey, LockPage, LostReason, Owner, OwnerId, Page, Release, Result, RunError, StoreError,
    SystemClock, Ttl, Wait, held::Held, metrics::Metrics, reentry::Entered, watchdog::Watchdog,
};

/// Acquires locks in a store and looks after them. Cloning is cheap; clones share everything.
///
/// It needs a tokio runtime with time enabled where its futures are awaited. Its watchdog runs
/// on a thread of its own, which starts with the first acquisition.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use lock_core::{LockClient, MemoryLock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let client = LockClient::builder(Arc::new(MemoryLock::new()))
///     .ttl(Duration::from_secs(10))
///     .label("billing")
///     .build()?;
///
/// let guard = client.lock("invoices").wait(Duration::from_secs(1)).acquire().await?;
/// assert!(client.try_acquire("invoices").await.is_err());
/// guard.release().await?;
/// # Ok::<(), lock_core::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LockClient {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn DistributedLock>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) asker: Arc<Asker>,
    pub(crate) watchdog: Watchdog,
    pub(crate) entered: Entered,
    pub(crate) metrics: Arc<Metrics>,
    closed: AtomicBool,
    closing: Notify,
}

/// What acquisitions do unless they say otherwise.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) operation_timeout: Duration,
    pub(crate) max_holds: u32,
    pub(crate) key_label: bool,
}

impl Inner {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) || self.is_forked() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// Whether this is the copy in a child process, which has no watchdog.
    pub(crate) fn is_forked(&self) -> bool {
        self.watchdog.is_forked()
    }

    /// Returns when the client is being shut down.
    pub(crate) async fn closed(&self) {
        let closing = self.closing.notified();
        if !self.closed.load(Ordering::SeqCst) {
            closing.await;
        }
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep_until(self.clock.now() + duration).await;
    }

    /// Bounds one request to the store.
    pub(crate) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.options.operation_timeout;
        match timeout(limit, request).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::transient(format!("no answer within {limit:?}"))),
        }
    }
}

impl LockClient {
    /// A client with the default options: ttl 30 s, wait 30 s, operation time-out 5 s.
    pub fn new(store: Arc<dyn DistributedLock>) -> Self {
        let asker = Asker::this_process(None).unwrap_or_else(|_| unreachable!("no label is set"));
        Self::with(store, Arc::new(SystemClock), Options::default(), asker)
    }

    /// A client with options of your own.
    pub fn builder(store: Arc<dyn DistributedLock>) -> LockClientBuilder {
        LockClientBuilder {
            store,
            clock: Arc::new(SystemClock),
            options: Options::default(),
            label: None,
        }
    }

    fn with(
        store: Arc<dyn DistributedLock>,
        clock: Arc<dyn Clock>,
        options: Options,
        asker: Asker,
    ) -> Self {
        let name = store.capabilities().store;
        let metrics = Arc::new(Metrics::new(name, asker.label(), options.key_label));
        Self {
            inner: Arc::new(Inner {
                watchdog: Watchdog::new(
                    store.clone(),
                    clock.clone(),
                    metrics.clone(),
                    options.operation_timeout,
                ),
                metrics,
                store,
                clock,
                options,
                asker: Arc::new(asker),
                entered: Entered::default(),
                closed: AtomicBool::new(false),
                closing: Notify::new(),
            }),
        }
    }

    /// Describes an acquisition of `key`; see [`Acquire`].
    pub fn lock<K>(&self, key: K) -> Acquire
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        Acquire::new(self.clone(), key.try_into().map_err(Error::from))
    }

    /// Acquires `key` with the client's options, and waits up to the client's wait.
    ///
    /// # Errors
    ///
    /// As [`Acquire::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::acquire`].
    pub async fn acquire<K>(&self, key: K) -> Result<LockGuard>
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        self.lock(key).acquire().await
    }

    /// Acquires `key` if it is free now.
    ///
    /// # Errors
    ///
    /// As [`Acquire::try_acquire`]; [`Error::Busy`] says who holds the lock, since when and for
    /// how long at most.
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::acquire`].
    pub async fn try_acquire<K>(&self, key: K) -> Result<LockGuard>
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        self.lock(key).try_acquire().await
    }

    /// Does `work` under the lock `key`, and stops it when the lock is lost.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use lock_core::{LockClient, MemoryLock};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let client = LockClient::new(Arc::new(MemoryLock::new()));
    /// let sum = client.run("ledger", async |guard| {
    ///     assert!(guard.is_held());
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), lock_core::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Acquire::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::run`].
    pub async fn run<K, T>(
        &self,
        key: K,
        work: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<T, RunError<T>>
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        self.lock(key).run(work).await
    }

    /// A new identity that can enter its locks again.
    pub fn owner(&self) -> Owner {
        self.owner_from(OwnerId::random())
    }

    /// An identity that was made elsewhere.
    pub fn owner_from(&self, id: OwnerId) -> Owner {
        Owner::new(self.clone(), id)
    }

    /// What the store guarantees.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.store.capabilities()
    }

    /// The store, for its own verbs.
    pub fn store(&self) -> &Arc<dyn DistributedLock> {
        &self.inner.store
    }

    /// How many locks this client holds.
    pub fn held(&self) -> usize {
        self.inner.watchdog.watched()
    }

    /// Who holds `key` and who waits for it; `None` when nobody does. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] or [`Error::Store`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn inspect<K>(&self, key: K) -> Result<Option<LockInfo>>
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        let answer = self.inner.ask(self.inner.store.inspect(&key)).await;
        answer.map_err(|why| Error::store("inspect", &key, why))
    }

    /// The locks whose key starts with `prefix`, in pages. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn list(&self, prefix: &str, page: Page) -> Result<LockPage> {
        let answer = self.inner.ask(self.inner.store.list(prefix, page)).await;
        answer.map_err(|source| Error::Store {
            operation: "list locks",
            key: None,
            source,
        })
    }

    /// Ends the grant of whoever holds `key`; with a token only that grant. An operator's
    /// override: the holder learns of it at its next renewal.
    ///
    /// Returns whether a grant was ended.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] or [`Error::Store`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the grant may or may not be ended.
    pub async fn force_release<K>(&self, key: K, token: Option<FencingToken>) -> Result<bool>
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        let answer = self
            .inner
            .ask(self.inner.store.force_release(&key, token))
            .await;
        answer.map_err(|why| Error::store("release", &key, why))
    }

    /// Waits until this client holds no lock, at most `limit`; then [`shutdown`](Self::shutdown).
    ///
    /// New acquisitions are refused at once with [`Error::Closed`]; renewals go on for those that
    /// are held, so that work under way can end in order.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the client stays closed for new acquisitions.
    pub async fn drain(self, limit: Duration) -> ShutdownReport {
        self.close();
        let end = self.inner.clock.now() + limit;
        while self.held() > 0 && self.inner.clock.now() < end {
            self.inner.sleep(Duration::from_millis(20)).await;
        }
        self.shutdown().await
    }

    /// Releases everything that this client and its clones hold, and says what happened.
    ///
    /// Guards are lost with [`LostReason::Closed`], waiting acquisitions end with
    /// [`Error::Closed`], and claims that are being taken back are waited for. All of it ends
    /// within twice the operation time-out. The store is not closed; others may use it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, what is not released ends with its lease.
    pub async fn shutdown(self) -> ShutdownReport {
        self.close();
        let inner = &self.inner;
        let now = inner.clock.now();
        let (kept, held) = inner
            .watchdog
            .forget_all()
            .into_iter()
            .partition::<Vec<_>, _>(|held| held.kept_until > now && held.lost(now).is_none());
        for held in &kept {
            held.lose(LostReason::Closed, now);
        }
        let mut report = ShutdownReport {
            kept: kept.len(),
            ..ShutdownReport::default()
        };
        let mut releases = stream::iter(held)
            .map(async |held| {
                let answer = release_for_shutdown(inner, &held).await;
                (held.claim.key.clone(), answer)
            })
            .buffer_unordered(64);
        let end = inner.clock.now() + inner.options.operation_timeout;
        while let Some((key, answer)) = releases.next().await {
            match answer {
                Ok(()) => report.released += 1,
                Err(Error::Lost { reason, .. }) => drop(report.lost.insert(key, reason)),
                Err(why) => drop(report.failed.insert(key, why)),
            }
        }
        let left = end.since(inner.clock.now()).max(Duration::from_millis(100));
        report.withdrawn = timeout(left, inner.watchdog.withdrawn()).await.is_ok();
        report
    }

    fn close(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.inner.closing.notify_waiters();
    }
}

async fn release_for_shutdown(inner: &Inner, held: &Held) -> Result<()> {
    let key = &held.claim.key;
    if let Some(reason) = held.lost(inner.clock.now()) {
        return Err(Error::Lost {
            key: key.clone(),
            reason,
        });
    }
    held.lose(LostReason::Closed, inner.clock.now());
    let release = async {
        inner.watchdog.landed(held.id).await;
        inner.store.release(&held.claim).await
    };
    let answer = inner.ask(release).await;
    held.holding.metrics().released(&answer);
    match answer {
        Ok(Release::Released { .. }) => Ok(()),
        Ok(_) => Err(Error::Lost {
            key: key.clone(),
            reason: LostReason::ForceReleased,
        }),
        Err(why) => Err(Error::store("release", key, why)),
    }
}

/// What a shutdown did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many locks were released.
    pub released: usize,
    /// How many were not, since their [`min_hold`](Acquire::min_hold) is not over; they end with
    /// their lease.
    pub kept: usize,
    /// The locks that were lost before, and how.
    pub lost: BTreeMap<LockKey, LostReason>,
    /// The locks that could not be released; they end with their lease.
    pub failed: BTreeMap<LockKey, Error>,
    /// Whether every claim that was being taken back is taken back.
    pub withdrawn: bool,
}

impl ShutdownReport {
    /// Whether nothing of this client is left in the store, but for what is kept.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.withdrawn
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            wait: Wait::AtMost(Duration::from_secs(30)),
            max_hold: None,
            renew_every: None,
            operation_timeout: Duration::from_secs(5),
            max_holds: 1000,
            key_label: false,
        }
    }
}

/// Options for a [`LockClient`].
#[derive(Debug)]
#[must_use]
pub struct LockClientBuilder {
    store: Arc<dyn DistributedLock>,
    clock: Arc<dyn Clock>,
    options: Options,
    label: Option<String>,
}

impl LockClientBuilder {
    /// The length of a lease, above zero and at most [`Ttl::MAX`]; 30 s by default.
    ///
    /// It bounds how long a lock stays taken after its holder has crashed.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// How long an acquire waits; 30 s by default.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options.wait = wait.into();
        self
    }

    /// The longest time that a lock may be held in all, above zero; without limit by default.
    ///
    /// It is what ends a holder that is stuck, and a guard that was leaked: without it such a
    /// lock is renewed as long as the process lives.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.max_hold = Some(limit);
        self
    }

    /// How long after a grant or a renewal the lease is renewed: above zero and shorter than the
    /// ttl; a third of the ttl by default.
    ///
    /// Each renewal comes up to a tenth of it earlier, so that those of many locks spread. A lock
    /// that was granted a ttl no longer than this is renewed at a third of that ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.options.renew_every = Some(interval);
        self
    }

    /// How long one request to the store may take, above zero; 5 s by default.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.options.operation_timeout = limit;
        self
    }

    /// How often an owner may enter one lock, at least 1; 1000 by default.
    pub fn max_holds(mut self, limit: u32) -> Self {
        self.options.max_holds = limit;
        self
    }

    /// A name for people who look at a lock, and the label `client` of metrics: 1 to 255 bytes
    /// without control characters.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Labels every metric with the lock's key; not by default, since each key costs the
    /// recorder a series of its own, for as long as it lives.
    pub fn metrics_by_key(mut self, on: bool) -> Self {
        self.options.key_label = on;
        self
    }

    /// The clock of local deadlines, for tests; the machine's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the options and makes the client; sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the option.
    pub fn build(self) -> Result<LockClient> {
        let options = self.options;
        Ttl::new(options.ttl)?;
        if let Some(interval) = options.renew_every
            && interval >= options.ttl
        {
            return Err(Error::InvalidConfig {
                what: format!(
                    "renew_every is {interval:?}; it has to be shorter than the ttl, {:?}",
                    options.ttl
                ),
            });
        }
        let zero = [
            (
                "max_hold",
                options.max_hold.is_some_and(|max| max.is_zero()),
            ),
            (
                "renew_every",
                options.renew_every.is_some_and(|every| every.is_zero()),
            ),
            ("operation_timeout", options.operation_timeout.is_zero()),
            ("max_holds", options.max_holds == 0),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::InvalidConfig {
                what: format!("{name} is zero; it has to be larger"),
            });
        }
        let asker = Asker::this_process(self.label.as_deref())?;
        Ok(LockClient::with(self.store, self.clock, options, asker))
    }
}
