//! The store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lock_core::{
    Asker, Attempt, Busy, Capabilities, Claim, DistributedLock, Durability, Error, FencingToken,
    Finding, HoldId, LockInfo, LockKey, LockPage, OwnerId, Page, Release, Renewal, Result,
    StoreError, TokenSource, Ttl,
};
use sqlx::{AssertSqlSafe, PgPool, postgres::PgConnectOptions};

use crate::{
    batch::{Background, Lane, Patience},
    config::{Listen, PostgresLockBuilder, SchemaMode, Server},
    connection::Connector,
    error::store_error,
    health,
    request::{Answer, Request, Verb},
    sweeper::Sweeper,
    view::View,
    wakeup::Turns,
};

/// Locks in a Postgres database.
///
/// It keeps one connection for requests, one to be told when there are waiters, and one more for
/// each [`dedicated`](DistributedLock::dedicated) handle, such as the watchdog's; no lock and no
/// waiter takes another.
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
/// use lock_core::LockClient;
/// use lock_postgres::PostgresLock;
///
/// # async fn example() -> lock_core::Result<()> {
/// let store = PostgresLock::connect("postgres://app@localhost/shop").await?;
/// let client = LockClient::new(Arc::new(store));
/// let guard = client.acquire("orders/42").await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PostgresLock {
    pub(crate) connector: Arc<Connector>,
    turns: Arc<Turns>,
    lane: Lane,
    capabilities: Capabilities,
    polls: bool,
    pub(crate) lock_table: u32,
}

impl PostgresLock {
    /// Connects to the server at `url` with the default options, and makes the tables if they are
    /// missing.
    ///
    /// # Errors
    ///
    /// As [`PostgresLockBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url)?.connect().await
    }

    /// Options for the server at `url`: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS`,
    /// as sqlx reads it. TLS is asked for with `sslmode` and needs the feature `tls`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when it is not a URL of Postgres.
    pub fn builder(url: &str) -> Result<PostgresLockBuilder> {
        PostgresLockBuilder::from_url(url)
    }

    /// Options for the server of an application's pool.
    ///
    /// Each connection that the store makes, also to replace one, has the options that the pool
    /// has at that moment: address, credentials and TLS, and what
    /// [`set_connect_options`](PgPool::set_connect_options) has changed, such as a new password.
    ///
    /// They are connections of the store's own, next to the pool's: it keeps them for as long as
    /// it lives, renewals must not wait behind the application's queries, and locks take no part in
    /// its transactions. So leave room for them (see [`PostgresLock`]) in the server's
    /// `max_connections`. The pool's size and its callbacks are not used, and closing the pool
    /// does not close the store.
    pub fn builder_for(pool: &PgPool) -> PostgresLockBuilder {
        PostgresLockBuilder::new(Server::Of(pool.clone()))
    }

    /// Options for a server described by sqlx's own options.
    pub fn builder_with(options: PgConnectOptions) -> PostgresLockBuilder {
        PostgresLockBuilder::new(Server::At(Box::new(options)))
    }

    pub(crate) async fn open(builder: PostgresLockBuilder) -> Result<Self> {
        let connect = |source| Error::Store {
            operation: "connect",
            key: None,
            source,
        };
        let basic = Capabilities::new("postgres", TokenSource::ServerClock, Durability::Disk);
        let connector = Arc::new(Connector::new(&builder, basic.min_ttl));
        if builder.schema_mode == SchemaMode::Ensure {
            connector.ensure_schema().await.map_err(connect)?;
        }
        let session = connector.connect().await.map_err(connect)?;
        let turns = Arc::new(Turns::default());
        let background = Background {
            listen: builder.listen.clone(),
            poll_interval: builder.poll_interval,
            sweeper: builder
                .sweep_interval
                .map(|interval| Sweeper::new(interval, builder.keep_idle)),
        };
        let polls = match builder.listen {
            Listen::SameUrl => connector.is_pooled(),
            Listen::Never => true,
            Listen::Url(_) => false,
        };
        let capabilities = health::capabilities(basic, &session.facts, polls);
        for warning in &capabilities.warnings {
            tracing::warn!("{warning}");
        }
        let lock_table = session.facts.lock_table.unwrap_or_default();
        let lane = Lane::new(connector.clone(), turns.clone(), &builder, Some(background));
        lane.start(session);
        Ok(Self {
            connector,
            turns,
            lane,
            capabilities,
            polls,
            lock_table,
        })
    }

    /// Makes the tables and functions that are missing; sends no DDL when none is. Any number of
    /// processes may do it at once.
    ///
    /// [`connect`](Self::connect) does it already, unless told to only check. The same statements
    /// are in `sql/schema.sql`.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], permanent when the role may not create them.
    ///
    /// # Cancel safety
    ///
    /// May be dropped; tables may have been made, and are then complete.
    pub async fn ensure_schema(&self) -> Result<()> {
        let made = self.connector.ensure_schema().await;
        made.map_err(|source| Error::Store {
            operation: "make the tables",
            key: None,
            source,
        })
    }

    /// Makes every later fencing token larger than `token`.
    ///
    /// For operators who have restored an old backup: see the guarantees. It never lowers
    /// anything.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub async fn raise_token_floor(&self, token: FencingToken) -> Result<()> {
        let raised = async {
            let mut session = self.connector.connect().await?;
            let sql = self
                .connector
                .names
                .sql("UPDATE public.distlock_floor SET token = greatest(token, $1)");
            let query = sqlx::query(AssertSqlSafe(sql))
                .bind(i64::try_from(token.as_u64()).unwrap_or(i64::MAX - 1));
            session.rows(query).await.map_err(store_error)
        };
        match raised.await {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::Store {
                operation: "raise the floor of the tokens",
                key: None,
                source,
            }),
        }
    }
}

