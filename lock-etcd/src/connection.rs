//! Connections to the members: making them, choosing one, going to the next one.
//!
//! Nothing else in this crate knows how many members there are or how they are reached. A
//! request goes to one member at a time, and to the next one when that fails or is silent: every
//! request of this crate may be repeated.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions};
use lock_core::StoreError;
use parking_lot::Mutex;
use rand::random_range;
use tokio::time::{sleep, timeout};

use crate::error::{Cure, Failure};

/// The members of a cluster, for all handles of a store.
pub(crate) struct Cluster {
    members: Vec<Member>,
    options: ConnectOptions,
    user: Option<(String, String)>,
    operation_timeout: Duration,
    /// The member that requests go to.
    current: AtomicUsize,
}

#[derive(Clone)]
enum Member {
    Address(String),
    /// An application's client, which knows its members itself.
    Client(Client),
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the user: it has a password.
        f.debug_struct("Cluster")
            .field("members", &self.names())
            .field("operation_timeout", &self.operation_timeout)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(
        addresses: Vec<String>,
        options: ConnectOptions,
        user: Option<(String, String)>,
        operation_timeout: Duration,
    ) -> Self {
        Self {
            // Not all processes at the same member.
            current: AtomicUsize::new(random_range(0..addresses.len().max(1))),
            members: addresses.into_iter().map(Member::Address).collect(),
            options,
            user,
            operation_timeout,
        }
    }

