//! The contract of a store.

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    Attempt, Busy, Capabilities, Claim, FencingToken, Finding, LockInfo, LockKey, LockPage, Page,
    Release, Renewal, StoreError,
};

/// A store of locks: a few atomic verbs, one request each.
///
/// Applications use [`LockClient`](crate::LockClient), which competes, renews and cleans up on
/// top of these verbs. A store decides only what has to be atomic: who holds, until when, with
/// which token, and who is next. The conformance suite (feature `conformance`) checks the
/// thirteen clauses that every store keeps.
///
/// # Cancel safety
///
/// Every future may be dropped at any await point. The request may still take effect; since a
/// [`Claim`] makes it idempotent, it can be repeated, or undone with
/// [`release`](DistributedLock::release).
///
/// # Errors
///
/// A verb that fails with [`StoreError`] may or may not have taken effect.
#[async_trait]
pub trait DistributedLock: fmt::Debug + Send + Sync + 'static {
    /// What this store guarantees, as it is set up now.
    fn capabilities(&self) -> Capabilities;

    /// One atomic attempt; never waits for the lock.
    ///
    /// The same hold again gives the same grant and the same count. Another hold of the holding
    /// owner enters once more, with the same token. Either way the lease runs for at least
    /// [`Grant::ttl`](crate::Grant::ttl) from now and is never shortened. A claim that queues and
    /// finds the lock busy takes a place in the queue, or keeps the one it has.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError>;

    /// Extends the lease of a live hold; never re-creates and never shortens one.
    ///
    /// [`Renewal::Gone`] is certain; an error means unknown.
    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError>;

    /// Gives up a held or queued claim, and nothing else.
    ///
    /// The lock is free when the owner's last hold is gone; then the first waiter is told.
    async fn release(&self, claim: &Claim) -> Result<Release, StoreError>;

    /// Returns when another attempt of a queued claim is worthwhile.
    ///
    /// Advice only: it may return early, late or never. The caller has a timer of its own.
    async fn wait(&self, claim: &Claim, busy: &Busy);

    /// Many renewals in one trip; the answers are in the order of the claims.
    ///
    /// The provided body renews one after the other; a store with batches overrides it.
    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(self.renew(claim).await);
        }
        answers
    }

    /// Who holds the lock and who waits; `None` when nobody does. Changes nothing.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError>;

    /// The locks whose key starts with `prefix`, in pages. Changes nothing.
    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError>;

    /// Ends the grant of whoever holds the lock, with all its holds; an operator's override.
    ///
    /// With a token it acts only on that grant. Returns whether a grant was ended. Later tokens
    /// are larger all the same.
    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError>;

    /// Looks closely at how the store is set up now, and says what that means for the guarantees.
    ///
    /// For operators: it may take several requests, and changes nothing. The provided body
    /// repeats what [`capabilities`](Self::capabilities) says.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Finding::of_capabilities(&self.capabilities()))
    }

    /// Another handle on the same store with connections of its own, usable on another runtime.
    ///
    /// The watchdog takes one, so that a busy application cannot starve its renewals.
    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError>;

    /// Ends the background tasks and connections of this handle; later verbs fail with
    /// [`StoreErrorKind::Closed`](crate::StoreErrorKind::Closed). Locks that are held stay held.
    async fn close(&self) -> Result<(), StoreError>;
}
