//! How a waiter learns that it is its turn: one watch for each lock, all on one stream.
//!
//! A watch starts at its own moment, never at a revision of the past, which the server would
//! serve only ten times a second. So what was before is read once, when the watch is confirmed;
//! from then on the order of the queue follows from the events, and a release wakes one waiter.

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    sync::{Arc, Weak},
    time::Duration,
};

use etcd_client::{
    Event, EventType, GetOptions, KeyValue, WatchOptions, WatchRequestSender, WatchResponse,
};
use futures_util::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use lock_core::OwnerId;
use parking_lot::Mutex;
use rand::random_range;
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    connection::{Connection, Open},
    error::{Cure, Failure},
    record,
};

/// How long a lock is watched on after its last waiter.
const LINGER: Duration = Duration::from_secs(2);
/// How often the server has to give a sign of life while somebody waits.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The waiters of a handle.
#[derive(Debug)]
pub(crate) struct Wakeup {
    connection: Arc<Connection>,
    hub: Arc<Hub>,
}

#[derive(Debug, Default)]
struct Hub(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By what the keys of a lock begin with.
    locks: HashMap<String, Watched>,
    asks: Option<UnboundedSender<String>>,
    closed: bool,
}

/// A lock that somebody waits for, or did lately.
#[derive(Debug)]
struct Watched {
    /// Nothing while the watch is not confirmed.
    order: Option<Order>,
    /// By their owners and the names of their keys.
    waiting: BTreeMap<(OwnerId, String), Waiting>,
    used: Instant,
    /// Events that came before the read.
    early: Vec<Change>,
}

#[derive(Debug)]
struct Waiting {
    created: i64,
    turn: Arc<Notify>,
    count: u32,
}

/// The keys of a lock in the order of their creation, as of a revision.
#[derive(Debug, Default)]
struct Order {
    revision: i64,
    keys: BTreeMap<i64, Place>,
    created: HashMap<String, i64>,
}

#[derive(Clone, Debug)]
struct Place {
    key: String,
    /// Whose it is; `None` for what this crate did not write.
    owner: Option<OwnerId>,
}

#[derive(Clone, Debug)]
struct Change {
    place: Place,
    revision: i64,
    /// `None` when it was deleted.
    created: Option<i64>,
}

impl Place {
    fn of(kv: &KeyValue) -> Option<Self> {
        Some(Self {
            key: kv.key_str().ok()?.to_owned(),
            owner: record::owner(kv),
        })
    }
}

impl Change {
    fn of(event: &Event) -> Option<Self> {
        let kv = event.kv()?;
        Some(Self {
            place: Place::of(kv)?,
            revision: kv.mod_revision(),
            created: (event.event_type() == EventType::Put).then(|| kv.create_revision()),
        })
    }
}

impl Order {
    fn apply(&mut self, change: &Change) {
        if change.revision < self.revision {
            return;
        }
        let Place { key, .. } = &change.place;
        if let Some(old) = self.created.remove(key) {
            self.keys.remove(&old);
        }
        if let Some(created) = change.created {
            self.put(created, change.place.clone());
        }
        self.revision = change.revision;
    }

    fn put(&mut self, created: i64, place: Place) {
        self.created.insert(place.key.clone(), created);
        self.keys.insert(created, place);
    }

    fn first(&self) -> Option<&Place> {
        self.keys.values().next()
    }

    /// Whether a waiter has reason to try: its key is the first, or one of its owner's is, or its
    /// key is gone.
    fn calls(&self, (owner, key): &(OwnerId, String), created: i64) -> bool {
        match self.first() {
            Some(first) if first.owner == Some(*owner) => true,
            _ => self.revision >= created && self.created.get(key) != Some(&created),
        }
    }
}

impl Watched {
    fn new() -> Self {
        Self {
            order: None,
            waiting: BTreeMap::new(),
            used: Instant::now(),
            early: Vec::new(),
        }
    }

    fn call_all(&self) {
        let Some(order) = &self.order else { return };
        for (who, waiting) in &self.waiting {
            if order.calls(who, waiting.created) {
                waiting.turn.notify_one();
            }
        }
    }

