//! The campaign: client processes that take locks and write under them, faults without end, and
//! checks of everything that happened.
//!
//! ```text
//! cargo run --release -p integration-tests --bin campaign -- --store redis --minutes 5 --seed 1
//! ```
//!
//! docs/proof.md says what is checked and what came out. A run can end in three ways: everything
//! held; something did not; or the run is void, because it could not have shown it.

mod client;
mod faults;
mod fleet;
mod report;
mod schedule;
mod server;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use lock_core::LockClient;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

pub use client::{ClientOptions, run as run_client};
pub use faults::{Injected, Kind};
pub use report::{Report, Verdict};
pub use schedule::{Planned, Schedule};
pub use server::StoreKind;

use crate::{
    checker::{self, Excuse, Violation},
    clock::ShiftedClock,
    fenced::{self, Leniency, ResourceProcess},
    history::now,
    oracle,
    proxy::Proxy,
    sabotage::Bug,
};
use fleet::{Client, Log};
use server::Server;

/// The lengths of leases.
const TTLS: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_millis(800),
];

/// What the campaign is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The store
    #[arg(long)]
    pub store: StoreKind,
    /// How long faults are brought about
    #[arg(long, default_value_t = 1.0)]
    pub minutes: f64,
    /// What the schedule of faults follows from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many client processes there are
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..))]
    pub clients: u32,
    /// How many tasks each of them has
    #[arg(long, default_value_t = 6)]
    pub tasks: u32,
    /// How many locks there are
    #[arg(long, default_value_t = 24)]
    pub keys: u32,
    /// How many grants a second there have to be, or the run is void
    #[arg(long, default_value_t = 20.0)]
    pub least: f64,
    /// Only these kinds of fault, instead of all that the store can have
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// A planted bug of the store; the run ends when it is found
    #[arg(long)]
    pub bug: Option<Bug>,
    /// A planted bug of the resource; the run ends when it is found
    #[arg(long, value_enum, default_value_t = Leniency::None)]
    pub leniency: Leniency,
    /// Where the report goes, as JSON; the history beside it
    #[arg(long, default_value = "target/campaign")]
    pub folder: PathBuf,
}

/// Everything that takes part.
struct Site {
    store: StoreKind,
    keys: u32,
    server: Server,
    /// The clock that the store ends leases by.
    clock: Arc<ShiftedClock>,
    /// Of each client, one for each member of the store.
    proxies: Vec<Vec<Proxy>>,
    client_clocks: Vec<Arc<ShiftedClock>>,
    clients: Vec<Client>,
    commands: Commands,
    log: Arc<Mutex<Log>>,
    excuses: Vec<Excuse>,
    /// Past all proxies.
    operator: LockClient,
}

/// How client processes are started.
struct Commands {
    program: PathBuf,
    resource: std::net::SocketAddr,
    options: Options,
    started: u32,
}

impl Commands {
    fn client(&mut self, url: &str, clock: &ShiftedClock) -> (Command, u32) {
        let number = self.started;
        self.started += 1;
        let seed = self.options.seed.wrapping_mul(1_000_000) + u64::from(number);
        let mut command = Command::new(&self.program);
        command
            .arg("client")
            .args(["--url", url])
            .args(["--resource", &self.resource.to_string()])
            .args(["--keys", &self.options.keys.to_string()])
            .args(["--tasks", &self.options.tasks.to_string()])
            .args(["--seed", &seed.to_string()]);
        if let Some(bug) = self.options.bug {
            command.args(["--bug", &name(bug)]);
        }
        clock.apply(&mut command);
        (command, number)
    }
}

/// The name of a choice on the command line.
fn name(choice: impl clap::ValueEnum) -> String {
    let value = choice.to_possible_value();
    value
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// The name of a lock; not the easiest.
fn lock_name(key: u32) -> String {
    format!("campaign/}}{key}{{é*")
}

/// Runs a campaign. `program` is the one that understands `client` and `resource`.
///
/// # Panics
///
/// When something that it needs does not start.
pub async fn run(options: Options, program: &Path) -> Report {
    let folder = &options.folder;
    std::fs::create_dir_all(folder).expect("the folder for the report");
    let stem = format!("{}-{}", name(options.store), options.seed);
    let writes = folder.join(format!("{stem}.writes"));
    let resource = ResourceProcess::start(
        Command::new(program)
            .args(["resource", "--leniency", &name(options.leniency), "--log"])
            .arg(&writes),
    );
    let mut site = Site::start(&options, program, resource.address()).await;
    let mut report = Report::new(&options, site.server.version().await);
    let kinds = match options.only.is_empty() {
        true => Kind::of(options.store),
        false => options.only.clone(),
    };

    site.until_everybody_works().await;
    let begin = Instant::now();
    let limit = Duration::from_secs_f64(options.minutes * 60.0);
    let mut told = Instant::now();
    for fault in Schedule::new(options.seed, site.clients.len(), kinds) {
        sleep(Duration::from_millis(fault.after)).await;
        // Without a stale write the run would be void: some more pauses may bring one.
        let has_power = site.log.lock().stale > 0;
        if begin.elapsed() > if has_power { limit } else { 2 * limit } {
            break;
        }
        report.faults.push(site.inject(fault).await);
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            report.progress(begin.elapsed(), &site.log.lock());
        }
        if is_sabotaged(&options) && site.has_violation(&resource, &writes) {
            break;
        }
    }
    report.seconds = begin.elapsed().as_secs_f64();
    if is_sabotaged(&options) && site.has_violation(&resource, &writes) {
        report.found_after = Some(report.seconds);
    }

    let stuck = site.recover(&mut report).await;
    let unanswered = site.stop().await;
    report.tally = resource.tally().expect("the resource answers");
    let written = fenced::read_log(&writes).expect("the log of the resource");
    let log = site.log.lock();
    report.take(&log);
    let mut findings = checker::holds(&log.holds, &site.excuses);
    report.violations.append(&mut findings.violations);
    report.violations.extend(checker::writes(&written));
    report.violations.extend(stuck);
    if unanswered > 0 {
        let count = unanswered as u64;
        report.violations.push(Violation::Unanswered { count });
    }
    report.excused = findings.excused;
    let (windows, violations) = oracle::check(&log.holds, &site.excuses);
    report.windows = windows;
    report.violations.extend(violations);
    report.judge();
    report.write(&folder.join(format!("{stem}.json")), &log.holds);
    drop(log);
    report
}

