//! The check of fencing tokens, for services that receive them in requests.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{FencingToken, LockKey, OwnerId};

/// Lets the writes of a lock's holders pass, and refuses those of holders that came before.
///
/// For a service that does the protected work for others: each request brings the key, the token
/// and the owner of its guard. The gate remembers the newest token of each key, refuses older
/// ones, and refuses the same token of another owner, which is what a fail-over that forgot a
/// grant leaves behind.
///
/// A gate lives as long as its process. Where the data is in a database, keep the token next to
/// the data instead, so that check and write are one statement; or [`remember`](Self::remember)
/// at the start what is stored there.
///
/// ```
/// use lock_core::{FenceGate, FencingToken, LockKey, OwnerId};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let gate = FenceGate::default();
/// let key = LockKey::new("orders/42")?;
/// let (alice, bob) = (OwnerId::random(), OwnerId::random());
/// let [early, late] = [7, 8].map(|token| FencingToken::new(token).unwrap());
///
/// let passage = gate.pass(&key, early, alice).await?;
/// // … write; the next request for this key waits until the passage is dropped …
/// drop(passage);
/// gate.pass(&key, late, bob).await?;
/// assert!(gate.pass(&key, early, alice).await.is_err());
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

/// The token is not the newest; whoever brought it has lost the lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} of lock {key} is refused: {newest} has passed{}", if .token == .newest { ", of another owner" } else { "" })]
#[non_exhaustive]
pub struct Fenced {
    /// The lock.
    pub key: LockKey,
    /// The token that was refused.
    pub token: FencingToken,
    /// The newest one that has passed.
    pub newest: FencingToken,
}

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
    pub async fn pass(
        &self,
        key: &LockKey,
        token: FencingToken,
        owner: OwnerId,
    ) -> Result<Passage, Fenced> {
        let newest = self.keys.lock().entry(key.clone()).or_default().clone();
        let mut newest = newest.lock_owned().await;
        if let Some((passed, by)) = *newest
            && (token < passed || token == passed && owner != by)
        {
            return Err(Fenced {
                key: key.clone(),
                token,
                newest: passed,
            });
        }
        *newest = Some((token, owner));
        Ok(Passage(newest))
    }

    /// Takes note of a token that has passed elsewhere, such as the one stored with the data;
    /// older than what is known it changes nothing.
    ///
    /// # Cancel safety
    ///
    /// When dropped before it is done, nothing is changed.
    pub async fn remember(&self, key: &LockKey, token: FencingToken, owner: OwnerId) {
        // Refused is known already.
        let _ = self.pass(key, token, owner).await;
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

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn key(name: &str) -> LockKey {
        LockKey::new(name).unwrap()
    }

    /// A12, A13.
    #[tokio::test]
    async fn the_newest_passes_alone() {
        let gate = FenceGate::default();
        let (alice, bob) = (OwnerId::random(), OwnerId::random());
        let pass = async |number, owner| gate.pass(&key("k"), token(number), owner).await.is_ok();
        assert!(pass(5, alice).await);
        assert!(pass(5, alice).await, "again");
        assert!(!pass(5, bob).await, "the same token of another owner");
        assert!(!pass(4, alice).await, "an older token");
        assert!(pass(6, bob).await);
        assert!(!pass(5, alice).await);
        assert!(gate.pass(&key("l"), token(1), alice).await.is_ok());
    }

    #[tokio::test]
    async fn writes_of_one_key_are_one_after_the_other() {
        let gate = FenceGate::default();
        let (owner, k) = (OwnerId::random(), key("k"));
        let passage = gate.pass(&k, token(1), owner).await.unwrap();
        let mut next = Box::pin(gate.pass(&k, token(2), owner));
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(gate.pass(&key("l"), token(2), owner).await.is_ok());
        drop(passage);
        assert!(next.await.is_ok());
        // What was given up on the way has not passed.
        let held = gate.pass(&k, token(2), owner).await.unwrap();
        let mut given_up = Box::pin(gate.pass(&k, token(9), owner));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop((given_up, held));
        assert!(gate.pass(&k, token(3), owner).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_stored_is_remembered() {
        let gate = FenceGate::default();
        let (alice, bob) = (OwnerId::random(), OwnerId::random());
        gate.remember(&key("k"), token(7), alice).await;
        gate.remember(&key("k"), token(3), bob).await;
        let refused = gate.pass(&key("k"), token(6), bob).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "token 6 of lock k is refused: 7 has passed"
        );
        let refused = gate.pass(&key("k"), token(7), bob).await.unwrap_err();
        assert!(
            refused
                .to_string()
                .ends_with("7 has passed, of another owner")
        );
        assert!(gate.pass(&key("k"), token(7), alice).await.is_ok());
        gate.forget(&key("k"));
        assert!(gate.pass(&key("k"), token(1), bob).await.is_ok());
    }
}
