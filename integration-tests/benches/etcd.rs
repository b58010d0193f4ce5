//! What the etcd store costs on top of bare transactions, and next to the server's own locks.
//!
//! `cargo bench -p integration-tests --bench etcd [-- SECTION…]` starts a private cluster of one
//! member and prints medians of interleaved rounds. Sections: pairs, growth, contention, latency, idle;
//! with `memory` among them the member writes to memory instead of the disk, with `three` there
//! are three members.
//! The floor is a bare etcd-client: one transaction that puts a key, if it is absent, on a lease
//! that is there, and one that deletes it. The server's own way is Lock and Unlock, with a lease
//! grant before and a revoke after, or on one lease for each task where tasks compete.
//! The history is compacted before each round: what it costs when it is not, `growth` tells.

#![allow(clippy::unwrap_used)]

use std::{
    env,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_client::{
    Client, CompactionOptions, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp,
};
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{Asker, Claim, DistributedLock, HoldId, LockClient, LockKey, OwnerId, Ttl};
use lock_etcd::EtcdLock;
use parking_lot::Mutex;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

fn main() {
    let arguments: Vec<_> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let sections = ["pairs", "growth", "contention", "latency", "idle"];
    let all = !sections.into_iter().any(has);
    let wanted = |section: &str| all || has(section);
    let cluster = match (has("memory"), has("three")) {
        (true, false) => EtcdCluster::one(),
        (false, false) => EtcdCluster::durable(1),
        (true, true) => EtcdCluster::three(),
        (false, true) => EtcdCluster::durable(3),
    };
    runtime().block_on(async {
        if wanted("pairs") {
            pairs(&cluster, 1).await;
            pairs(&cluster, 64).await;
        }
        if wanted("growth") {
            growth(&cluster).await;
        }
        if wanted("contention") {
            contention(&cluster).await;
        }
        if wanted("latency") {
            latency(&cluster).await;
        }
        if wanted("idle") {
            idle(&cluster).await;
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

async fn store(cluster: &EtcdCluster) -> Arc<EtcdLock> {
    Arc::new(EtcdLock::connect(&cluster.url()).await.unwrap())
}

async fn client(cluster: &EtcdCluster) -> LockClient {
    LockClient::new(store(cluster).await)
}

/// Transactions of a bare client, on a lease of its own.
#[derive(Clone)]
struct Floor {
    client: Client,
    lease: i64,
}

impl Floor {
    async fn new(cluster: &EtcdCluster) -> Self {
        let mut client = cluster.admin_of(cluster.leader()).await;
        let lease = client.lease_grant(600, None).await.unwrap().id();
        Self { client, lease }
    }

    async fn acquire(&mut self, key: &str) {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let on_lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(key, "x".repeat(150), Some(on_lease));
        let txn = Txn::new().when([absent]).and_then([put]);
        assert!(self.client.txn(txn).await.unwrap().succeeded());
    }

    async fn release(&mut self, key: &str) {
        let present = Compare::create_revision(key, CompareOp::Greater, 0);
        let txn = Txn::new()
            .when([present])
            .and_then([TxnOp::delete(key, None)]);
        assert!(self.client.txn(txn).await.unwrap().succeeded());
    }

    /// The server's own lock, from the lease to the end of it.
    async fn lock_alone(&mut self, name: &str) {
        let lease = self.client.lease_grant(30, None).await.unwrap().id();
        self.lock(name, lease).await;
        self.client.lease_revoke(lease).await.unwrap();
    }

    async fn lock(&mut self, name: &str, lease: i64) {
        let on_lease = LockOptions::new().with_lease(lease);
        let locked = self.client.lock(name, Some(on_lease)).await.unwrap();
        self.client.unlock(locked.key()).await.unwrap();
    }
}

type Job = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

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

fn floor_job(floor: &Floor, task: usize) -> Job {
    let (floor, key) = (floor.clone(), format!("floor {task}"));
    Box::new(move || {
        let (mut floor, key) = (floor.clone(), key.clone());
        Box::pin(async move {
            floor.acquire(&key).await;
            floor.release(&key).await;
        })
    })
}

fn store_job(store: &Arc<EtcdLock>, task: usize) -> Job {
    let (store, key) = (store.clone(), LockKey::new(format!("key {task}")).unwrap());
    let asker = Arc::new(Asker::this_process(None).unwrap());
    Box::new(move || {
        let (store, claim) = (store.clone(), claim(&key, &asker));
        Box::pin(async move {
            store.try_acquire(&claim).await.unwrap();
            store.release(&claim).await.unwrap();
        })
    })
}

fn claim(key: &LockKey, asker: &Arc<Asker>) -> Claim {
    Claim {
        key: key.clone(),
        asker: asker.clone(),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(30_000).unwrap(),
        queue: false,
    }
}

fn client_job(client: &LockClient, key: String) -> Job {
    let client = client.clone();
    Box::new(move || {
        let (client, key) = (client.clone(), key.clone());
        Box::pin(async move { client.acquire(&key).await.unwrap().release().await.unwrap() })
    })
}

fn rpc_job(floor: &Floor, task: usize) -> Job {
    let (floor, name) = (floor.clone(), format!("rpc {task}"));
    Box::new(move || {
        let (mut floor, name) = (floor.clone(), name.clone());
        Box::pin(async move { floor.lock_alone(&name).await })
    })
}

async fn pairs(cluster: &EtcdCluster, tasks: usize) {
    let floor = Floor::new(cluster).await;
    let (store, client) = (store(cluster).await, client(cluster).await);
    let mut rates = [const { Vec::new() }; 4];
    for round in 0..=ROUNDS {
        compact(cluster).await;
        let each = [
            rate(tasks, |task| floor_job(&floor, task)).await,
            rate(tasks, |task| store_job(&store, task)).await,
            rate(tasks, |task| client_job(&client, format!("key {task}"))).await,
            rate(tasks, |task| rpc_job(&floor, task)).await,
        ];
        // The first one is to warm up.
        if round > 0 {
            for (rates, rate) in rates.iter_mut().zip(each) {
                rates.push(rate);
            }
        }
    }
    let [bare, verbs, ours, rpc] = rates.map(|mut rates| median(&mut rates));
    println!(
        "pairs, {tasks} task(s): floor {bare:.0}/s ({:.0} µs), store {verbs:.0}/s ({:.3} × floor), client {ours:.0}/s ({:.3} × floor); Lock and Unlock with a lease {rpc:.0}/s ({:.2} × floor)",
        1e6 / bare,
        bare / verbs,
        bare / ours,
        bare / rpc
    );
    client.shutdown().await;
}

/// A lock that was held more and more often, without and with a compaction.
async fn growth(cluster: &EtcdCluster) {
    const STEP: usize = 2000;
    let mut floor = Floor::new(cluster).await;
    let client = client(cluster).await;
    for held in 0..4 {
        if held == 3 {
            compact(cluster).await;
        }
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        for pair in 0..STEP {
            let begin = Instant::now();
            let guard = client.acquire("growing").await.unwrap();
            guard.release().await.unwrap();
            ours.push(begin.elapsed().as_secs_f64() * 1e6);
            if pair % 4 == 0 {
                let begin = Instant::now();
                floor.acquire("floor/growing").await;
                floor.release("floor/growing").await;
                bare.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!(
            "growth: after {} pairs on one key{}: floor {:.0} µs, client {:.0} µs",
            held * STEP,
            if held == 3 { " and a compaction" } else { "" },
            median(&mut bare),
            median(&mut ours)
        );
    }
    client.shutdown().await;
}

async fn contention(cluster: &EtcdCluster) {
    let client = client(cluster).await;
    let floor = Floor::new(cluster).await;
    for tasks in [16, 200] {
        let (mut handed, mut theirs, mut each) = (Vec::new(), Vec::new(), Vec::new());
        let grants = Arc::new(Mutex::new(Vec::new()));
        for round in 0..ROUNDS {
            compact(cluster).await;
            let before = requests(cluster);
            let (turns, key) = (grants.lock().len(), format!("one {round}"));
            let job = |_| noted_job(&client, key.clone(), grants.clone());
            handed.push(rate(tasks, job).await);
            let turns = grants.lock().len() - turns;
            each.push((requests(cluster) - before) as f64 / turns as f64);
            if tasks == 16 {
                theirs.push(rpc_contention(&floor, tasks, round).await);
            }
        }
        // Tokens are create revisions: the order of arrival.
        let grants = grants.lock();
        let overtaken = grants.windows(2).filter(|two| two[0] > two[1]).count();
        print!(
            "contention, {tasks} tasks on one key: {:.0} hand-overs/s, {overtaken} of {} out of order; {:.2} requests a hand-over",
            median(&mut handed),
            grants.len(),
            median(&mut each)
        );
        if theirs.is_empty() {
            println!();
        } else {
            let theirs = median(&mut theirs);
            let ratio = median(&mut handed) / theirs;
            println!("; Lock and Unlock {theirs:.0}/s, {ratio:.2} times as many");
        }
    }
    client.shutdown().await;
}

fn noted_job(client: &LockClient, key: String, grants: Arc<Mutex<Vec<u64>>>) -> Job {
    let client = client.clone();
    Box::new(move || {
        let (client, key, grants) = (client.clone(), key.clone(), grants.clone());
        Box::pin(async move {
            let lock = client.lock(&key).wait(Duration::from_secs(60));
            let guard = lock.acquire().await.unwrap();
            grants.lock().push(guard.token().as_u64());
            guard.release().await.unwrap();
        })
    })
}

async fn rpc_contention(floor: &Floor, tasks: usize, round: usize) -> f64 {
    let mut leases = Vec::new();
    let mut client = floor.client.clone();
    for _ in 0..tasks {
        leases.push(client.lease_grant(60, None).await.unwrap().id());
    }
    let rate = rate(tasks, |task| {
        let (floor, lease) = (floor.clone(), leases[task]);
        Box::new(move || {
            let mut floor = floor.clone();
            Box::pin(async move { floor.lock(&format!("one rpc {round}"), lease).await })
        })
    })
    .await;
    for lease in leases {
        client.lease_revoke(lease).await.unwrap();
    }
    rate
}

/// From just before a release to the grant at another client, next to one transaction.
async fn latency(cluster: &EtcdCluster) {
    let (one, two) = (client(cluster).await, client(cluster).await);
    let mut floor = Floor::new(cluster).await;
    let (mut waits, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..700 {
        let guard = one.acquire("handed").await.unwrap();
        let waiting = tokio::spawn({
            let two = two.clone();
            async move {
                let guard = two.acquire("handed").await.unwrap();
                let granted = Instant::now();
                guard.release().await.unwrap();
                granted
            }
        });
        while one
            .inspect("handed")
            .await
            .unwrap()
            .unwrap()
            .waiters
            .is_empty()
        {}
        tokio::time::sleep(Duration::from_millis(3)).await;
        for _ in 0..2 {
            let begin = Instant::now();
            floor.acquire("floor").await;
            trips.push(begin.elapsed().as_secs_f64() * 1e6);
            floor.release("floor").await;
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let granted = waiting.await.unwrap();
        waits.push((granted - released).as_secs_f64() * 1e6);
    }
    let trip = median(&mut trips);
    waits.sort_by(f64::total_cmp);
    let at = |part: f64| waits[(waits.len() as f64 * part) as usize];
    println!(
        "latency from release to the grant at another client: p50 {:.0} µs ({:.2} transactions), p99 {:.0} µs ({:.2}); one transaction p50 {trip:.0} µs",
        at(0.5),
        at(0.5) / trip,
        at(0.99),
        at(0.99) / trip
    );
    one.shutdown().await;
    two.shutdown().await;
}

/// A thousand held locks with a ttl of 30 s.
async fn idle(cluster: &EtcdCluster) {
    let store = store(cluster).await;
    let client = LockClient::new(store.clone());
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(client.acquire(format!("held {n}")).await.unwrap());
    }
    let (revision_before, before) = (revision(cluster).await, requests(cluster));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let sent = requests(cluster) - before;
    let moved = revision(cluster).await - revision_before;
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    println!(
        "idle, 1,000 held locks: {:.1} requests/s, the revision moved by {moved}, {held} are held",
        sent as f64 / 20.0
    );
    drop(guards);
    client.shutdown().await;
    store.close().await.unwrap();
    let mut admin = cluster.admin().await;
    // The floors keep theirs.
    let left = admin.leases().await.unwrap().leases().len();
    println!("leases left after the shutdown: {left}");
}

fn requests(cluster: &EtcdCluster) -> u64 {
    let members = 0..cluster.size();
    members
        .map(|member| cluster.metric(member, "grpc_server_msg_received_total", &[]) as u64)
        .sum()
}

/// As a cluster does by itself every few minutes with `--auto-compaction-mode=periodic`.
async fn compact(cluster: &EtcdCluster) {
    let physical = CompactionOptions::new().with_physical();
    let revision = revision(cluster).await;
    let mut admin = cluster.admin().await;
    admin.compact(revision, Some(physical)).await.unwrap();
}

async fn revision(cluster: &EtcdCluster) -> i64 {
    let answer = cluster.admin().await.get("none", None).await.unwrap();
    answer.header().unwrap().revision()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
