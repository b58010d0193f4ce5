//! What a client counts and measures, through the [`metrics`] facade.
//!
//! docs/metrics.md lists it for those who watch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};

use crate::{Busy, Error, LockGuard, LockKey, LostReason, Moment, Release, Renewal, StoreError};

/// The instruments of one client, or of one lock of a client that labels by key.
#[derive(Debug)]
pub(crate) struct Metrics {
    labels: Vec<Label>,
    by_key: bool,
    attempts: Counter,
    acquires: [Counter; Outcome::ALL.len()],
    wait: Histogram,
    queue: Histogram,
    held: Gauge,
    hold: Histogram,
    renewals: [Counter; RENEWALS.len()],
    renewal: Histogram,
    lost: [Counter; LOST.len()],
    releases: [Counter; RELEASES.len()],
}

/// How an acquisition ended.
#[derive(Clone, Copy)]
enum Outcome {
    Granted,
    Entered,
    Busy,
    Timeout,
    Failed,
    Cancelled,
}

impl Outcome {
    const ALL: [&'static str; 6] = [
        "granted",
        "entered",
        "busy",
        "timeout",
        "failed",
        "cancelled",
    ];
}

const RENEWALS: [&str; 3] = ["renewed", "gone", "failed"];
const RELEASES: [&str; 3] = ["released", "gone", "failed"];
const LOST: [(LostReason, &str); 5] = [
    (LostReason::Expired, "expired"),
    (LostReason::TakenOver, "taken_over"),
    (LostReason::ForceReleased, "force_released"),
    (LostReason::Unreachable, "unreachable"),
    (LostReason::MaxHold, "max_hold"),
];

impl Metrics {
    /// The instruments of a client. They go to the recorder that is installed now.
    pub(crate) fn new(store: &'static str, client: Option<&str>, by_key: bool) -> Self {
        describe();
        let client = client.unwrap_or_default().to_owned();
        let labels = vec![Label::new("store", store), Label::new("client", client)];
        Self::with(labels, by_key)
    }

    /// The instruments for one lock: the client's own, unless it labels by key.
    pub(crate) fn of(self: &Arc<Self>, key: &LockKey) -> Arc<Self> {
        if !self.by_key {
            return self.clone();
        }
        let mut labels = self.labels.clone();
        labels.push(Label::new("key", key.as_str().to_owned()));
        Arc::new(Self::with(labels, true))
    }

    fn with(labels: Vec<Label>, by_key: bool) -> Self {
        let each = |name: &'static str, label: &'static str, value: &'static str| {
            let mut labels = labels.clone();
            labels.push(Label::new(label, value));
            counter!(name, labels)
        };
        Self {
            attempts: counter!("distlock_attempts_total", labels.clone()),
            acquires: Outcome::ALL.map(|it| each("distlock_acquires_total", "outcome", it)),
            wait: histogram!("distlock_wait_seconds", labels.clone()),
            queue: histogram!("distlock_queue_length", labels.clone()),
            held: gauge!("distlock_held", labels.clone()),
            hold: histogram!("distlock_hold_seconds", labels.clone()),
            renewals: RENEWALS.map(|it| each("distlock_renewals_total", "outcome", it)),
            renewal: histogram!("distlock_renewal_seconds", labels.clone()),
            lost: LOST.map(|(_, it)| each("distlock_lost_total", "reason", it)),
            releases: RELEASES.map(|it| each("distlock_releases_total", "outcome", it)),
            labels,
            by_key,
        }
    }

    /// A request to acquire goes out.
    pub(crate) fn attempt(&self) {
        self.attempts.increment(1);
    }

    /// A first attempt found the lock busy.
    pub(crate) fn busy(&self, busy: &Busy) {
        self.queue.record(f64::from(busy.queued));
    }

    /// Begins to count an acquisition; when it is dropped unfinished, that was cancelled.
    pub(crate) fn acquiring(self: &Arc<Self>) -> Acquiring {
        Acquiring {
            metrics: self.clone(),
            outcome: Outcome::Cancelled,
        }
    }

    /// A lock is held from now on.
    pub(crate) fn holding(self: &Arc<Self>, since: Moment) -> Holding {
        self.held.increment(1.0);
        Holding {
            metrics: self.clone(),
            since,
            over: AtomicBool::new(false),
        }
    }

    /// A renewal was answered, or not, after this time.
    pub(crate) fn renewed(&self, answer: &Result<Renewal, StoreError>, after: Duration) {
        let outcome = match answer {
            Ok(Renewal::Renewed { .. }) => 0,
            Ok(Renewal::Gone { .. }) => 1,
            Err(_) => 2,
        };
        self.renewals[outcome].increment(1);
        self.renewal.record(after);
    }

    /// A release was answered, or not.
    pub(crate) fn released(&self, answer: &Result<Release, StoreError>) {
        let outcome = match answer {
            Ok(Release::Released { .. }) => 0,
            Ok(_) => 1,
            Err(_) => 2,
        };
        self.releases[outcome].increment(1);
    }
}

/// An acquisition under way.
pub(crate) struct Acquiring {
    metrics: Arc<Metrics>,
    outcome: Outcome,
}

impl Acquiring {
    pub(crate) fn finished(mut self, result: &Result<LockGuard, Error>) {
        self.outcome = match result {
            Ok(guard) if guard.attempts() == 0 => Outcome::Entered,
            Ok(guard) => {
                self.metrics.wait.record(guard.waited());
                Outcome::Granted
            }
            Err(Error::Busy { .. }) => Outcome::Busy,
            Err(Error::Timeout { .. }) => Outcome::Timeout,
            Err(_) => Outcome::Failed,
        };
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.metrics.acquires[self.outcome as usize].increment(1);
    }
}

/// A lock that is held, counted until it is not.
#[derive(Debug)]
pub(crate) struct Holding {
    metrics: Arc<Metrics>,
    since: Moment,
    over: AtomicBool,
}

impl Holding {
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// It is held no longer.
    pub(crate) fn ended(&self, now: Moment) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.metrics.held.decrement(1.0);
            self.metrics.hold.record(now.since(self.since));
        }
    }

    /// It is lost. The end of the client is no loss.
    pub(crate) fn lost(&self, reason: LostReason, now: Moment) {
        self.ended(now);
        if let Some(reason) = LOST.iter().position(|(known, _)| *known == reason) {
            self.metrics.lost[reason].increment(1);
        }
    }
}

fn describe() {
    describe_counter!(
        "distlock_attempts_total",
        "Requests to the store to acquire a lock."
    );
    describe_counter!(
        "distlock_acquires_total",
        "Acquisitions that ended, by outcome."
    );
    describe_histogram!(
        "distlock_wait_seconds",
        Unit::Seconds,
        "From the call to the grant."
    );
    describe_histogram!(
        "distlock_queue_length",
        "How many claims were in the queue when a lock was found busy."
    );
    describe_gauge!("distlock_held", "Locks held now.");
    describe_histogram!(
        "distlock_hold_seconds",
        Unit::Seconds,
        "From the grant to the release or the loss."
    );
    describe_counter!(
        "distlock_renewals_total",
        "Renewals of single locks, by outcome."
    );
    describe_histogram!(
        "distlock_renewal_seconds",
        Unit::Seconds,
        "From the sending of a renewal to its answer."
    );
    describe_counter!(
        "distlock_lost_total",
        "Locks lost while they were held, by reason."
    );
    describe_counter!(
        "distlock_releases_total",
        "Releases sent for a guard, by outcome."
    );
}
