//! What a lock's keys say: who holds it, and who waits in which order.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use lock_core::{Busy, FencingToken, StoreError};

use crate::{
    error::{foreign, strange},
    record::{Entry, Name, Names},
};

/// The keys of a lock, read at one revision.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) first: Option<Entry>,
    /// In the order of their creation.
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    name: Vec<u8>,
    created: i64,
    lease: i64,
}

/// The place of a claim's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

impl View {
    /// The two reads that [`View::read`] takes: the first key with its value, and all names.
    pub(crate) fn reads(lock: &str) -> [TxnOp; 2] {
        let all = || GetOptions::new().with_prefix();
        let first = all()
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        [
            TxnOp::get(lock, Some(first)),
            TxnOp::get(lock, Some(all().with_keys_only())),
        ]
    }

    pub(crate) fn read(names: &Names, responses: &[TxnOpResponse]) -> Result<Self, StoreError> {
        let [.., TxnOpResponse::Get(first), TxnOpResponse::Get(all)] = responses else {
            return Err(strange());
        };
        let first = match first.kvs().first() {
            Some(kv) => Some(names.entry(kv)?),
            None => None,
        };
        let mut keys: Vec<_> = all
            .kvs()
            .iter()
            .map(|kv| Key {
                name: kv.key().to_vec(),
                created: kv.create_revision(),
                lease: kv.lease(),
            })
            .collect();
        keys.sort_unstable_by_key(|key| key.created);
        if let Some(key) = keys.iter().find(|key| names.read(&key.name).is_none()) {
            return Err(foreign(&key.name));
        }
        Ok(Self { first, keys })
    }

    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        let key = self.keys.iter().find(|key| key.name == name.as_bytes())?;
        Some(Place {
            created: key.created,
            lease: key.lease,
        })
    }

    /// What a claim is told that does not hold the lock.
    pub(crate) fn busy(&self, name: &str, remaining: Duration) -> Result<Busy, StoreError> {
        let place = self.keys.iter().position(|key| key.name == name.as_bytes());
        Ok(Busy {
            holder: match &self.first {
                Some(first) => Some(first.holder(remaining)?),
                None => None,
            },
            remaining,
            // The first one holds it.
            position: place.filter(|place| *place > 0).map(|place| place as u32),
            queued: self.keys.len().saturating_sub(1) as u32,
        })
    }
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
    otherwise.extend(View::reads(name.lock()));
    Txn::new().when([free]).and_then([put()]).or_else(otherwise)
}

/// A place in the queue beside another claim of the same owner.
pub(crate) fn enqueue(name: &Name, value: &[u8], lease: i64) -> Txn {
    let missing = Compare::create_revision(name.key(), CompareOp::Equal, 0);
    let put = TxnOp::put(name.key(), value, Some(PutOptions::new().with_lease(lease)));
    let reads = || View::reads(name.lock());
    let [first, all] = reads();
    Txn::new()
        .when([missing])
        .and_then([put, first, all])
        .or_else(reads())
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