    fn hear(&mut self, changes: Vec<Change>) {
        let Some(order) = &mut self.order else {
            self.early.extend(changes);
            return;
        };
        let key_of = |order: &Order| order.first().map(|first| first.key.clone());
        let before = key_of(order);
        let mut deleted = Vec::new();
        for change in changes {
            order.apply(&change);
            if change.created.is_none() {
                deleted.push(change.place.key);
            }
        }
        if !deleted.is_empty() {
            // One's own may be among them.
            for ((_, key), waiting) in &self.waiting {
                if deleted.contains(key) {
                    waiting.turn.notify_one();
                }
            }
        }
        let Some(first) = order.first() else { return };
        let Some(owner) = first.owner.filter(|_| before.as_ref() != Some(&first.key)) else {
            return;
        };
        for ((_, _), waiting) in self
            .waiting
            .range((owner, String::new())..)
            .take_while(|((other, _), _)| *other == owner)
        {
            waiting.turn.notify_one();
        }
    }
}

impl Wakeup {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            hub: Arc::default(),
        }
    }

    /// Whether somebody is known to be at the lock.
    pub(crate) fn is_taken(&self, lock: &str) -> bool {
        let state = self.hub.0.lock();
        let order = state.locks.get(lock).and_then(|l| l.order.as_ref());
        order.is_some_and(|order| !order.keys.is_empty())
    }

    /// Whether all keys of the lock are known, and none is of this owner.
    pub(crate) fn is_new(&self, lock: &str, owner: OwnerId) -> bool {
        let state = self.hub.0.lock();
        let order = state.locks.get(lock).and_then(|l| l.order.as_ref());
        order.is_some_and(|order| order.keys.values().all(|place| place.owner != Some(owner)))
    }

    /// Whether the key that was put at `created` is known to be the first of its lock: it stays
    /// the first until it is gone.
    pub(crate) fn is_first(&self, lock: &str, key: &str, created: i64) -> bool {
        let state = self.hub.0.lock();
        let order = state.locks.get(lock).and_then(|l| l.order.as_ref());
        let first = order.and_then(|order| order.keys.first_key_value());
        first.is_some_and(|(at, first)| *at == created && first.key == key)
    }

    /// How many keys of the lock were created up to `created`, if that is known.
    pub(crate) fn position(&self, lock: &str, created: i64) -> Option<u32> {
        let state = self.hub.0.lock();
        let order = state.locks.get(lock)?.order.as_ref()?;
        order.keys.get(&created)?;
        Some(order.keys.range(..=created).count() as u32)
    }

    /// Returns when the claim that put `key` at `created` has reason to try again.
    pub(crate) async fn wait(&self, lock: &str, owner: OwnerId, key: String, created: i64) {
        let turn = self.join(lock, (owner, key), created);
        loop {
            let told = turn.notify.notified();
            if turn.is_now(created) {
                return;
            }
            told.await;
        }
    }

    fn join(&self, lock: &str, who: (OwnerId, String), created: i64) -> Turn {
        let mut state = self.hub.0.lock();
        let watched = match state.locks.entry(lock.to_owned()) {
            hash_map::Entry::Occupied(watched) => watched.into_mut(),
            hash_map::Entry::Vacant(new) => new.insert(Watched::new()),
        };
        let is_new = watched.order.is_none();
        let waiting = watched
            .waiting
            .entry(who.clone())
            .or_insert_with(|| Waiting {
                created,
                turn: Arc::default(),
                count: 0,
            });
        waiting.created = created;
        waiting.count += 1;
        let notify = waiting.turn.clone();
        if is_new && !state.closed {
            self.start(&mut state, lock);
        }
        Turn {
            hub: self.hub.clone(),
            lock: lock.to_owned(),
            who,
            notify,
        }
    }

    /// Has `lock` watched, by the task there is or by a new one.
    fn start(&self, state: &mut State, lock: &str) {
        if let Some(asks) = &state.asks
            && asks.send(lock.to_owned()).is_ok()
        {
            return;
        }
        let (asks, heard) = unbounded_channel();
        let _ = asks.send(lock.to_owned());
        state.asks = Some(asks);
        tokio::spawn(listen(
            Arc::downgrade(&self.hub),
            self.connection.clone(),
            heard,
        ));
    }

    pub(crate) fn close(&self) {
        let mut state = self.hub.0.lock();
        state.closed = true;
        state.asks = None;
    }
}

/// A waiter's place at the hub; given up when it is dropped.
struct Turn {
    hub: Arc<Hub>,
    lock: String,
    who: (OwnerId, String),
    notify: Arc<Notify>,
}

