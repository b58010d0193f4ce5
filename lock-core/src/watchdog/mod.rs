//! The watchdog: keeps the locks of one client alive, and cleans up after it.
//!
//! It has its own thread, its own small runtime and its own handle on the store, so that an
//! application that blocks or ends its runtime does not lose its locks. A lock under watch costs
//! an entry in a table, no task and no timer.

mod agenda;
#[cfg(test)]
mod interleavings;
mod rounds;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use agenda::Agenda;
pub(crate) use agenda::Withdrawal;

use crate::{
    Clock, DistributedLock, StoreError,
    held::{Granted, Held},
    metrics::Metrics,
};

/// A client's handle on its watchdog; the thread ends some time after it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    started: AtomicBool,
    next_id: AtomicU64,
    fork: forkguard::Guard,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn DistributedLock>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    operation_timeout: Duration,
    agenda: Mutex<Agenda>,
    /// Wakes the thread.
    wake: Notify,
    /// Told after every answer.
    landed: Notify,
}

impl Watchdog {
    pub(crate) fn new(
        store: Arc<dyn DistributedLock>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        operation_timeout: Duration,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                store,
                clock,
                metrics,
                operation_timeout,
                agenda: Mutex::default(),
                wake: Notify::new(),
                landed: Notify::new(),
            }),
            started: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            fork: forkguard::new(),
        }
    }

    /// Starts the thread, unless it runs: before the first request, so that whatever is acquired
    /// will be looked after.
    pub(crate) fn start(&self) -> Result<(), StoreError> {
        if self.started.load(Ordering::Acquire) || self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let shared = self.shared.clone();
        thread::Builder::new()
            .name("distlock-watchdog".into())
            .spawn(move || rounds::run(&shared))
            .map(drop)
            .map_err(|why| {
                self.started.store(false, Ordering::Release);
                StoreError::transient("the watchdog's thread cannot be started").with_source(why)
            })
    }

    /// Whether this is the copy in a child process, which has no thread.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.clone().detected_fork()
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps `held` alive from now on.
    pub(crate) fn watch(&self, held: Arc<Held>, granted: Granted) {
        if self.shared.agenda.lock().watch(held, granted) {
            self.shared.wake.notify_one();
        }
    }

    /// Sends no renewal for `id` from now on; one may be in flight.
    pub(crate) fn forget(&self, id: u64) {
        self.shared.agenda.lock().forget(id);
    }

    /// Sends no renewals at all from now on, and hands back what was watched.
    pub(crate) fn forget_all(&self) -> Vec<Arc<Held>> {
        self.shared.agenda.lock().forget_all()
    }

    /// Somebody else has renewed the lock of `id`.
    pub(crate) fn renewed(&self, id: u64, granted: Granted) {
        self.shared.agenda.lock().renewed(id, granted);
    }

    /// Returns when no renewal of `id` is in flight.
    pub(crate) async fn landed(&self, id: u64) {
        self.until(|agenda| !agenda.is_in_flight(id)).await;
    }

    /// Returns when the store has confirmed every withdrawal, or it is given up.
    pub(crate) async fn withdrawn(&self) {
        self.until(Agenda::has_withdrawn).await;
    }

    /// Takes back a claim in the background.
    pub(crate) fn withdraw(&self, withdrawal: Withdrawal) {
        self.shared.agenda.lock().withdraw(withdrawal);
        self.shared.wake.notify_one();
    }

    /// How many locks are watched.
    pub(crate) fn watched(&self) -> usize {
        self.shared.agenda.lock().watched()
    }

    async fn until(&self, condition: impl Fn(&Agenda) -> bool) {
        loop {
            let landed = self.shared.landed.notified();
            if condition(&self.shared.agenda.lock()) {
                return;
            }
            landed.await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if self.is_forked() {
            return; // the lock may have been taken when the child was made
        }
        self.shared.agenda.lock().close(self.shared.clock.now());
        self.shared.wake.notify_one();
    }
}
