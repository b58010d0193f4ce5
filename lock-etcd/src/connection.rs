//! Connections to the members: making them, choosing one, going to the next one.
//!
//! Nothing else in this crate knows how many members there are or how they are reached. A
//! request goes to one member at a time, and to the next one when that fails or is silent: every
//! request of this crate may be repeated.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lock_core::StoreError;
use parking_lot::{Mutex, RwLock};
use rand::random_range;
use tokio::time::{sleep_until, timeout};

use crate::error::{Cure, Failure};

/// The members of a cluster, for all handles of a store.
pub(crate) struct Cluster {
    options: ConnectOptions,
    user: Option<(String, String)>,
    operation_timeout: Duration,
    members: RwLock<Members>,
    /// When the list of members was asked for last.
    listed: Mutex<Instant>,
}

struct Members {
    all: Vec<Member>,
    /// How many of them are from the URL; the others were learned from the cluster.
    configured: usize,
    /// The member that requests go to.
    current: usize,
}

#[derive(Clone)]
enum Member {
    Address(Arc<str>),
    /// An application's client, which knows its members itself.
    Client(Arc<Client>),
}

impl Member {
    fn address(&self) -> &str {
        match self {
            Self::Address(address) => address,
            Self::Client(_) => "the application's client",
        }
    }
}