impl Turn {
    fn is_now(&self, created: i64) -> bool {
        let state = self.hub.0.lock();
        let order = state.locks.get(&self.lock).and_then(|l| l.order.as_ref());
        order.is_some_and(|order| order.calls(&self.who, created))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.hub.0.lock();
        let Some(watched) = state.locks.get_mut(&self.lock) else {
            return;
        };
        watched.used = Instant::now();
        if let Some(waiting) = watched.waiting.get_mut(&self.who) {
            waiting.count -= 1;
            if waiting.count == 0 {
                watched.waiting.remove(&self.who);
            }
        }
    }
}

impl Hub {
    fn wanted(&self) -> Vec<String> {
        self.0.lock().locks.keys().cloned().collect()
    }

    /// Forgets the locks that nobody has waited for lately.
    fn idle(&self) -> Vec<String> {
        let mut state = self.0.lock();
        let idle = state.locks.extract_if(|_, watched| {
            watched.waiting.is_empty() && watched.used.elapsed() >= LINGER
        });
        idle.map(|(lock, _)| lock).collect()
    }

    /// Nothing is watched now, or this lock is not.
    fn lost(&self, lock: Option<&str>) {
        let mut state = self.0.lock();
        for (name, watched) in &mut state.locks {
            if lock.is_none_or(|lock| lock == name) {
                watched.order = None;
                watched.early.clear();
            }
        }
    }

    fn seen(&self, lock: &str, order: Order) {
        let mut state = self.0.lock();
        if let Some(watched) = state.locks.get_mut(lock) {
            watched.order = Some(order);
            let early = std::mem::take(&mut watched.early);
            watched.hear(early);
            watched.call_all();
        }
    }

    fn hear(&self, lock: &str, changes: Vec<Change>) {
        let mut state = self.0.lock();
        if let Some(watched) = state.locks.get_mut(lock) {
            watched.hear(changes);
        }
    }
}

/// Keeps the stream while somebody waits. It owns no hub, so that a store can be dropped.
async fn listen(hub: Weak<Hub>, connection: Arc<Connection>, mut asks: UnboundedReceiver<String>) {
    let mut failures = 0_u32;
    loop {
        match hub.upgrade() {
            None => return,
            Some(hub) if !hub.wanted().is_empty() => {}
            Some(_) => {
                if asks.recv().await.is_none() {
                    return;
                }
                continue;
            }
        }
        let began = Instant::now();
        let ended = watch(&hub, &connection, &mut asks, failures).await;
        let Some(hub) = hub.upgrade() else { return };
        hub.lost(None);
        match ended {
            Ok(()) => {}
            Err(_) if connection.is_closed() => return,
            Err(why) => {
                failures = if began.elapsed() > HEARTBEAT * 3 {
                    1
                } else {
                    failures + 1
                };
                tracing::debug!(%why, failures, "the stream of wake-ups broke");
                drop(hub);
                let most = Duration::from_millis(10) * 2_u32.pow(failures.min(7));
                sleep(most.mul_f64(random_range(0.5..1.0))).await;
            }
        }
    }
}

/// One stream from its beginning to its end; `Ok` when nobody needs it any more.
async fn watch(
    hub: &Weak<Hub>,
    connection: &Arc<Connection>,
    asks: &mut UnboundedReceiver<String>,
    failures: u32,
) -> Result<(), lock_core::StoreError> {
    let open = connection.current().await?;
    let ended = Stream {
        hub,
        connection,
        open: &open,
        names: HashMap::new(),
        next: 1,
        failures,
        reads: FuturesUnordered::new(),
    }
    .serve(asks)
    .await;
    ended.map_err(|failure| {
        connection.broke(&open, Some(&failure));
        failure.error
    })
}

struct Stream<'a> {
    hub: &'a Weak<Hub>,
    connection: &'a Arc<Connection>,
    open: &'a Open,
    /// The locks that are watched, by the numbers of their watches.
    names: HashMap<i64, String>,
    next: i64,
    /// How many streams before this one have failed in a row.
    failures: u32,
    reads: FuturesUnordered<BoxFuture<'a, (String, Result<Order, Failure>)>>,
}

