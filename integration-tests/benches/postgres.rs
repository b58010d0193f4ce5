//! What the Postgres store costs, measured against the same server in the same run.
//!
//! `cargo bench -p integration-tests --bench postgres [-- SECTION…]` starts a private server with
//! fsync on and prints, for each section, figures from interleaved rounds and whether they are
//! within their bounds. It ends with an error when one is not.
//!
//! Sections: pair, throughput, contention, idle, bloat; all of them by default. And bloat-long,
//! which is bloat at its full size, a million cycles.

#![allow(clippy::unwrap_used)]

use std::{
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{Claim, DistributedLock, HoldId, LockClient, OwnerId, Ttl, Wait};
use lock_postgres::PostgresLock;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgArguments, PgPoolOptions},
    query::Query,
};
use tokio::task::JoinSet;
use uuid::Uuid;

const ROUNDS: usize = 9;

fn main() -> ExitCode {
    let wanted: Vec<_> = env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(&wanted))
}

async fn run(wanted: &[String]) -> ExitCode {
    let named = |name: &str| wanted.iter().any(|want| want == name);
    let runs = |name: &str| wanted.is_empty() || named(name);
    let server = PostgresServer::with(&[
        "fsync=on",
        "max_connections=50",
        "shared_preload_libraries=pg_stat_statements",
        "pg_stat_statements.track=top",
        "autovacuum_naptime=1s",
    ]);
    server.sql("CREATE EXTENSION pg_stat_statements").await;
    let mut bounds = Bounds::default();
    if runs("pair") {
        pair(&server, &mut bounds).await;
    }
    if runs("throughput") {
        throughput(&server, &mut bounds).await;
    }
    if runs("contention") {
        contention(&server, &mut bounds).await;
    }
    if runs("idle") {
        idle(&server, &mut bounds).await;
    }
    if runs("bloat") {
        bloat(&server, &mut bounds, 3).await;
    }
    if named("bloat-long") {
        bloat(&server, &mut bounds, 10).await;
    }
    let errors: Vec<_> = server
        .log()
        .lines()
        .filter(|line| line.contains("ERROR"))
        .map(str::to_owned)
        .collect();
    bounds.at_most("errors in the server's log", errors.len() as f64, 0.0);
    for error in errors {
        println!("  {error}");
    }
    if bounds.broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

#[derive(Default)]
struct Bounds {
    broken: bool,
}

impl Bounds {
    fn at_most(&mut self, what: &str, value: f64, bound: f64) {
        self.check(what, value, bound, "at most", value <= bound);
    }

    fn at_least(&mut self, what: &str, value: f64, bound: f64) {
        self.check(what, value, bound, "at least", value >= bound);
    }

    fn check(&mut self, what: &str, value: f64, bound: f64, word: &str, holds: bool) {
        let mark = if holds { "ok" } else { "BROKEN" };
        println!("  {mark}: {what} {value:.2} ({word} {bound})");
        self.broken |= !holds;
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The statements of the store, bare.
struct Bare {
    me: Uuid,
}

impl Bare {
    fn query(
        &self,
        verb: &'static str,
        claim: &Claim,
    ) -> Query<'static, sqlx::Postgres, PgArguments> {
        sqlx::query(
            "SELECT * FROM \"public\".distlock_run_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(self.me)
        .bind(true)
        .bind(vec![verb])
        .bind(vec![claim.key.as_str().to_owned()])
        .bind(vec![Uuid::from_u128(claim.owner.as_u128())])
        .bind(vec![Uuid::from_u128(claim.hold.as_u128())])
        .bind(vec![Some(claim.ttl.as_millis() as i64)])
        .bind(vec![claim.asker.label().map(str::to_owned)])
        .bind(vec![claim.asker.host().to_owned()])
        .bind(vec![i64::from(claim.asker.pid())])
        .bind(vec![true])
    }

    async fn pair(&self, connection: &mut PgConnection, key: &str) {
        let claim = claim(key);
        let granted = self
            .query("queue", &claim)
            .fetch_all(&mut *connection)
            .await;
        granted.expect("a grant");
        let released = self
            .query("release", &claim)
            .fetch_all(&mut *connection)
            .await;
        released.expect("a release");
    }
}

fn claim(key: &str) -> Claim {
    Claim {
        key: key.parse().expect("a key"),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(30_000).expect("a ttl"),
        queue: true,
        asker: Arc::new(lock_core::Asker::this_process(None).expect("an asker")),
    }
}

async fn client(server: &PostgresServer) -> (Arc<PostgresLock>, LockClient) {
    let store = Arc::new(
        PostgresLock::connect(&server.url())
            .await
            .expect("the store"),
    );
    let client = LockClient::builder(store.clone())
        .wait(Wait::Forever)
        .build()
        .expect("a client");
    (store, client)
}

/// One task, uncontended: the client against the same two statements on a bare connection.
async fn pair(server: &PostgresServer, bounds: &mut Bounds) {
    const PAIRS: u32 = 400;
    println!("pair: acquire + release by one task, {ROUNDS} rounds of {PAIRS}, interleaved");
    let (store, client) = client(server).await;
    let bare = Bare { me: Uuid::new_v4() };
    let mut connection = server.admin().await;
    let (mut floors, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Small slices by turns, so that both see the same disk.
        let (mut floor, mut our) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS / 10 {
            for _ in 0..10 {
                let begin = Instant::now();
                bare.pair(&mut connection, "pair/bare").await;
                floor.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            for _ in 0..10 {
                let begin = Instant::now();
                let guard = client.acquire("pair/ours").await.expect("a guard");
                guard.release().await.expect("a release");
                our.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        if round > 0 {
            floors.push(median(&floor));
            ours.push(median(&our));
            ratios.push(median(&our) / median(&floor));
        }
    }
    println!(
        "  floor p50 {:.0} µs, ours p50 {:.0} µs",
        median(&floors),
        median(&ours)
    );
    bounds.at_most("ratio", median(&ratios), 1.15);
    client.shutdown().await;
    store.close().await.expect("the store closes");
}

/// 64 tasks on 64 keys: the store against a pool of 10 connections, one statement per request.
async fn throughput(server: &PostgresServer, bounds: &mut Bounds) {
    const TASKS: usize = 64;
    let time = Duration::from_secs(2);
    println!("throughput: {TASKS} tasks on {TASKS} keys, {ROUNDS} rounds of {time:?}, interleaved");
    let (store, client) = client(server).await;
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .min_connections(10)
        .connect(&server.url())
        .await
        .expect("a pool");
    let (mut pools, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut most = 0;
    for round in 0..=ROUNDS {
        let shared = pool.clone();
        let theirs = rate(TASKS, time, move |task| {
            let pool = shared.clone();
            async move { pool_pair(&pool, &format!("pool/{task}")).await }
        })
        .await;
        let shared = client.clone();
        let our = rate(TASKS, time, move |task| {
            let client = shared.clone();
            async move {
                let guard = client
                    .acquire(format!("ours/{task}"))
                    .await
                    .expect("a guard");
                guard.release().await.expect("a release");
            }
        })
        .await;
        most = most.max(connections(server).await);
        if round > 0 {
            pools.push(theirs);
            ours.push(our);
            ratios.push(our / theirs);
        }
    }
    println!(
        "  pool {:.0} pairs/s, ours {:.0} pairs/s",
        median(&pools),
        median(&ours)
    );
    bounds.at_least("ratio", median(&ratios), 3.0);
    bounds.at_most("connections", most as f64, 3.0);
    pool.close().await;
    client.shutdown().await;
    store.close().await.expect("the store closes");
}

async fn pool_pair(pool: &PgPool, key: &str) {
    let bare = Bare { me: Uuid::nil() };
    let claim = claim(key);
    let granted = bare.query("queue", &claim).fetch_all(pool).await;
    granted.expect("a grant");
    let released = bare.query("release", &claim).fetch_all(pool).await;
    released.expect("a release");
}

/// How often a second the tasks can do something, in all.
async fn rate<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    time: Duration,
    work: impl Fn(usize) -> F + Send + Sync + Clone + 'static,
) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (work, done, stop) = (work.clone(), done.clone(), stop.clone());
        running.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                work(task).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let begin = Instant::now();
    tokio::time::sleep(time).await;
    let rate = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    while let Some(end) = running.join_next().await {
        end.expect("the task ends");
    }
    rate
}

/// Connections of the store, by its application name.
async fn connections(server: &PostgresServer) -> i64 {
    server
        .value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'")
        .await
}

/// Statements that were sent at the top level for the store since the last reset.
async fn statements(server: &PostgresServer) -> f64 {
    let count: i64 = server
        .value(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
             WHERE query LIKE '%distlock\\_%'
                OR query ILIKE ANY (ARRAY['listen%', 'unlisten%', 'begin%', 'commit%'])",
        )
        .await;
    count as f64
}

async fn reset_statements(server: &PostgresServer) {
    server.sql("SELECT pg_stat_statements_reset()").await;
}

/// Many tasks on one key: how long a hand-over takes and how many statements it needs.
async fn contention(server: &PostgresServer, bounds: &mut Bounds) {
    println!("contention: hand-over from a release to the next guard");
    let (_store, _client) = client(server).await;
    let one_statement = {
        let bare = Bare { me: Uuid::new_v4() };
        let mut connection = server.admin().await;
        let mut times = Vec::new();
        for _ in 0..500 {
            let begin = Instant::now();
            bare.pair(&mut connection, "one").await;
            times.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        median(&times)
    };
    for (tasks, rounds) in [(16, 1500), (500, 1500)] {
        let (store, client) = client(server).await;
        let released = Arc::new(parking_lot::Mutex::new(None::<Instant>));
        let times = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let left = Arc::new(AtomicU64::new(rounds));
        let held = client.acquire("contended").await.expect("a guard");
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let (client, released) = (client.clone(), released.clone());
            let (times, left) = (times.clone(), left.clone());
            running.spawn(async move {
                while left.load(Ordering::Relaxed) > 0 {
                    let guard = client.acquire("contended").await.expect("a guard");
                    if let Some(at) = released.lock().take() {
                        times.lock().push(at.elapsed().as_secs_f64() * 1e6);
                    }
                    left.fetch_sub(1.min(left.load(Ordering::Relaxed)), Ordering::Relaxed);
                    *released.lock() = Some(Instant::now());
                    guard.release().await.expect("a release");
                }
            });
        }
        while waiters(&store).await < tasks {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        reset_statements(server).await;
        held.release().await.expect("a release");
        while left.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sent = statements(server).await;
        let done = times.lock().len() as f64;
        let p50 = median(&times.lock());
        println!("  {tasks} tasks: one statement {one_statement:.0} µs, hand-over p50 {p50:.0} µs");
        if tasks == 16 {
            bounds.at_most("hand-over in statements' times", p50 / one_statement, 3.0);
        }
        bounds.at_most("statements a hand-over", sent / done, 4.0);
        while let Some(end) = running.join_next().await {
            end.expect("the task ends");
        }
        client.shutdown().await;
        store.close().await.expect("the store closes");
    }
}

async fn waiters(store: &PostgresLock) -> usize {
    let key = "contended".parse().expect("a key");
    let info = store.inspect(&key).await.expect("an answer");
    info.map_or(0, |info| info.waiters.len())
}

/// Held locks and waiters that nothing happens to.
async fn idle(server: &PostgresServer, bounds: &mut Bounds) {
    let (store, client) = client(server).await;
    let time = Duration::from_secs(40);
    println!("idle: 1,000 held locks for {time:?}, then 500 waiters as well");
    let mut guards = Vec::new();
    for lock in 0..1000 {
        guards.push(
            client
                .acquire(format!("idle/{lock}"))
                .await
                .expect("a guard"),
        );
    }
    reset_statements(server).await;
    tokio::time::sleep(time).await;
    let held = statements(server).await / time.as_secs_f64();
    bounds.at_most("statements a second, 1,000 held", held, 2.0);
    let mut waiting = JoinSet::new();
    for _ in 0..500 {
        let client = client.clone();
        waiting.spawn(async move {
            let guard = client.lock("idle/0").wait(Wait::Forever).acquire().await;
            drop(guard);
        });
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    reset_statements(server).await;
    tokio::time::sleep(time).await;
    let both = statements(server).await / time.as_secs_f64();
    bounds.at_most(
        "statements a second, 500 waiting in addition",
        both,
        3.0 + 2.0,
    );
    bounds.at_most("of them for the 500 waiters", both - held, 3.0);
    bounds.at_most("connections", connections(server).await as f64, 3.0);
    assert!(guards.iter().all(|guard| guard.is_held()), "all are held");
    waiting.abort_all();
    client.shutdown().await;
    store.close().await.expect("the store closes");
}

/// Many cycles over 1,000 keys while a transaction of another session is open for a part of each
/// round: the table stays small, and no statement takes much longer.
async fn bloat(server: &PostgresServer, bounds: &mut Bounds, rounds: usize) {
    const CLOSED: u64 = 60_000;
    const OPEN: u64 = 40_000;
    println!(
        "bloat: {rounds} rounds of {CLOSED} cycles over 1,000 keys and {OPEN} more with a snapshot held open"
    );
    let store = PostgresLock::builder(&server.url())
        .expect("a URL")
        .schema("bloat")
        .sweep_interval(Duration::from_secs(2))
        .keep_idle(Duration::from_secs(5))
        .connect()
        .await
        .expect("the store");
    let store = Arc::new(store);
    let client = LockClient::new(store.clone());
    let cycles = Cycles::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for task in 0..64_u64 {
        let (client, cycles, stop) = (client.clone(), cycles.clone(), stop.clone());
        running.spawn(async move {
            let mut turn = task;
            while !stop.load(Ordering::Relaxed) {
                // Each task has keys of its own.
                turn += 64;
                let key = turn % 1000 / 64 * 64 + task;
                let key = if key < 1000 { key } else { task };
                let begin = Instant::now();
                let guard = client.acquire(format!("bloat/{key}")).await;
                guard.expect("a guard").release().await.expect("a release");
                cycles.done(begin.elapsed());
            }
        });
    }
    cycles.take(20_000).await;
    let mut probe = server.admin().await;
    let (mut closed, mut open, mut late, mut largest) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        closed.push(cycles.take(CLOSED).await);
        let mut old = server.admin().await;
        let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        sqlx::raw_sql(snapshot)
            .execute(&mut old)
            .await
            .expect("a snapshot");
        open.push(cycles.take(OPEN * 3 / 4).await);
        late.push(cycles.take(OPEN / 4).await);
        largest = largest.max(size(&mut probe).await);
        sqlx::raw_sql("COMMIT")
            .execute(&mut old)
            .await
            .expect("it ends");
        old.close().await.expect("it closes");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(end) = running.join_next().await {
        end.expect("the task ends");
    }
    let end = Instant::now() + Duration::from_secs(60);
    let last = loop {
        let now = size(&mut probe).await;
        if now == 0 || Instant::now() > end {
            break now;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let hot: f64 = hot(&mut probe).await;
    println!(
        "  largest {:.1} MB, HOT updates {hot:.3}",
        largest as f64 / 1e6
    );
    let column = |phases: &[Phase], of: fn(&Phase) -> f64| {
        median(&phases.iter().map(of).collect::<Vec<_>>())
    };
    let ratio = |phases: &[Phase], of: fn(&Phase) -> f64| {
        let ratios = phases.iter().zip(&closed);
        median(
            &ratios
                .map(|(with, without)| of(with) / of(without))
                .collect::<Vec<_>>(),
        )
    };
    for (what, of) in [
        ("a pair's p50", (|phase| phase.p50) as fn(&Phase) -> f64),
        ("time per cycle", |phase| phase.each),
    ] {
        println!(
            "  {what}: {:.0} µs without the snapshot, {:.0} µs with it, {:.0} µs in the last quarter with it",
            column(&closed, of),
            column(&open, of),
            column(&late, of)
        );
        bounds.at_most(&format!("{what}, with / without"), ratio(&open, of), 2.0);
        bounds.at_most(
            &format!("{what}, last quarter with / without"),
            ratio(&late, of),
            2.0,
        );
    }
    bounds.at_most("MB after the sweeper", last as f64 / 1e6, 20.0);
    probe.close().await.expect("it closes");
    client.shutdown().await;
    store.close().await.expect("the store closes");
}

/// What the tasks do, one phase after another.
#[derive(Clone, Default)]
struct Cycles(Arc<parking_lot::Mutex<Vec<f64>>>);

/// Times in µs.
struct Phase {
    p50: f64,
    each: f64,
}

impl Cycles {
    fn done(&self, took: Duration) {
        self.0.lock().push(took.as_secs_f64() * 1e6);
    }

    /// The next `count` cycles.
    async fn take(&self, count: u64) -> Phase {
        self.0.lock().clear();
        let begin = Instant::now();
        while (self.0.lock().len() as u64) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let elapsed = begin.elapsed();
        let times = std::mem::take(&mut *self.0.lock());
        Phase {
            p50: median(&times),
            each: elapsed.as_secs_f64() * 1e6 / times.len() as f64,
        }
    }
}

async fn size(connection: &mut PgConnection) -> i64 {
    let sql = "SELECT pg_table_size('bloat.distlock_lock')";
    let size: (i64,) = sqlx::query_as(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await
        .expect("a size");
    size.0
}

async fn hot(connection: &mut PgConnection) -> f64 {
    let sql = "SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1)
               FROM pg_stat_user_tables WHERE schemaname = 'bloat' AND relname = 'distlock_lock'";
    let ratio: (f64,) = sqlx::query_as(sql)
        .fetch_one(connection)
        .await
        .expect("a ratio");
    ratio.0
}
