//! The verbs of the store.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use etcd_client::{Client, Txn, TxnResponse};
use lock_core::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, FencingToken, Finding, LockInfo, LockKey,
    LockPage, Page, Release, Renewal, Result, StoreError, Ttl,
};

use crate::{
    config::{EtcdLockBuilder, Options},
    connection::{Answer, Cluster},
    error::{Failure, strange},
    handle::Handle,
    health, list,
    record::Name,
    renewal,
    view::View,
};

/// Locks in etcd; see the [crate's page](crate).
///
/// It has to be used on a tokio runtime with its timer and network enabled. Connections are made
/// on the runtime that first needs them, and anew when that runtime is gone.
pub struct EtcdLock {
    pub(crate) handle: Arc<Handle>,
}

impl fmt::Debug for EtcdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLock")
            .field("cluster", self.handle.connection.cluster())
            .field("names", &self.handle.shared.names)
            .finish_non_exhaustive()
    }
}

impl EtcdLock {
    /// Connects to the members of a URL with the default options.
    ///
    /// * `etcd://[user:password@]host[:port][,host[:port]]...`; the port is 2379 by default
    /// * `etcds://…` for TLS, with the feature `tls`
    ///
    /// Name all members: the store goes to the next one when one fails.
    ///
    /// # Errors
    ///
    /// As [`EtcdLock::builder`] and [`EtcdLockBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url)?.connect().await
    }

    /// Options for the members of a URL, as [`EtcdLock::connect`] takes it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](lock_core::Error::InvalidConfig) when the URL cannot be used.
    pub fn builder(url: &str) -> Result<EtcdLockBuilder> {
        EtcdLockBuilder::from_url(url)
    }

    /// Options for the members of an application's client, with its user and its TLS.
    ///
    /// All handles of the store share the client, the watchdog's too: renewals then depend on the
    /// runtime that the client was made on, and on how it chooses a member. A store made from a
    /// URL keeps its locks when that runtime is blocked or ends, and leaves a member that is
    /// silent; prefer it where you can.
    pub fn builder_with(client: Client) -> EtcdLockBuilder {
        EtcdLockBuilder::with_client(client)
    }

    pub(crate) async fn open(cluster: Cluster, options: Options) -> Result<Self, StoreError> {
        let handle = Handle::open(cluster, &options).await?;
        for warning in &handle.shared.capabilities.warnings {
            tracing::warn!(cluster = ?handle.connection.cluster(), "{warning}");
        }
        Ok(Self { handle })
    }

    /// What is granted to who asks for `ttl`: whole seconds, and not less than the server's least.
    pub(crate) fn granted(&self, ttl: Ttl) -> Ttl {
        self.handle.shared.granted(ttl)
    }

    pub(crate) async fn txn(&self, txn: impl Fn() -> Txn) -> Result<Answer<TxnResponse>, Failure> {
        self.handle.txn(txn).await
    }

    /// What there is at a lock; `own` is the claim's own key, if it has put one.
    pub(crate) async fn look(&self, name: &Name, own: Option<&str>) -> Result<View, StoreError> {
        let reads = || Txn::new().and_then(View::reads(name, own));
        let answer = self.txn(reads).await?;
        View::read(&self.handle.shared.names, &answer.value, own)
    }
}

#[async_trait]
impl DistributedLock for EtcdLock {
    fn capabilities(&self) -> Capabilities {
        self.handle.shared.capabilities.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        self.acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let mut answers = self.renew_all(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(strange()))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        self.give_up(claim).await
    }

    async fn wait(&self, claim: &Claim, _busy: &Busy) {
        let Handle { shared, wakeup, .. } = &*self.handle;
        let name = shared.names.of(claim);
        if let Some(known) = shared.claims.find(&name.id) {
            let _interest = self.handle.interest(&name.id);
            wakeup
                .wait(name.lock(), claim.owner, known.key, known.created)
                .await;
        }
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        renewal::renew_all(&self.handle, claims).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        list::inspect(&self.handle, key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        list::list(&self.handle, prefix, page).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        self.end_grant(key, token).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        if self.handle.connection.is_closed() {
            return Err(StoreError::closed());
        }
        let least = self.handle.shared.capabilities.min_ttl;
        health::findings(&self.handle.connection, least).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        // It connects when it is first used: on the runtime that uses it.
        let handle = self.handle.another()?;
        Ok(Arc::new(Self { handle }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.handle.close().await;
        Ok(())
    }
}
