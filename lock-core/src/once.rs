//! Jobs that many instances start at once, and that one of them does.

use std::time::Instant;

use crate::{Acquire, Busy, Error, LockGuard, RunError, Wait};

/// What became of a job that was to be done once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T> {
    /// It was done here, with this result.
    Done(T),
    /// Somebody else does it, or has done it: who, and for how long the lock stays held at most.
    Skipped(Box<Busy>),
}

impl Acquire {
    /// Does `work` if the lock is free now, and skips it if it is held.
    ///
    /// With a [`min_hold`](Acquire::min_hold) that is longer than the instances' clocks differ, and
    /// shorter than from one tick to the next, a job that all of them start at each tick is done
    /// once a tick at most, however fast it is. It counts as done when it fails, panics, is dropped
    /// or ends with its process, too. A job that takes longer than a tick makes the next one skip.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use lock_core::{LockClient, MemoryLock, Outcome};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let locks = LockClient::new(Arc::new(MemoryLock::new()));
    /// let report = || locks.lock("nightly-report").min_hold(Duration::from_secs(60));
    /// assert_eq!(report().run_once(async |_| "sent").await?, Outcome::Done("sent"));
    /// assert!(matches!(report().run_once(async |_| "sent").await?, Outcome::Skipped(_)));
    /// # Ok::<(), lock_core::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// It logs the outcome as an event, with how long the work took.
    ///
    /// # Errors
    ///
    /// As [`Acquire::run`], but for a lock that is busy.
    ///
    /// # Cancel safety
    ///
    /// As [`Acquire::run`]; the lock stays held until its `min_hold` is over.
    pub async fn run_once<T>(
        self,
        work: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Outcome<T>, RunError<T>> {
        let started = Instant::now();
        let done = self
            .wait(Wait::No)
            .run(async |guard| {
                let (key, token) = (guard.key().clone(), guard.token());
                let done = work(guard).await;
                tracing::info!(%key, %token, took = ?started.elapsed(), "job done");
                done
            })
            .await;
        match done {
            Ok(done) => Ok(Outcome::Done(done)),
            Err(RunError::NotAcquired(Error::Busy { key, busy })) => {
                tracing::info!(%key, "job skipped, since somebody else has the lock");
                Ok(Outcome::Skipped(busy))
            }
            Err(why) => {
                tracing::warn!(%why, took = ?started.elapsed(), "job not done, or not under its lock");
                Err(why)
            }
        }
    }
}
