//! Acquiring: one short transaction when the lock is free, more when others are at it.

use std::time::Duration;

use etcd_client::{TxnOp, TxnResponse};
use futures_util::future::join;
use lock_core::{Attempt, Busy, Claim, Clock, Grant, Moment, Result, StoreError, SystemClock, Ttl};

use crate::{
    EtcdLock,
    claims::{Known, State},
    connection::Answer,
    error::{Cure, Failure, contended},
    handle::Handle,
    keepalive::Alive,
    lease::Lease,
    record::{Entry, Name, Value},
    requests::{Read, TRIES},
    view::{self, View, put},
};

impl EtcdLock {
    /// One attempt of a claim, whatever is known of it.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let name = shared.names.of(claim);
        let ttl = self.granted(claim.ttl);
        for _ in 0..TRIES {
            let tried = match shared.claims.find(&name.id) {
                None => self.attempt(claim, &name, ttl, None).await?,
                Some(known)
                    if known.state == State::Queued
                        && self
                            .handle
                            .wakeup
                            .is_first(name.lock(), &known.key, known.created) =>
                {
                    self.take_turn(claim, &name, ttl, known).await?
                }
                Some(known) => {
                    let view = self.look(&name, known.own_key()).await?;
                    if view.is_of(claim) || view.own.is_some() {
                        self.judge(claim, &name, ttl, view, Some(known)).await?
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
        let is_repeat = lost.is_some();
        let was_stray = again.is_some() && lost.as_ref().is_some_and(|known| known.stray);
        let lease = match (again, lost) {
            (Some(lease), _) => lease,
            (None, Some(known)) => {
                // Whatever may still put its key comes too late from now on.
                self.handle.revoke(known.lease).await?;
                self.handle.lease(ttl).await?
            }
            (None, None) => self.handle.lease(ttl).await?,
        };
        let mut known = Known {
            state: State::Trying,
            key: name.key(lease.id),
            is_own: true,
            lease: lease.id,
            created: 0,
            modified: 0,
            holds: 1,
            stray: true,
            covered: None,
            handle: self.handle.number,
        };
        shared.claims.set(&name.id, known.clone());

        let sent = SystemClock.now();
        let put = self.put(claim, name, lease.id, is_repeat);
        let (answer, lease) = join(put, self.freshened(lease, ttl, sent)).await;
        let answer = match answer {
            Ok(Put::Now(answer)) => answer,
            Ok(Put::Before {
                entry,
                is_own,
                repeated,
            }) => {
                self.handle.give_back(known.lease, was_stray || repeated);
                known.state = State::Queued;
                known.is_own = is_own;
                known.lease = entry.lease;
                known.created = entry.created;
                known.modified = entry.modified;
                known.key = entry.key;
                shared.claims.set(&name.id, known);
                return Ok(None);
            }
            Err(failure) if failure.cure == Cure::Lease => {
                shared.claims.forget(&name.id);
                self.handle.distrust_leases(known.lease);
                return Ok(None);
            }
            Err(failure) => {
                // A server that is out of space refuses whatever might put something: but the
                // claim may have its key already.
                if failure.cure == Cure::Space {
                    let view = self.look(name, known.own_key()).await?;
                    if view.is_of(claim) || view.own.is_some() {
                        return self.judge(claim, name, ttl, view, Some(known)).await;
                    }
                }
                if !failure.error.is_transient() {
                    shared.claims.forget(&name.id);
                    self.handle.revoke_later(known.lease);
                }
                return Err(failure.error);
            }
        };
        known.stray = was_stray || answer.repeated;
        if !answer.value.succeeded() {
            let view = View::read(&shared.names, &answer.value, known.own_key())?;
            if let Ok(Some(lease)) = &lease {
                known.covered = lease.end(view.term);
            }
            return self.judge(claim, name, ttl, view, Some(known)).await;
        }
        known.created = view::revision(&answer.value);
        known.modified = known.created;
        let term = view::term(answer.value.header());
        match lease? {
            Some(lease)
                if lease
                    .end(term)
                    .is_some_and(|end| end >= sent + ttl.as_duration()) =>
            {
                self.grant(name, known, ttl).map(Some)
            }
            Some(lease) if lease.end(term).is_none() => self.prove(claim, name, ttl, known).await,
            _ => {
                self.handle.revoke(known.lease).await?;
                shared.claims.forget(&name.id);
                Ok(None)
            }
        }
    }

    /// Puts the claim's key if the lock is free, or queues it: at once if others are known to be
    /// at the lock, or when they are found there.
    async fn put(
        &self,
        claim: &Claim,
        name: &Name,
        lease: i64,
        is_repeat: bool,
    ) -> Result<Put, Failure> {
        let wakeup = &self.handle.wakeup;
        let value = Value::new(claim).to_bytes();
        let mut whole = is_repeat || wakeup.is_taken(name.lock());
        let mut repeated = false;
        loop {
            if whole && claim.queue && !is_repeat && !wakeup.is_new(name.lock(), claim.owner) {
                // It may have a place by another process, or its owner may hold the lock.
                let all = self.handle.read_lock(name.lock()).await?;
                let is_mine = |(place, entry): &(usize, Entry)| {
                    entry.has(claim) || *place == 0 && entry.is_of(claim)
                };
                let found = all.into_iter().enumerate().find(is_mine);
                if let Some((place, entry)) = found {
                    let is_own = place > 0;
                    return Ok(Put::Before {
                        entry,
                        is_own,
                        repeated,
                    });
                }
            }
            let txn = || match whole {
                false => view::attempt(name, &value, lease),
                true => view::attempt_or_queue(name, &value, lease, claim.queue),
            };
            let mut answer = self.txn(txn).await?;
            repeated |= answer.repeated;
            if whole || answer.value.succeeded() {
                answer.repeated = repeated;
                return Ok(Put::Now(answer));
            }
            whole = true;
        }
    }

    /// The lease as it runs for the ttl from `sent` on, by a keep-alive if that is not known;
    /// `None` when it is gone.
    async fn freshened(
        &self,
        lease: Lease,
        ttl: Ttl,
        sent: Moment,
    ) -> Result<Option<Lease>, StoreError> {
        if lease.covers(ttl, sent) {
            return Ok(Some(lease));
        }
        Ok(match self.handle.keep_alive(lease.id).await? {
            Alive::For(life) => Some(lease.with(sent, life)),
            Alive::Gone => None,
        })
    }

    /// What a claim gets that found others, or itself, at the lock. `known` says what it has put.
    async fn judge(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        mut view: View,
        known: Option<Known>,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        if let Some(known) = known.filter(|known| known.is_own) {
            match view.own {
                Some(place) => shared.claims.set(
                    &name.id,
                    Known {
                        state: State::Queued,
                        lease: place.lease,
                        created: place.created,
                        modified: place.created,
                        holds: 1,
                        ..known
                    },
                ),
                // It was not put, or it is gone.
                None => {
                    let is_clean = known.state == State::Trying && !known.stray;
                    self.handle.give_back(known.lease, !is_clean);
                    shared.claims.forget(&name.id);
                }
            }
        }
        let is_queued = view.own.is_some();
        match view.first.take_if(|first| first.is_of(claim)) {
            Some(first) => self.enter(claim, name, ttl, first, view.term).await,
            // One that queues needs a place.
            None if !is_queued && (claim.queue || view.first.is_none()) => Ok(None),
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
        mut term: u64,
    ) -> Result<Option<Attempt>, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        for _ in 0..TRIES {
            let before = shared.claims.find(&name.id).filter(|known| known.is_own);
            let is_own = before.as_ref().is_some_and(|b| b.key == entry.key);
            let life = match self.handle.keep_alive(entry.lease).await? {
                Alive::For(life) => life,
                Alive::Gone => return Ok(None),
            };
            if life.is_doubtful(term) {
                self.handle.doubt().await;
                continue;
            }
            let mut known = Known {
                state: State::Held,
                key: entry.key.clone(),
                is_own,
                lease: entry.lease,
                created: entry.created,
                modified: entry.modified,
                holds: entry.value.holds.len() as u32,
                stray: before
                    .as_ref()
                    .is_some_and(|b| b.stray && b.lease == entry.lease),
                covered: None,
                handle: self.handle.number,
            };
            // Its own place in the queue, if it has one, goes with the same transaction.
            let own = before.filter(|b| b.key != entry.key);
            let is_long = life.is_enough(ttl, term);
            if is_long && entry.has(claim) {
                if let Some(own) = own {
                    self.handle.revoke_later(own.lease);
                }
                return self.grant(name, known, ttl).map(Some);
            }
            if !entry.has(claim) {
                entry.value.holds.push(claim.hold);
            }
            let longer = match is_long {
                true => None,
                false => Some(self.handle.lease(ttl).await?),
            };
            let answer = self
                .txn(|| {
                    let mut to = vec![put(&entry, longer)];
                    to.extend(
                        own.as_ref()
                            .map(|own| TxnOp::delete(own.key.as_str(), None)),
                    );
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
                    self.handle.left_behind(known.lease);
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
            term = view::term(answer.value.header());
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
        let known = Known {
            state: State::Held,
            ..known
        };
        self.handle.shared.claims.set(&name.id, known);
        Ok(Attempt::Granted(grant))
    }

    /// The claim is the first of the queue by all that was heard: it takes its turn if its key
    /// and its lease are alive.
    ///
    /// Its key was alive when that of the one before it was deleted: the server tells of both in
    /// the order of its history. So no request is needed while the lease cannot have ended since.
    async fn take_turn(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        known: Known,
    ) -> Result<Option<Attempt>, StoreError> {
        let needed = SystemClock.now() + ttl.as_duration();
        if known.covered.is_some_and(|end| end >= needed) {
            return self.grant(name, known, ttl).map(Some);
        }
        self.prove(claim, name, ttl, known).await
    }

    /// Grants the lock if the claim's key and its lease are alive.
    async fn prove(
        &self,
        claim: &Claim,
        name: &Name,
        ttl: Ttl,
        mut known: Known,
    ) -> Result<Option<Attempt>, StoreError> {
        for _ in 0..TRIES {
            let alive = self.handle.keep_alive(known.lease);
            let (read, alive) = join(self.handle.read(&known.key), alive).await;
            let Read { entry, term } = read?;
            let (entry, life) = match (entry, alive?) {
                (Some(entry), Alive::For(life)) => (entry, life),
                _ => {
                    self.lose(name, known).await?;
                    return Ok(None);
                }
            };
            if life.is_doubtful(term) {
                self.handle.doubt().await;
                continue;
            }
            let is_same = entry.lease == known.lease && entry.has(claim);
            if !is_same || !life.is_enough(ttl, term) {
                return self.enter(claim, name, ttl, entry, term).await;
            }
            known.modified = entry.modified;
            known.holds = entry.value.holds.len() as u32;
            return self.grant(name, known, ttl).map(Some);
        }
        Err(contended())
    }

    /// The claim's key is gone: whatever may still put it comes too late from now on.
    async fn lose(&self, name: &Name, known: Known) -> Result<(), StoreError> {
        if known.is_own {
            self.handle.revoke(known.lease).await?;
        }
        self.handle.shared.claims.forget(&name.id);
        Ok(())
    }
}

/// What became of an attempt.
enum Put {
    Now(Answer<TxnResponse>),
    /// The claim was at the lock already, or can enter it.
    Before {
        entry: Entry,
        /// It is the claim's own key, in the queue.
        is_own: bool,
        repeated: bool,
    },
}
