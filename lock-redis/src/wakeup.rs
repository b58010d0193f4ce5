//! Waiting: one subscription for all waiters of a store.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use lock_core::{Busy, HoldId, StoreError};
use parking_lot::Mutex;
use rand::random_range;
use tokio::{
    select,
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    calls::Calls,
    connection::{Server, backoff},
    handover::Handover,
};

/// How long a subscription stays open after the last waiter has gone.
const LINGER: Duration = Duration::from_secs(3);
/// How often a quiet subscription is checked.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a waiter that nobody can wake looks for itself.
const POLL: Duration = Duration::from_millis(500);
/// The first acquisition that has to queue waits so long for the subscription.
const PATIENCE: Duration = Duration::from_secs(2);
/// How far back in the queue a waiter watches for the end of the lease.
const WATCHFUL: u32 = 32;

/// Wakes the waiters of one store.
///
/// The subscription is opened when somebody waits and closed soon after nobody does.
#[derive(Debug)]
pub(crate) struct Wakeup {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: Server,
    /// The channel of this store; scripts publish to it.
    channel: String,
    claim_window: Duration,
    calls: Calls,
    state: Mutex<State>,
    line: watch::Sender<Line>,
}

#[derive(Debug, Default)]
struct State {
    listener: Option<JoinHandle<()>>,
    waiting: HashMap<HoldId, Arc<Turn>>,
    /// When somebody last queued or waited.
    used: Option<Instant>,
    closed: bool,
}

/// The state of the subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    /// Which subscription it is, counted from 1; `None` while there is none.
    open: Option<u64>,
    opened: u64,
    failed: u64,
}

#[derive(Debug, Default)]
struct Turn {
    called: Notify,
    near: Notify,
}