/// How often the list of members is asked for at most, and only while there are requests.
const LISTING: Duration = Duration::from_secs(2);

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
        let all: Vec<_> = addresses
            .into_iter()
            .map(|address| Member::Address(address.into()))
            .collect();
        Self::of(all, options, user, operation_timeout)
    }

    pub(crate) fn of_client(client: Client, operation_timeout: Duration) -> Self {
        let options = ConnectOptions::new();
        Self::of(
            vec![Member::Client(Arc::new(client))],
            options,
            None,
            operation_timeout,
        )
    }

    fn of(
        all: Vec<Member>,
        options: ConnectOptions,
        user: Option<(String, String)>,
        operation_timeout: Duration,
    ) -> Self {
        Self {
            options,
            user,
            operation_timeout,
            members: RwLock::new(Members {
                configured: all.len(),
                // Not all processes at the same member.
                current: random_range(0..all.len().max(1)),
                all,
            }),
            listed: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    fn names(&self) -> String {
        let members = self.members.read();
        let names = members.all.iter().map(|member| {
            let address = member.address();
            address.split_once("://").map_or(address, |(_, host)| host)
        });
        names.collect::<Vec<_>>().join(", ")
    }

    fn len(&self) -> usize {
        self.members.read().all.len()
    }

    fn current(&self) -> Member {
        let members = self.members.read();
        members.all[members.current].clone()
    }

    /// Goes to the next member, unless somebody has left this one already.
    fn leave(&self, address: &str) {
        let mut members = self.members.write();
        if members.all[members.current].address() == address {
            members.current = (members.current + 1) % members.all.len();
        }
    }

    /// Whether it is time to ask for the list of members.
    fn wants_list(&self) -> bool {
        let mut listed = self.listed.lock();
        let is_due = listed.elapsed() >= LISTING;
        if is_due {
            *listed = Instant::now();
        }
        is_due
    }

    /// Learns where the members are, so that they may all be replaced, one after the other.
    ///
    /// Only if it knows one of them by the address that they give themselves: behind a proxy or
    /// a translation of addresses theirs are of no use.
    fn learn(&self, addresses: Vec<String>) {
        let mut members = self.members.write();
        let is_known = |address: &String| members.all.iter().any(|m| m.address() == address);
        if !addresses.iter().any(is_known) {
            return;
        }
        let current = members.all[members.current].address().to_owned();
        let configured = members.configured;
        members.all.truncate(configured);
        for address in addresses {
            if !members.all.iter().any(|m| m.address() == address) {
                members.all.push(Member::Address(address.into()));
            }
        }
        let place = members.all.iter().position(|m| m.address() == current);
        members.current = place.unwrap_or(0);
    }

    /// How long one member may be silent before the next one is asked as well.
    ///
    /// Nothing is lost by asking two, so it is short: a renewal has to reach a live member well
    /// before its lease ends.
    pub(crate) fn patience(&self) -> Duration {
        match self.len() {
            0 | 1 => self.operation_timeout,
            _ => (self.operation_timeout / 10).min(Duration::from_millis(300)),
        }
    }

    /// How long a stream may be silent that owes an answer, after so many silent ones in a row.
    pub(crate) fn stream_patience(&self, silent: u32) -> Duration {
        let first = match self.len() {
            0 | 1 => (self.operation_timeout / 3).min(Duration::from_secs(1)),
            _ => self.patience(),
        };
        (first * (1 + silent)).min(self.operation_timeout)
    }

    pub(crate) fn no_answer(&self) -> StoreError {
        StoreError::transient(format!(
            "etcd at {} did not answer within {:?}",
            self.names(),
            self.operation_timeout
        ))
    }

    async fn connect(&self, member: &Member) -> Result<Client, Failure> {
        let address = match member {
            Member::Client(client) => return Ok(Client::clone(client)),
            Member::Address(address) => address,
        };
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

/// A handle's connections, one for each member that was needed. They are made on the runtime
/// that needs them, and anew when they break.
#[derive(Debug)]
pub(crate) struct Connection {
    cluster: Arc<Cluster>,
    /// By the addresses of the members.
    lines: Mutex<HashMap<String, Arc<Line>>>,
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
    member: Member,
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
        Self {
            cluster,
            lines: Mutex::default(),
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
        for line in self.lines.lock().values() {
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
        let exchange = self.exchange(request);
        match timeout(self.cluster.operation_timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => {
                // Hung or half-open, for all one can know: the next request gets a new one.
                let member = self.cluster.current();
                *self.line(&member).open.lock() = None;
                self.cluster.leave(member.address());
                Err(Failure {
                    error: self.cluster.no_answer(),
                    cure: Cure::None,
                })
            }
        }
    }

    /// Asks one member, and the next one as well when there is no answer for a while; the first
    /// answer counts.
    async fn exchange<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let most = 3 * self.cluster.len() as u32 + 1;
        let attempt = async |member: Member| match self.open(&member).await {
            Ok(open) => {
                let answer = request(&open.client).await;
                (member, Some(open), answer.map_err(Failure::from))
            }
            Err(failure) => (member, None, Err(failure)),
        };
        let mut under_way = FuturesUnordered::new();
        let mut authenticated = false;
        let mut tries = 0;
        let mut next = Instant::now();
        loop {
            // A timer takes a millisecond even when it is over already.
            if under_way.is_empty() && next > Instant::now() {
                sleep_until(next.into()).await;
            }
            if next <= Instant::now() {
                tries += 1;
                let patience = self.cluster.patience() * tries;
                next = Instant::now() + patience;
                under_way.push(attempt(self.cluster.current()));
            }
            let (member, open, answer) = tokio::select! {
                biased;
                Some(answered) = under_way.next() => answered,
                () = sleep_until(next.into()) => {
                    // It may be applied yet, and it is not given up.
                    self.cluster.leave(self.cluster.current().address());
                    continue;
                }
            };
            let failure = match (open, answer) {
                (Some(open), Ok(value)) => {
                    self.list_members(&open);
                    let repeated = tries > 1;
                    return Ok(Answer { value, repeated });
                }
                (open, Err(failure)) => {
                    if let Some(open) = open
                        && matches!(failure.cure, Cure::Reconnect | Cure::Authenticate)
                    {
                        self.discard(&open);
                    }
                    failure
                }
                (None, Ok(_)) => unreachable!("there is no answer without a connection"),
            };
            match failure.cure {
                Cure::Authenticate if self.cluster.user.is_some() && !authenticated => {
                    authenticated = true;
                    next = Instant::now();
                }
                Cure::Elsewhere | Cure::Reconnect if tries < most => {
                    self.cluster.leave(member.address());
                    next = next.min(Instant::now() + self.pause(tries));
                }
                _ => return Err(failure),
            }
        }
    }

    /// To the next member at once; after a round through all of them with a pause.
    fn pause(&self, tries: u32) -> Duration {
        let rounds = tries / self.cluster.len() as u32;
        if rounds == 0 {
            return Duration::ZERO;
        }
        let most = Duration::from_millis(10) * 2_u32.pow(rounds.min(5));
        most.mul_f64(random_range(0.5..1.0))
    }

    /// A connection to the current member, for a stream.
    pub(crate) async fn current(&self) -> Result<Open, StoreError> {
        let member = self.cluster.current();
        let opened = timeout(self.cluster.operation_timeout, self.open(&member)).await;
        match opened {
            Ok(Ok(open)) => Ok(open),
            Ok(Err(failure)) => {
                self.cluster.leave(member.address());
                Err(failure.error)
            }
            Err(_) => {
                self.cluster.leave(member.address());
                Err(self.cluster.no_answer())
            }
        }
    }

    /// A stream on `open` has failed or is silent.
    pub(crate) fn broke(&self, open: &Open, failure: Option<&Failure>) {
        let cure = failure.map(|failure| failure.cure);
        if self.cluster.len() < 2 || matches!(cure, Some(Cure::Reconnect | Cure::Authenticate)) {
            self.discard(open);
        }
        self.cluster.leave(open.member.address());
    }

    async fn open(&self, member: &Member) -> Result<Open, Failure> {
        let line = self.line(member);
        match self.usable(&line)? {
            Some(open) => Ok(open),
            // In a box of its own: every request would carry its size.
            None => Box::pin(self.reopen(&line, member)).await,
        }
    }

    async fn reopen(&self, line: &Line, member: &Member) -> Result<Open, Failure> {
        let _connecting = line.connecting.lock().await;
        if let Some(open) = self.usable(line)? {
            return Ok(open);
        }
        let client = self.cluster.connect(member).await?;
        let open = Open {
            number: self.opened.fetch_add(1, Ordering::Relaxed) + 1,
            member: member.clone(),
            client: Arc::new(client),
        };
        *line.open.lock() = Some(open.clone());
        // It may have been closed meanwhile.
        Ok(self.usable(line)?.unwrap_or(open))
    }

    fn line(&self, member: &Member) -> Arc<Line> {
        let mut lines = self.lines.lock();
        match lines.get(member.address()) {
            Some(line) => line.clone(),
            None => {
                let line = Arc::<Line>::default();
                lines.insert(member.address().to_owned(), line.clone());
                line
            }
        }
    }

    fn usable(&self, line: &Line) -> Result<Option<Open>, StoreError> {
        if self.is_closed() {
            *line.open.lock() = None;
            return Err(StoreError::closed());
        }
        Ok(line.open.lock().clone())
    }

    /// Lets go of a connection, unless a newer one has taken its place.
    fn discard(&self, open: &Open) {
        let line = self.line(&open.member);
        let mut current = line.open.lock();
        if current
            .as_ref()
            .is_some_and(|now| now.number == open.number)
        {
            *current = None;
        }
    }

    /// Asks for the list of members in the background, now and then.
    fn list_members(&self, open: &Open) {
        let scheme = match open.member.address().split_once("://") {
            Some((scheme, _)) if self.cluster.wants_list() => format!("{scheme}://"),
            _ => return,
        };
        let (cluster, client) = (self.cluster.clone(), open.client.clone());
        tokio::spawn(async move {
            let mut client = client.cluster_client();
            let listed = timeout(cluster.operation_timeout, client.member_list()).await;
            // A user may lack the right to ask.
            if let Ok(Ok(list)) = listed {
                let urls = list
                    .members()
                    .iter()
                    .flat_map(|member| member.client_urls());
                let usable = urls.filter(|url| url.starts_with(&scheme));
                cluster.learn(
                    usable
                        .map(|url| url.trim_end_matches('/').to_owned())
                        .collect(),
                );
            }
        });
    }
}
