//! How a store is set up.

use std::{fmt, time::Duration};

use lock_core::{Error, Result};
use sqlx::{PgPool, postgres::PgConnectOptions};

use crate::{PostgresLock, schema::Names};

/// Options for a [`PostgresLock`].
///
/// ```no_run
/// use lock_postgres::PostgresLock;
///
/// # async fn example() -> lock_core::Result<()> {
/// let store = PostgresLock::builder("postgres://app@pooler:6432/shop")?
///     .listen_url("postgres://app@db:5432/shop")?
///     .schema("locks")
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use]
#[derive(Clone)]
pub struct PostgresLockBuilder {
    pub(crate) server: Server,
    pub(crate) listen: Listen,
    pub(crate) names: Names,
    pub(crate) schema_mode: SchemaMode,
    pub(crate) pooler: Pooler,
    pub(crate) synchronous_commit: SynchronousCommit,
    pub(crate) request_timeout: Duration,
    pub(crate) batch_limit: usize,
    pub(crate) sweep_interval: Option<Duration>,
    pub(crate) keep_idle: Duration,
    pub(crate) poll_interval: Duration,
}

/// Where the server is, and how it is reached.
#[derive(Clone)]
pub(crate) enum Server {
    At(Box<PgConnectOptions>),
    /// Where the connections of an application's pool go at present.
    Of(PgPool),
}

impl Server {
    pub(crate) fn options(&self) -> PgConnectOptions {
        match self {
            Self::At(options) => options.as_ref().clone(),
            Self::Of(pool) => PgConnectOptions::clone(&pool.connect_options()),
        }
    }
}

/// How waiters are told.
#[derive(Clone)]
pub(crate) enum Listen {
    /// On the address of the requests, unless that is a pooler.
    SameUrl,
    Url(Box<PgConnectOptions>),
    /// They poll.
    Never,
}

/// What [`connect`](PostgresLockBuilder::connect) does about the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaMode {
    /// Creates what is missing; when nothing is, no DDL is sent.
    #[default]
    Ensure,
    /// Fails when something is missing; for roles that may only read and write rows.
    Check,
}

/// Whether a pooler is between this process and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooler {
    /// Find out: a pooler does not pass on the settings that a session starts with.
    #[default]
    Detect,
    /// The server itself, or a pooler in session mode.
    None,
    /// A pooler in transaction mode: each request is a transaction of its own, nothing is prepared.
    Transaction,
}

/// How safe a commit is before it is answered; see `synchronous_commit` in Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SynchronousCommit {
    /// What the server, the database or the role is set to.
    #[default]
    ServerDefault,
    /// On disk here, and on the synchronous standbys where there are any.
    On,
    /// Also visible on the synchronous standbys.
    RemoteApply,
    /// On disk here; a fail-over may lose a lock.
    Local,
    /// Not even on disk: faster, and a crash of the server may lose the locks of its last moments.
    Off,
}

impl SynchronousCommit {
    pub(crate) fn setting(self) -> Option<&'static str> {
        match self {
            Self::ServerDefault => None,
            Self::On => Some("on"),
            Self::RemoteApply => Some("remote_apply"),
            Self::Local => Some("local"),
            Self::Off => Some("off"),
        }
    }
}