impl Wakeup {
    pub(crate) fn new(
        server: Server,
        channel: String,
        claim_window: Duration,
        calls: Calls,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                server,
                channel,
                claim_window,
                calls,
                state: Mutex::default(),
                line: watch::Sender::default(),
            }),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.shared.channel
    }

    /// The subscription that is open now.
    pub(crate) fn open(&self) -> Option<u64> {
        self.shared.line.borrow().open
    }

    /// Makes sure that there is a subscription, confirmed by the server, and returns which.
    ///
    /// `None` when there is none in good time: waiters then have to look for themselves.
    pub(crate) async fn listen(&self) -> Option<u64> {
        let mut line = self.shared.line.subscribe();
        let failed = line.borrow_and_update().failed;
        self.start();
        let settled = line.wait_for(|line| line.open.is_some() || line.failed > failed);
        timeout(PATIENCE, settled).await.ok()?.ok()?.open
    }

    /// Notes that a waiter has queued while subscription `open` was there. When that has changed
    /// since, a notice may be lost: the waiter looks again at once.
    pub(crate) fn queued(&self, hold: HoldId, open: Option<u64>) {
        self.shared.state.lock().used = Some(Instant::now());
        if open.is_some() && self.open() != open {
            self.shared.calls.call(hold, None);
        }
    }

    /// Returns when another attempt is worthwhile.
    pub(crate) async fn wait(&self, hold: HoldId, busy: &Busy) {
        let Some(seat) = self.sit_down(hold) else {
            return;
        };
        let mut line = self.shared.line.subscribe();
        let known = line.borrow_and_update().open;
        self.start();
        let expiry = sleep(match known {
            Some(_) => self.expiry(busy),
            None => POLL / 2 + jitter(250 + self.waiting()),
        });
        tokio::pin!(expiry);
        loop {
            select! {
                biased;
                () = seat.turn.called.notified() => return,
                () = seat.turn.near.notified() => {
                    let hung = self.shared.claim_window + jitter(100);
                    let at = tokio::time::Instant::now() + hung;
                    if at < expiry.deadline() {
                        expiry.as_mut().reset(at);
                    }
                }
                changed = line.changed() => {
                    let now = line.borrow_and_update().open;
                    if changed.is_err() {
                        return;
                    }
                    if now.is_some() && now != known {
                        // What was sent meanwhile is lost. Not all at the same moment.
                        sleep(jitter(self.waiting())).await;
                        return;
                    }
                    if now.is_none() {
                        let at = tokio::time::Instant::now() + POLL + jitter(1000);
                        if at < expiry.deadline() {
                            expiry.as_mut().reset(at);
                        }
                    }
                }
                () = &mut expiry => return,
            }
        }
    }

    /// When a lease ends without a release nobody is told: the waiters look, the first one first,
    /// and those behind it soon after, should it be dead.
    fn expiry(&self, busy: &Busy) -> Duration {
        match busy.position {
            Some(position @ 1..=WATCHFUL) => {
                let behind = u64::from(position.min(21)) - 1;
                busy.remaining
                    + Duration::from_millis(100 * behind + 2)
                    + jitter(behind.min(1) * 50)
            }
            // The caller's own timer is enough.
            _ => Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Call this before a request whose reply may bring a notice. When it is dropped without
    /// [`Expected::arrived`], all waiters look again.
    pub(crate) fn expect(&self) -> Expected<'_> {
        Expected(self)
    }

    /// Takes a notice that came with a reply.
    pub(crate) fn heard(&self, notice: &[u8]) {
        self.shared.heard(notice);
    }

    /// Makes all waiters look again: a notice for one of them may be lost.
    fn look_again(&self) {
        let state = self.shared.state.lock();
        self.shared.calls.call_all();
        for turn in state.waiting.values() {
            turn.called.notify_one();
        }
    }

    /// How many wait, a thousand at most.
    fn waiting(&self) -> u64 {
        self.shared.state.lock().waiting.len().min(1000) as u64
    }

    /// Registers a waiter; `None` when it was called already.
    fn sit_down(&self, hold: HoldId) -> Option<Seat> {
        let mut state = self.shared.state.lock();
        if state.closed || self.shared.calls.is_called(hold) {
            return None;
        }
        let turn = Arc::<Turn>::default();
        state.waiting.insert(hold, turn.clone());
        Some(Seat {
            shared: self.shared.clone(),
            hold,
            turn,
        })
    }

    /// Starts the listener if there is none.
    fn start(&self) {
        let mut state = self.shared.state.lock();
        state.used = Some(Instant::now());
        let runs = state
            .listener
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        if !state.closed && !runs {
            self.shared.line.send_modify(|line| line.open = None);
            state.listener = Some(tokio::spawn(listen(
                Arc::downgrade(&self.shared),
                self.shared.server.clone(),
                self.shared.channel.clone(),
            )));
        }
    }

    /// Ends the subscription; waiters return.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        if let Some(listener) = state.listener.take() {
            listener.abort();
        }
        for turn in state.waiting.values() {
            turn.called.notify_one();
        }
        drop(state);
        self.shared.line.send_modify(|line| line.open = None);
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        self.close();
    }
}

/// A reply that may bring a notice for this store.
#[derive(Debug)]
pub(crate) struct Expected<'a>(&'a Wakeup);

impl Expected<'_> {
    /// It has come.
    pub(crate) fn arrived(self) {
        std::mem::forget(self);
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.0.look_again();
    }
}

/// A waiter's place in the register, given up when it is dropped.
struct Seat {
    shared: Arc<Shared>,
    hold: HoldId,
    turn: Arc<Turn>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let mine = state
            .waiting
            .get(&self.hold)
            .is_some_and(|turn| Arc::ptr_eq(turn, &self.turn));
        if mine {
            state.waiting.remove(&self.hold);
        }
        state.used = Some(Instant::now());
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.used.is_none_or(|used| used.elapsed() >= LINGER)
    }
}

