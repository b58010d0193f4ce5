//! Connections to the server: making them, sharing one for all commands, replacing it.
//!
//! Nothing else in this crate knows how a server is found or reached.

use std::{
    convert::Infallible,
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use lock_core::{StoreError, StoreErrorKind};
use parking_lot::Mutex;
use rand::random_range;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value, aio::MultiplexedConnection,
};
use tokio::time::{sleep, timeout};

use crate::{
    error::{Failure, store_error},
    scripts::Lua,
};

/// Where the server is and how long it may take to answer.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    operation_timeout: Duration,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: it knows the password.
        f.debug_struct("Server")
            .field("address", &self.address())
            .field("database", &self.database())
            .field("operation_timeout", &self.operation_timeout)
            .finish()
    }
}

impl Server {
    pub(crate) fn new(client: Client, operation_timeout: Duration) -> Self {
        Self {
            client,
            operation_timeout,
        }
    }

    pub(crate) fn database(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    pub(crate) fn no_answer(&self) -> StoreError {
        StoreError::transient(format!(
            "redis at {} did not answer within {:?}",
            self.address(),
            self.operation_timeout
        ))
    }

    fn address(&self) -> String {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "the server".to_owned(),
        }
    }

    /// A connection for commands, to a server that accepts changes.
    async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        // `reached` limits connecting, `Connection::send` each command.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let opened = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        let mut connection = self.reached(opened).await?;
        // A replica answers as well, with a past state.
        let role =
            self.reached(async { connection.send_packed_command(&redis::cmd("ROLE")).await });
        match role.await {
            Ok(Value::Array(role))
                if role.first().and_then(crate::record::text) == Some("slave") =>
            {
                Err(StoreError::transient(format!(
                    "the server at {} is a read-only replica; a fail-over may be under way: READONLY",
                    self.address()
                )))
            }
            Err(why) if why.is_transient() => Err(why),
            // A user who may not ask learns it from the first change.
            _ => Ok(connection),
        }
    }

    /// A connection that listens on `channel`, confirmed by the server, until it is dropped.
    ///
    /// `heard` is called with each notice, and with `None` when the connection has ended; by the
    /// task that reads, so it must not block.
    pub(crate) async fn subscribe(
        &self,
        channel: &str,
        heard: impl Fn(Option<&[u8]>) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = self.client.get_connection_info().clone();
        // Notices come as pushes, which need the newer protocol.
        let redis = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(self.operation_timeout))
            .set_push_sender(move |push: PushInfo| {
                match (&push.kind, push.data.last()) {
                    (PushKind::Message, Some(Value::BulkString(notice))) => heard(Some(notice)),
                    (PushKind::Disconnection, _) => heard(None),
                    _ => {}
                }
                Ok::<_, Infallible>(())
            });
        self.reached(async {
            let client = Client::open(info.set_redis_settings(redis))?;
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            connection.subscribe(channel).await?;
            Ok(connection)
        })
        .await
    }

    async fn reached<T>(
        &self,
        attempt: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, StoreError> {
        match timeout(self.operation_timeout, attempt).await {
            Ok(Ok(reached)) => Ok(reached),
            Ok(Err(why)) if why.is_io_error() => {
                let text = format!("cannot reach redis at {}: {why}", self.address());
                // A certificate that is not trusted stays so; TLS has no error kind for it.
                Err(match text.contains("certificate") {
                    true => StoreError::permanent(text),
                    false => StoreError::transient(text),
                })
            }
            Ok(Err(why)) => Err(store_error(&why)),
            Err(_) => Err(self.no_answer()),
        }
    }
}

/// One connection that all commands share. It is made when it is first needed, on the runtime
/// that needs it, and made anew when it breaks, hangs or leads to the wrong server.
#[derive(Debug)]
pub(crate) struct Connection {
    server: Server,
    current: Mutex<Option<Open>>,
    connecting: tokio::sync::Mutex<Failures>,
    opened: AtomicU64,
    closed: AtomicBool,
}

#[derive(Clone, Debug)]
struct Open {
    number: u64,
    connection: MultiplexedConnection,
}

/// What the server said.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// Whether the command was sent before, on a connection that broke: it may have been applied
    /// twice.
    pub(crate) resent: bool,
}

/// Attempts to connect that failed in a row.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<(Instant, StoreErrorKind, String)>,
}

