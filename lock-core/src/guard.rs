//! The holder's handle.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Claim, Error, FencingToken, Handoff, LockKey, LostReason, Moment, OwnerId, Release, Renewal,
    Result, RunError, StoreError, Ttl,
    client::Inner,
    held::{Granted, Held},
    watchdog::Withdrawal,
};

/// A lock that is held, for as long as the guard lives and the lock is not lost.
///
/// Dropping the guard releases the lock in the background;
/// [`release`](LockGuard::release) does it now and says how it went. A guard may be moved to and
/// dropped on any thread, inside or outside a runtime.
///
/// A guard that is leaked (`mem::forget`) is renewed until its `max_hold` is over, or as long as
/// the process lives without one. In a forked child the copy of a guard does nothing.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    inner: Arc<Inner>,
    held: Arc<Held>,
    waited: Duration,
    attempts: u32,
    /// Whether its part in the lock is over.
    left: bool,
}

impl LockGuard {
    pub(crate) fn new(inner: Arc<Inner>, held: Arc<Held>, waited: Duration, attempts: u32) -> Self {
        Self {
            inner,
            held,
            waited,
            attempts,
            left: false,
        }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// The fencing token of this grant: hand it to the resource with every write.
    pub fn token(&self) -> FencingToken {
        self.held.token
    }

    /// The lock.
    pub fn key(&self) -> &LockKey {
        &self.held.claim.key
    }

    /// Who owns it.
    pub fn owner(&self) -> OwnerId {
        self.held.claim.owner
    }

    /// How often the owner has entered: its guards in this process, and the holds it had in other
    /// processes when this one entered.
    pub fn holds(&self) -> u32 {
        let here = self.held.guards.load(Ordering::Relaxed);
        here.saturating_add(self.held.others)
    }

    /// The length of the lease that the store granted last: what was asked for or more. Less only
    /// for a moment after a wait, when a lock was handed over that is about to be renewed.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// How long the acquisition took, from its first request to the grant.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many requests the acquisition took; 0 for a re-entry, which takes none.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether the lock is still held for certain: a look at the local clock, no request.
    ///
    /// Once it is `false` it stays so.
    pub fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// How long the lock is held for certain if it is not renewed; zero once it is lost.
    pub fn valid_for(&self) -> Duration {
        if self.is_held() {
            self.held.lease.valid_for(self.inner.clock.now())
        } else {
            Duration::ZERO
        }
    }

    fn lost_reason(&self) -> Option<LostReason> {
        if self.inner.is_forked() {
            return Some(LostReason::Closed);
        }
        self.held.lost(self.inner.clock.now())
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        let key = self.key().clone();
        Error::Lost { key, reason }
    }

    /// Returns when the lock is lost, with the reason; at the local deadline at the latest,
    /// whatever the network does, and so before anybody else can be granted the lock.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn lost(&self) -> LostReason {
        loop {
            let changed = self.held.changed.notified();
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            changed.await;
        }
    }

