//! A lock on its way from one process to another.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Claim, Error, FencingToken, LockClient, LockGuard, LockKey, LostReason, Renewal, Result,
    held::{Granted, Held, Terms},
};

/// What another process needs to take over a lock: [`LockGuard::detach`] makes it,
/// [`LockClient::attach`] uses it.
///
/// Whoever has it can renew and release the lock; it holds no other secret. Its serialised form
/// is checked on the way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
}

impl Handoff {
    /// The lock.
    pub fn key(&self) -> &LockKey {
        &self.claim.key
    }

    /// The fencing token of the grant that is handed over.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl LockClient {
    /// Takes over a lock that another process has [detached](LockGuard::detach), and renews it
    /// from now on. `max_hold` bounds the hold from now.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] when it is held no longer, or the token is not that of the grant.
    /// * [`Error::Store`], [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock stays as it was, but for a renewal; attach again.
    pub async fn attach(&self, handoff: &Handoff, max_hold: Option<Duration>) -> Result<LockGuard> {
        let inner = &self.inner;
        inner.check_open()?;
        let Handoff { claim, token } = handoff;
        let failed = |why| Error::store("attach", &claim.key, why);
        let lost = |reason| Error::Lost {
            key: claim.key.clone(),
            reason,
        };
        inner.watchdog.start().map_err(failed)?;

        let started = inner.clock.now();
        let answer = inner.ask(inner.store.renew(claim)).await;
        let ttl = match answer.map_err(failed)? {
            Renewal::Renewed { ttl } => ttl,
            Renewal::Gone { taken_over: true } => return Err(lost(LostReason::TakenOver)),
            Renewal::Gone { taken_over: false } => return Err(lost(LostReason::Expired)),
        };
        let info = inner
            .ask(inner.store.inspect(&claim.key))
            .await
            .map_err(failed)?;
        let holder = info.and_then(|info| info.holder);
        let Some(holder) = holder.filter(|h| h.owner == claim.owner && h.token == *token) else {
            return Err(lost(LostReason::TakenOver));
        };
        let granted = Granted { sent: started, ttl };
        let terms = Terms {
            token: *token,
            others: holder.holds.saturating_sub(1),
            max_hold,
            kept_until: started,
            manual: false,
            renew_every: inner.options.renew_every,
            reentrant: false,
            stray: false,
            holding: inner.metrics.of(&claim.key).holding(started),
        };
        let held = Arc::new(Held::new(
            inner.watchdog.next_id(),
            claim.clone(),
            granted,
            terms,
        ));
        inner.watchdog.watch(held.clone(), granted);
        let waited = inner.clock.now().since(started);
        Ok(LockGuard::new(inner.clone(), held, waited, 2))
    }
}