impl Shared {
    /// `HOLD` or `HOLD=TOKEN@MICROS` for the one whose turn it is, `+HOLD` for those near the
    /// front, with spaces between; anything else is ignored.
    fn heard(&self, notice: &[u8]) {
        let state = self.state.lock();
        for word in std::str::from_utf8(notice).unwrap_or_default().split(' ') {
            match word.strip_prefix('+') {
                None => {
                    let (hold, handover) = word.split_once('=').unwrap_or((word, ""));
                    if let Ok(hold) = hold.parse() {
                        self.calls.call(hold, Handover::read(handover));
                        if let Some(turn) = state.waiting.get(&hold) {
                            turn.called.notify_one();
                        }
                    }
                }
                Some(near) => {
                    if let Ok(hold) = near.parse()
                        && let Some(turn) = state.waiting.get(&hold)
                    {
                        turn.near.notify_one();
                    }
                }
            }
        }
    }
}

/// Keeps the subscription while somebody waits. It owns no store, so that a store can be dropped.
async fn listen(shared: Weak<Shared>, server: Server, channel: String) {
    let mut line = OwnLine { shared, open: None };
    let mut failures = 0;
    loop {
        match subscribed(&mut line, &server, &channel, &mut failures).await {
            Ok(()) => return,
            Err(why) => {
                let Some(shared) = line.shared.upgrade() else {
                    return;
                };
                // What stays until somebody changes it is not asked for all the time.
                failures += if why.is_transient() { 1 } else { 20 };
                tracing::debug!(%why, failures, "the subscription for wake-ups broke");
                shared.line.send_modify(|line| {
                    line.open = None;
                    line.failed += 1;
                });
                if shared.state.lock().is_idle() {
                    return;
                }
            }
        }
        sleep(backoff(failures) * (1 + failures / 20)).await;
    }
}

/// One subscription from its beginning to its end; `Ok` when nobody needs it any more.
async fn subscribed(
    line: &mut OwnLine,
    server: &Server,
    channel: &str,
    failures: &mut u32,
) -> Result<(), StoreError> {
    let ended = Arc::new(Notify::new());
    let (ear, end) = (line.shared.clone(), ended.clone());
    let subscription = server.subscribe(channel, move |notice| match notice {
        Some(notice) => {
            if let Some(shared) = ear.upgrade() {
                shared.heard(notice);
            }
        }
        None => end.notify_one(),
    });
    let mut connection = subscription.await?;
    *failures = 0;
    if let Some(shared) = line.shared.upgrade() {
        shared.line.send_modify(|now| {
            now.opened += 1;
            now.open = Some(now.opened);
            line.open = now.open;
        });
    }
    let mut checked = Instant::now();
    loop {
        if timeout(LINGER / 2, ended.notified()).await.is_ok() {
            return Err(StoreError::transient("the server closed the connection"));
        }
        match line.shared.upgrade() {
            Some(shared) => {
                let mut state = shared.state.lock();
                if state.is_idle() {
                    // Under the lock, so that `start` sees either this task's end or the line
                    // open.
                    state.listener = None;
                    shared.line.send_modify(|line| line.open = None);
                    return Ok(());
                }
            }
            None => return Ok(()),
        }
        if checked.elapsed() >= HEARTBEAT {
            if connection
                .send_packed_command(&redis::cmd("PING"))
                .await
                .is_err()
            {
                return Err(StoreError::transient("the subscription is half-open"));
            }
            checked = Instant::now();
        }
    }
}

/// The line that a listener has opened; it is down when the listener ends, with its runtime for
/// example.
struct OwnLine {
    shared: Weak<Shared>,
    open: Option<u64>,
}

impl Drop for OwnLine {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.line.send_if_modified(|line| {
                let mine = line.open.is_some() && line.open == self.open;
                if mine {
                    line.open = None;
                }
                mine
            });
        }
    }
}

fn jitter(most_millis: u64) -> Duration {
    Duration::from_millis(1).mul_f64(most_millis as f64 * random_range(0.0..1.0))
}
