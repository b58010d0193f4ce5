//! Describing an acquisition.

use std::{sync::Arc, time::Duration};

use crate::{
    Asker, Error, LockClient, LockGuard, LockKey, OwnerId, Result, RunError, Ttl, Wait,
    compete::Compete,
};

/// An acquisition that is being described; [`acquire`](Acquire::acquire) makes it.
///
/// What is not set comes from the client.
#[derive(Debug)]
#[must_use = "nothing is acquired before `acquire`, `try_acquire` or `run` is called"]
pub struct Acquire {
    client: LockClient,
    key: Result<LockKey>,
    ttl: Duration,
    wait: Wait,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    label: Option<String>,
    owner: Option<OwnerId>,
    manual: bool,
}

impl Acquire {
    pub(crate) fn new(client: LockClient, key: Result<LockKey>) -> Self {
        let options = &client.inner.options;
        Self {
            key,
            ttl: options.ttl,
            wait: options.wait,
            max_hold: options.max_hold,
            min_hold: None,
            label: None,
            owner: None,
            manual: false,
            client,
        }
    }

    /// The length of the lease, above zero and at most [`Ttl::MAX`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait while the lock is busy; a [`Duration`] is a limit.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    /// The longest time that the lock may be held in all, above zero, however often it is renewed.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// The shortest time that the lock is held, from its grant, whatever becomes of the guard: who
    /// releases it earlier, drops it or ends with it leaves the lock to the watchdog, or to its
    /// lease, until then. At most [`Ttl::MAX`].
    ///
    /// The lease is as long at least, so that it holds without the client as well; then the lock
    /// may be held for up to a ttl more. A forced release ends it all the same. Of an owner that
    /// holds the lock already, the first entry's counts.
    pub fn min_hold(mut self, time: Duration) -> Self {
        self.min_hold = Some(time);
        self
    }

    /// A name for people who look at the lock, instead of the client's label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Acquires for an owner that may hold the lock already, here or in another process.
    ///
    /// Without an owner every acquisition is a stranger to every other.
    pub fn owner(mut self, owner: impl Into<OwnerId>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The watchdog does not renew this lock; [`LockGuard::renew`] does.
    pub fn manual_renewal(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Acquires the lock and waits for it if it is busy.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidKey`], [`Error::InvalidConfig`], [`Error::Closed`]: nothing was sent.
    /// * [`Error::Busy`] when the caller does not wait, [`Error::Timeout`] when the wait is over.
    /// * [`Error::TooManyHolds`] or [`Error::Lost`] on re-entry.
    /// * [`Error::Store`]: a permanent failure at once, a transient one when the wait is over. The
    ///   claim is taken back in the background for as long as it might still be granted.
    ///
    /// It returns within the wait plus the client's operation time-out.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any await point: the claim is then taken back in the
    /// background, and so is a grant that comes late.
    pub async fn acquire(self) -> Result<LockGuard> {
        let inner = &self.client.inner;
        inner.check_open()?;
        if self.max_hold.is_some_and(|max| max.is_zero()) {
            return Err(Error::InvalidConfig {
                what: "max_hold is zero; it has to be longer".into(),
            });
        }
        let mut ttl = Ttl::new(self.ttl)?;
        if let Some(min) = self.min_hold {
            let longest = Ttl::MAX.as_duration();
            let longest = self.max_hold.unwrap_or(longest).min(longest);
            if min.is_zero() || min > longest {
                return Err(Error::InvalidConfig {
                    what: format!(
                        "min_hold is {min:?}; it has to be above zero and at most {longest:?}, \
                         as long as the lock may be held"
                    ),
                });
            }
            ttl = ttl.max(Ttl::new(min)?);
        }
        let asker = match &self.label {
            Some(label) => Arc::new(Asker::this_process(Some(label))?),
            None => inner.asker.clone(),
        };
        let key = self.key?;
        let metrics = inner.metrics.of(&key);
        let acquiring = metrics.acquiring();
        let compete = Compete {
            inner,
            key,
            metrics,
            ttl,
            asker,
            wait: self.wait,
            max_hold: self.max_hold,
            min_hold: self.min_hold.unwrap_or_default(),
            manual: self.manual,
            owner: self.owner,
            started: inner.clock.now(),
        };
        let acquired = compete.acquire().await;
        acquiring.finished(&acquired);
        acquired
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    ///
    /// As [`Acquire::acquire`] with [`Wait::No`].
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::acquire`].
    pub async fn try_acquire(self) -> Result<LockGuard> {
        self.wait(Wait::No).acquire().await
    }

    /// Acquires the lock, does `work` and releases it; stops the work when the lock is lost.
    ///
    /// Commit a database transaction inside `work`: whoever comes next must see its changes.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] as [`Acquire::acquire`]; [`RunError::Lost`] when the lock was
    /// lost before the work was done and the lock released.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, so is the work, and the lock is released in the background.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().await.map_err(RunError::NotAcquired)?;
        let key = guard.key().clone();
        let done = guard.run(work(&guard)).await?;
        match guard.release().await {
            Ok(()) => Ok(done),
            Err(Error::Lost { reason, .. }) => Err(RunError::Lost {
                key,
                reason,
                finished: Some(done),
            }),
            Err(why) => {
                // The work was done under the lock; what remains is to give it back.
                tracing::warn!(%key, %why, "the lock is released in the background");
                Ok(done)
            }
        }
    }
}
