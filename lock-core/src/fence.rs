//! The check of fencing tokens, for services that receive them in requests.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{Fenced, FencingToken, LockKey, OwnerId, Ticket};

/// Lets the writes of a lock's holders pass, and refuses those of holders that came before.
///
/// For a service that does the protected work for others: each request brings the
/// [`Ticket`] of its guard. The gate remembers the newest token of each key, refuses older
/// ones, and refuses the same token of another owner, which is what a fail-over that forgot a
/// grant leaves behind.
///
/// A gate lives as long as its process. Where the data is in a database, keep the token next to
/// the data instead, so that check and write are one step; or [`remember`](Self::remember)
/// at the start what is stored there.
///
/// ```
/// # use std::sync::Arc;
/// # use lock_core::{LockClient, MemoryLock};
/// use lock_core::FenceGate;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let locks = LockClient::new(Arc::new(MemoryLock::new()));
/// let gate = FenceGate::default();
/// let early = locks.acquire("orders/42").await?;
/// let ticket = early.ticket();
///
/// let passage = gate.pass(&ticket).await?;
/// // … write; the next request for this key waits until the passage is dropped …
/// drop(passage);
/// early.release().await?;
/// let next = locks.acquire("orders/42").await?;
/// gate.pass(&next.ticket()).await?;
/// assert!(gate.pass(&ticket).await.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    keys: Mutex<HashMap<LockKey, Arc<tokio::sync::Mutex<Newest>>>>,
}

type Newest = Option<(FencingToken, OwnerId)>;

/// The right to write, until it is dropped: nobody else passes with the same key meanwhile.
#[derive(Debug)]
#[must_use = "the next request may pass as soon as this is dropped"]
pub struct Passage(#[allow(dead_code)] OwnedMutexGuard<Newest>);

impl FenceGate {
    /// Waits until the passage before has ended, and passes if no newer token has.
    ///
    /// The same owner passes again with the same token.
    ///
    /// # Errors
    ///
    /// [`Fenced`] when a newer token has passed, or this one of another owner.
    ///
    /// # Cancel safety
    ///
    /// When dropped before it is done, nothing has passed.
    pub async fn pass(&self, ticket: &Ticket) -> Result<Passage, Fenced> {
        let key = ticket.key.clone();
        let newest = self.keys.lock().entry(key).or_default().clone();
        let mut newest = newest.lock_owned().await;
        if let Some((token, owner)) = *newest {
            ticket.check(token, owner)?;
        }
        *newest = Some((ticket.token, ticket.owner));
        Ok(Passage(newest))
    }

    /// Takes note of a ticket that has passed elsewhere, such as the one stored with the data;
    /// older than what is known it changes nothing.
    ///
    /// # Cancel safety
    ///
    /// When dropped before it is done, nothing is changed.
    pub async fn remember(&self, ticket: &Ticket) {
        // Refused is known already.
        let _ = self.pass(ticket).await;
    }

    /// Forgets a key, to save its memory: about 100 bytes and its name. Tokens that were too old
    /// would pass again, and beside a passage that has not ended.
    pub fn forget(&self, key: &LockKey) {
        self.keys.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LockKey {
        LockKey::new(name).unwrap()
    }

    fn ticket(name: &str, token: u64, owner: OwnerId) -> Ticket {
        let (key, token) = (key(name), FencingToken::new(token).unwrap());
        Ticket { key, token, owner }
    }

    /// A12, A13.
    #[tokio::test]
    async fn the_newest_passes_alone() {
        let gate = FenceGate::default();
        let (alice, bob) = (OwnerId::random(), OwnerId::random());
        let pass = async |number, owner| gate.pass(&ticket("k", number, owner)).await.is_ok();
        assert!(pass(5, alice).await);
        assert!(pass(5, alice).await, "again");
        assert!(!pass(5, bob).await, "the same token of another owner");
        assert!(!pass(4, alice).await, "an older token");
        assert!(pass(6, bob).await);
        assert!(!pass(5, alice).await);
        assert!(gate.pass(&ticket("l", 1, alice)).await.is_ok());
    }

    #[tokio::test]
    async fn writes_of_one_key_are_one_after_the_other() {
        let gate = FenceGate::default();
        let owner = OwnerId::random();
        let passage = gate.pass(&ticket("k", 1, owner)).await.unwrap();
        let [second, ninth] = [2, 9].map(|token| ticket("k", token, owner));
        let mut next = Box::pin(gate.pass(&second));
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(gate.pass(&ticket("l", 2, owner)).await.is_ok());
        drop(passage);
        assert!(next.await.is_ok());
        // What was given up on the way has not passed.
        let held = gate.pass(&ticket("k", 2, owner)).await.unwrap();
        let mut given_up = Box::pin(gate.pass(&ninth));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop((given_up, held));
        assert!(gate.pass(&ticket("k", 3, owner)).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_stored_is_remembered() {
        let gate = FenceGate::default();
        let (alice, bob) = (OwnerId::random(), OwnerId::random());
        gate.remember(&ticket("k", 7, alice)).await;
        gate.remember(&ticket("k", 3, bob)).await;
        let refused = gate.pass(&ticket("k", 6, bob)).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "token 6 of lock k is refused: 7 has passed"
        );
        let refused = gate.pass(&ticket("k", 7, bob)).await.unwrap_err();
        assert!(
            refused
                .to_string()
                .ends_with("7 has passed, of another owner")
        );
        assert!(gate.pass(&ticket("k", 7, alice)).await.is_ok());
        gate.forget(&key("k"));
        assert!(gate.pass(&ticket("k", 1, bob)).await.is_ok());
    }
}
