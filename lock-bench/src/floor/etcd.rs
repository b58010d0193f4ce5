//! A transaction that puts a key if it is absent, on a lease that is there, and one that deletes it.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn,
    TxnOp,
};
use tokio::sync::Mutex;

use super::NOTHING;
use crate::{Contender, Error, Features, Held, Locks, Result, Target, record::FLOOR};

pub(super) struct Floor;

#[async_trait]
impl Contender for Floor {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn features(&self) -> Features {
        Features {
            expiry: "yes",
            ..NOTHING
        }
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        let mut client = connect(&target.url).await?;
        // It outlives every scenario.
        let lease = client.lease_grant(600, None).await.map_err(failed)?.id();
        let keeping = client.lease_keep_alive(lease).await.map_err(failed)?;
        Ok(Arc::new(Open {
            client,
            lease,
            keeping: Mutex::new(keeping),
            prefix: format!("{}/floor", target.prefix),
        }))
    }
}

/// The addresses in a store URL, and a client of them.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (user, addresses) = read(url)?;
    let mut options = ConnectOptions::new();
    if let Some((name, password)) = user {
        options = options.with_user(name, password);
    }
    let client = Client::connect(&addresses, Some(options)).await;
    client.map_err(failed)
}

/// A name and a password.
type User = (String, String);

/// What stands in `etcd://user:password@host:port,host:port/…`.
pub(crate) fn read(url: &str) -> Result<(Option<User>, Vec<String>)> {
    let Some(rest) = url.strip_prefix("etcd://") else {
        let what = "the benchmark reaches etcd over `etcd://` only, without TLS";
        return Err(Error::Usage(what.to_owned()));
    };
    let rest = rest.split(['/', '?']).next().unwrap_or_default();
    let (user, hosts) = match rest.rsplit_once('@') {
        Some((user, hosts)) => (user.split_once(':'), hosts),
        None => (None, rest),
    };
    let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
    let addresses = hosts.split(',').map(|host| match host.rsplit_once(':') {
        Some(_) => host.to_owned(),
        None => format!("{host}:2379"),
    });
    Ok((user, addresses.collect()))
}

fn failed(why: etcd_client::Error) -> Error {
    Error::failed("etcd", why)
}

struct Open {
    client: Client,
    lease: i64,
    keeping: Mutex<(LeaseKeeper, LeaseKeepAliveStream)>,
    prefix: String,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let mut client = self.client.clone();
        let key = format!("{}/{key}", self.prefix);
        let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let on_lease = PutOptions::new().with_lease(self.lease);
        // As long as what a lock of the store holds.
        let put = TxnOp::put(key.as_str(), "x".repeat(150), Some(on_lease));
        let txn = Txn::new().when([absent]).and_then([put]);
        if !client.txn(txn).await.map_err(failed)?.succeeded() {
            return Err(Error::failed("the floor", "its key is taken"));
        }
        Ok(Box::new(Guard { client, key }))
    }

    /// One message of a stream; the lease is the same for all.
    async fn renew(&self, _: &str) -> Option<Result<()>> {
        let mut keeping = self.keeping.lock().await;
        let (keeper, stream) = &mut *keeping;
        if let Err(why) = keeper.keep_alive().await {
            return Some(Err(failed(why)));
        }
        Some(stream.message().await.map(drop).map_err(failed))
    }

    async fn close(&self) {
        let _ = self.client.clone().lease_revoke(self.lease).await;
    }
}

struct Guard {
    client: Client,
    key: String,
}

#[async_trait]
impl Held for Guard {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let key = self.key.as_str();
        let present = Compare::create_revision(key, CompareOp::Greater, 0);
        let delete = TxnOp::delete(key, None);
        let txn = Txn::new().when([present]).and_then([delete]);
        self.client.txn(txn).await.map(drop).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_the_user_are_read() {
        let (user, hosts) = read("etcd://me:secret@one:1,two/?x=1").expect("a URL");
        assert_eq!(user, Some(("me".to_owned(), "secret".to_owned())));
        assert_eq!(hosts, ["one:1", "two:2379"]);
        let why = read("etcds://me:secret@one").expect_err("TLS");
        assert!(!why.to_string().contains("secret"), "{why}");
    }
}