impl Stream<'_> {
    async fn serve(mut self, asks: &mut UnboundedReceiver<String>) -> Result<(), Failure> {
        let mut wanted = self.wanted().into_iter();
        let Some(first) = wanted.next() else {
            return Ok(());
        };
        let options = self.options(&first);
        let mut watcher = self.open.client.watch_client();
        let patience = self.connection.cluster().stream_patience(self.failures);
        let opened = timeout(patience, watcher.watch(first, Some(options))).await;
        let (mut sender, mut responses) = opened.map_err(|_| silent())??.split();
        for lock in wanted {
            self.start(&mut sender, lock).await?;
        }
        let mut beat = interval(HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat.tick().await;
        let mut owes = true;
        loop {
            tokio::select! {
                response = responses.message() => {
                    owes = false;
                    match response? {
                        Some(response) => self.handle(&mut sender, &response).await?,
                        None => return Err(silent()),
                    }
                }
                Some((lock, order)) = self.reads.next() => {
                    if let Some(hub) = self.hub.upgrade() {
                        hub.seen(&lock, order?);
                    }
                }
                ask = asks.recv() => match ask {
                    Some(lock) => {
                        if !self.names.values().any(|known| *known == lock) {
                            self.start(&mut sender, lock).await?;
                        }
                    }
                    None => return Ok(()),
                },
                _ = beat.tick() => {
                    if owes {
                        return Err(silent());
                    }
                    let Some(hub) = self.hub.upgrade() else { return Ok(()) };
                    for lock in hub.idle() {
                        self.stop(&mut sender, &lock).await?;
                    }
                    if hub.wanted().is_empty() {
                        return Ok(());
                    }
                    sender.request_progress().await?;
                    owes = true;
                }
            }
        }
    }

    fn wanted(&self) -> Vec<String> {
        self.hub
            .upgrade()
            .map(|hub| hub.wanted())
            .unwrap_or_default()
    }

    /// Options of a new watch for a lock.
    fn options(&mut self, lock: &str) -> WatchOptions {
        let number = self.next;
        self.next += 1;
        self.names.insert(number, lock.to_owned());
        WatchOptions::new().with_prefix().with_watch_id(number)
    }

    async fn start(
        &mut self,
        sender: &mut WatchRequestSender,
        lock: String,
    ) -> Result<(), Failure> {
        let options = self.options(&lock);
        let patience = self.connection.cluster().stream_patience(self.failures);
        let sent = timeout(patience, sender.watch(lock, Some(options))).await;
        Ok(sent.map_err(|_| silent())??)
    }

    async fn stop(&mut self, sender: &mut WatchRequestSender, lock: &str) -> Result<(), Failure> {
        let number = self.names.iter().find(|(_, name)| *name == lock);
        if let Some((&number, _)) = number {
            self.names.remove(&number);
            sender.cancel(number).await?;
        }
        Ok(())
    }

    async fn handle(
        &mut self,
        sender: &mut WatchRequestSender,
        response: &WatchResponse,
    ) -> Result<(), Failure> {
        let number = response.watch_id();
        let Some(lock) = self.names.get(&number).cloned() else {
            return Ok(()); // a sign of life, or of a watch that was given up
        };
        let Some(hub) = self.hub.upgrade() else {
            return Ok(());
        };
        if response.canceled() {
            // Compacted, or refused: from now on again, after a look at what there is.
            self.names.remove(&number);
            hub.lost(Some(&lock));
            let why = response.cancel_reason();
            tracing::debug!(
                why,
                compacted = response.compact_revision(),
                "a watch was cancelled"
            );
            if response.created() {
                return Err(Failure {
                    error: lock_core::StoreError::permanent(format!(
                        "the watch was refused: {why}"
                    )),
                    cure: Cure::Authenticate,
                });
            }
            return self.start(sender, lock).await;
        }
        if response.created() {
            let connection = self.connection.clone();
            self.reads.push(
                async move {
                    let order = read(&connection, &lock).await;
                    (lock, order)
                }
                .boxed(),
            );
        } else {
            let changes = response.events().iter().filter_map(Change::of).collect();
            hub.hear(&lock, changes);
        }
        Ok(())
    }
}

async fn read(connection: &Connection, lock: &str) -> Result<Order, Failure> {
    let response = connection.call(|client| {
        let mut kv = client.kv_client();
        let lock = lock.to_owned();
        async move {
            let all = GetOptions::new().with_prefix();
            kv.get(lock, Some(all)).await
        }
    });
    let response = response.await?;
    let mut order = Order {
        revision: response.header().map_or(0, |header| header.revision()),
        ..Order::default()
    };
    for kv in response.kvs() {
        if let Some(place) = Place::of(kv) {
            order.put(kv.create_revision(), place);
        }
    }
    Ok(order)
}

fn silent() -> Failure {
    Failure {
        error: lock_core::StoreError::transient("the stream ended, or gave no sign of life"),
        cure: Cure::Elsewhere,
    }
}
