//! Renewals: a keep-alive for each lease, then one read that proves that the keys are there.
//!
//! The read is what notices a key that somebody has deleted, and a member that answers
//! keep-alives although it leads no longer. Neither writes anything.

use std::collections::HashSet;

use etcd_client::{PutOptions, TxnOp};
use futures_util::future::join_all;
use lock_core::{Claim, Clock, Moment, Renewal, StoreError, SystemClock, Ttl};

use crate::{
    claims::{Known, State},
    error::contended,
    handle::Handle,
    keepalive::Alive,
    record::Name,
    requests::Read,
    view::{self, View},
};

/// How many keys one read takes; the server's default limit is 128.
const READS: usize = 100;

type Answer = Result<Renewal, StoreError>;

pub(crate) async fn renew_all(handle: &Handle, claims: &[Claim]) -> Vec<Answer> {
    let batches = claims.chunks(READS).map(|batch| renew_batch(handle, batch));
    join_all(batches).await.into_iter().flatten().collect()
}

async fn renew_batch(handle: &Handle, claims: &[Claim]) -> Vec<Answer> {
    let names: Vec<Name> = claims.iter().map(|c| handle.shared.names.of(c)).collect();
    let known: Vec<_> = names
        .iter()
        .map(|name| {
            handle
                .shared
                .claims
                .find(&name.id)
                .filter(|k| k.state == State::Held)
        })
        .collect();
    let began = SystemClock.now();
    // Claims with the same lease need it once.
    let mut leases: HashSet<i64> = HashSet::new();
    let ttls = claims.iter().map(|claim| handle.shared.granted(claim.ttl));
    let live = known.iter().zip(ttls).filter_map(|(known, ttl)| {
        let known = known.as_ref()?;
        (!is_over(handle, known, ttl, began)).then_some(known.lease)
    });
    leases.extend(live);
    let alive = leases
        .iter()
        .map(async |lease| (*lease, handle.keep_alive(*lease).await));
    let alive: std::collections::HashMap<_, _> = join_all(alive).await.into_iter().collect();

    let keys: Vec<_> = known
        .iter()
        .flatten()
        .map(|known| known.key.clone())
        .collect();
    let read = match keys.is_empty() {
        true => Ok(Vec::new()),
        false => handle.read_all(&keys).await,
    };
    let mut read = match read {
        Ok(entries) => entries.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(why) => keys
            .iter()
            .map(|_| Err(StoreError::new(why.kind(), why.to_string())))
            .collect(),
    }
    .into_iter();

    let mut answers = Vec::with_capacity(claims.len());
    for ((claim, name), known) in claims.iter().zip(&names).zip(known) {
        let ttl = handle.shared.granted(claim.ttl);
        let quick = match &known {
            None => None,
            Some(known) if is_over(handle, known, ttl, began) => {
                read.next();
                end(handle, name, known).await
            }
            Some(known) => {
                let read = read.next().unwrap_or_else(|| Err(contended()));
                quick(claim, ttl, known, alive.get(&known.lease), read)
            }
        };
        answers.push(match quick {
            Some(answer) => answer,
            None => renew(handle, claim, name, ttl).await,
        });
    }
    answers
}

/// Whether the ttl is over by all that this process knows. The server looks for leases that are
/// over from time to time only, and may still renew this one.
fn is_over(handle: &Handle, known: &Known, ttl: Ttl, now: Moment) -> bool {
    let lease = handle.shared.leases.used(known.lease);
    lease.is_some_and(|lease| lease.renewed + lease.ttl().max(ttl.as_duration()) <= now)
}

/// Ends a grant whose ttl is over, unless the owner has entered or left elsewhere since: then it
/// has to be looked at.
async fn end(handle: &Handle, name: &Name, known: &Known) -> Option<Answer> {
    let ended = handle
        .txn(|| {
            let delete = TxnOp::delete(known.key.as_str(), None);
            view::change(&known.key, known.modified, [delete])
        })
        .await;
    match ended {
        Ok(answer) if answer.value.succeeded() => Some(Ok(gone(handle, name, false, true))),
        Ok(_) => None,
        Err(failure) => Some(Err(failure.error)),
    }
}

