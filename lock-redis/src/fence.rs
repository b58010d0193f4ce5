//! The check of fencing tokens in scripts of an application.

use lock_core::{Error, Fenced, FencingToken, Result, StoreError, Ticket};
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs, aio::ConnectionLike};

use crate::error::store_error;

/// A Lua script of the application that runs only with a ticket that is not older than the last
/// one it ran with, and not the same token of another owner.
///
/// The locks may be in any store. The last ticket is kept in a key next to the data, the *fence*.
/// It never expires; if it is deleted or evicted, the next ticket passes, whatever its age.
///
/// ```no_run
/// # async fn example(locks: lock_core::LockClient, mut connection: redis::aio::MultiplexedConnection)
/// #     -> lock_core::Result<()> {
/// use lock_redis::ScriptFence;
///
/// let sell = ScriptFence::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// let guard = locks.acquire("stock/42").await?;
/// let left: i64 = sell
///     .run(&mut connection, "stock:{42}:fence", &guard.ticket(), "stock:{42}", 1)
///     .await?; // Err(Fenced): nothing was written
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ScriptFence(Script);

impl ScriptFence {
    /// A script with this body. It sees the caller's keys and arguments as `KEYS` and `ARGV`, and
    /// may return what it likes.
    pub fn new(body: &str) -> Self {
        let check = include_str!("lua/fence.lua");
        Self(Script::new(&format!(
            "{check}\
             local function write(KEYS, ARGV)\n{body}\nend\n\
             return write({{unpack(KEYS, 2)}}, {{unpack(ARGV, 3)}})"
        )))
    }

    /// Runs the script, if the key `fence` knows no newer ticket, and notes this one there; both
    /// at once, as a script does.
    ///
    /// `keys` and `args` are one value each, or several in a slice or a tuple, or
    /// `None::<&str>`. The same ticket passes again.
    /// In a cluster the fence and the keys have to share a slot, by a `{tag}` in their names.
    ///
    /// # Errors
    ///
    /// * [`Error::Fenced`] when a newer token has passed, or this one of another owner; nothing
    ///   was run.
    /// * [`Error::Store`] when the server or the script failed; the script may have run.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the script may run or not.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        fence: &str,
        ticket: &Ticket,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        let mut call = self.0.prepare_invoke();
        call.key(fence).key(keys);
        call.arg(format!("{:020}", ticket.token.as_u64()))
            .arg(ticket.owner.to_string())
            .arg(args);
        let answer = call.invoke_async(connection).await;
        answer.map_err(|why| refusal(ticket, &why))
    }
}

/// What the error of a script means.
fn refusal(ticket: &Ticket, why: &RedisError) -> Error {
    let failed = |source| Error::Store {
        operation: "pass the fence of",
        key: Some(ticket.key.clone()),
        source,
    };
    if why.code() != Some("FENCED") {
        return failed(store_error(why));
    }
    let newest = why.detail().and_then(|detail| detail.trim().parse().ok());
    match newest.and_then(FencingToken::new) {
        Some(newest) => Fenced::new(ticket, newest).into(),
        None => failed(StoreError::permanent(
            "the fence's key holds something else",
        )),
    }
}
