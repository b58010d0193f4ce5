//! What keeps leases alive that no lock-core client renews: those of claims in the queue, and
//! those that are kept for the next locks.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::join_all;
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    connection::Connection,
    handle::{Shared, give_up},
    keepalive::{Alive, KeepAlive},
};

type Parts = (Arc<Connection>, Arc<KeepAlive>, Weak<Shared>);

/// The task of a handle; it ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    wake: Arc<Notify>,
    running: Arc<AtomicBool>,
    task: Mutex<Option<AbortHandle>>,
    dropped: Arc<Dropped>,
}

/// Tells the task that the handle is gone.
#[derive(Debug, Default)]
struct Dropped(AtomicBool);

impl Upkeep {
    /// Starts the task, unless it runs.
    pub(crate) fn start(&self, handle: u64, parts: Parts) {
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(self.running.clone());
        let (wake, dropped) = (self.wake.clone(), self.dropped.clone());
        let task = tokio::spawn(async move {
            let _running = running;
            run(handle, parts, &wake, &dropped).await;
        });
        *self.task.lock() = Some(task.abort_handle());
    }

    /// Something may be due earlier than it was.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.dropped.0.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn run(handle: u64, (connection, renewals, shared): Parts, wake: &Notify, dropped: &Dropped) {
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if dropped.0.load(Ordering::Acquire) {
            let mut leases = shared.leases.close();
            let queued = shared.claims.take_queued(handle);
            leases.extend(queued.iter().map(|known| known.lease));
            give_up(&connection, leases).await;
            return;
        }
        let next = round(handle, &connection, &renewals, &shared).await;
        drop(shared);
        tokio::select! {
            () = wake.notified() => {
                // Not at every lock that is released.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
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
        next = next.min(now + std::time::Duration::from_millis(200));
    }
    join_all(due.into_iter().map(async |lease| {
        let sent = SystemClock.now();
        match renewals.renew(lease).await {
            Ok(Alive::For(seconds)) => shared.leases.kept_alive(lease, sent, Some(seconds)),
            Ok(Alive::Gone) => shared.leases.kept_alive(lease, sent, None),
            Err(why) => tracing::debug!(%why, "a lease could not be kept alive"),
        }
    }))
    .await;
    give_up(connection, unused.revoke).await;
    next
}