#[async_trait]
impl DistributedLock for PostgresLock {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let patience = if claim.queue && self.turns.is_patient(claim.hold) {
            Patience::ForCompany
        } else {
            Patience::None
        };
        let request = Request::new(Verb::Acquire, claim.clone());
        match self.lane.ask(request, patience).await? {
            Answer::Attempt(attempt) => Ok(attempt),
            other => Err(wrong(&other)),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let request = Request::new(Verb::Renew, claim.clone());
        match self.lane.ask(request, Patience::None).await? {
            Answer::Renewal(renewal) => Ok(renewal),
            other => Err(wrong(&other)),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let request = Request::new(Verb::Release, claim.clone());
        match self.lane.ask(request, Patience::None).await? {
            Answer::Release(release) => Ok(release),
            other => Err(wrong(&other)),
        }
    }

    async fn wait(&self, claim: &Claim, _busy: &Busy) {
        self.turns.told(claim.hold).await;
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        // They meet in the lane and go out together, also with those of a moment ago: a renewal
        // that is not urgent keeps a small part of its lease as distance to the statement before.
        let renewals = claims.iter().map(async |claim| {
            let pause = (claim.ttl.as_duration() / 50).min(Duration::from_millis(600));
            let request = Request::new(Verb::Renew, claim.clone());
            match self.lane.ask(request, Patience::SinceLast(pause)).await? {
                Answer::Renewal(renewal) => Ok(renewal),
                other => Err(wrong(&other)),
            }
        });
        futures_util::future::join_all(renewals).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        Ok(self.lane.look(View::Key(key.clone())).await?.pop())
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        let limit = page.limit.clamp(1, 10_000);
        let view = View::Prefix {
            prefix: prefix.to_owned(),
            after: page.cursor.unwrap_or_default(),
            limit: limit + 1,
        };
        let mut locks = self.lane.look(view).await?;
        let next = (locks.len() > limit).then(|| locks.truncate(limit));
        let next = next.and_then(|()| locks.last().map(|last| last.key.as_str().to_owned()));
        Ok(LockPage { locks, next })
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        // Nobody's claim: only the key and the token count.
        let asker =
            Asker::this_process(None).map_err(|why| StoreError::permanent(why.to_string()))?;
        let claim = Claim {
            key: key.clone(),
            owner: OwnerId::random(),
            hold: HoldId::random(),
            ttl: Ttl::MAX,
            queue: false,
            asker: Arc::new(asker),
        };
        match self
            .lane
            .ask(Request::new(Verb::Force(token), claim), Patience::None)
            .await?
        {
            Answer::Release(release) => Ok(release != Release::NotHeld),
            other => Err(wrong(&other)),
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        if self.lane.is_closed() {
            return Err(StoreError::closed());
        }
        health::findings(&self.connector, self.polls).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        Ok(Arc::new(Self {
            connector: self.connector.clone(),
            turns: self.turns.clone(),
            lane: self.lane.another(),
            capabilities: self.capabilities.clone(),
            polls: self.polls,
            lock_table: self.lock_table,
        }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.lane.close().await;
        Ok(())
    }
}

fn wrong(answer: &Answer) -> StoreError {
    StoreError::permanent(format!("the answer {answer:?} is to another request"))
}
