//! The store: each verb as one transaction, more only when others are at it as well.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use etcd_client::{Client, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::join;
use lock_core::{
    Attempt, Busy, Capabilities, Claim, Clock, DistributedLock, FencingToken, Grant, LockInfo,
    LockKey, LockPage, Moment, Page, Release, Renewal, Result, StoreError, SystemClock, Ttl,
};

use crate::{
    claims::{Known, State},
    config::{EtcdLockBuilder, Options},
    connection::{Answer, Cluster},
    error::{Cure, Failure, contended, strange},
    handle::Handle,
    keepalive::Alive,
    lease::Lease,
    list,
    record::{Entry, Name, Value},
    renewal,
    view::{self, View},
};

/// How often a change is tried that others get in the way of.
const TRIES: u32 = 32;

/// Locks in etcd; see the [crate's page](crate).
///
/// It has to be used on a tokio runtime with its timer and network enabled. Connections are made
/// on the runtime that first needs them, and anew when that runtime is gone.
pub struct EtcdLock {
    handle: Arc<Handle>,
}

impl fmt::Debug for EtcdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLock")
            .field("cluster", self.handle.connection.cluster())
            .field("names", &self.handle.shared.names)
            .finish_non_exhaustive()
    }
}

impl EtcdLock {
    /// Connects to the members of a URL with the default options.
    ///
    /// * `etcd://[user:password@]host[:port][,host[:port]]...`; the port is 2379 by default
    /// * `etcds://…` for TLS, with the feature `tls`
    ///
    /// Name all members: the store goes to the next one when one fails.
    ///
    /// # Errors
    ///
    /// As [`EtcdLock::builder`] and [`EtcdLockBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url)?.connect().await
    }

    /// Options for the members of a URL, as [`EtcdLock::connect`] takes it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](lock_core::Error::InvalidConfig) when the URL cannot be used.
    pub fn builder(url: &str) -> Result<EtcdLockBuilder> {
        EtcdLockBuilder::from_url(url)
    }

    /// Options for the members of an application's client, with its user and its TLS.
    ///
    /// All handles of the store share the client, the watchdog's too: renewals then depend on the
    /// runtime that the client was made on, and on how it chooses a member. A store made from a
    /// URL keeps its locks when that runtime is blocked or ends, and leaves a member that is
    /// silent; prefer it where you can.
    pub fn builder_with(client: Client) -> EtcdLockBuilder {
        EtcdLockBuilder::with_client(client)
    }

    pub(crate) async fn open(cluster: Cluster, options: Options) -> Result<Self, StoreError> {
        let handle = Handle::open(cluster, &options).await?;
        for warning in &handle.shared.capabilities.warnings {
            tracing::warn!(cluster = ?handle.connection.cluster(), "{warning}");
        }
        Ok(Self { handle })
    }

    /// What is granted to who asks for `ttl`: whole seconds, and not less than the server's least.
    fn granted(&self, ttl: Ttl) -> Ttl {
        self.handle.shared.granted(ttl)
    }

    async fn txn(&self, txn: impl Fn() -> Txn) -> Result<Answer<TxnResponse>, Failure> {
        self.handle.txn(txn).await
    }

    async fn look(&self, name: &Name) -> Result<View, StoreError> {
        let reads = || Txn::new().and_then(View::reads(name));
        let answer = self.txn(reads).await?;
        View::read(&self.handle.shared.names, &answer.value)
    }

    /// The first attempt of a claim, or a repeat of one whose answer was lost; `None` when it is
    /// to be tried again.
    async fn attempt(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        lost: Option<Known>,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        // The same lease again, so that a late copy of the request puts nothing else.
        let again = lost
            .as_ref()
            .and_then(|known| shared.leases.used(known.lease));
        let was_stray = again.is_some() && lost.is_some_and(|known| known.stray);
        let lease = match again {
            Some(lease) => lease,
            None => self.handle.lease(ttl).await?,
        };
        let mut known = Known {
            state: State::Trying,
            key: name.key().to_owned(),
            lease: lease.id,
            created: 0,
            modified: 0,
            holds: 1,
            stray: true,
            handle: self.handle.number,
        };
        shared.claims.set(name.key(), known.clone());

        let value = Value::new(claim).to_bytes();
        let sent = SystemClock.now();
        let txn = self.txn(|| view::attempt(name, &value, lease.id, claim.queue));
        let (answer, alive) = join(txn, self.freshened(lease, ttl, sent)).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.cure == Cure::Lease => {
                shared.claims.forget(name.key());
                self.handle.distrust_leases(lease.id);
                return Ok(None);
            }
            Err(failure) => {
                // A server that is out of space refuses whatever might put something: but the
                // claim may have its key already.
                if failure.cure == Cure::Space {
                    let view = self.look(name).await?;
                    let is_mine = view.first.as_ref().is_some_and(|e| e.owner == claim.owner);
                    if is_mine || view.own.is_some() {
                        shared.claims.forget(name.key());
                        self.handle.give_back(lease.id, true);
                        return self.judge(claim, name, ttl, view, None).await;
                    }
                }
                if !failure.error.is_transient() {
                    shared.claims.forget(name.key());
                    self.handle.revoke_later(lease.id);
                }
                return Err(failure.error);
            }
        };
        known.stray = was_stray || answer.repeated;
        if answer.value.succeeded() {
            match alive? {
                Alive::For(seconds) if seconds * 1000 >= ttl.as_millis() => {}
                _ => {
                    self.handle.revoke(lease.id).await?;
                    shared.claims.forget(name.key());
                    return Ok(None);
                }
            }
            known.state = State::Held;
            known.created = view::revision(&answer.value);
            known.modified = known.created;
            return self.grant(name, known, ttl).map(Some);
        }
        let view = View::read(&shared.names, &answer.value)?;
        self.judge(claim, name, ttl, view, Some(known)).await
    }

    /// The lease runs for the ttl from `sent` on, by a keep-alive if that is not known.
    async fn freshened(&self, lease: Lease, ttl: Ttl, sent: Moment) -> Result<Alive, StoreError> {
        if lease.covers(ttl, sent) {
            return Ok(Alive::For(lease.seconds));
        }
        self.handle.keep_alive(lease.id).await
    }

    /// What a claim gets that found others, or itself, at the lock. `fresh` is set when it has
    /// just tried with a lease.
    async fn judge(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        mut view: View,
        fresh: Option<Known>,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let is_mine = |view: &View| view.first.as_ref().is_some_and(|e| e.owner == claim.owner);
        let mut place = view.own;
        if let Some(known) = &fresh
            && claim.queue
            && place.is_none()
            && !is_mine(&view)
        {
            // Another claim of the owner is in the queue already.
            let value = Value::new(claim).to_bytes();
            let answer = self
                .txn(|| view::enqueue(name, &value, known.lease))
                .await?;
            view = View::read(&shared.names, &answer.value)?;
            place = view.own;
        }
        if let Some(known) = &fresh
            && place.is_none_or(|place| place.lease != known.lease)
        {
            self.handle.give_back(known.lease, known.stray);
            shared.claims.forget(name.key());
        }
        if let Some(place) = place {
            let known = fresh.or_else(|| shared.claims.find(name.key()));
            shared.claims.set(
                name.key(),
                Known {
                    state: State::Queued,
                    key: name.key().to_owned(),
                    lease: place.lease,
                    created: place.created,
                    modified: place.created,
                    holds: 1,
                    stray: known.is_some_and(|known| known.stray),
                    handle: self.handle.number,
                },
            );
        }
        match view.first.take_if(|first| first.owner == claim.owner) {
            Some(first) => self.enter(claim, name, ttl, first).await,
            None if place.is_none() && is_undecided(claim, &view) => Ok(None),
            None => self
                .busy(name, &view)
                .await
                .map(|busy| Some(Attempt::Busy(busy))),
        }
    }

    async fn busy(&self, name: &Name, view: &View) -> Result<Busy, StoreError> {
        let remaining = match &view.first {
            Some(first) => self.handle.remaining(first.lease).await,
            None => Duration::ZERO,
        };
        let position = match view.own {
            None => None,
            // It came just now.
            Some(own) if own.created == view.revision => Some(view.count),
            Some(own) => Some(self.handle.position(name, own.created).await?),
        };
        view.busy(position, remaining)
    }

    /// Enters a lock that the owner holds, once more or as before; `None` when it is gone.
    async fn enter(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        mut entry: Entry,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        for _ in 0..TRIES {
            let before = shared.claims.find(name.key());
            let Alive::For(seconds) = self.handle.keep_alive(entry.lease).await? else {
                return Ok(None);
            };
            let mut known = Known {
                state: State::Held,
                key: entry.key.clone(),
                lease: entry.lease,
                created: entry.created,
                modified: entry.modified,
                holds: entry.value.holds.len() as u32,
                stray: before
                    .as_ref()
                    .is_some_and(|b| b.stray && b.lease == entry.lease),
                handle: self.handle.number,
            };
            let is_long = seconds * 1000 >= ttl.as_millis();
            if is_long && entry.has(claim.hold) {
                return self.grant(name, known, ttl).map(Some);
            }
            if !entry.has(claim.hold) {
                entry.value.holds.push(claim.hold);
            }
            let longer = match is_long {
                true => None,
                false => Some(self.handle.lease(ttl).await?),
            };
            // Its own place in the queue, if it has one, goes with the same transaction.
            let own = before.filter(|b| b.key == name.key() && entry.key != name.key());
            let answer = self
                .txn(|| {
                    let mut to = vec![put(&entry, longer)];
                    if own.is_some() {
                        to.push(TxnOp::delete(name.key(), None));
                    }
                    view::change(&entry.key, entry.modified, to)
                })
                .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(failure) => {
                    if let Some(longer) = longer {
                        self.handle.revoke_later(longer.id);
                    }
                    return Err(failure.error);
                }
            };
            if answer.value.succeeded() {
                if let Some(own) = own {
                    self.handle.give_back(own.lease, own.stray);
                }
                if let Some(longer) = longer {
                    if shared.leases.used(known.lease).is_some() {
                        self.handle.give_back(known.lease, known.stray);
                    }
                    known.lease = longer.id;
                    known.stray = false;
                }
                known.modified = view::revision(&answer.value);
                known.holds = entry.value.holds.len() as u32;
                return self.grant(name, known, ttl).map(Some);
            }
            if let Some(longer) = longer {
                self.handle.give_back(longer.id, answer.repeated);
            }
            match view::found(&shared.names, &answer.value)? {
                Some(now) => entry = now,
                None => return Ok(None),
            }
        }
        Err(contended())
    }

    fn grant(&self, name: &Name, known: Known, ttl: Ttl) -> Result<Attempt, StoreError> {
        let grant = Grant {
            token: view::token(known.created)?,
            ttl,
            holds: known.holds,
        };
        self.handle.shared.claims.set(name.key(), known);
        Ok(Attempt::Granted(grant))
    }

    /// The claim is the first of the queue by all that was heard: it takes its turn if its key
    /// and its lease are alive.
    async fn take_turn(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        mut known: Known,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let sent = SystemClock.now();
        let lease = shared.leases.used(known.lease);
        let alive = async {
            match lease {
                Some(lease) => self.freshened(lease, ttl, sent).await,
                None => self.handle.keep_alive(known.lease).await,
            }
        };
        let (entry, alive) = join(self.handle.read(name.key()), alive).await;
        match (entry?, alive?) {
            (Some(entry), Alive::For(seconds))
                if entry.lease == known.lease && seconds * 1000 >= ttl.as_millis() =>
            {
                if !entry.has(claim.hold) {
                    return self.enter(claim, name, ttl, entry).await;
                }
                known.state = State::Held;
                known.modified = entry.modified;
                known.holds = entry.value.holds.len() as u32;
                self.grant(name, known, ttl).map(Some)
            }
            (Some(entry), Alive::For(_)) => self.enter(claim, name, ttl, entry).await,
            _ => {
                self.lose(name, known).await?;
                Ok(None)
            }
        }
    }

    /// The claim's key is gone: whatever may still put it comes too late from now on.
    async fn lose(&self, name: &Name, known: Known) -> Result<(), StoreError> {
        if known.key == name.key() {
            self.handle.revoke(known.lease).await?;
        }
        self.handle.shared.claims.forget(name.key());
        Ok(())
    }

    /// Releases what this process knows less of than the store.
    async fn release_found(&self, claim: &Claim, name: &Name) -> Result<Release, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        for _ in 0..TRIES {
            let known = shared.claims.find(name.key());
            let view = self.look(name).await?;
            let place = view.own;
            let held = view
                .first
                .filter(|e| e.owner == claim.owner && e.has(claim.hold));
            let (key, modified, mut entry) = match (held, place) {
                (Some(entry), _) => (entry.key.clone(), entry.modified, Some(entry)),
                (None, Some(place)) => {
                    match self.handle.read(name.key()).await? {
                        // The others' holds are under the name of the one that came first.
                        Some(entry) if !entry.has(claim.hold) => (String::new(), 0, None),
                        Some(entry) => (
                            name.key().to_owned(),
                            entry.modified.max(place.created),
                            None,
                        ),
                        None => continue,
                    }
                }
                (None, None) => (String::new(), 0, None),
            };
            if key.is_empty() {
                if let Some(known) = shared.claims.forget(name.key())
                    && known.key == name.key()
                    && place.is_none()
                {
                    self.handle.revoke_later(known.lease);
                }
                return Ok(Release::NotHeld);
            }
            if let Some(entry) = &mut entry {
                entry.value.holds.retain(|hold| *hold != claim.hold);
            }
            let left = entry.as_ref().map_or(0, |entry| entry.value.holds.len());
            let own_place = place.filter(|_| key != name.key());
            let answer = self
                .txn(|| {
                    let mut to = match &entry {
                        Some(entry) if left > 0 => vec![put(entry, None)],
                        _ => vec![TxnOp::delete(key.as_str(), None)],
                    };
                    if own_place.is_some() {
                        to.push(TxnOp::delete(name.key(), None));
                    }
                    view::change(&key, modified, to)
                })
                .await?;
            if !answer.value.succeeded() {
                continue;
            }
            shared.claims.forget(name.key());
            let stray = known.is_some_and(|known| known.stray);
            for lease in own_place
                .map(|place| place.lease)
                .into_iter()
                .chain((left == 0).then(|| {
                    entry
                        .as_ref()
                        .map_or(place.map_or(0, |p| p.lease), |e| e.lease)
                }))
            {
                self.handle.give_back(lease, stray);
            }
            return Ok(match entry {
                Some(_) => Release::Released { holds: left as u32 },
                None => Release::Withdrawn,
            });
        }
        Err(contended())
    }
}

