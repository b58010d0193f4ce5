//! Whether the tables of the Postgres store stay small, and its statements fast, over very many
//! cycles, and while another session keeps an old snapshot open.
//!
//! `cargo bench -p integration-tests --bench postgres [-- long]` starts a private server with
//! fsync on, and says of each figure whether it is within its bound; it ends with an error when
//! one is not. `long` is a million cycles. What everything else costs is in `make bench`.

#![allow(clippy::unwrap_used)]

use std::{
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{DistributedLock, LockClient};
use lock_postgres::PostgresLock;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let rounds = if env::args().any(|argument| argument == "long") {
        10
    } else {
        3
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(rounds))
}

async fn run(rounds: usize) -> ExitCode {
    let server = PostgresServer::with(&["fsync=on", "max_connections=50", "autovacuum_naptime=1s"]);
    let mut bounds = Bounds::default();
    bloat(&server, &mut bounds, rounds).await;
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
        let holds = value <= bound;
        let mark = if holds { "ok" } else { "BROKEN" };
        println!("  {mark}: {what} {value:.2} (at most {bound})");
        self.broken |= !holds;
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
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
