//! What keeps leases alive that no lock-core client renews: those of claims in the queue, and
//! those that are kept for the next locks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::AbortHandle, time::sleep};

use crate::{
    connection::Connection,
    handle::{Shared, give_up},
    keepalive::{Alive, KeepAlive},
};

type Parts = (Arc<Connection>, Arc<KeepAlive>, Arc<Shared>);

/// The task of a handle; it ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    wake: Arc<Notify>,
    running: Arc<AtomicBool>,
    task: Mutex<Option<AbortHandle>>,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct Signals {
    /// The handle is gone.
    dropped: AtomicBool,
    /// Until when the task sleeps, in nanoseconds.
    asleep_until: AtomicU64,
}

impl Upkeep {
    /// Starts the task, unless it runs.
    pub(crate) fn start(&self, handle: u64, parts: Parts) {
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(self.running.clone());
        let (wake, signals) = (self.wake.clone(), self.signals.clone());
        let task = tokio::spawn(async move {
            let _running = running;
            run(handle, parts, &wake, &signals).await;
        });
        *self.task.lock() = Some(task.abort_handle());
    }

    /// Something is due at that moment.
    pub(crate) fn wake_by(&self, due: Moment) {
        if due.as_nanos() < self.signals.asleep_until.load(Ordering::Acquire) {
            self.wake.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.signals.dropped.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn run(handle: u64, (connection, renewals, shared): Parts, wake: &Notify, signals: &Signals) {
    loop {
        if signals.dropped.load(Ordering::Acquire) {
            let mut leases = shared.take_queued(handle);
            leases.extend(shared.leases.close());
            give_up(&connection, leases).await;
            return;
        }
        let next = round(handle, &connection, &renewals, &shared).await;
        signals
            .asleep_until
            .store(next.as_nanos(), Ordering::Release);
        tokio::select! {
            () = wake.notified() => {
                // Not for every single one.
                sleep(Duration::from_millis(20)).await;
            }
            () = SystemClock.sleep_until(next) => {}
        }
    }
}

/// Does what is due, and says when to look again.
async fn round(
    handle: u64,
    connection: &Connection,
    renewals: &KeepAlive,
    shared: &Shared,
) -> Moment {
    let now = SystemClock.now();
    let queued = shared.claims.queued(handle, now);
    let queued = queued.into_iter().filter_map(|id| shared.leases.used(id));
    let (mut due, mut next) = (Vec::new(), Moment::NEVER);
    for lease in queued {
        if lease.due() <= now {
            due.push(lease.id);
        } else {
            next = next.min(lease.due());
        }
    }
    shared.claims.tidy(now, |lease| {
        shared
            .leases
            .used(lease)
            .is_some_and(|lease| !lease.is_over(now))
    });
    let unused = shared.leases.upkeep(now);
    next = unused.next.map_or(next, |at| next.min(at));
    due.extend(unused.renew);
    if !due.is_empty() {
        next = next.min(now + Duration::from_millis(200));
    }
    join_all(due.into_iter().map(async |lease| {
        let sent = SystemClock.now();
        match renewals.renew(lease).await {
            Ok(Alive::For(life)) => shared.leases.kept_alive(lease, sent, Some(life)),
            Ok(Alive::Gone) => shared.leases.kept_alive(lease, sent, None),
            Err(why) => tracing::debug!(%why, "a lease could not be kept alive"),
        }
    }))
    .await;
    give_up(connection, unused.revoke).await;
    next
}
