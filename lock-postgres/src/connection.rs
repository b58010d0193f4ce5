//! Connections: how they are made, what they are set to, and what is behind them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use lock_core::{StoreError, Ttl};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row, postgres::PgConnectOptions,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    config::{Pooler, PostgresLockBuilder, Server},
    error::{sqlstate, store_error},
    metrics,
    request::{Columns, Reply, Request},
    schema::{self, Names},
};

/// How long a statement waits at most for a table that somebody else alters, or for a name that
/// somebody else makes. It waits for no row that is there.
const LOCK_TIMEOUT: &str = "1s";

/// Makes connections that are all alike.
pub(crate) struct Connector {
    server: Server,
    settings: Vec<(&'static str, String)>,
    mode: AtomicU8,
    pub(crate) names: Names,
    pub(crate) request_timeout: Duration,
    pub(crate) process: Uuid,
    pub(crate) min_ttl: Ttl,
    run: Arc<str>,
}

const UNKNOWN: u8 = 0;
const DIRECT: u8 = 1;
const POOLED: u8 = 2;

/// What a server is set to.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    pub(crate) fsync: bool,
    pub(crate) full_page_writes: bool,
    pub(crate) synchronous_commit: String,
    pub(crate) synchronous_standbys: bool,
    pub(crate) lock_table: Option<u32>,
}

/// One session of the server, as far as ownership goes a mere pipe.
pub(crate) struct Session {
    pub(crate) connection: PgConnection,
    pooled: bool,
    begin: Arc<str>,
    pub(crate) backend: Backend,
    pub(crate) facts: ServerFacts,
}

/// A server process, by what identifies it for good.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pid: i32,
    started: Option<String>,
}

