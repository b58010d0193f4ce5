//! Transactions and reads, as they go to a member.

use etcd_client::{
    GetOptions, GetResponse, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lock_core::{Result, StoreError};

use crate::{
    connection::Answer,
    error::{Failure, strange},
    handle::Handle,
    record::Entry,
    view,
};

/// How often a change is tried that others get in the way of.
pub(crate) const TRIES: u32 = 32;

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
    pub(crate) async fn read(&self, key: &str) -> Result<Read, StoreError> {
        let get = self.get(key, None).await?;
        Ok(Read {
            entry: view::only(&self.shared.names, &get)?,
            term: view::term(get.header()),
        })
    }

    /// All keys of a lock, in the order of their creation.
    pub(crate) async fn read_lock(&self, lock: &str) -> Result<Vec<Entry>, Failure> {
        let in_order = GetOptions::new()
            .with_prefix()
            .with_sort(SortTarget::Create, SortOrder::Ascend);
        let get = self.get(lock, Some(in_order)).await?;
        let entries = get.kvs().iter().map(|kv| self.shared.names.entry(kv));
        Ok(entries.collect::<Result<_, _>>()?)
    }

    async fn get(&self, key: &str, options: Option<GetOptions>) -> Result<GetResponse, StoreError> {
        let get = self.connection.call(|client| {
            let mut kv = client.kv_client();
            let (key, options) = (key.to_owned(), options.clone());
            async move { kv.get(key, options).await }
        });
        Ok(get.await?)
    }

    /// Several keys, read at one revision.
    pub(crate) async fn read_all(&self, keys: &[String]) -> Result<Vec<Read>, StoreError> {
        let gets = || {
            let gets: Vec<_> = keys
                .iter()
                .map(|key| TxnOp::get(key.as_str(), None))
                .collect();
            Txn::new().and_then(gets)
        };
        let answer = self.txn(gets).await?;
        let term = view::term(answer.value.header());
        let read = answer
            .value
            .op_responses()
            .into_iter()
            .map(|read| match read {
                TxnOpResponse::Get(get) => Ok(Read {
                    entry: view::only(&self.shared.names, &get)?,
                    term,
                }),
                _ => Err(strange()),
            });
        read.collect()
    }
}

/// A key as it was read, or that there is none, and the raft term of the member that said so.
pub(crate) struct Read {
    pub(crate) entry: Option<Entry>,
    pub(crate) term: u64,
}