/// What the batch says of a claim; `None` when it has to be looked at by itself.
fn quick(
    claim: &Claim,
    ttl: Ttl,
    known: &Known,
    alive: Option<&Result<Alive, StoreError>>,
    read: Result<Read, StoreError>,
) -> Option<Answer> {
    let alive = match alive? {
        Ok(alive) => alive,
        Err(why) => return Some(Err(StoreError::new(why.kind(), why.to_string()))),
    };
    let (entry, term) = match read {
        Ok(Read { entry, term }) => (entry?, term),
        Err(why) => return Some(Err(why)),
    };
    let is_long = matches!(alive, Alive::For(life) if life.is_enough(ttl, term));
    let is_same = entry.has(claim) && entry.lease == known.lease;
    (is_long && is_same).then_some(Ok(Renewal::Renewed { ttl }))
}

/// A renewal by itself, by what the store has.
async fn renew(handle: &Handle, claim: &Claim, name: &Name, ttl: Ttl) -> Answer {
    const TRIES: u32 = 32;
    let shared = &handle.shared;
    for _ in 0..TRIES {
        let before = shared.claims.find(&name.id);
        let own = before.as_ref().and_then(Known::own_key);
        let reads = || etcd_client::Txn::new().and_then(View::reads(name, own));
        let answer = handle.txn(reads).await?;
        let view = View::read(&shared.names, &answer.value, own)?;
        let is_in_queue = view.own.is_some();
        let Some(entry) = view.first else {
            return Ok(gone(handle, name, false, true));
        };
        if !entry.has(claim) {
            let taken_over = !entry.is_of(claim);
            return Ok(gone(handle, name, taken_over, !is_in_queue && taken_over));
        }
        let Alive::For(life) = handle.keep_alive(entry.lease).await? else {
            // The lease has just ended; the key goes with it.
            tokio::task::yield_now().await;
            continue;
        };
        let before = before.as_ref();
        let mut known = Known {
            state: State::Held,
            key: entry.key.clone(),
            is_own: before.is_some_and(|b| b.is_own && b.key == entry.key),
            lease: entry.lease,
            created: entry.created,
            modified: entry.modified,
            holds: entry.value.holds.len() as u32,
            stray: before.is_some_and(|b| b.stray && b.lease == entry.lease),
            covered: None,
            handle: handle.number,
        };
        // A read after the keep-alive: the key may have gone before.
        let longer = match life.seconds * 1000 >= ttl.as_millis() {
            true => None,
            false => Some(handle.lease(ttl).await?),
        };
        let Some(longer) = longer else {
            let Read { entry: now, term } = handle.read(&entry.key).await?;
            if life.is_doubtful(term) {
                handle.doubt().await;
                continue;
            }
            match now {
                Some(now) if now.created == entry.created && now.lease == entry.lease => {
                    if !now.has(claim) {
                        continue;
                    }
                    known.modified = now.modified;
                    known.holds = now.value.holds.len() as u32;
                    shared.claims.set(&name.id, known);
                    return Ok(Renewal::Renewed { ttl });
                }
                _ => continue,
            }
        };
        let put = || {
            let options = PutOptions::new().with_lease(longer.id);
            TxnOp::put(entry.key.as_str(), entry.value.to_bytes(), Some(options))
        };
        let moved = handle
            .txn(|| view::change(&entry.key, entry.modified, [put()]))
            .await;
        match moved {
            Ok(answer) if answer.value.succeeded() => {
                handle.left_behind(known.lease);
                known.lease = longer.id;
                known.stray = false;
                known.modified = view::revision(&answer.value);
                shared.claims.set(&name.id, known);
                return Ok(Renewal::Renewed { ttl });
            }
            Ok(answer) => handle.give_back(longer.id, answer.repeated),
            Err(failure) => {
                handle.revoke_later(longer.id);
                return Err(failure.error);
            }
        }
    }
    Err(contended())
}

/// The claim holds nothing; its lease, if it had one of its own, is of no use any more.
fn gone(handle: &Handle, name: &Name, taken_over: bool, is_over: bool) -> Renewal {
    let known = handle.shared.claims.find(&name.id);
    if let Some(known) = known.filter(|k| k.state == State::Held) {
        handle.shared.claims.forget(&name.id);
        if is_over && known.is_own {
            handle.revoke_later(known.lease);
        }
    }
    Renewal::Gone { taken_over }
}