    /// Returns when the lock is about to be lost: a third of the ttl before the local deadline or
    /// the end of `max_hold`, or at once when it is lost already.
    ///
    /// With automatic renewal that means that renewals have failed for a third of the ttl. If one
    /// succeeds afterwards, the next call waits for the next warning.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn expiring(&self) {
        loop {
            let changed = self.held.changed.notified();
            if !self.is_held() || self.held.expiring_at() <= self.inner.clock.now() {
                return;
            }
            changed.await;
        }
    }

    /// Renews the lease for `ttl`, now; later automatic renewals ask for the same.
    ///
    /// A lease is never shortened. A failed renewal leaves the lease as it was.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] for an impossible ttl.
    /// * [`Error::Lost`] when the lock is held no longer.
    /// * [`Error::Store`] when the store failed; the lock is held until its deadline.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lease may be extended at the store, but not the local deadline.
    pub async fn renew(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        if let Some(reason) = self.lost_reason() {
            return Err(self.lost_error(reason));
        }
        let claim = Claim {
            ttl,
            ..self.held.claim.clone()
        };
        let sent = self.inner.clock.now();
        let answer = self.inner.ask(self.inner.store.renew(&claim)).await;
        let now = self.inner.clock.now();
        self.held
            .holding
            .metrics()
            .renewed(&answer, now.since(sent));
        match answer.map_err(|why| Error::store("renew", self.key(), why))? {
            Renewal::Renewed { ttl: granted } => {
                let granted = Granted { sent, ttl: granted };
                if self.held.renewed(now, granted) {
                    self.held.ask(ttl);
                    self.inner.watchdog.renewed(self.held.id, granted);
                }
            }
            Renewal::Gone { taken_over: true } => self.held.lose(LostReason::TakenOver, now),
            Renewal::Gone { taken_over: false } => self.held.lose(LostReason::ForceReleased, now),
        }
        match self.lost_reason() {
            None => Ok(()),
            Some(reason) => Err(self.lost_error(reason)),
        }
    }

    /// Makes sure that the lock is held for `min` at least, and renews it if it has to.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::renew`]; [`Error::InvalidConfig`] when `max_hold` leaves less time.
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::renew`].
    pub async fn ensure(&self, min: Duration) -> Result<()> {
        if self.valid_for() >= min && self.is_held() {
            return Ok(());
        }
        let with_margin = min.saturating_add(min / 50 + Duration::from_millis(10));
        let asked = self.held.claim().ttl.as_duration();
        self.renew(with_margin.max(self.ttl()).max(asked)).await?;
        if self.valid_for() >= min {
            return Ok(());
        }
        let left = self.held.cap.since(self.inner.clock.now());
        if left < min {
            return Err(Error::InvalidConfig {
                what: format!("max_hold leaves {left:?}, and {min:?} were asked for"),
            });
        }
        Err(Error::store(
            "renew",
            self.key(),
            StoreError::transient(format!("the answer took too long to leave {min:?}")),
        ))
    }

    /// Does `work`, and stops it when the lock is lost.
    ///
    /// The work is stopped at its next await point; work that blocks its thread cannot be.
    ///
    /// # Errors
    ///
    /// [`RunError::Lost`], with the result of the work if it had come to its end all the same.
    ///
    /// # Cancel safety
    ///
    /// When dropped, so is the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, RunError<T>> {
        let work = pin!(work);
        let finished = tokio::select! {
            biased;
            done = work => Some(done),
            _ = self.lost() => None,
        };
        match (finished, self.lost_reason()) {
            (Some(done), None) => Ok(done),
            (finished, reason) => Err(RunError::Lost {
                key: self.key().clone(),
                reason: reason.unwrap_or(LostReason::Expired),
                finished,
            }),
        }
    }

    /// Releases the lock and says how it went; of an owner that has entered more than once, this
    /// one entry.
    ///
    /// Before its [`min_hold`](crate::Acquire::min_hold) is over, it returns at once and the lock is
    /// released then.
    ///
    /// No renewal is sent once this is called.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] when the lock was lost before.
    /// * [`Error::Store`] when the store did not confirm it: the client goes on trying in the
    ///   background until the lease would have ended.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock is released in the background.
    pub async fn release(mut self) -> Result<()> {
        let lost = self.lost_reason();
        let leaving = self.leave();
        if let Some(reason) = lost {
            return Err(self.lost_error(reason)); // what may be left of it goes in the background
        }
        let Some(leaving) = leaving else {
            return Ok(()); // another entry of the same owner keeps the lock
        };
        if leaving.kept_until.is_some() {
            return Ok(());
        }
        match leaving.release().await {
            Ok(Release::Released { .. }) => Ok(()),
            Ok(_) => Err(self.lost_error(LostReason::ForceReleased)),
            Err(why) => Err(Error::store("release", self.key(), why)),
        }
    }

    /// Gives the lock to another process: this one stops renewing, and does not release.
    ///
    /// The other process calls [`LockClient::attach`](crate::LockClient::attach) before the lease ends.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when it is lost; [`Error::InvalidConfig`] when the owner has entered more
    /// than once here, since the others could not be moved.
    pub fn detach(mut self) -> Result<Handoff> {
        if let Some(reason) = self.lost_reason() {
            return Err(self.lost_error(reason));
        }
        let holds = self.held.guards.load(Ordering::Relaxed);
        if holds > 1 {
            return Err(Error::InvalidConfig {
                what: format!("the lock is entered {holds} times here; only a single hold moves"),
            });
        }
        if let Some(mut leaving) = self.leave() {
            leaving.sends = false;
        }
        Ok(Handoff {
            claim: self.held.claim(),
            token: self.token(),
        })
    }

    /// Ends this guard's part in the lock, once.
    fn leave(&mut self) -> Option<Leaving> {
        if self.left || self.inner.is_forked() {
            return None;
        }
        self.left = true;
        if !self.inner.entered.leave(&self.held) {
            return None;
        }
        self.inner.watchdog.forget(self.held.id);
        let now = self.inner.clock.now();
        self.held.holding.ended(now);
        Some(Leaving {
            sends: self.held.is_releasable(),
            kept_until: Some(self.held.kept_until).filter(|until| *until > now),
            inner: self.inner.clone(),
            held: self.held.clone(),
        })
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", self.key())
            .field("owner", &self.owner())
            .field("token", &self.token())
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

/// A lock whose last guard here is gone: what is not done when this is dropped, the watchdog
/// does.
struct Leaving {
    inner: Arc<Inner>,
    held: Arc<Held>,
    /// Whether a release has to be sent.
    sends: bool,
    /// When, if not now.
    kept_until: Option<Moment>,
}

impl Leaving {
    /// Releases, after the renewal that may be in flight has come home.
    async fn release(mut self) -> Result<Release, StoreError> {
        if !self.sends {
            return Ok(Release::NotHeld);
        }
        let (inner, held) = (&self.inner, &self.held);
        let request = async {
            inner.watchdog.landed(held.id).await;
            inner.store.release(&held.claim).await
        };
        let answer = inner.ask(request).await;
        held.holding.metrics().released(&answer);
        self.sends = answer.as_ref().is_err_and(StoreError::is_transient);
        tracing::debug!(key = %held.claim.key, token = %held.token, ?answer, "lock released");
        answer
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (inner, held) = (&self.inner, &self.held);
        let now = inner.clock.now();
        let claim = held.claim.clone();
        let withdrawal = if held.stray {
            Withdrawal::uncertain(claim, now, inner.options.operation_timeout)
        } else if self.sends {
            let end = now + held.lease.valid_for(now);
            Withdrawal::certain(claim, Some(held.id), now, end)
        } else {
            return;
        };
        inner.watchdog.withdraw(match self.kept_until {
            Some(until) => withdrawal.not_before(until),
            None => withdrawal,
        });
    }
}
