//! What a lock's keys say: who holds it, and who waits in which order.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, ResponseHeader, SortOrder, SortTarget,
    Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lock_core::{Busy, Claim, FencingToken, StoreError};

use crate::{
    error::strange,
    lease::Lease,
    record::{Entry, Name, Names},
};

/// What is read of a lock, at one revision.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) first: Option<Entry>,
    /// The claim's own key.
    pub(crate) own: Option<Place>,
    /// How many keys there are.
    pub(crate) count: u32,
    pub(crate) revision: i64,
    /// The raft term of the member that answered.
    pub(crate) term: u64,
}

/// The place of a claim's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

impl View {
    /// What [`View::read`] reads: the first key of a lock, of how many, and the claim's own.
    pub(crate) fn reads(name: &Name, own: Option<&str>) -> Vec<TxnOp> {
        let mut reads = vec![first(name.lock())];
        reads.extend(own.map(|own| {
            let options = GetOptions::new().with_keys_only();
            TxnOp::get(own, Some(options))
        }));
        reads
    }

    /// Reads the answer to a transaction that ends with [`View::reads`].
    pub(crate) fn read(
        names: &Names,
        response: &TxnResponse,
        own: Option<&str>,
    ) -> Result<Self, StoreError> {
        let responses = response.op_responses();
        let (first, own) = match (responses.as_slice(), own) {
            ([.., TxnOpResponse::Get(first)], None) => (first, None),
            ([.., TxnOpResponse::Get(first), TxnOpResponse::Get(own)], Some(_)) => {
                (first, own.kvs().first())
            }
            _ => return Err(strange()),
        };
        Ok(Self {
            first: only(names, first)?,
            own: own.map(|kv| Place {
                created: kv.create_revision(),
                lease: kv.lease(),
            }),
            count: u32::try_from(first.count()).unwrap_or(u32::MAX),
            revision: revision(response),
            term: term(response.header()),
        })
    }

    /// Whether the owner of a claim holds the lock.
    pub(crate) fn is_of(&self, claim: &Claim) -> bool {
        self.first.as_ref().is_some_and(|first| first.is_of(claim))
    }

    /// What a claim is told that does not hold the lock. `position` counts the keys up to its
    /// own, the holder's included.
    pub(crate) fn busy(
        &self,
        position: Option<u32>,
        remaining: Duration,
    ) -> Result<Busy, StoreError> {
        Ok(Busy {
            holder: match &self.first {
                Some(first) => Some(first.holder(remaining)?),
                None => None,
            },
            remaining,
            position: position.map(|place| place.saturating_sub(1).max(1)),
            queued: self.count.saturating_sub(1),
        })
    }
}

/// Reads the key of a lock that was created first.
pub(crate) fn first(lock: &str) -> TxnOp {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    TxnOp::get(lock, Some(options))
}

/// The short attempt: puts the claim's key if the lock is free. Most locks are, and etcd's time
/// for a transaction grows with what it says.
pub(crate) fn attempt(name: &Name, value: &[u8], lease: i64) -> Txn {
    let put = TxnOp::put(name.key(lease), value, Some(on(lease)));
    Txn::new().when([is_free(name)]).and_then([put])
}

/// The whole attempt: puts the claim's key if the lock is free; if it is not and the claim queues,
/// puts it all the same, and reads what there is.
pub(crate) fn attempt_or_queue(name: &Name, value: &[u8], lease: i64, queue: bool) -> Txn {
    let own = name.key(lease);
    let put = || TxnOp::put(own.as_str(), value, Some(on(lease)));
    let mut otherwise = Vec::with_capacity(3);
    if queue {
        // Not once more, for its place is by when it was created.
        let missing = Compare::create_revision(own.as_str(), CompareOp::Equal, 0);
        otherwise.push(TxnOp::txn(Txn::new().when([missing]).and_then([put()])));
    }
    otherwise.extend(View::reads(name, Some(&own)));
    Txn::new()
        .when([is_free(name)])
        .and_then([put()])
        .or_else(otherwise)
}

fn is_free(name: &Name) -> Compare {
    Compare::create_revision(name.lock(), CompareOp::Equal, 0).with_prefix()
}

fn on(lease: i64) -> PutOptions {
    PutOptions::new().with_lease(lease)
}

/// Changes a key if it is as it was read; reads it otherwise.
pub(crate) fn change(key: &str, modified: i64, to: impl Into<Vec<TxnOp>>) -> Txn {
    let same = Compare::mod_revision(key, CompareOp::Equal, modified);
    Txn::new()
        .when([same])
        .and_then(to)
        .or_else([TxnOp::get(key, None)])
}

/// The key that a change did not find as it was; `None` when it is gone.
pub(crate) fn found(names: &Names, response: &TxnResponse) -> Result<Option<Entry>, StoreError> {
    match response.op_responses().as_slice() {
        [TxnOpResponse::Get(get)] => only(names, get),
        _ => Err(strange()),
    }
}

pub(crate) fn only(names: &Names, get: &GetResponse) -> Result<Option<Entry>, StoreError> {
    match get.kvs().first() {
        Some(kv) => names.entry(kv).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn revision(response: &TxnResponse) -> i64 {
    response.header().map_or(0, ResponseHeader::revision)
}

pub(crate) fn term(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, ResponseHeader::raft_term)
}

pub(crate) fn token(created: i64) -> Result<FencingToken, StoreError> {
    let token = u64::try_from(created).ok().and_then(FencingToken::new);
    token.ok_or_else(strange)
}

/// Writes an entry as it is now, with its lease or another one.
pub(crate) fn put(entry: &Entry, lease: Option<Lease>) -> TxnOp {
    let options = match lease {
        Some(lease) => PutOptions::new().with_lease(lease.id),
        None => PutOptions::new().with_ignore_lease(),
    };
    TxnOp::put(entry.key.as_str(), entry.value.to_bytes(), Some(options))
}
