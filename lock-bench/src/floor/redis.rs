//! SET NX PX, and a script that deletes the key of its owner.

use std::sync::Arc;

use async_trait::async_trait;
use redis::{Client, IntoConnectionInfo, Script, aio::MultiplexedConnection, io::tcp::TcpSettings};
use uuid::Uuid;

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

    fn commands(&self) -> &'static [&'static str] {
        &["set", "evalsha", "eval", "pexpire"]
    }

    async fn open(&self, target: &Target) -> Result<Arc<dyn Locks>> {
        Ok(Arc::new(Open {
            connection: connect(&target.url).await?,
            delete: Arc::new(Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
            )),
            prefix: format!("{}:floor", target.prefix),
            ttl: target.ttl.as_millis() as u64,
        }))
    }
}

/// A connection as the store makes it.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let info = url.into_connection_info().map_err(failed)?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = Client::open(info).map_err(failed)?;
    client
        .get_multiplexed_async_connection()
        .await
        .map_err(failed)
}

fn failed(why: redis::RedisError) -> Error {
    Error::failed("redis", why)
}

struct Open {
    connection: MultiplexedConnection,
    delete: Arc<Script>,
    prefix: String,
    ttl: u64,
}

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let mut connection = self.connection.clone();
        let (key, owner) = (format!("{}:{key}", self.prefix), Uuid::new_v4().to_string());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&owner).arg("NX").arg("PX").arg(self.ttl);
        let taken: Option<String> = set.query_async(&mut connection).await.map_err(failed)?;
        taken.ok_or_else(|| Error::failed("the floor", "its key is taken"))?;
        Ok(Box::new(Guard {
            connection,
            delete: self.delete.clone(),
            key,
            owner,
        }))
    }

    async fn renew(&self, key: &str) -> Option<Result<()>> {
        let mut connection = self.connection.clone();
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(format!("{}:{key}", self.prefix)).arg(self.ttl);
        let renewed = expire.query_async::<()>(&mut connection).await;
        Some(renewed.map_err(failed))
    }
}

struct Guard {
    connection: MultiplexedConnection,
    delete: Arc<Script>,
    key: String,
    owner: String,
}

#[async_trait]
impl Held for Guard {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let mut delete = self.delete.key(&self.key);
        delete.arg(&self.owner);
        let deleted = delete.invoke_async::<i64>(&mut self.connection).await;
        deleted.map(drop).map_err(failed)
    }
}