/// Whether a claim without a place has to try again: one that queues needs a place.
fn is_undecided(claim: &Claim, view: &View) -> bool {
    claim.queue || view.first.is_none()
}

fn put(entry: &Entry, lease: Option<Lease>) -> TxnOp {
    let options = match lease {
        Some(lease) => PutOptions::new().with_lease(lease.id),
        None => PutOptions::new().with_ignore_lease(),
    };
    TxnOp::put(entry.key.as_str(), entry.value.to_bytes(), Some(options))
}

#[async_trait]
impl DistributedLock for EtcdLock {
    fn capabilities(&self) -> Capabilities {
        self.handle.shared.capabilities.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let name = shared.names.of(claim);
        let ttl = self.granted(claim.ttl);
        for _ in 0..TRIES {
            let tried = match shared.claims.find(name.key()) {
                None => self.attempt(claim, &name, ttl, None).await?,
                Some(known)
                    if known.state == State::Queued
                        && self.handle.wakeup.is_first(&name, known.created) =>
                {
                    self.take_turn(claim, &name, ttl, known).await?
                }
                Some(known) => {
                    let view = self.look(&name).await?;
                    let is_mine = view.first.as_ref().is_some_and(|e| e.owner == claim.owner);
                    if is_mine || view.own.is_some() {
                        self.judge(claim, &name, ttl, view, None).await?
                    } else if known.state == State::Trying {
                        self.attempt(claim, &name, ttl, Some(known)).await?
                    } else {
                        self.lose(&name, known).await?;
                        None
                    }
                }
            };
            if let Some(attempt) = tried {
                return Ok(attempt);
            }
        }
        Err(contended())
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let mut answers = self.renew_all(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(strange()))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let name = shared.names.of(claim);
        let known = shared.claims.find(name.key());
        let Some(known) = known.filter(|known| {
            known.state != State::Trying && known.holds == 1 && known.key == name.key()
        }) else {
            return self.release_found(claim, &name).await;
        };
        let delete = || {
            view::change(
                name.key(),
                known.modified,
                [TxnOp::delete(name.key(), None)],
            )
        };
        let answer = self.txn(delete).await?;
        // Not found, after a copy of the request that was not answered: that one has done it.
        let is_done = answer.value.succeeded()
            || answer.repeated && view::found(&shared.names, &answer.value)?.is_none();
        if !is_done {
            return self.release_found(claim, &name).await;
        }
        shared.claims.forget(name.key());
        self.handle.give_back(known.lease, known.stray);
        Ok(match known.state {
            State::Held => Release::Released { holds: 0 },
            _ => Release::Withdrawn,
        })
    }

