//! Giving up a hold or a place in the queue, one's own or somebody else's.

use etcd_client::{Txn, TxnOp};
use lock_core::{Claim, FencingToken, LockKey, Release, Result, StoreError};

use crate::{
    EtcdLock,
    claims::{Known, State},
    error::contended,
    handle::Handle,
    record::{Entry, Name},
    requests::TRIES,
    view::{self, put},
};

impl EtcdLock {
    /// Gives up a held or queued claim: one transaction when this process made it and nobody has
    /// touched it since.
    pub(crate) async fn give_up(&self, claim: &Claim) -> Result<Release, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        let name = shared.names.of(claim);
        let known = shared.claims.find(&name.id);
        let is_sure = |known: &Known| known.state != State::Trying && known.holds == 1;
        let Some(known) = known.filter(|known| known.is_own && is_sure(known)) else {
            return self.release_found(claim, &name).await;
        };
        let delete = || {
            let delete = TxnOp::delete(known.key.as_str(), None);
            view::change(&known.key, known.modified, [delete])
        };
        let answer = self.txn(delete).await?;
        // Not found, after a copy of the request that was not answered: that one has done it.
        let is_done = answer.value.succeeded()
            || answer.repeated && view::found(&shared.names, &answer.value)?.is_none();
        if !is_done {
            return self.release_found(claim, &name).await;
        }
        shared.claims.forget(&name.id);
        self.handle.give_back(known.lease, known.stray);
        Ok(match known.state {
            State::Held => Release::Released { holds: 0 },
            _ => Release::Withdrawn,
        })
    }

    /// Releases what this process knows less of than the store.
    async fn release_found(&self, claim: &Claim, name: &Name) -> Result<Release, StoreError> {
        let Handle { shared, .. } = &*self.handle;
        for _ in 0..TRIES {
            let known = shared.claims.find(&name.id);
            let all = self.handle.read_lock(name.lock()).await?;
            let first = all.first().map_or(0, |first| first.created);
            let mut mine = all.into_iter().filter(|entry| entry.has(claim));
            let Some(mut entry) = mine.next() else {
                shared.claims.forget(&name.id);
                if let Some(known) = known.filter(|known| known.is_own) {
                    self.handle.revoke_later(known.lease);
                }
                return Ok(Release::NotHeld);
            };
            // Places in the queue beside the hold.
            let rest: Vec<_> = mine.collect();
            entry.value.holds.retain(|hold| *hold != claim.hold);
            let left = entry.value.holds.len() as u32;
            let answer = self
                .txn(|| {
                    let mut to = vec![match left {
                        0 => TxnOp::delete(entry.key.as_str(), None),
                        _ => put(&entry, None),
                    }];
                    to.extend(rest.iter().map(|e| TxnOp::delete(e.key.as_str(), None)));
                    view::change(&entry.key, entry.modified, to)
                })
                .await?;
            if !answer.value.succeeded() {
                continue;
            }
            shared.claims.forget(&name.id);
            let is_held = entry.created == first;
            let ended = (left == 0).then_some(entry);
            for Entry { lease, .. } in rest.into_iter().chain(ended) {
                let stray = |known: &Known| known.stray && known.lease == lease;
                self.handle
                    .give_back(lease, known.as_ref().is_some_and(stray));
            }
            return Ok(match is_held {
                true => Release::Released { holds: left },
                false => Release::Withdrawn,
            });
        }
        Err(contended())
    }

    /// Ends the grant of whoever holds the lock.
    pub(crate) async fn end_grant(
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
}
