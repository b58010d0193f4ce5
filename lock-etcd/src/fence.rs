//! The check of fencing tokens in transactions of an application.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use lock_core::{Error, Fenced, FencingToken, Result, StoreError, Ticket};

use crate::error::Failure;

/// Lets a transaction of the application through only with a ticket that is not older than the
/// last one that passed, and not the same token of another owner.
///
/// The locks may be in any store. The last ticket is kept as a key next to the data,
/// `NAME/TOKEN/OWNER`; a transaction passes when there is no later key than its own.
///
/// ```no_run
/// # async fn example(locks: lock_core::LockClient, client: etcd_client::Client)
/// #     -> lock_core::Result<()> {
/// use etcd_client::TxnOp;
/// use lock_etcd::TxnFence;
///
/// let fence = TxnFence::new("stock/42/fence")?;
/// let guard = locks.acquire("stock/42").await?;
/// let sell = TxnOp::put("stock/42/items", "7", None);
/// fence.run(&client, &guard.ticket(), [sell]).await?; // Err(Fenced): nothing was written
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// For a transaction with conditions of its own there are the parts:
///
/// ```
/// # use etcd_client::{Compare, CompareOp, Txn, TxnOp};
/// # fn example(fence: lock_etcd::TxnFence, ticket: lock_core::Ticket) -> Txn {
/// let mut when = fence.compares(&ticket);
/// when.push(Compare::value("stock/42/items", CompareOp::Equal, "8"));
/// let mut then = fence.ops(&ticket);
/// then.push(TxnOp::put("stock/42/items", "7", None));
/// Txn::new().when(when).and_then(then)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TxnFence {
    name: String,
}

impl TxnFence {
    /// A fence whose key begins with `name` and a slash; nothing else may begin so.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an empty name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match name.is_empty() {
            false => Ok(Self { name }),
            true => Err(Error::InvalidConfig {
                what: "the name of a fence is empty".to_owned(),
            }),
        }
    }

    /// Does the operations in one transaction, if no newer ticket has passed, and returns their
    /// answers in order.
    ///
    /// The same ticket passes again. The operations may not touch the fence's own keys.
    ///
    /// # Errors
    ///
    /// * [`Error::Fenced`] when a newer token has passed, or this one of another owner; nothing
    ///   was written.
    /// * [`Error::Store`] when the cluster failed; they may be done.
    ///
    /// # Cancel safety
    ///
    /// When dropped, they may be done, all or none.
    pub async fn run(
        &self,
        client: &Client,
        ticket: &Ticket,
        ops: impl IntoIterator<Item = TxnOp>,
    ) -> Result<Vec<TxnOpResponse>> {
        let failed = |source| Error::Store {
            operation: "pass the fence of",
            key: Some(ticket.key.clone()),
            source,
        };
        let mut then: Vec<_> = ops.into_iter().collect();
        let count = then.len();
        then.extend(self.ops(ticket));
        let txn = Txn::new()
            .when(self.compares(ticket))
            .and_then(then)
            .or_else([self.last()]);
        let answer = client.kv_client().txn(txn).await;
        let answer = answer.map_err(|why| failed(Failure::from(why).error))?;
        if answer.succeeded() {
            let mut answers = answer.op_responses();
            answers.truncate(count);
            return Ok(answers);
        }
        match self.newest(&answer) {
            Some(newest) => Err(Fenced::new(ticket, newest).into()),
            None => Err(failed(StoreError::permanent(format!(
                "a key that begins with {}/ is not of a fence",
                self.name
            )))),
        }
    }

    /// The conditions under which a ticket passes: that there is no key of a newer token, and none
    /// of the same token and another owner.
    pub fn compares(&self, ticket: &Ticket) -> Vec<Compare> {
        // A key that does not exist has version 0; a range passes when all its keys do.
        let none = |from: String, to| Compare::version(from, CompareOp::Equal, 0).with_range(to);
        let own = self.key(ticket);
        vec![
            none(self.token(ticket), own.clone()),
            none(format!("{own}\0"), self.end()),
        ]
    }

    /// What notes a ticket that passes: its key is put, and those of older ones are deleted.
    pub fn ops(&self, ticket: &Ticket) -> Vec<TxnOp> {
        let own = self.key(ticket);
        let older = DeleteOptions::new().with_range(own.as_str());
        vec![
            TxnOp::put(own, "", None),
            TxnOp::delete(format!("{}/", self.name), Some(older)),
        ]
    }

    fn key(&self, ticket: &Ticket) -> String {
        format!("{}{}", self.token(ticket), ticket.owner)
    }

    /// What the keys of all owners with this token begin with; of equal length, so that their
    /// order as text is that of the numbers.
    fn token(&self, ticket: &Ticket) -> String {
        format!("{}/{:020}/", self.name, ticket.token.as_u64())
    }

    /// Behind the last key that begins with the name and a slash.
    fn end(&self) -> String {
        format!("{}0", self.name)
    }

    fn last(&self) -> TxnOp {
        let options = GetOptions::new()
            .with_range(self.end())
            .with_sort(SortTarget::Key, SortOrder::Descend)
            .with_limit(1)
            .with_keys_only();
        TxnOp::get(format!("{}/", self.name), Some(options))
    }

    /// The token of the last key, in the answer to [`last`](Self::last).
    fn newest(&self, answer: &TxnResponse) -> Option<FencingToken> {
        let answers = answer.op_responses();
        let Some(TxnOpResponse::Get(found)) = answers.first() else {
            return None;
        };
        let key = found.kvs().first()?.key_str().ok()?;
        let rest = key.strip_prefix(&self.name)?.strip_prefix('/')?;
        rest.split_once('/')?.0.parse().ok()
    }
}
