//! What the Redis store costs on top of the bare commands.
//!
//! `cargo bench -p integration-tests --bench redis [-- SECTION…]` starts a private server and
//! prints medians of interleaved rounds. Sections: pairs, contention, latency, renewal.
//! The floor is bare redis-rs on one multiplexed connection: one EVALSHA of a minimal acquire
//! script (SET NX PX) and one of a minimal release (GET, compare, DEL).

#![allow(clippy::unwrap_used)]

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use integration_tests::{process::Process, servers::redis::RedisServer};
use lock_core::{DistributedLock, LockClient};
use lock_redis::{RedisLock, redis};
use redis::{Client, IntoConnectionInfo, Script, aio::MultiplexedConnection, io::tcp::TcpSettings};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

fn main() {
    let arguments: Vec<_> = env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    if let [role, url] = arguments.as_slice()
        && role == "waiter"
    {
        return runtime().block_on(waiter(url));
    }
    let wanted = |section: &str| arguments.is_empty() || arguments.iter().any(|a| a == section);
    let server = RedisServer::start();
    runtime().block_on(async {
        if wanted("pairs") {
            pairs(&server, 1).await;
            pairs(&server, 64).await;
        }
        if wanted("contention") {
            contention(&server).await;
        }
        if wanted("latency") {
            latency(&server).await;
        }
        if wanted("renewal") {
            renewal(&server).await;
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn client(server: &RedisServer) -> LockClient {
    LockClient::new(Arc::new(RedisLock::connect(&server.url()).await.unwrap()))
}

#[derive(Clone)]
struct Floor {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
}

impl Floor {
    async fn new(server: &RedisServer) -> Self {
        let info = server.url().into_connection_info().unwrap();
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(info).unwrap();
        let floor = Self {
            connection: client.get_multiplexed_async_connection().await.unwrap(),
            acquire: Script::new(
                "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0",
            ),
            release: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
            ),
        };
        for script in [&floor.acquire, &floor.release] {
            let mut connection = floor.connection.clone();
            script
                .prepare_invoke()
                .load_async(&mut connection)
                .await
                .unwrap();
        }
        floor
    }

    async fn pair(&mut self, key: &str) {
        let owner = "0123456789abcdef0123456789abcdef";
        let mut acquire = redis::cmd("EVALSHA");
        acquire
            .arg(self.acquire.get_hash())
            .arg(1)
            .arg(key)
            .arg(owner)
            .arg(30_000);
        let taken: i64 = acquire.query_async(&mut self.connection).await.unwrap();
        let mut release = redis::cmd("EVALSHA");
        release
            .arg(self.release.get_hash())
            .arg(1)
            .arg(key)
            .arg(owner);
        let freed: i64 = release.query_async(&mut self.connection).await.unwrap();
        assert_eq!((taken, freed), (1, 1));
    }
}

/// Runs `tasks` copies of an endless job for one round; returns how often it was done a second.
async fn rate(tasks: usize, job: impl Fn(usize) -> Job) -> f64 {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let begin = Instant::now();
    let mut running = Vec::new();
    for task in 0..tasks {
        let mut job = job(task);
        let (stop, done) = (stop.clone(), done.clone());
        running.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                job().await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    tokio::time::sleep(ROUND).await;
    let rate = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in running {
        task.await.unwrap();
    }
    rate
}

type Job = Box<dyn FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

fn floor_job(floor: &Floor, task: usize) -> Job {
    let (floor, key) = (floor.clone(), format!("floor:{{{task}}}"));
    Box::new(move || {
        let (mut floor, key) = (floor.clone(), key.clone());
        Box::pin(async move { floor.pair(&key).await })
    })
}

fn store_job(store: &Arc<RedisLock>, task: usize) -> Job {
    let (store, key) = (
        store.clone(),
        lock_core::LockKey::new(format!("key {task}")).unwrap(),
    );
    let asker = Arc::new(lock_core::Asker::this_process(None).unwrap());
    Box::new(move || {
        let (store, key, asker) = (store.clone(), key.clone(), asker.clone());
        Box::pin(async move {
            let claim = lock_core::Claim {
                key,
                asker,
                owner: lock_core::OwnerId::random(),
                hold: lock_core::HoldId::random(),
                ttl: lock_core::Ttl::from_millis(30_000).unwrap(),
                queue: false,
            };
            store.try_acquire(&claim).await.unwrap();
            store.release(&claim).await.unwrap();
        })
    })
}

fn client_job(client: &LockClient, key: String) -> Job {
    let client = client.clone();
    Box::new(move || {
        let (client, key) = (client.clone(), key.clone());
        Box::pin(async move { client.acquire(&key).await.unwrap().release().await.unwrap() })
    })
}

async fn pairs(server: &RedisServer, tasks: usize) {
    let floor = Floor::new(server).await;
    let store = Arc::new(RedisLock::connect(&server.url()).await.unwrap());
    let client = client(server).await;
    let (mut bare, mut verbs, mut ours) = (Cost::default(), Cost::default(), Cost::default());
    for _ in 0..ROUNDS {
        bare.round(server, tasks, |task| floor_job(&floor, task))
            .await;
        verbs
            .round(server, tasks, |task| store_job(&store, task))
            .await;
        ours.round(server, tasks, |task| {
            client_job(&client, format!("key {task}"))
        })
        .await;
    }
    println!(
        "CPU a pair, client and server: floor {}, store {}, client {}",
        bare.cpu(),
        verbs.cpu(),
        ours.cpu()
    );
    let (bare, verbs, ours) = (
        median(&mut bare.rates),
        median(&mut verbs.rates),
        median(&mut ours.rates),
    );
    println!(
        "pairs, {tasks} task(s): floor {bare:.0}/s ({:.1} µs), store {verbs:.0}/s ({:.3} × floor), client {ours:.0}/s ({:.3} × floor)",
        1e6 / bare,
        bare / verbs,
        bare / ours
    );
}

/// The rounds of one contender.
#[derive(Default)]
struct Cost {
    rates: Vec<f64>,
    here: Vec<f64>,
    there: Vec<f64>,
}

impl Cost {
    async fn round(
        &mut self,
        server: &RedisServer,
        tasks: usize,
        job: impl Fn(usize) -> Job,
    ) -> f64 {
        let before = (cpu(std::process::id()), cpu(server.pid()));
        let begin = Instant::now();
        let rate = rate(tasks, job).await;
        let pairs = rate * begin.elapsed().as_secs_f64();
        self.rates.push(rate);
        self.here.push((cpu(std::process::id()) - before.0) / pairs);
        self.there.push((cpu(server.pid()) - before.1) / pairs);
        rate
    }

    fn cpu(&mut self) -> String {
        format!(
            "{:.1} + {:.1} µs",
            median(&mut self.here),
            median(&mut self.there)
        )
    }
}

/// The processor time that a process has used, in µs.
fn cpu(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used = tasks.map(|task| {
        let stat =
            std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        stat.split(' ')
            .next()
            .and_then(|ns| ns.parse::<f64>().ok())
            .unwrap_or(0.0)
    });
    used.sum::<f64>() / 1e3
}

async fn contention(server: &RedisServer) {
    let client = client(server).await;
    for tasks in [16, 1000] {
        let (mut alone, mut together, mut commands) =
            (Cost::default(), Cost::default(), Vec::new());
        for round in 0..ROUNDS {
            let key = format!("alone {round}");
            alone
                .round(server, 1, |_| client_job(&client, key.clone()))
                .await;
            server.command(&["CONFIG", "RESETSTAT"]);
            let key = format!("one {round}");
            let handed = together
                .round(server, tasks, |_| client_job(&client, key.clone()))
                .await;
            let calls = server.calls("evalsha") as f64;
            // The round ends with each task's last turn.
            let turns = handed * ROUND.as_secs_f64() + tasks as f64;
            commands.push(calls / turns);
        }
        println!(
            "CPU a hand-over, client and server: {}; alone {}",
            together.cpu(),
            alone.cpu()
        );
        let (alone, together) = (median(&mut alone.rates), median(&mut together.rates));
        println!(
            "contention, {tasks} tasks on one key: {together:.0} hand-overs/s, {:.2} × the {alone:.0} pairs/s of one task alone; {:.2} commands a hand-over",
            together / alone,
            median(&mut commands)
        );
    }
}

/// From just before a release to the grant in another process, on the wall clock that both share.
async fn latency(server: &RedisServer) {
    let mut child = Process::start(
        Command::new(env::current_exe().unwrap())
            .args(["waiter", &server.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut stdin = child.child().stdin.take().unwrap();
    let mut lines = BufReader::new(child.child().stdout.take().unwrap()).lines();
    let client = client(server).await;
    let mut floor = Floor::new(server).await;
    let (mut waits, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        let guard = client.acquire("handed").await.unwrap();
        writeln!(stdin, "wait").unwrap();
        loop {
            let info = client.inspect("handed").await.unwrap().unwrap();
            if info.waiters.len() == 1 {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        for _ in 0..3 {
            let begin = Instant::now();
            let _: String = redis::cmd("PING")
                .query_async(&mut floor.connection)
                .await
                .unwrap();
            trips.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        let released = wall();
        guard.release().await.unwrap();
        let granted: f64 = lines.next().unwrap().unwrap().parse().unwrap();
        waits.push(granted - released);
    }
    let trip = median(&mut trips);
    waits.sort_by(f64::total_cmp);
    let at = |part: f64| waits[(waits.len() as f64 * part) as usize];
    println!(
        "latency from release to the grant in another process: p50 {:.0} µs ({:.2} round trips), p99 {:.0} µs ({:.2}); round trip (PING) p50 {trip:.0} µs",
        at(0.5),
        at(0.5) / trip,
        at(0.99),
        at(0.99) / trip
    );
}

async fn waiter(url: &str) {
    let client = LockClient::new(Arc::new(RedisLock::connect(url).await.unwrap()));
    for line in std::io::stdin().lines() {
        line.unwrap();
        let guard = client.acquire("handed").await.unwrap();
        let granted = wall();
        guard.release().await.unwrap();
        println!("{granted}");
    }
}

fn wall() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
        * 1e6
}

async fn renewal(server: &RedisServer) {
    let store = RedisLock::connect(&server.url()).await.unwrap();
    let asker = Arc::new(lock_core::Asker::this_process(None).unwrap());
    let claims: Vec<_> = (0..1000)
        .map(|n| lock_core::Claim {
            key: lock_core::LockKey::new(format!("held {n}")).unwrap(),
            asker: asker.clone(),
            owner: lock_core::OwnerId::random(),
            hold: lock_core::HoldId::random(),
            ttl: lock_core::Ttl::from_millis(30_000).unwrap(),
            queue: false,
        })
        .collect();
    for claim in &claims {
        store.try_acquire(claim).await.unwrap();
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let answers = store.renew_all(&claims).await;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        assert!(answers.iter().all(Result::is_ok));
    }
    println!("renewing 1,000 locks once: {:.2} ms", median(&mut times));
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
