//! Data behind a fence, in each kind of server: what the late write of a former holder meets.

use std::error::Error;

use etcd_client::{Client, TxnOp};
use lock_core::{Result, Ticket};
use lock_etcd::TxnFence;
use lock_postgres::RowFence;
use lock_redis::{ScriptFence, redis};
use sqlx::{Connection, PgConnection};

/// One value that is only written through a fence.
pub enum Protected {
    /// A column of a row.
    Postgres(PgConnection),
    /// A key of Redis.
    Redis(redis::aio::MultiplexedConnection),
    /// A key of etcd.
    Etcd(Box<Client>),
}

impl Protected {
    /// The value in the server of a `postgres://`, `redis://` or `etcd://` URL; made when it is
    /// not there.
    ///
    /// # Errors
    ///
    /// When the server refuses, or the URL is of another kind.
    pub async fn open(url: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(match url.split_once("://") {
            Some(("postgres", _)) => {
                let mut connection = PgConnection::connect(url).await?;
                sqlx::raw_sql(
                    "CREATE TABLE IF NOT EXISTS protected (
                        id bigint PRIMARY KEY, value text NOT NULL,
                        fence_token bigint NOT NULL DEFAULT 0, fence_owner uuid);
                     INSERT INTO protected VALUES (42, 'none') ON CONFLICT DO NOTHING",
                )
                .execute(&mut connection)
                .await?;
                Self::Postgres(connection)
            }
            Some(("redis", _)) => {
                let client = redis::Client::open(url)?;
                Self::Redis(client.get_multiplexed_async_connection().await?)
            }
            Some(("etcd", addresses)) => {
                let addresses: Vec<_> = addresses.split(',').collect();
                Self::Etcd(Box::new(Client::connect(addresses, None).await?))
            }
            _ => return Err(format!("no data at {url}").into()),
        })
    }

    /// Writes the value, if the fence lets the ticket pass.
    ///
    /// # Errors
    ///
    /// [`lock_core::Error::Fenced`] when it does not.
    pub async fn write(
        &mut self,
        ticket: &Ticket,
        value: &str,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self {
            Self::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                let fence = RowFence::new("protected", "id")?;
                fence.pass(&mut transaction, 42_i64, ticket).await?;
                sqlx::query("UPDATE protected SET value = $1 WHERE id = 42")
                    .bind(value)
                    .execute(&mut *transaction)
                    .await?;
                transaction.commit().await?;
            }
            Self::Redis(connection) => {
                let set = ScriptFence::new("return redis.call('SET', KEYS[1], ARGV[1])");
                let (fence, key) = ("protected:fence", "protected");
                set.run::<()>(connection, fence, ticket, key, value).await?;
            }
            Self::Etcd(client) => {
                let put = TxnOp::put("protected/value", value, None);
                let fence = TxnFence::new("protected/fence")?;
                fence.run(client, ticket, [put]).await?;
            }
        }
        Ok(())
    }

    /// The value; `none` when nothing was written.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn read(&mut self) -> Result<String, Box<dyn Error + Send + Sync>> {
        Ok(match self {
            Self::Postgres(connection) => {
                let value = sqlx::query_scalar("SELECT value FROM protected WHERE id = 42");
                value.fetch_one(connection).await?
            }
            Self::Redis(connection) => {
                let mut get = redis::cmd("GET");
                let value: Option<String> = get.arg("protected").query_async(connection).await?;
                value.unwrap_or_else(|| "none".into())
            }
            Self::Etcd(client) => {
                let found = client.kv_client().get("protected/value", None).await?;
                match found.kvs().first() {
                    Some(kv) => kv.value_str()?.to_owned(),
                    None => "none".into(),
                }
            }
        })
    }
}
