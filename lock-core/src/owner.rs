//! A re-entrant identity.

use crate::{Acquire, Error, LockClient, LockKey, OwnerId};

/// An owner that can enter a lock it holds again, from any task, thread or process.
///
/// In one process a second entry is free: no request is sent. The store counts one hold for each
/// process. The id can be handed to another process, which enters with
/// [`LockClient::owner_from`]. It is passed explicitly, never taken from the thread or task.
///
/// ```
/// # use std::sync::Arc;
/// # use lock_core::{LockClient, MemoryLock};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let client = LockClient::new(Arc::new(MemoryLock::new()));
/// let owner = client.owner();
/// let outer = owner.lock("orders/42").acquire().await?;
/// let inner = owner.lock("orders/42").try_acquire().await?;
/// assert_eq!(inner.token(), outer.token());
/// assert_eq!(inner.holds(), 2);
/// # Ok::<(), lock_core::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Owner {
    client: LockClient,
    id: OwnerId,
}

impl Owner {
    pub(crate) fn new(client: LockClient, id: OwnerId) -> Self {
        Self { client, id }
    }

    /// The identity, to be shared with another process.
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// Describes an acquisition by this owner.
    pub fn lock<K>(&self, key: K) -> Acquire
    where
        K: TryInto<LockKey>,
        Error: From<K::Error>,
    {
        self.client.lock(key).owner(self.id)
    }
}

impl From<&Owner> for OwnerId {
    fn from(owner: &Owner) -> Self {
        owner.id
    }
}