impl PostgresLockBuilder {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server,
            listen: Listen::SameUrl,
            names: Names::default(),
            schema_mode: SchemaMode::Ensure,
            pooler: Pooler::Detect,
            synchronous_commit: SynchronousCommit::ServerDefault,
            request_timeout: Duration::from_secs(5),
            batch_limit: 256,
            sweep_interval: Some(Duration::from_secs(60)),
            keep_idle: Duration::from_secs(600),
            poll_interval: Duration::from_millis(100),
        }
    }

    pub(crate) fn from_url(url: &str) -> Result<Self> {
        Ok(Self::new(Server::At(Box::new(parse(url)?))))
    }

    /// The schema of the tables; `public` by default. Applications with schemas of their own do
    /// not see each other's locks. `connect` makes a schema that is missing.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.names.schema = schema.into();
        self
    }

    /// What the names of tables and functions begin with; `distlock` by default.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.names.prefix = prefix.into();
        self
    }

    /// The server's own address, to be told on when the main address is a pooler.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when it is not a URL of Postgres.
    pub fn listen_url(mut self, url: &str) -> Result<Self> {
        self.listen = Listen::Url(Box::new(parse(url)?));
        Ok(self)
    }

    /// Do not listen: waiters poll, every [`poll_interval`](Self::poll_interval).
    pub fn without_listen(mut self) -> Self {
        self.listen = Listen::Never;
        self
    }

    /// What to do about the tables; [`SchemaMode::Ensure`] by default.
    pub fn schema_mode(mut self, mode: SchemaMode) -> Self {
        self.schema_mode = mode;
        self
    }

    /// Whether there is a pooler; [`Pooler::Detect`] by default.
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// How safe a commit is before it is answered; the server's setting by default.
    pub fn synchronous_commit(mut self, level: SynchronousCommit) -> Self {
        self.synchronous_commit = level;
        self
    }

    /// How long one statement or the making of a connection may take; 100 ms to 1 hour, 5 s by
    /// default. A connection whose statement takes longer is given up.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// How many requests go out in one statement at most; 1 to 1000, 256 by default. Each takes
    /// up to one entry of the server's lock table.
    pub fn batch_limit(mut self, requests: usize) -> Self {
        self.batch_limit = requests;
        self
    }

    /// How often this process looks for rows that nobody uses any more; 1 ms or longer, `None`
    /// for never, 60 s by default. Nothing but the size of the table depends on it.
    pub fn sweep_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.sweep_interval = interval.into();
        self
    }

    /// How long a row is kept after its lock was last held; 10 minutes by default.
    pub fn keep_idle(mut self, age: Duration) -> Self {
        self.keep_idle = age;
        self
    }

    /// How often waiters look where they cannot be told; 10 ms to 1 s, 100 ms by default. One
    /// statement for all waiters of the process.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Connects, and makes or checks the tables.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for impossible options, [`Error::Store`] when the server cannot
    /// be reached, refuses the user, is a standby, or lacks the tables.
    ///
    /// # Cancel safety
    ///
    /// May be dropped; tables may have been made.
    pub async fn connect(self) -> Result<PostgresLock> {
        self.check()?;
        PostgresLock::open(self).await
    }

    fn check(&self) -> Result<()> {
        self.names.check()?;
        let invalid = |what: String| Err(Error::InvalidConfig { what });
        let timeout = self.request_timeout;
        if timeout < Duration::from_millis(100) || timeout > Duration::from_secs(3600) {
            return invalid(format!(
                "request_timeout is {timeout:?}; it has to be from 100 ms to 1 hour"
            ));
        }
        if !(1..=1000).contains(&self.batch_limit) {
            return invalid(format!(
                "batch_limit is {}; it has to be from 1 to 1000",
                self.batch_limit
            ));
        }
        if self
            .sweep_interval
            .is_some_and(|every| every < Duration::from_millis(1))
        {
            return invalid("sweep_interval is under 1 ms".to_owned());
        }
        let poll = self.poll_interval;
        if poll < Duration::from_millis(10) || poll > Duration::from_secs(1) {
            return invalid(format!(
                "poll_interval is {poll:?}; it has to be from 10 ms to 1 s"
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresLockBuilder {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.server.options();
        f.debug_struct("PostgresLockBuilder")
            .field("host", &options.get_host())
            .field("port", &options.get_port())
            .field("database", &options.get_database())
            .field("names", &self.names)
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

/// The URL may hold a password, so no error repeats it.
fn parse(url: &str) -> Result<PgConnectOptions> {
    let invalid = |why: &str| Error::InvalidConfig {
        what: format!("the URL cannot be used: {why}"),
    };
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid(
            "it does not start with postgres:// or postgresql://",
        ));
    }
    url.parse()
        .map_err(|_| invalid("it is not postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_secret() {
        let builder = PostgresLockBuilder::from_url("postgres://u:hunter2@h:1/d").unwrap();
        assert!(!format!("{builder:?}").contains("hunter2"));
        let error = PostgresLockBuilder::from_url("postgres://u:hunter2@h:x/d").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
    }

    #[test]
    fn impossible_options_are_refused() {
        let builder = || PostgresLockBuilder::from_url("postgres://u@h/d").unwrap();
        for wrong in [
            builder().batch_limit(0),
            builder().request_timeout(Duration::ZERO),
            builder().sweep_interval(Duration::ZERO),
            builder().poll_interval(Duration::ZERO),
            builder().schema(""),
            builder().schema("a\"b"),
            builder().table_prefix("Semi;colon"),
            builder().table_prefix("x".repeat(41)),
        ] {
            assert!(matches!(wrong.check(), Err(Error::InvalidConfig { .. })));
        }
        assert!(builder().check().is_ok());
    }
}