impl Connector {
    pub(crate) fn new(builder: &PostgresLockBuilder, min_ttl: Ttl) -> Self {
        let mut settings = vec![
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            (
                "statement_timeout",
                format!("{}ms", builder.request_timeout.as_millis()),
            ),
            ("lock_timeout", LOCK_TIMEOUT.to_owned()),
            ("idle_in_transaction_session_timeout", "0".to_owned()),
            ("idle_session_timeout", "0".to_owned()),
            // A plan that was made while a table was small must not live on when it is large. JIT
            // would take the cost of what cannot be done without for real.
            ("enable_seqscan", "off".to_owned()),
            ("jit", "off".to_owned()),
        ];
        if let Some(level) = builder.synchronous_commit.setting() {
            settings.push(("synchronous_commit", level.to_owned()));
        }
        Self {
            server: builder.server.clone(),
            settings,
            mode: AtomicU8::new(match builder.pooler {
                Pooler::Detect => UNKNOWN,
                Pooler::None => DIRECT,
                Pooler::Transaction => POOLED,
            }),
            run: builder.names.sql(
                "SELECT * FROM public.distlock_run_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            ),
            names: builder.names.clone(),
            request_timeout: builder.request_timeout,
            process: Uuid::new_v4(),
            min_ttl,
        }
    }

    /// Whether a pooler in transaction mode is in between; known after the first connection.
    pub(crate) fn is_pooled(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == POOLED
    }

    /// The options for a connection that is made now.
    pub(crate) fn options(&self) -> PgConnectOptions {
        with_defaults(self.server.options())
    }

    /// A checked session on a server that can be written to.
    pub(crate) async fn connect(&self) -> Result<Session, StoreError> {
        self.within(async {
            let session = self.open().await.map_err(store_error)??;
            match session.facts.lock_table {
                Some(_) => {
                    metrics::connected("requests");
                    Ok(session)
                }
                // Says which it is.
                None => {
                    let mut session = session;
                    schema::check(&mut session.connection, &self.names).await?;
                    Err(StoreError::permanent(
                        "a function of distlock has other parameters than this version uses",
                    ))
                }
            }
        })
        .await
    }

    /// Makes the tables, where they are missing.
    pub(crate) async fn ensure_schema(&self) -> Result<(), StoreError> {
        let mut session = self
            .within(async { self.open().await.map_err(store_error)? })
            .await?;
        let timeout_or = self.request_timeout.max(Duration::from_secs(30));
        match timeout(
            timeout_or,
            schema::ensure(&mut session.connection, &self.names),
        )
        .await
        {
            Ok(done) => done?,
            Err(_) => return Err(no_answer(timeout_or)),
        }
        drop(session.connection.close().await);
        Ok(())
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match timeout(self.request_timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(no_answer(self.request_timeout)),
        }
    }

    async fn open(&self) -> Result<Result<Session, StoreError>, sqlx::Error> {
        if self.mode.load(Ordering::Relaxed) != POOLED {
            // A session that has our settings is ours; a pooler refuses them or drops them.
            let ours = Uuid::new_v4().simple().to_string();
            let options = self
                .options()
                .options(self.settings.iter().map(|(name, value)| (*name, value)))
                .options([("distlock.session", &ours)]);
            match options.connect().await {
                Ok(connection) => {
                    let (session, found) = self.look(connection, false).await?;
                    if found.as_ref() == Some(&ours) || self.mode.load(Ordering::Relaxed) == DIRECT
                    {
                        self.mode.store(DIRECT, Ordering::Relaxed);
                        return Ok(session);
                    }
                    tracing::info!(
                        "the address is a pooler's: each request is a transaction of its own"
                    );
                }
                Err(why)
                    if self.mode.load(Ordering::Relaxed) == UNKNOWN
                        && sqlstate(&why).as_deref() == Some("08P01") =>
                {
                    tracing::info!(
                        "a pooler refuses settings: each request is a transaction of its own"
                    );
                }
                Err(why) => return Err(why),
            }
        }
        let connection = self
            .options()
            .extra_float_digits(None)
            .statement_cache_capacity(0)
            .connect()
            .await?;
        let (session, _) = self.look(connection, true).await?;
        self.mode.store(POOLED, Ordering::Relaxed);
        Ok(session)
    }

    /// Looks at what is at the other end of a new connection.
    async fn look(
        &self,
        mut connection: PgConnection,
        pooled: bool,
    ) -> Result<(Result<Session, StoreError>, Option<String>), sqlx::Error> {
        // As a literal and without parameters, so that it is one simple query: behind a pooler
        // two messages may reach two servers.
        let sql = self.names.sql(
            "SELECT pg_backend_pid(),
                    (SELECT extract(epoch FROM backend_start)::text
                        FROM pg_stat_get_activity(pg_backend_pid())),
                    pg_is_in_recovery(),
                    current_setting('server_version_num')::integer,
                    current_setting('server_encoding'),
                    current_setting('distlock.session', true),
                    current_setting('fsync')::bool,
                    current_setting('full_page_writes')::bool,
                    current_setting('synchronous_commit'),
                    current_setting('synchronous_standby_names') <> '',
                    CASE WHEN to_regprocedure('public.distlock_run_v1(uuid,boolean,text[],text[],\
             uuid[],uuid[],bigint[],text[],text[],bigint[],boolean[])') IS NOT NULL
                        AND to_regclass('public.distlock_queue') IS NOT NULL
                        AND to_regclass('public.distlock_process') IS NOT NULL
                        AND to_regclass('public.distlock_floor') IS NOT NULL
                    THEN to_regclass('public.distlock_lock')::oid::bigint END",
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(&mut connection)
            .await?;
        let version: i32 = row.try_get(3)?;
        let encoding: String = row.try_get(4)?;
        let found: Option<String> = row.try_get(5)?;
        if row.try_get(2)? {
            let why = StoreError::transient("the server is a standby; locks need the primary");
            return Ok((Err(why), found));
        }
        if version < 140_000 {
            let why = format!(
                "Postgres 14 or newer is needed, this is {}",
                version / 10_000
            );
            return Ok((Err(StoreError::permanent(why)), found));
        }
        if encoding != "UTF8" {
            let why = format!("the database's encoding is {encoding}; locks need UTF8");
            return Ok((Err(StoreError::permanent(why)), found));
        }
        let lock_table: Option<i64> = row.try_get(10)?;
        let facts = ServerFacts {
            fsync: row.try_get(6)?,
            full_page_writes: row.try_get(7)?,
            synchronous_commit: row.try_get(8)?,
            synchronous_standbys: row.try_get(9)?,
            lock_table: lock_table.and_then(|oid| u32::try_from(oid).ok()),
        };
        let backend = Backend {
            pid: row.try_get(0)?,
            started: row.try_get(1)?,
        };
        let session = Session {
            connection,
            pooled,
            begin: self.begin(),
            backend,
            facts,
        };
        Ok((Ok(session), found))
    }

    /// Behind a pooler the settings go with each transaction.
    fn begin(&self) -> Arc<str> {
        let mut begin = String::from("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE");
        for (name, value) in &self.settings {
            if matches!(
                *name,
                "statement_timeout"
                    | "lock_timeout"
                    | "synchronous_commit"
                    | "enable_seqscan"
                    | "jit"
            ) {
                begin += &format!("; SET LOCAL {name} = '{value}'");
            }
        }
        begin.into()
    }
}

impl Session {
    /// Sends a batch; the answers are in the order of the requests.
    pub(crate) async fn ask(
        &mut self,
        connector: &Connector,
        requests: &[&Request],
        may_notify: bool,
    ) -> Result<Vec<Reply>, sqlx::Error> {
        let mut columns = Columns::default();
        for request in requests {
            columns.push(request, connector.min_ttl);
        }
        let query = sqlx::query(AssertSqlSafe(connector.run.clone()))
            .persistent(!self.pooled)
            .bind(connector.process)
            .bind(may_notify)
            .bind(columns.verbs)
            .bind(columns.keys)
            .bind(columns.owners)
            .bind(columns.holds)
            .bind(columns.ttls)
            .bind(columns.labels)
            .bind(columns.hosts)
            .bind(columns.pids)
            .bind(columns.alone);
        let rows = if self.pooled {
            let begin = AssertSqlSafe(self.begin.clone());
            let mut transaction = self.connection.begin_with(begin).await?;
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            rows
        } else {
            query.fetch_all(&mut self.connection).await?
        };
        if rows.len() != requests.len() {
            return Err(sqlx::Error::Protocol(format!(
                "{} answers to {} requests",
                rows.len(),
                requests.len()
            )));
        }
        rows.iter()
            .zip(requests)
            .map(|(row, request)| Reply::read(row, request, connector.min_ttl))
            .collect()
    }

    /// Runs a query of one statement and returns its rows.
    pub(crate) async fn rows(
        &mut self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<sqlx::postgres::PgRow>, sqlx::Error> {
        let query = query.persistent(!self.pooled);
        if self.pooled {
            let begin = AssertSqlSafe(self.begin.clone());
            let mut transaction = self.connection.begin_with(begin).await?;
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(rows)
        } else {
            query.fetch_all(&mut self.connection).await
        }
    }

    /// Ends a server process whose connection was given up in the middle of a statement, so that
    /// nothing it was sent takes effect after what is sent from now on.
    pub(crate) async fn end(&mut self, backend: &Backend) -> Result<(), sqlx::Error> {
        let (false, Some(started)) = (self.pooled, &backend.started) else {
            return Ok(());
        };
        let query = sqlx::query(
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_get_activity($1)
             WHERE extract(epoch FROM backend_start)::text = $2",
        )
        .bind(backend.pid)
        .bind(started.clone());
        self.rows(query).await.map(drop)
    }
}

/// The session has a name that an administrator can tell, and its statements are not logged here.
pub(crate) fn with_defaults(options: PgConnectOptions) -> PgConnectOptions {
    let options = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("distlock"),
    };
    options.disable_statement_logging()
}

pub(crate) fn no_answer(limit: Duration) -> StoreError {
    StoreError::transient(format!("no answer from the server within {limit:?}"))
}

impl fmt::Debug for Connector {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.server.options();
        f.debug_struct("Connector")
            .field("host", &options.get_host())
            .field("port", &options.get_port())
            .field("database", &options.get_database())
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