fn is_sabotaged(options: &Options) -> bool {
    options.bug.is_some() || options.leniency != Leniency::None
}

impl Site {
    async fn start(options: &Options, program: &Path, resource: std::net::SocketAddr) -> Self {
        let clock = Arc::new(ShiftedClock::new());
        let server = Server::start(options.store, &clock);
        let mut proxies = Vec::new();
        for _ in 0..options.clients {
            let mut own = Vec::new();
            for address in server.addresses() {
                own.push(Proxy::start(address).await.expect("a proxy starts"));
            }
            proxies.push(own);
        }
        let url = server.url(&server.addresses());
        let operator = distlock::connect(&url).await.expect("the store opens");
        let clients = options.clients as usize;
        let mut site = Self {
            store: options.store,
            keys: options.keys,
            client_clocks: match server {
                // Of a store in a file, the clients' clock is the one that counts.
                Server::Sqlite(_) => vec![clock.clone(); clients],
                _ => (0..clients).map(|_| Arc::default()).collect(),
            },
            clock,
            server,
            proxies,
            clients: Vec::new(),
            commands: Commands {
                program: program.to_owned(),
                resource,
                options: options.clone(),
                started: 0,
            },
            log: Arc::default(),
            excuses: Vec::new(),
            operator,
        };
        for client in 0..clients {
            let client = site.new_client(client);
            site.clients.push(client);
        }
        site
    }

    fn new_client(&mut self, place: usize) -> Client {
        let own = self.proxies[place].iter();
        let addresses: Vec<_> = own.map(|proxy| proxy.address().to_string()).collect();
        let url = self.server.url(&addresses);
        let (mut command, number) = self.commands.client(&url, &self.client_clocks[place]);
        Client::start(&mut command, number, &self.log)
    }

    /// Another process in the place of one that has ended.
    fn start_client(&mut self, place: usize) {
        self.clients[place] = self.new_client(place);
    }

    /// Every lock has been granted, and every client has begun.
    async fn until_everybody_works(&self) {
        let begin = Instant::now();
        while self.log.lock().last_grant.len() < self.keys as usize {
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the clients do not begin"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the checks find something so far.
    fn has_violation(&self, resource: &ResourceProcess, writes: &Path) -> bool {
        let flushed = resource.tally().is_ok();
        let written = fenced::read_log(writes).unwrap_or_default();
        flushed && !checker::writes(&written).is_empty()
            || !checker::holds(&self.log.lock().holds, &self.excuses)
                .violations
                .is_empty()
    }

    /// All faults are over: somebody gets every lock, and soon.
    async fn recover(&self, report: &mut Report) -> Vec<Violation> {
        let begin = now();
        let limit = self.store.recovery();
        let patience = 3 * limit;
        // How long each lock took to its first grant.
        let mut first = BTreeMap::new();
        while first.len() < self.keys as usize && Duration::from_nanos(now() - begin) < patience {
            for (key, at) in &self.log.lock().last_grant {
                if *at > begin {
                    first
                        .entry(*key)
                        .or_insert(Duration::from_nanos(at - begin));
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        (0..self.keys)
            .filter_map(|key| {
                let waited = first.get(&key).copied().unwrap_or(patience);
                let millis = waited.as_millis() as u64;
                report.recovery_ms = report.recovery_ms.max(millis);
                (waited > limit).then_some(Violation::Stuck { key, millis })
            })
            .collect()
    }

    /// Ends the clients in order; how many acquires and holds nobody has told the end of.
    async fn stop(&mut self) -> usize {
        for client in &mut self.clients {
            client.tell("stop");
        }
        for client in &mut self.clients {
            if !tokio::task::block_in_place(|| client.stopped()) {
                eprintln!("client {} did not end well", client.process.pid());
            }
        }
        self.log.lock().unanswered()
    }
}