    async fn wait(&self, claim: &Claim, _busy: &Busy) {
        let Handle { shared, wakeup, .. } = &*self.handle;
        let name = shared.names.of(claim);
        if let Some(known) = shared.claims.find(name.key()) {
            let _interest = self.handle.interest(name.key());
            wakeup.wait(&name, known.created).await;
        }
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        renewal::renew_all(&self.handle, claims).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        list::inspect(&self.handle, key).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        list::list(&self.handle, prefix, page).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        let names = &self.handle.shared.names;
        let lock = names.lock(key);
        for _ in 0..TRIES {
            let read = || Txn::new().and_then([view::first(&lock)]);
            let answer = self.txn(read).await?;
            let Some(first) = view::found(names, &answer.value)? else {
                return Ok(false);
            };
            if token.is_some_and(|token| u64::try_from(first.created) != Ok(token.as_u64())) {
                return Ok(false);
            }
            // By its revision, so that no later grant is ended; the lease may serve another lock
            // by now unless the key still had it.
            let delete = || {
                view::change(
                    &first.key,
                    first.modified,
                    [TxnOp::delete(first.key.as_str(), None)],
                )
            };
            let answer = self.txn(delete).await?;
            if answer.value.succeeded() {
                self.handle.revoke_later(first.lease);
                return Ok(true);
            }
        }
        Err(contended())
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        // It connects when it is first used: on the runtime that uses it.
        let handle = self.handle.another()?;
        Ok(Arc::new(Self { handle }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.handle.close().await;
        Ok(())
    }
}

impl Handle {
    pub(crate) async fn txn(&self, txn: impl Fn() -> Txn) -> Result<Answer<TxnResponse>, Failure> {
        self.connection
            .send(|client| {
                let mut kv = client.kv_client();
                let txn = txn();
                async move { kv.txn(txn).await }
            })
            .await
    }

    /// A key, read linearizably.
    pub(crate) async fn read(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let get = self.connection.call(|client| {
            let mut kv = client.kv_client();
            let key = key.to_owned();
            async move { kv.get(key, None).await }
        });
        view::only(&self.shared.names, &get.await?)
    }

    /// Several keys, read at one revision.
    pub(crate) async fn read_all(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StoreError> {
        let gets = || {
            let gets: Vec<_> = keys
                .iter()
                .map(|key| TxnOp::get(key.as_str(), None))
                .collect();
            Txn::new().and_then(gets)
        };
        let answer = self.txn(gets).await?;
        let read = answer
            .value
            .op_responses()
            .into_iter()
            .map(|read| match read {
                TxnOpResponse::Get(get) => view::only(&self.shared.names, &get),
                _ => Err(strange()),
            });
        read.collect()
    }
}