    pub(crate) fn of_client(client: Client, operation_timeout: Duration) -> Self {
        Self {
            members: vec![Member::Client(client)],
            options: ConnectOptions::new(),
            user: None,
            operation_timeout,
            current: AtomicUsize::new(0),
        }
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    fn names(&self) -> String {
        let names = self.members.iter().map(|member| match member {
            Member::Address(address) => address
                .split_once("://")
                .map_or(address.as_str(), |(_, host)| host),
            Member::Client(_) => "the application's client",
        });
        names.collect::<Vec<_>>().join(", ")
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len()
    }

    /// Goes to the next member, unless somebody has left `member` already.
    pub(crate) fn leave(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let _ = self
            .current
            .compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long one member may be silent before the next one is asked.
    ///
    /// Nothing is lost by asking two, so it is short: a renewal has to reach a live member well
    /// before its lease ends.
    pub(crate) fn patience(&self, tries: u32) -> Duration {
        if self.members.len() < 2 {
            return self.operation_timeout;
        }
        let first = (self.operation_timeout / 10).min(Duration::from_millis(300));
        first * (1 + tries / self.members.len() as u32)
    }

    /// How long a stream may be silent that owes an answer.
    pub(crate) fn stream_patience(&self) -> Duration {
        if self.members.len() < 2 {
            return (self.operation_timeout / 3).min(Duration::from_secs(1));
        }
        self.patience(0)
    }

    pub(crate) fn no_answer(&self) -> StoreError {
        StoreError::transient(format!(
            "etcd at {} did not answer within {:?}",
            self.names(),
            self.operation_timeout
        ))
    }

    async fn connect(&self, member: usize) -> Result<Client, Failure> {
        match &self.members[member] {
            Member::Client(client) => Ok(client.clone()),
            Member::Address(address) => {
                let anonymous = self.options.clone();
                if let Some((name, password)) = &self.user {
                    let options = anonymous.clone().with_user(name, password);
                    match Client::connect([address], Some(options)).await {
                        // As etcd's own client does: a user is no harm where nobody needs one.
                        Err(etcd_client::Error::GRpcStatus(status))
                            if status.message().contains("authentication is not enabled") => {}
                        connected => return Ok(connected?),
                    }
                }
                Ok(Client::connect([address], Some(anonymous)).await?)
            }
        }
    }
}

/// A handle's connections, one for each member that was needed. They are made on the runtime
/// that needs them, and anew when they break.
#[derive(Debug)]
pub(crate) struct Connection {
    cluster: Arc<Cluster>,
    lines: Vec<Line>,
    opened: AtomicU64,
    closed: AtomicBool,
}

#[derive(Default)]
struct Line {
    open: Mutex<Option<Open>>,
    connecting: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

/// An open connection.
#[derive(Clone)]
pub(crate) struct Open {
    number: u64,
    member: usize,
    pub(crate) client: Arc<Client>,
}

/// An answer, and whether the request may have been applied more than once, or later.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    pub(crate) repeated: bool,
}

impl Connection {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let lines = cluster.members.iter().map(|_| Line::default()).collect();
        Self {
            cluster,
            lines,
            opened: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the connections; later requests fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for line in &self.lines {
            *line.open.lock() = None;
        }
    }

    /// Sends a request that is about no lease in particular, so that repeats are harmless.
    pub(crate) async fn call<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        Ok(self.send(request).await?.value)
    }

    /// Sends a request and awaits its answer, for the operation time-out at most.
    pub(crate) async fn send<T, F>(
        &self,
        request: impl Fn(&Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let used = Mutex::new(None);
        let exchange = self.exchange(request, &used);
        match timeout(self.cluster.operation_timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => {
                // Hung or half-open, for all one can know: the next request gets a new one.
                if let Some(open) = used.into_inner() {
                    self.discard(&open);
                    self.cluster.leave(open.member);
                }
                Err(Failure {
                    error: self.cluster.no_answer(),
                    cure: Cure::None,
                })
            }
        }
    }

    async fn exchange<T, F>(
        &self,
        request: impl Fn(&Client) -> F,
        used: &Mutex<Option<Open>>,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let most = 3 * self.lines.len() as u32 + 1;
        let mut repeated = false;
        let mut authenticated = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let member = self.cluster.current();
            let open = match self.open(member).await {
                Ok(open) => open,
                Err(failure) if failure.error.is_transient() && tries < most => {
                    self.move_on(member, tries).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            *used.lock() = Some(open.clone());
            let answer = timeout(self.cluster.patience(tries), request(&open.client)).await;
            let failure = match answer {
                Ok(Ok(value)) => return Ok(Answer { value, repeated }),
                Ok(Err(why)) => Failure::from(why),
                Err(_) => {
                    // It may be applied yet.
                    repeated = true;
                    self.cluster.leave(member);
                    continue;
                }
            };
            match failure.cure {
                Cure::Authenticate if self.cluster.user.is_some() && !authenticated => {
                    authenticated = true;
                    self.discard(&open);
                }
                Cure::Elsewhere | Cure::Reconnect if tries < most => {
                    repeated = true;
                    if failure.cure == Cure::Reconnect {
                        self.discard(&open);
                    }
                    self.move_on(member, tries).await;
                }
                _ => return Err(failure),
            }
        }
    }

    /// To the next member; after a round through all of them with a pause.
    async fn move_on(&self, member: usize, tries: u32) {
        self.cluster.leave(member);
        let rounds = tries / self.lines.len() as u32;
        if rounds > 0 {
            let most = Duration::from_millis(10) * 2_u32.pow(rounds.min(5));
            sleep(most.mul_f64(random_range(0.5..1.0))).await;
        }
    }

    /// A connection to the current member, for a stream.
    pub(crate) async fn current(&self) -> Result<Open, StoreError> {
        let member = self.cluster.current();
        let opened = timeout(self.cluster.operation_timeout, self.open(member)).await;
        match opened {
            Ok(Ok(open)) => Ok(open),
            Ok(Err(failure)) => {
                self.cluster.leave(member);
                Err(failure.error)
            }
            Err(_) => {
                self.cluster.leave(member);
                Err(self.cluster.no_answer())
            }
        }
    }

    /// A stream on `open` has failed or is silent.
    pub(crate) fn broke(&self, open: &Open, failure: Option<&Failure>) {
        let cure = failure.map(|failure| failure.cure);
        if self.lines.len() < 2 || matches!(cure, Some(Cure::Reconnect | Cure::Authenticate)) {
            self.discard(open);
        }
        self.cluster.leave(open.member);
    }

    async fn open(&self, member: usize) -> Result<Open, Failure> {
        if let Some(open) = self.usable(member)? {
            return Ok(open);
        }
        let _connecting = self.lines[member].connecting.lock().await;
        if let Some(open) = self.usable(member)? {
            return Ok(open);
        }
        let client = self.cluster.connect(member).await?;
        let open = Open {
            number: self.opened.fetch_add(1, Ordering::Relaxed) + 1,
            member,
            client: Arc::new(client),
        };
        *self.lines[member].open.lock() = Some(open.clone());
        // It may have been closed meanwhile.
        Ok(self.usable(member)?.unwrap_or(open))
    }

    fn usable(&self, member: usize) -> Result<Option<Open>, StoreError> {
        if self.is_closed() {
            *self.lines[member].open.lock() = None;
            return Err(StoreError::closed());
        }
        Ok(self.lines[member].open.lock().clone())
    }

    /// Lets go of a connection, unless a newer one has taken its place.
    fn discard(&self, open: &Open) {
        let mut current = self.lines[open.member].open.lock();
        if current
            .as_ref()
            .is_some_and(|now| now.number == open.number)
        {
            *current = None;
        }
    }
}