impl Connection {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server,
            current: Mutex::new(None),
            connecting: tokio::sync::Mutex::default(),
            opened: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Another one to the same server, not open yet.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.server.clone())
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the connection; later commands fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        *self.current.lock() = None;
    }

    /// Makes sure that the server can be reached.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        self.open().await.map(drop)
    }

    /// Runs a script; `fill` adds its keys and arguments, and is called once more when the
    /// server does not know the script.
    pub(crate) async fn run(
        &self,
        script: &Lua,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Reply, StoreError> {
        let command = |name: &str, body: &str| {
            let mut command = Cmd::with_capacity(12, 512);
            command.arg(name).arg(body);
            fill(&mut command);
            command
        };
        match self.send(&command("EVALSHA", &script.sha)).await {
            Err(failure) if failure.no_script => {
                let whole = command("EVAL", &script.text);
                Box::pin(self.send(&whole)).await
            }
            answer => answer,
        }
        .map_err(|failure| failure.error)
    }

    /// Sends a command and awaits its reply, for the operation time-out at most.
    pub(crate) async fn call(&self, command: &Cmd) -> Result<Value, StoreError> {
        let reply = self.send(command).await;
        reply
            .map(|reply| reply.value)
            .map_err(|failure| failure.error)
    }

    async fn send(&self, command: &Cmd) -> Result<Reply, Failure> {
        let used = AtomicU64::new(0);
        let limit = self.server.operation_timeout;
        match timeout(limit, self.exchange(command, &used)).await {
            Ok(answer) => answer,
            Err(_) => {
                // Hung or half-open, for all one can know: the next command gets a new one.
                self.discard(used.into_inner());
                Err(Failure {
                    error: self.server.no_answer(),
                    broken: true,
                    no_script: false,
                })
            }
        }
    }

    /// As long as connections break under the command and new ones can be had, sends it again:
    /// every command of this crate may be repeated.
    async fn exchange(&self, command: &Cmd, used: &AtomicU64) -> Result<Reply, Failure> {
        const TRIES: u32 = 4;
        for tries in 1.. {
            let mut open = self.open().await.map_err(|error| Failure {
                error,
                broken: true,
                no_script: false,
            })?;
            used.store(open.number, Ordering::Relaxed);
            // In a box of its own, as `reopen`.
            let sent = Box::pin(open.connection.send_packed_command(command));
            let answer = sent.await;
            let why = match answer.and_then(Value::extract_error) {
                Ok(value) => {
                    return Ok(Reply {
                        value,
                        resent: tries > 1,
                    });
                }
                Err(why) => why,
            };
            let failure = Failure::from(why.clone());
            if failure.broken {
                self.discard(open.number);
            }
            if !why.is_io_error() || tries == TRIES {
                return Err(failure);
            }
            // Many commands may have been under way on the broken one.
            sleep(Duration::from_millis(5).mul_f64(random_range(0.0..f64::from(tries)))).await;
        }
        unreachable!("the last try returns")
    }

    async fn open(&self) -> Result<Open, StoreError> {
        match self.usable()? {
            Some(open) => Ok(open),
            // In a box of its own: every request would carry its size.
            None => Box::pin(self.reopen()).await,
        }
    }

    async fn reopen(&self) -> Result<Open, StoreError> {
        let asked = Instant::now();
        let mut failures = self.connecting.lock().await;
        if let Some(open) = self.usable()? {
            return Ok(open);
        }
        if let Some((at, kind, why)) = &failures.last
            && *at >= asked
        {
            // The attempt that this one has waited for stands for both.
            return Err(StoreError::new(*kind, why.clone()));
        }
        sleep(failures.pause()).await;
        match self.server.connect().await {
            Ok(connection) => {
                *failures = Failures::default();
                let open = Open {
                    number: self.opened.fetch_add(1, Ordering::Relaxed) + 1,
                    connection,
                };
                *self.current.lock() = Some(open.clone());
                // It may have been closed meanwhile.
                self.usable().map(|_| open)
            }
            Err(why) => {
                failures.count += 1;
                failures.last = Some((Instant::now(), why.kind(), why.to_string()));
                Err(why)
            }
        }
    }

    fn usable(&self) -> Result<Option<Open>, StoreError> {
        if self.is_closed() {
            *self.current.lock() = None;
            return Err(StoreError::closed());
        }
        Ok(self.current.lock().clone())
    }

    /// Lets go of a connection, unless a newer one has taken its place.
    fn discard(&self, number: u64) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|open| open.number == number) {
            *current = None;
        }
    }
}

impl Failures {
    /// How long to wait before the next attempt, counted from the last one: up to half a second.
    fn pause(&self) -> Duration {
        let Some((at, ..)) = &self.last else {
            return Duration::ZERO;
        };
        backoff(self.count).saturating_sub(at.elapsed())
    }
}

/// The pause after the n-th failure in a row: 10 ms to 500 ms, doubling, with jitter.
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = Duration::from_millis(10) * 2_u32.pow(failures.min(6));
    most.min(Duration::from_millis(500))
        .mul_f64(random_range(0.5..1.0))
}
