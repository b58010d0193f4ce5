//! The store: each verb as one script.

use std::{
    collections::HashSet,
    fmt::{self, Write},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use lock_core::{
    Attempt, Busy, Capabilities, Claim, Clock, DistributedLock, FencingToken, Finding, Grant,
    HoldId, LockInfo, LockKey, LockPage, Page, Release, Renewal, Result, StoreError, SystemClock,
    Ttl,
};
use redis::{Client, Value};

use crate::{
    calls::Calls,
    config::{Options, RedisLockBuilder},
    connection::{Connection, Reply, Server},
    error::{reply_error, strange},
    handover::Reading,
    health,
    lane::{Lane, Request, Wanted},
    record::{self, Part, add_keys, int, text},
    scripts::Scripts,
    wakeup::Wakeup,
};

/// Locks in Redis or Valkey; see the [crate's page](crate).
///
/// It has to be used on a tokio runtime with its timer and network enabled. Connections are made
/// on the runtime that first needs them, and anew when that runtime is gone.
pub struct RedisLock {
    lane: Arc<Lane>,
    wakeup: Wakeup,
    calls: Calls,
    options: Arc<Options>,
    capabilities: Arc<Capabilities>,
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("server", self.lane.connection.server())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl RedisLock {
    /// Connects to the server of a URL with the default options.
    ///
    /// * `redis://[user][:password@]host[:port][/database]`, also as `valkey://`
    /// * `rediss://…` or `valkeys://…` for TLS, with the feature `tls`
    /// * `unix:///path/to/socket[?db=1&user=…&pass=…]`
    ///
    /// # Errors
    ///
    /// As [`RedisLock::builder`] and [`RedisLockBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url)?.connect().await
    }

    /// Options for the server of a URL, as [`RedisLock::connect`] takes it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](lock_core::Error::InvalidConfig) when the URL cannot be used.
    pub fn builder(url: &str) -> Result<RedisLockBuilder> {
        RedisLockBuilder::from_url(url)
    }

    /// Options for the server of an existing client: its address, user and TCP and TLS settings.
    ///
    /// The store opens its own connections: wake-ups and the watchdog's renewals must not queue
    /// behind an application's commands.
    pub fn builder_with(client: Client) -> RedisLockBuilder {
        RedisLockBuilder::with_client(client)
    }

    pub(crate) async fn open(server: Server, options: Options) -> Result<Self, StoreError> {
        let connection = Connection::new(server);
        let capabilities = health::examine(&connection).await?;
        for warning in &capabilities.warnings {
            tracing::warn!(server = ?connection.server(), "{warning}");
        }
        let together = !capabilities
            .warnings
            .iter()
            .any(|warning| warning.contains("cluster"));
        let scripts = Arc::new(Scripts::new(options.claim_window, options.token_retention));
        let lane = Lane::new(connection, scripts, options.prefix.clone(), together);
        Ok(Self::assemble(
            lane,
            Calls::new(options.claim_window),
            Arc::new(options),
            Arc::new(capabilities),
        ))
    }

    fn assemble(
        lane: Lane,
        calls: Calls,
        options: Arc<Options>,
        capabilities: Arc<Capabilities>,
    ) -> Self {
        let server = lane.connection.server();
        // Publishing ignores databases, so the channel's name carries ours.
        let channel = format!(
            "{}:wake:{}:{}",
            options.prefix,
            server.database(),
            HoldId::random()
        );
        let wakeup = Wakeup::new(server.clone(), channel, options.claim_window, calls.clone());
        Self {
            lane: Arc::new(lane),
            wakeup,
            calls,
            options,
            capabilities,
        }
    }

    fn granted(&self, ttl: Ttl) -> Ttl {
        ttl.max(self.capabilities.min_ttl)
    }

    /// One attempt; a channel makes the claim queue.
    async fn attempt(&self, claim: &Claim, channel: Option<&str>) -> Result<Attempt, StoreError> {
        let reply = self.ask(claim, channel).await?;
        read_attempt(&reply, self.granted(claim.ttl)).ok_or_else(|| strange(&reply))
    }

    /// The reply of acquire.lua.
    async fn ask(&self, claim: &Claim, channel: Option<&str>) -> Result<Value, StoreError> {
        let request = Request {
            key: claim.key.clone(),
            id: id(claim),
            attempt: Some(Wanted {
                ttl: self.granted(claim.ttl).as_millis(),
                asker: record::asker(&claim.asker),
            }),
        };
        Ok(self.lane.send(request, channel).await?.value)
    }

    /// Renews claims that one server has; the answers are in their order.
    async fn renew_batch(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        let renewed = self
            .lane
            .connection
            .run(&self.lane.scripts.renew, |command| {
                command.arg(claims.len());
                for claim in claims {
                    add_keys(command, &self.options.prefix, &claim.key, &[Part::Claim]);
                }
                for claim in claims {
                    command
                        .arg(claim.owner.to_string())
                        .arg(claim.hold.to_string())
                        .arg(self.granted(claim.ttl).as_millis());
                }
            });
        let again = |why: &StoreError| StoreError::new(why.kind(), why.to_string());
        match renewed.await {
            Ok(Reply {
                value: Value::Array(answers),
                ..
            }) if answers.len() == claims.len() => answers
                .iter()
                .zip(claims)
                .map(|(answer, claim)| read_renewal(answer, self.granted(claim.ttl)))
                .collect(),
            Ok(reply) => claims.iter().map(|_| Err(strange(&reply.value))).collect(),
            Err(why) => claims.iter().map(|_| Err(again(&why))).collect(),
        }
    }

    /// The replies of inspect.lua, in the order of the locks.
    async fn look(&self, locks: &[&LockKey]) -> Result<Vec<Value>, StoreError> {
        let lane = &self.lane;
        let batches = locks.chunks(self.share()).map(async |batch| {
            let inspect = lane.connection.run(&lane.scripts.inspect, |command| {
                command.arg(batch.len() * Part::STATE.len());
                for key in batch {
                    add_keys(command, &self.options.prefix, key, &Part::STATE);
                }
            });
            match inspect.await?.value {
                Value::Array(replies) if replies.len() == batch.len() => Ok(replies),
                reply => Err(strange(&reply)),
            }
        });
        Ok(try_join_all(batches).await?.concat())
    }

    /// How many locks one script may be about that does little for each: it may keep the server
    /// busy for some milliseconds, and keys of several slots do not go into one script.
    fn share(&self) -> usize {
        if self.lane.together { 1000 } else { 1 }
    }

    async fn scan(
        &self,
        cursor: &str,
        pattern: &str,
        count: usize,
    ) -> Result<(String, Vec<Value>), StoreError> {
        let mut command = redis::cmd("SCAN");
        command
            .arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(count);
        let reply = self.lane.connection.call(&command).await?;
        match reply {
            Value::Array(mut parts) if parts.len() == 2 => {
                let (names, next) = (parts.pop(), parts.pop());
                match (next.as_ref().and_then(text), names) {
                    (Some(next), Some(Value::Array(names))) => Ok((next.to_owned(), names)),
                    _ => Err(strange(&Value::Nil)),
                }
            }
            reply => Err(strange(&reply)),
        }
    }
}

#[async_trait]
impl DistributedLock for RedisLock {
    fn capabilities(&self) -> Capabilities {
        Capabilities::clone(&self.capabilities)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        if !claim.queue {
            return self.attempt(claim, None).await;
        }
        if let Some(grant) = self.calls.take(claim)
            && !self.lane.connection.is_closed()
        {
            return Ok(Attempt::Granted(grant));
        }
        let mut open = self.wakeup.open();
        if open.is_none() {
            // Nobody of this store waits yet. Most locks are free, so look before listening; a
            // place in the queue is only taken by who can be told.
            match self.attempt(claim, None).await? {
                Attempt::Granted(grant) => return Ok(Attempt::Granted(grant)),
                Attempt::Busy(_) => open = self.wakeup.listen().await,
            }
        }
        let channel = match open {
            Some(_) => self.wakeup.channel(),
            None => "-",
        };
        let sent = SystemClock.now();
        let reply = self.ask(claim, Some(channel)).await?;
        let answer =
            read_attempt(&reply, self.granted(claim.ttl)).ok_or_else(|| strange(&reply))?;
        if matches!(answer, Attempt::Busy(_)) {
            let server = record::busy_at(&reply);
            self.calls
                .queued(claim.hold, server.map(|server| Reading { sent, server }));
            self.wakeup.queued(claim.hold, open);
        }
        Ok(answer)
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let mut answers = self.renew_batch(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(strange(&Value::Nil)))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let request = Request {
            key: claim.key.clone(),
            id: id(claim),
            attempt: None,
        };
        self.calls.forget(claim.hold);
        // A notice for a waiter of this store comes with the reply.
        let here = self.wakeup.open().map(|_| self.wakeup.channel());
        let expected = here.map(|_| self.wakeup.expect());
        let reply = self.lane.send(request, here).await?;
        if let Some(expected) = expected {
            expected.arrived();
        }
        let (answer, notice) = match &reply.value {
            Value::Array(parts) => match parts.as_slice() {
                [answer, Value::BulkString(notice)] => (answer, Some(notice)),
                _ => (&reply.value, None),
            },
            answer => (answer, None),
        };
        if let Some(notice) = notice {
            self.wakeup.heard(notice);
        }
        match int(answer) {
            Some(-1) => Ok(Release::Withdrawn),
            // The first copy may have found it.
            Some(-2) if reply.resent => Err(StoreError::transient(
                "the connection broke under the release, which may have been applied",
            )),
            Some(-2) => Ok(Release::NotHeld),
            Some(holds) if holds >= 0 => Ok(Release::Released {
                holds: holds as u32,
            }),
            _ => Err(strange(&reply.value)),
        }
    }

    async fn wait(&self, claim: &Claim, busy: &Busy) {
        self.wakeup.wait(claim.hold, busy).await;
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        let batches = claims
            .chunks(self.share())
            .map(|batch| self.renew_batch(batch));
        let answers = join_all(batches).await;
        answers.into_iter().flatten().collect()
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        let replies = self.look(&[key]).await?;
        let reply = replies.first().unwrap_or(&Value::Nil);
        record::info(key, reply)
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        const ROUNDS: usize = 20;
        let pattern = record::pattern(&self.options.prefix, prefix);
        let limit = page.limit.max(1);
        let mut cursor = page.cursor.unwrap_or_else(|| "0".to_owned());
        let mut seen = HashSet::new();
        let mut locks = Vec::new();
        for _ in 0..ROUNDS {
            // A lock has up to four keys, and a table of keys more places than those.
            let places = limit.saturating_mul(5).clamp(50, 5000);
            let (next, names) = self.scan(&cursor, &pattern, places).await?;
            cursor = next;
            let found = names.iter().filter_map(|name| match name {
                Value::BulkString(name) => record::lock_of(&self.options.prefix, name),
                _ => None,
            });
            let fresh: Vec<_> = found.filter(|found| seen.insert(found.clone())).collect();
            let keys: Vec<_> = fresh.iter().map(|(key, _)| key).collect();
            for ((key, part), reply) in fresh.iter().zip(self.look(&keys).await?) {
                // A lock that has a claim is found by it, maybe on another page.
                if !(*part == Part::Queue && record::has_claim(&reply)) {
                    locks.extend(record::info(key, &reply)?);
                }
            }
            if cursor == "0" || locks.len() >= limit {
                break;
            }
        }
        Ok(LockPage {
            locks,
            next: (cursor != "0").then_some(cursor),
        })
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let lane = &self.lane;
        let ended = lane.connection.run(&lane.scripts.force_release, |command| {
            lane.keys(command, key, &Part::ALL);
            command.arg(&token);
        });
        let reply = ended.await?.value;
        match int(&reply) {
            Some(ended) => Ok(ended == 1),
            None => Err(strange(&reply)),
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        if self.lane.connection.is_closed() {
            return Err(StoreError::closed());
        }
        health::findings(&self.lane.connection, &self.options.prefix).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        if self.lane.connection.is_closed() {
            return Err(StoreError::closed());
        }
        // It connects when it is first used: on the runtime that uses it.
        let lane = Lane::new(
            self.lane.connection.another(),
            self.lane.scripts.clone(),
            self.options.prefix.clone(),
            self.lane.together,
        );
        let (options, capabilities) = (self.options.clone(), self.capabilities.clone());
        Ok(Arc::new(Self::assemble(
            lane,
            self.calls.clone(),
            options,
            capabilities,
        )))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.lane.connection.close();
        self.wakeup.close();
        Ok(())
    }
}

/// How scripts know a hold.
fn id(claim: &Claim) -> String {
    let mut id = String::with_capacity(66);
    // Writing to a string cannot fail.
    let _ = write!(id, "{}\n{}\n", claim.owner, claim.hold);
    id
}

fn read_attempt(reply: &Value, ttl: Ttl) -> Option<Attempt> {
    let parts = match reply {
        Value::Array(parts) => parts,
        token => {
            return Some(Attempt::Granted(Grant {
                token: text(token)?.parse().ok()?,
                ttl,
                holds: 1,
            }));
        }
    };
    match parts.as_slice() {
        [Value::Int(1), token, holds] => Some(Attempt::Granted(Grant {
            token: text(token)?.parse().ok()?,
            ttl,
            holds: u32::try_from(int(holds)?).ok()?,
        })),
        [Value::Int(0), parts @ ..] => record::busy(parts).map(Attempt::Busy),
        _ => None,
    }
}

fn read_renewal(answer: &Value, ttl: Ttl) -> Result<Renewal, StoreError> {
    match answer {
        Value::Int(1) => Ok(Renewal::Renewed { ttl }),
        Value::Int(0) => Ok(Renewal::Gone { taken_over: false }),
        Value::Int(2) => Ok(Renewal::Gone { taken_over: true }),
        other => match text(other) {
            Some(why) => Err(reply_error(why)),
            None => Err(strange(other)),
        },
    }
}
