//! Waiters of this process: whose turn it is, and how they are told.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::HoldId;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;

use crate::{connection::Connector, metrics, request::hold_id};

/// The claims of this process that queue, shared by all its handles on a store.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    claims: Mutex<HashMap<HoldId, Turn>>,
    /// How many of them are known to be in the queue.
    waiting: AtomicUsize,
    /// Somebody was told, or looks have become urgent.
    nudge: Notify,
    /// The connection that listens has come up anew: what was sent meanwhile is lost.
    missed: AtomicBool,
    listening: AtomicBool,
}

#[derive(Debug, Default)]
struct Turn {
    /// Its place when it was last told; `None` until it is known to be in the queue.
    place: Option<u32>,
    told: bool,
    wake: Arc<Notify>,
}

impl Turns {
    /// A claim is about to queue. It comes before the request, as a notice may overtake the answer.
    pub(crate) fn enter(&self, hold: HoldId) {
        self.claims.lock().entry(hold).or_default();
    }

    /// The claim is in the queue, at `place`.
    pub(crate) fn queued(&self, hold: HoldId, place: u32) {
        if let Some(turn) = self.claims.lock().get_mut(&hold)
            && turn.place.replace(place).is_none()
        {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The claim is not in the queue any more.
    pub(crate) fn left(&self, hold: HoldId) {
        if let Some(turn) = self.claims.lock().remove(&hold)
            && turn.place.is_some()
        {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The claim's turn may have come.
    pub(crate) fn tell(&self, hold: HoldId) {
        if let Some(turn) = self.claims.lock().get_mut(&hold) {
            turn.told = true;
            turn.wake.notify_one();
        }
        self.nudge.notify_one();
    }

    pub(crate) fn tell_all(&self) {
        for turn in self.claims.lock().values_mut() {
            turn.told = true;
            turn.wake.notify_one();
        }
        self.nudge.notify_one();
    }

    /// Whether the claim waits and nothing is known that would make another attempt urgent: then
    /// it can go with the next statement there is.
    pub(crate) fn is_patient(&self, hold: HoldId) -> bool {
        match self.claims.lock().get_mut(&hold) {
            Some(turn) => {
                let told = std::mem::take(&mut turn.told);
                !told && turn.place.is_some_and(|place| place > 1)
            }
            None => false,
        }
    }

    pub(crate) fn is_told(&self, hold: HoldId) -> bool {
        self.claims.lock().get(&hold).is_none_or(|turn| turn.told)
    }

    /// How many claims are in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns when the claim is told; at once when it does not queue.
    pub(crate) async fn told(&self, hold: HoldId) {
        let wake = self.claims.lock().get(&hold).map(|turn| turn.wake.clone());
        if let Some(wake) = wake {
            wake.notified().await;
        }
    }

    pub(crate) async fn nudged(&self) {
        self.nudge.notified().await;
    }

    pub(crate) fn take_missed(&self) -> bool {
        self.missed.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Relaxed);
        self.missed.store(true, Ordering::Relaxed);
        self.nudge.notify_one();
    }
}

/// Listens on the channel of this process for as long as it is polled, at `server` or where the
/// requests go.
pub(crate) async fn listen(
    server: Option<PgConnectOptions>,
    connector: Arc<Connector>,
    turns: Arc<Turns>,
) {
    let channel = format!("distlock_{}", connector.process.simple());
    let mut failures = 0_u32;
    loop {
        let options = server.clone().unwrap_or_else(|| connector.options());
        let lost = match subscribe(options, &channel).await {
            Ok(mut listener) => {
                failures = 0;
                metrics::connected("listen");
                turns.set_listening(true);
                let lost = loop {
                    match listener.try_recv().await {
                        Ok(Some(notice)) => {
                            // Advice: garbage is not even worth a line in the log.
                            if let Ok(hold) = notice.payload().parse() {
                                turns.tell(hold_id(&hold));
                            }
                        }
                        Ok(None) => break None,
                        Err(why) => break Some(why),
                    }
                };
                turns.set_listening(false);
                lost
            }
            Err(why) => Some(why),
        };
        tracing::debug!(
            ?lost,
            "the connection that listens is lost; waiters poll meanwhile"
        );
        let pause = Duration::from_millis(50) * 2_u32.pow(failures.min(6));
        failures += 1;
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}

async fn subscribe(options: PgConnectOptions, channel: &str) -> Result<PgListener, sqlx::Error> {
    // The driver makes a listener from a pool only; this one is the listener's.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}
