//! What a lock's keys say: who holds it, and who waits in which order.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use lock_core::{Busy, FencingToken, StoreError};

use crate::{
    error::strange,
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
}

/// The place of a claim's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

impl View {
    /// What [`View::read`] reads: the first key of a lock, of how many, and the claim's own.
    pub(crate) fn reads(name: &Name) -> [TxnOp; 2] {
        let own = GetOptions::new().with_keys_only();
        [first(name.lock()), TxnOp::get(name.key(), Some(own))]
    }

    /// Reads the answer to a transaction that ends with [`View::reads`].
    pub(crate) fn read(names: &Names, response: &TxnResponse) -> Result<Self, StoreError> {
        let responses = response.op_responses();
        let [.., TxnOpResponse::Get(first), TxnOpResponse::Get(own)] = responses.as_slice() else {
            return Err(strange());
        };
        Ok(Self {
            first: only(names, first)?,
            own: own.kvs().first().map(|kv| Place {
                created: kv.create_revision(),
                lease: kv.lease(),
            }),
            count: u32::try_from(first.count()).unwrap_or(u32::MAX),
            revision: revision(response),
        })
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

/// One attempt: puts the claim's key if the lock is free; if it is not and the claim queues, puts
/// it if the owner has no key yet; and reads what there is.
pub(crate) fn attempt(name: &Name, value: &[u8], lease: i64, queue: bool) -> Txn {
    let free = Compare::create_revision(name.lock(), CompareOp::Equal, 0).with_prefix();
    let put = || TxnOp::put(name.key(), value, Some(PutOptions::new().with_lease(lease)));
    let mut otherwise = Vec::with_capacity(3);
    if queue {
        let stranger = Compare::create_revision(name.owner(), CompareOp::Equal, 0).with_prefix();
        otherwise.push(TxnOp::txn(Txn::new().when([stranger]).and_then([put()])));
    }
    otherwise.extend(View::reads(name));
    Txn::new().when([free]).and_then([put()]).or_else(otherwise)
}

/// A place in the queue beside another claim of the same owner.
pub(crate) fn enqueue(name: &Name, value: &[u8], lease: i64) -> Txn {
    let missing = Compare::create_revision(name.key(), CompareOp::Equal, 0);
    let put = TxnOp::put(name.key(), value, Some(PutOptions::new().with_lease(lease)));
    let [first, own] = View::reads(name);
    Txn::new()
        .when([missing])
        .and_then([put, first, own])
        .or_else(View::reads(name))
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
    response
        .header()
        .map_or(0, etcd_client::ResponseHeader::revision)
}

pub(crate) fn token(created: i64) -> Result<FencingToken, StoreError> {
    let token = u64::try_from(created).ok().and_then(FencingToken::new);
    token.ok_or_else(strange)
}
