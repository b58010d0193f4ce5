//! The SQLite store on real files and with real processes.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Lines},
    path::PathBuf,
    process::{ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use integration_tests::process::Process;
use lock_core::{
    Asker, Attempt, Busy, Claim, DistributedLock, Error, Grant, HoldId, LockClient, LockKey,
    OwnerId, Page, Release, Renewal, StoreError, StoreErrorKind, Ttl, Wait,
};
use lock_sqlite::SqliteLock;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// A file of its own for each test.
struct File(TempDir);

impl File {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    async fn store(&self) -> SqliteLock {
        SqliteLock::open(self.path()).await.expect("a new file")
    }

    async fn client(&self) -> LockClient {
        LockClient::new(Arc::new(self.store().await))
    }

    /// A connection of another program.
    async fn stranger(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().create_if_missing(true);
        options.filename(self.path()).connect().await.unwrap()
    }

    fn worker(&self, arguments: &[&str]) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sqlite-worker"));
        command.arg(arguments[0]).arg(self.path());
        Worker::start(command.args(&arguments[1..]))
    }
}

/// Another process on the file.
struct Worker {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let output = process.child().stdout.take().expect("a pipe");
        Self {
            process,
            lines: BufReader::new(output).lines(),
        }
    }

    /// What it says next; blocks.
    fn says(&mut self) -> String {
        let line = self.lines.next().expect("the worker goes on");
        line.expect("a line of text")
    }

    /// Lets it release what it holds.
    fn go_on(&mut self) {
        drop(self.process.child().stdin.take());
    }

    fn ends_well(&mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

/// Waits until `what` is so.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_waiters(store: &SqliteLock, key: &LockKey, count: usize) {
    until("the waiters queue", async || {
        let info = store.inspect(key).await.unwrap();
        info.is_some_and(|info| info.waiters.len() == count)
    })
    .await;
}

/// How long something that has to happen may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn claim(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key.parse().unwrap(),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        queue: false,
        asker: Arc::new(Asker::this_process(Some("test")).unwrap()),
    }
}

fn queued(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        queue: true,
        ..claim(key, ttl_ms)
    }
}

async fn granted(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

async fn busy(store: &dyn DistributedLock, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Waits for the turn of a claim as a client does.
async fn acquire(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    loop {
        match store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant,
            Attempt::Busy(busy) => store.wait(claim, &busy).await,
        }
    }
}

#[tokio::test]
async fn the_life_of_a_lock() {
    let file = File::new();
    let store = file.store().await;
    let first = claim("orders/42", 30_000);
    let grant = granted(&store, &first).await;
    assert_eq!(grant.holds, 1);
    assert_eq!(granted(&store, &first).await, grant);
    let inner = Claim {
        hold: HoldId::random(),
        ..first.clone()
    };
    let again = granted(&store, &inner).await;
    assert_eq!((again.token, again.holds), (grant.token, 2));

    let other = claim("orders/42", 30_000);
    let why = busy(&store, &other).await;
    let holder = why.holder.expect("a holder");
    assert_eq!((holder.owner, holder.holds), (first.owner, 2));
    assert_eq!((why.position, why.queued), (None, 0));
    assert!(why.remaining > Duration::from_secs(20));

    assert_eq!(
        store.renew(&first).await.unwrap(),
        Renewal::Renewed { ttl: first.ttl }
    );
    assert_eq!(
        store.renew(&other).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
    assert_eq!(store.release(&other).await.unwrap(), Release::NotHeld);
    assert_eq!(
        store.release(&first).await.unwrap(),
        Release::Released { holds: 1 }
    );
    assert_eq!(store.release(&first).await.unwrap(), Release::NotHeld);
    assert_eq!(
        store.release(&inner).await.unwrap(),
        Release::Released { holds: 0 }
    );
    assert_eq!(store.inspect(&first.key).await.unwrap(), None);
    assert_eq!(
        store.renew(&first).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    assert!(granted(&store, &other).await.token > grant.token);
}

#[tokio::test]
async fn waiters_are_served_in_order() {
    let file = File::new();
    let store = file.store().await;
    let holder = claim("k", 30_000);
    let first = queued("k", 30_000);
    let second = queued("k", 30_000);
    granted(&store, &holder).await;
    assert_eq!(busy(&store, &first).await.position, Some(1));
    let why = busy(&store, &second).await;
    assert_eq!((why.position, why.queued), (Some(2), 2));
    let (order, ()) = tokio::join!(
        async {
            let waits = [&second, &first].map(|claim| acquire(&store, claim));
            let [second_wait, first_wait] = waits;
            let second_wait = async {
                let grant = second_wait.await;
                (grant, std::time::Instant::now())
            };
            let first_wait = async {
                let grant = first_wait.await;
                let at = std::time::Instant::now();
                store.release(&first).await.unwrap();
                (grant, at)
            };
            tokio::join!(first_wait, second_wait)
        },
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.release(&holder).await.unwrap();
            // Free, but it is the first waiter's turn.
            let barger = claim("k", 1000);
            busy(&store, &barger).await;
        }
    );
    assert!(order.0.1 < order.1.1);
    assert!(order.0.0.token < order.1.0.token);
    assert_eq!(
        store.inspect(&holder.key).await.unwrap().unwrap().waiters,
        []
    );
}

#[tokio::test]
async fn lists_exact_prefixes_in_pages() {
    let file = File::new();
    let store = file.store().await;
    for key in [
        "a",
        "ab",
        "a/b",
        "a%b",
        "a_b",
        "a*b",
        "A",
        "a[b",
        "é",
        "a\u{10FFFF}",
        "b",
    ] {
        granted(&store, &claim(key, 30_000)).await;
    }
    let keys = |page: lock_core::LockPage| -> Vec<String> {
        page.locks.iter().map(|l| l.key.to_string()).collect()
    };
    let all = store.list("a", Page::default()).await.unwrap();
    assert_eq!(
        keys(all),
        ["a", "a%b", "a*b", "a/b", "a[b", "a_b", "ab", "a\u{10FFFF}"]
    );
    for prefix in ["a%", "a_", "a*", "a[", "A", "é"] {
        let page = store.list(prefix, Page::default()).await.unwrap();
        assert_eq!(page.locks.len(), 1, "{prefix}");
    }
    let mut seen = Vec::new();
    let mut page = Page {
        limit: 3,
        cursor: None,
    };
    loop {
        let found = store.list("", page.clone()).await.unwrap();
        assert!(found.locks.len() <= 3);
        page.cursor = found.next.clone();
        seen.extend(keys(found));
        if page.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 11);
    assert!(seen.is_sorted());
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let file = File::new();
    let store = file.store().await;
    let held = claim("k", 30_000);
    granted(&store, &held).await;
    store.close().await.unwrap();
    let error = store.renew(&held).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Closed);
    assert!(store.dedicated().await.is_err());
    let other = file.store().await;
    let info = other.inspect(&LockKey::new("k").unwrap()).await.unwrap();
    assert!(info.is_some_and(|info| info.holder.is_some()));
}

/// A22: a killed holder keeps the lock for its ttl, not less and not much more.
#[tokio::test]
async fn a_killed_holder_costs_its_ttl() {
    let file = File::new();
    let client = file.client().await;
    let mut holder = file.worker(&["hold", "k", "1500"]);
    let held = holder.says();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock("k").wait(Wait::Forever).acquire().await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    let remaining = client.inspect("k").await.unwrap().unwrap();
    let remaining = remaining.holder.unwrap().remaining;
    let start = Instant::now();
    holder.process.kill();
    let guard = waiting.await.unwrap().unwrap();
    // It may have been renewed once more; a slow machine gets its time.
    assert!(start.elapsed() + Duration::from_millis(50) > remaining);
    assert!(start.elapsed() < Duration::from_secs(15));
    assert!(guard.token().to_string() > held.replace("held ", ""));
}

/// B96: processes that are killed at any moment leave a sound file, and no lock for ever.
#[tokio::test]
async fn a_process_may_be_killed_at_any_moment() {
    let file = File::new();
    let client = file.client().await;
    for round in 0..40 {
        let mut worker = file.worker(&["hold", "k", "300"]);
        tokio::time::sleep(Duration::from_millis(round)).await;
        worker.process.kill();
    }
    let start = Instant::now();
    client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // The last lease and the last waiters, and what a slow machine takes.
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let mut stranger = file.stranger().await;
    let check = sqlx::query("PRAGMA integrity_check")
        .fetch_one(&mut stranger)
        .await
        .unwrap();
    assert_eq!(check.get::<String, _>(0), "ok");
}

/// A32: any number of waiters that were killed cost the next one at most 2 s in all.
#[tokio::test]
async fn killed_waiters_do_not_block_the_queue() {
    let file = File::new();
    let store = Arc::new(file.store().await);
    let holder = claim("k", 600_000);
    granted(&*store, &holder).await;
    let mut killed = Vec::new();
    for place in 1..=4 {
        killed.push(file.worker(&["hold", "k", "600000"]));
        until_waiters(&store, &holder.key, place).await;
    }
    let alive = queued("k", 600_000);
    let waiting = tokio::spawn({
        let (store, alive) = (store.clone(), alive.clone());
        async move { acquire(&*store, &alive).await }
    });
    until_waiters(&store, &holder.key, 5).await;
    for worker in &mut killed {
        worker.process.kill();
    }
    store.release(&holder).await.unwrap();
    let start = Instant::now();
    waiting.await.unwrap();
    // 2 s, and what a slow machine takes.
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}",
        start.elapsed()
    );
    let info = store.inspect(&holder.key).await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().owner, alive.owner);
    assert_eq!(info.waiters, []);
}

/// A waiter that was stopped for longer than the queue waits for it is passed over, and has its
/// old place when it goes on.
#[tokio::test]
async fn a_stopped_waiter_finds_its_place_again() {
    let file = File::new();
    let store = file.store().await;
    let holder = claim("k", 600_000);
    granted(&store, &holder).await;
    let mut first = file.worker(&["hold", "k", "600000"]);
    until_waiters(&store, &holder.key, 1).await;
    let mut second = file.worker(&["hold", "k", "600000"]);
    until_waiters(&store, &holder.key, 2).await;
    first.process.pause();
    until_waiters(&store, &holder.key, 1).await;
    first.process.resume();
    until_waiters(&store, &holder.key, 2).await;
    store.release(&holder).await.unwrap();
    first.says();
    first.go_on();
    assert_eq!(first.says(), "released");
    second.says();
    second.go_on();
    second.ends_well();
}

/// After the clock was set back an hour, a waiter that died before does not block the queue.
#[tokio::test]
async fn a_dead_waiter_from_the_future_blocks_nobody() {
    let file = File::new();
    let store = file.store().await;
    let dead = queued("k", 600_000);
    let holder = claim("k", 600_000);
    granted(&store, &holder).await;
    busy(&store, &dead).await;
    let mut stranger = file.stranger().await;
    sqlx::query("UPDATE waiters SET alive_until = alive_until + 3600000, since = since + 3600000")
        .execute(&mut stranger)
        .await
        .unwrap();
    store.release(&holder).await.unwrap();
    granted(&store, &claim("k", 600_000)).await;
}

/// Clauses 1, 4 and 8 over processes: the counter is exact, and tokens grow in its order.
#[tokio::test]
async fn processes_take_turns() {
    const PROCESSES: usize = 8;
    const TIMES: usize = 25;
    let file = File::new();
    let counter = file.0.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let counter = counter.to_str().unwrap();
    let workers: Vec<_> = (0..PROCESSES)
        .map(|_| file.worker(&["count", "k", &TIMES.to_string(), counter]))
        .collect();
    let mut said = Vec::new();
    for mut worker in workers {
        for _ in 0..TIMES {
            let line = worker.says();
            let (number, token) = line.split_once(' ').unwrap();
            said.push((
                number.parse::<u64>().unwrap(),
                token.parse::<u64>().unwrap(),
            ));
        }
        worker.ends_well();
    }
    said.sort_unstable();
    let total = (PROCESSES * TIMES) as u64;
    assert!(said.iter().map(|(number, _)| *number).eq(0..total));
    assert!(said.is_sorted_by(|a, b| a.1 < b.1), "{said:?}");
    assert_eq!(std::fs::read_to_string(counter).unwrap(), total.to_string());
}

/// B114: twenty processes start at once on a path where nothing is.
#[tokio::test]
async fn twenty_processes_start_on_an_empty_path() {
    for _ in 0..3 {
        let file = File::new();
        let counter = file.0.path().join("counter");
        std::fs::write(&counter, "0").unwrap();
        let counter = counter.to_str().unwrap();
        let mut workers: Vec<_> = (0..20)
            .map(|_| file.worker(&["count", "k", "1", counter]))
            .collect();
        workers.iter_mut().for_each(Worker::ends_well);
        assert_eq!(std::fs::read_to_string(counter).unwrap(), "20");
    }
}

/// A23, clause 12: a runtime that is blocked in the middle of a call does not keep the file locked
/// for other processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_does_not_keep_the_file_locked() {
    let file = File::new();
    let store = file.store().await;
    granted(&store, &claim("busy", 600_000)).await;
    for polls in 0..24 {
        let blocked = Arc::new(file.store().await);
        let waiter = queued(if polls % 2 == 0 { "busy" } else { "free" }, 600_000);
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn({
            let (blocked, waiter) = (blocked.clone(), waiter.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(async {
                    let mut attempt = Box::pin(async {
                        let _ = blocked.try_acquire(&waiter).await;
                        blocked.release(&waiter).await
                    });
                    for _ in 0..polls / 2 {
                        if futures_util::poll!(&mut attempt).is_ready() {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    ready.send(()).unwrap();
                    goes_on.recv().unwrap();
                });
            }
        });
        is_ready.await.unwrap();
        let other = claim("other", 600_000);
        granted(&store, &other).await;
        store.release(&other).await.unwrap();
        go_on.send(()).unwrap();
        thread.join().unwrap();
        store.release(&waiter).await.unwrap();
    }
}

/// A22, A33: a waiter in another process learns of a release without asking again.
#[tokio::test]
async fn a_release_wakes_another_process() {
    let file = File::new();
    let store = file.store().await;
    let mut times = Vec::new();
    for _ in 0..5 {
        let holder = claim("k", 600_000);
        granted(&store, &holder).await;
        let mut waiter = file.worker(&["hold", "k", "600000"]);
        until_waiters(&store, &holder.key, 1).await;
        // The client's own timer is at least 2 s away.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        store.release(&holder).await.unwrap();
        waiter.says();
        times.push(start.elapsed());
        waiter.go_on();
        waiter.ends_well();
    }
    times.sort_unstable();
    println!("release to grant in another process: {times:?}");
    assert!(times[0] < Duration::from_millis(500), "{times:?}");
}

/// A future that waits and is not polled any more does not keep the others from being woken.
#[tokio::test]
async fn a_waiter_that_is_not_polled_holds_up_nobody() {
    let file = File::new();
    let (store, other) = (file.store().await, file.store().await);
    let (idle, live) = (claim("idle", 600_000), claim("live", 600_000));
    granted(&store, &idle).await;
    granted(&store, &live).await;
    let idle_waiter = queued("idle", 600_000);
    let why = busy(&store, &idle_waiter).await;
    let mut not_polled = Box::pin(store.wait(&idle_waiter, &why));
    let polled_once = tokio::time::timeout(Duration::from_millis(100), &mut not_polled).await;
    assert!(polled_once.is_err());
    let waiter = queued("live", 600_000);
    let (grant, ()) = tokio::join!(acquire(&other, &waiter), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // By a program that tells nobody.
        let mut stranger = file.stranger().await;
        sqlx::query("UPDATE locks SET owner = NULL, holds = '', expires = 0 WHERE key = 'live'")
            .execute(&mut stranger)
            .await
            .unwrap();
    });
    assert_eq!(grant.holds, 1);
    drop(not_polled);
}

/// B20, A30: fifty waiters keep their places for longer than a sign of life lasts, with two
/// writes a second for all of them.
#[tokio::test]
async fn waiting_costs_next_to_nothing() {
    const WAITERS: usize = 50;
    let file = File::new();
    let store = Arc::new(file.store().await);
    let holder = claim("k", 600_000);
    granted(&*store, &holder).await;
    let mut waiting = tokio::task::JoinSet::new();
    let mut order = Vec::new();
    for place in 1..=WAITERS {
        let (store, waiter) = (store.clone(), queued("k", 600_000));
        order.push(waiter.owner);
        waiting.spawn(async move { acquire(&*store, &waiter).await });
        until_waiters(&file.store().await, &holder.key, place).await;
    }
    let mut stranger = file.stranger().await;
    let (start, mut writes, mut last) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(4500) {
        let version = sqlx::query("PRAGMA data_version")
            .fetch_one(&mut stranger)
            .await
            .unwrap();
        let version: i64 = version.get(0);
        writes += u32::from(version != last);
        last = version;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(writes > 3, "nobody gives a sign of life");
    assert!(writes < 20, "{writes} writes");
    let waiters = store.inspect(&holder.key).await.unwrap().unwrap().waiters;
    assert!(waiters.iter().map(|waiter| waiter.owner).eq(order));
    waiting.shutdown().await;
}

/// Clause 11: files that are open do not grow with locks and waiters.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn locks_and_waiters_share_two_connections() {
    const LOCKS: usize = 200;
    let file = File::new();
    let folder = file.0.path().canonicalize().unwrap();
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let files = files.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        files.filter(|path| path.starts_with(&folder)).count()
    };
    let store = Arc::new(file.store().await);
    let mut waiting = tokio::task::JoinSet::new();
    let mut held = Vec::new();
    for lock in 0..LOCKS {
        let holder = claim(&format!("lock {lock}"), 600_000);
        granted(&*store, &holder).await;
        let (store, waiter) = (store.clone(), queued(holder.key.as_str(), 600_000));
        waiting.spawn(async move {
            acquire(&*store, &waiter).await;
            store.release(&waiter).await.unwrap();
        });
        held.push(holder);
    }
    for holder in &held {
        until_waiters(&store, &holder.key, 1).await;
    }
    // The file, its log and their shared memory, for each connection.
    assert!(open() <= 6, "{} open files", open());
    for renewal in store
        .renew_all(&held.iter().map(Claim::clone).collect::<Vec<_>>())
        .await
    {
        assert!(matches!(renewal.unwrap(), Renewal::Renewed { .. }));
    }
    for holder in &held {
        store.release(holder).await.unwrap();
    }
    waiting.join_all().await;
    assert_eq!(store.list("", Page::default()).await.unwrap().locks, []);
}

/// The lease counts from when the file could be written, not from before the wait for it; and a
/// locked file holds a call up for the busy timeout at most, whoever else waits for it too.
#[tokio::test]
async fn a_lease_begins_after_the_wait_for_the_file() {
    let file = File::new();
    let store = Arc::new(file.store().await);
    let mut stranger = file.stranger().await;
    let mut lock = stranger.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO locks SELECT 'x', 1, NULL, '', NULL, 'h', 1, 0, 0")
        .execute(&mut *lock)
        .await
        .unwrap();
    let late = claim("k", 1000);
    let acquiring = tokio::spawn({
        let (store, late) = (store.clone(), late.clone());
        async move { granted(&*store, &late).await }
    });
    tokio::time::sleep(Duration::from_millis(2200)).await;
    assert!(!acquiring.is_finished());
    lock.commit().await.unwrap();
    acquiring.await.unwrap();
    let info = store.inspect(&late.key).await.unwrap();
    let holder = info.and_then(|info| info.holder).expect("the lease runs");
    assert!(holder.held_for < Duration::from_millis(1000));
}

/// A locked file is a transient error within the busy timeout, for every call; reading works, and
/// nothing is lost.
#[tokio::test]
async fn a_locked_file_holds_nobody_up() {
    let file = File::new();
    let builder = SqliteLock::builder(file.path()).busy_timeout(Duration::from_millis(300));
    let store = Arc::new(builder.open().await.unwrap());
    let held = claim("held", 600_000);
    granted(&*store, &held).await;
    let mut stranger = file.stranger().await;
    let lock = stranger.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let start = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for call in 0..20 {
        let store = store.clone();
        let claim = claim(&format!("lock {call}"), 600_000);
        calls.spawn(async move { store.try_acquire(&claim).await.unwrap_err() });
    }
    for error in calls.join_all().await {
        assert_eq!(error.kind(), StoreErrorKind::Transient, "{error}");
        assert!(
            error.to_string().contains("locked by another program"),
            "{error}"
        );
        assert!(error.to_string().contains("locks.db"), "{error}");
    }
    // One busy timeout and its margin, and what a slow machine takes.
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert!(store.inspect(&held.key).await.unwrap().is_some());
    lock.rollback().await.unwrap();
    until("the file is free again", async || {
        store.renew(&held).await.is_ok()
    })
    .await;
    assert_eq!(
        store.release(&held).await.unwrap(),
        Release::Released { holds: 0 }
    );
}

async fn refusal(file: &File) -> StoreError {
    let error = SqliteLock::open(file.path()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Permanent, "{error}");
    assert!(error.to_string().contains("locks.db"), "{error}");
    error
}

/// A41: what is not ours is refused and left as it was.
#[tokio::test]
async fn foreign_files_are_left_alone() {
    let file = File::new();
    std::fs::write(
        file.path(),
        "Dear diary, this is not a database. ".repeat(50),
    )
    .unwrap();
    let before = std::fs::read(file.path()).unwrap();
    assert!(
        refusal(&file)
            .await
            .to_string()
            .contains("not an SQLite database")
    );
    assert_eq!(std::fs::read(file.path()).unwrap(), before);

    // Another program's tables, of the same name.
    let file = File::new();
    let mut stranger = file.stranger().await;
    sqlx::raw_sql("CREATE TABLE locks (door TEXT, key TEXT); INSERT INTO locks VALUES ('a', 'b')")
        .execute(&mut stranger)
        .await
        .unwrap();
    stranger.close().await.unwrap();
    let before = std::fs::read(file.path()).unwrap();
    assert!(refusal(&file).await.to_string().contains("another program"));
    assert_eq!(std::fs::read(file.path()).unwrap(), before);

    // A later version of ours.
    let file = File::new();
    drop(file.store().await);
    let mut stranger = file.stranger().await;
    sqlx::raw_sql("PRAGMA user_version = 2")
        .execute(&mut stranger)
        .await
        .unwrap();
    stranger.close().await.unwrap();
    assert!(refusal(&file).await.to_string().contains("version 2"));

    // A folder, and a path in a folder that is not there.
    let file = File::new();
    std::fs::create_dir(file.path()).unwrap();
    refusal(&file).await;
    let missing = SqliteLock::open(file.0.path().join("no/locks.db"))
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Permanent);
    assert!(missing.to_string().contains("folder"), "{missing}");
}

/// A41: a damaged file is an error, not an empty store; other values of other programs are too.
#[tokio::test]
async fn damage_is_told() {
    let file = File::new();
    let store = file.store().await;
    for lock in 0..300 {
        granted(&store, &claim(&format!("lock {lock:0100}"), 600_000)).await;
    }
    store.close().await.unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    let whole = bytes.clone();
    bytes[4096..].fill(0xa5);
    std::fs::write(file.path(), &bytes).unwrap();
    let damaged = async {
        let store = SqliteLock::open(file.path()).await?;
        store.list("", Page::default()).await
    };
    let error = damaged.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Permanent, "{error}");
    assert!(error.to_string().contains("damaged"), "{error}");

    std::fs::write(file.path(), &whole).unwrap();
    let store = file.store().await;
    assert_eq!(
        store.list("", Page::default()).await.unwrap().locks.len(),
        100
    );
    let mut stranger = file.stranger().await;
    let bad = "UPDATE locks SET owner = 'someone' WHERE key = (SELECT min(key) FROM locks)";
    sqlx::query(bad).execute(&mut stranger).await.unwrap_err();
    sqlx::raw_sql(&*format!("PRAGMA ignore_check_constraints = 1; {bad}").leak())
        .execute(&mut stranger)
        .await
        .unwrap();
    let key: LockKey = format!("lock {:0100}", 0).parse().unwrap();
    let error = store.inspect(&key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Permanent);
    assert!(error.to_string().contains("someone"), "{error}");
    // B51: which an operator can end.
    assert!(store.force_release(&key, None).await.unwrap());
    assert_eq!(store.inspect(&key).await.unwrap(), None);
    granted(&store, &claim(key.as_str(), 1000)).await;
}

/// A worker on a small file system of its own, which only it can see.
fn worker_on(prepare: &str, arguments: &str) -> (TempDir, Worker) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs \"$1\" && cd \"$1\" && {prepare} exec \"$2\" {arguments}"
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command
        .arg(folder.path())
        .arg(env!("CARGO_BIN_EXE_sqlite-worker"));
    let worker = Worker::start(&mut command);
    (folder, worker)
}

/// A full disk is a transient error, and nothing that was granted is lost.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_nothing() {
    let (_folder, mut worker) = worker_on("", "fill locks.db filler");
    let error = worker.says();
    assert!(error.starts_with("Transient"), "{error}");
    assert!(error.contains("is full"), "{error}");
    assert!(worker.says().starts_with("kept"));
    worker.ends_well();
}

/// A file that cannot be written is a permanent error.
#[cfg(target_os = "linux")]
#[test]
fn a_read_only_file_is_told() {
    let made = "\"$2\" try locks.db k >&2 &&";
    let file = "mount --bind locks.db locks.db && mount -o remount,bind,ro locks.db &&";
    let disk = "cd / && mount -o remount,ro \"$1\" && cd \"$1\" &&";
    for read_only in [file, disk] {
        let (_folder, mut worker) = worker_on(&format!("{made} {read_only}"), "try locks.db k");
        let error = worker.says();
        assert!(error.starts_with("Permanent"), "{error}");
        assert!(error.contains("locks.db"), "{error}");
        worker.ends_well();
    }
}

/// Without a path the file is in the user's state folder, which is made for that user only.
#[cfg(unix)]
#[test]
fn the_default_file_belongs_to_its_user() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    for (variable, folder) in [("XDG_STATE_HOME", "a/b"), ("HOME", "c")] {
        let folder = home.path().join(folder);
        let mut command = Command::new(env!("CARGO_BIN_EXE_sqlite-worker"));
        command
            .args(["try", "-", "k"])
            .env_remove("XDG_STATE_HOME")
            .env(variable, &folder);
        let mut worker = Worker::start(&mut command);
        assert_eq!(worker.says(), "granted");
        worker.ends_well();
        let state = match variable {
            "HOME" => folder.join(".local/state"),
            _ => folder,
        };
        assert!(state.join("distlock/locks.db").is_file());
        let mode = state
            .join("distlock")
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// A39: names are bytes, whatever they mean elsewhere.
#[tokio::test]
async fn names_are_bytes() {
    let file = File::new();
    let store = file.store().await;
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a'",
        "a''",
        "a\"",
        "'; DROP TABLE locks; --",
        "%",
        "_",
        "*",
        "[a]",
        "\u{e9}",
        "e\u{301}",
        "\u{ff41}",
        "\u{1f512}",
        "null",
        "0",
        "00",
        "0.0",
        "x'00'",
        "?1",
        "$1",
    ];
    let mut tokens = Vec::new();
    for name in names {
        tokens.push(granted(&store, &claim(name, 600_000)).await.token);
    }
    for (name, token) in names.iter().zip(tokens) {
        let why = busy(&store, &claim(name, 1000)).await;
        assert_eq!(why.holder.unwrap().token, token);
        let listed = store.list(name, Page::default()).await.unwrap().locks;
        assert!(
            listed
                .iter()
                .all(|lock| lock.key.as_str().starts_with(name))
        );
        assert!(listed.iter().any(|lock| lock.key.as_str() == *name));
    }
    let longest = "\u{1f512}".repeat(63) + "abc";
    granted(&store, &claim(&longest, 600_000)).await;
    busy(&store, &claim(&longest, 600_000)).await;
}

/// A38, B108: the ttl goes out in whole milliseconds, rounded up, and none overflows.
#[tokio::test]
async fn every_ttl_is_granted_whole() {
    let file = File::new();
    let store = file.store().await;
    for millis in [1, 10, 999, 1500, Ttl::MAX.as_millis()] {
        let claim = claim(&format!("ttl {millis}"), millis);
        let start = Instant::now();
        let ttl = granted(&store, &claim).await.ttl;
        assert!(ttl >= claim.ttl);
        if millis > 1500 {
            let holder = store
                .inspect(&claim.key)
                .await
                .unwrap()
                .unwrap()
                .holder
                .unwrap();
            assert!(holder.remaining + PATIENCE > ttl.as_duration());
            continue;
        }
        let rival = self::claim(claim.key.as_str(), 1000);
        until("the lease ends", async || {
            matches!(
                store.try_acquire(&rival).await.unwrap(),
                Attempt::Granted(_)
            )
        })
        .await;
        assert!(
            start.elapsed() >= ttl.as_duration(),
            "{:?}",
            start.elapsed()
        );
    }
}

/// B12, B96: a lease that has run out is neither renewed nor re-created nor released, also when
/// its guard is dropped.
#[tokio::test]
async fn a_lost_lock_stays_lost() {
    let file = File::new();
    let (late, client) = (file.client().await, file.client().await);
    let short = Duration::from_millis(300);
    let guard = late
        .lock("k")
        .ttl(short)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    let first = guard.token();
    let second = client.acquire("k").await.unwrap();
    assert!(second.token() > first);
    assert!(!guard.is_held());
    assert!(matches!(guard.renew(short).await, Err(Error::Lost { .. })));
    drop(guard);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = client.inspect("k").await.unwrap().unwrap().holder.unwrap();
    assert_eq!(held.token, second.token());
    assert!(matches!(
        late.try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
    second.release().await.unwrap();
    assert_eq!(client.inspect("k").await.unwrap(), None);
    assert!(late.acquire("k").await.unwrap().token() > first);
}

/// B17: two tasks of one thread are two owners.
#[tokio::test(flavor = "current_thread")]
async fn tasks_of_one_thread_are_strangers() {
    let file = File::new();
    let client = file.client().await;
    let short = Duration::from_millis(300);
    let guard = client
        .lock("k")
        .ttl(short)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    let next = tokio::spawn({
        let client = client.clone();
        async move { client.lock("k").wait(PATIENCE).acquire().await.unwrap() }
    });
    let next = next.await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    let held = client.inspect("k").await.unwrap().unwrap().holder.unwrap();
    assert_eq!(held.token, next.token());
    assert!(matches!(
        client.try_acquire("k").await,
        Err(Error::Busy { .. })
    ));
}

/// B59: anybody sees the holder, and looking changes nothing, not a byte.
#[tokio::test]
async fn looking_changes_nothing() {
    let file = File::new();
    let (store, viewer) = (file.store().await, file.store().await);
    let held = claim("k", 60_000);
    let grant = granted(&store, &held).await;
    let mut stranger = file.stranger().await;
    let version = "PRAGMA data_version";
    let before: i64 = sqlx::query(version)
        .fetch_one(&mut stranger)
        .await
        .unwrap()
        .get(0);
    let holder = viewer
        .inspect(&held.key)
        .await
        .unwrap()
        .unwrap()
        .holder
        .unwrap();
    assert_eq!((holder.token, holder.owner), (grant.token, held.owner));
    assert_eq!(holder.asker, held.asker);
    assert!(holder.remaining <= Duration::from_secs(60));
    assert!(
        viewer
            .inspect(&LockKey::new("never").unwrap())
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        viewer.list("", Page::default()).await.unwrap().locks.len(),
        1
    );
    let after: i64 = sqlx::query(version)
        .fetch_one(&mut stranger)
        .await
        .unwrap()
        .get(0);
    assert_eq!(before, after);
}

/// B51, B67: a forced release ends one grant, and tokens go on, at 2^53 too.
#[tokio::test]
async fn tokens_grow_across_everything() {
    let file = File::new();
    let mut store = file.store().await;
    let start: i64 = 1 << 53;
    let mut stranger = file.stranger().await;
    sqlx::query("INSERT INTO locks SELECT 'k', ?1, NULL, '', NULL, 'h', 1, 0, 0")
        .bind(start)
        .execute(&mut stranger)
        .await
        .unwrap();
    let mut last = start as u64;
    for round in 0..40 {
        if round % 5 == 0 {
            store = file.store().await;
        }
        let holder = claim("k", if round % 4 == 0 { 10 } else { 600_000 });
        let token = granted(&store, &holder).await.token;
        assert_eq!(token.as_u64(), last + 1, "exact, as an integer");
        last = token.as_u64();
        let again = Claim {
            hold: HoldId::random(),
            ..holder.clone()
        };
        match round % 4 {
            0 => {
                until("the lease ends", async || {
                    store.inspect(&holder.key).await.unwrap().is_none()
                })
                .await
            }
            1 => {
                let wrong = lock_core::FencingToken::new(last - 1);
                assert!(!store.force_release(&holder.key, wrong).await.unwrap());
                assert!(store.force_release(&holder.key, Some(token)).await.unwrap());
                assert!(!store.force_release(&holder.key, Some(token)).await.unwrap());
                assert_eq!(store.release(&holder).await.unwrap(), Release::NotHeld);
            }
            2 => {
                assert_eq!(granted(&store, &again).await.token, token);
                store.renew(&again).await.unwrap();
                store.release(&holder).await.unwrap();
                store.release(&again).await.unwrap();
            }
            _ => drop(store.release(&holder).await.unwrap()),
        }
    }
}

/// B20, B68: the file does not grow with the number of names, and a name that was forgotten gets
/// a larger token than ever before.
#[tokio::test]
async fn forgotten_names_leave_no_trace_but_their_tokens() {
    let file = File::new();
    let builder = SqliteLock::builder(file.path()).forget_after(Duration::ZERO);
    let store = builder.open().await.unwrap();
    let mut stranger = file.stranger().await;
    // Far above the clock, so that only the sweep's own account keeps it.
    let high: i64 = 1 << 55;
    sqlx::query("INSERT INTO locks SELECT 'aaa', ?1, NULL, '', NULL, 'h', 1, 0, 0")
        .bind(high)
        .execute(&mut stranger)
        .await
        .unwrap();
    let held = claim("held", 600_000);
    granted(&store, &held).await;
    let (mut most, mut names) = (0, 0);
    for round in 0..8 {
        for _ in 0..1000 {
            names += 1;
            let name = claim(&format!("name {names}"), 600_000);
            granted(&store, &name).await;
            store.release(&name).await.unwrap();
        }
        let rows: i64 = sqlx::query("SELECT count(*) FROM locks")
            .fetch_one(&mut stranger)
            .await
            .unwrap()
            .get(0);
        if round >= 4 {
            most = most.max(rows);
        }
    }
    // A part of the sweep every 256 releases on average: 12 times that never fails.
    assert!(most < 3200, "{most} rows of {names} names");
    let rows = |key: &'static str| sqlx::query("SELECT 1 FROM locks WHERE key = ?1").bind(key);
    assert!(
        rows("aaa")
            .fetch_optional(&mut stranger)
            .await
            .unwrap()
            .is_none()
    );
    assert!(granted(&store, &claim("aaa", 1000)).await.token.as_u64() > high as u64);
    assert!(matches!(
        store.renew(&held).await.unwrap(),
        Renewal::Renewed { .. }
    ));
}

/// A14: tokens go on growing when an older copy of the file is put back.
#[tokio::test]
async fn a14_tokens_stay_ahead_of_an_older_copy() {
    let file = File::new();
    let copy = file.path().with_extension("copy");
    let mut tokens = Vec::new();
    for step in ["copy", "go on", "restore"] {
        match step {
            "copy" => {}
            "go on" => drop(std::fs::copy(file.path(), &copy).unwrap()),
            _ => drop(std::fs::copy(&copy, file.path()).unwrap()),
        }
        let client = file.client().await;
        for _ in 0..20 {
            let guard = client.acquire("k").await.unwrap();
            tokens.push(guard.token());
            guard.release().await.unwrap();
        }
        let store = client.store().clone();
        client.shutdown().await;
        // The last connection to close writes the log back into the file.
        store.close().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// B65, B28: the answer to a request whose future was dropped goes to nobody; the next requests on
/// the connection get their own.
#[tokio::test]
async fn b65_a_dropped_request_answers_nobody() {
    let file = File::new();
    let store = file.store().await;
    let other = claim("other", 60_000);
    granted(&file.store().await, &other).await;
    for round in 0..200 {
        let dropped = claim("dropped", 60_000);
        for _ in 0..=round % 3 {
            let mut attempt = Box::pin(store.try_acquire(&dropped));
            let _ = futures_util::poll!(&mut attempt);
        }
        let rival = claim("other", 60_000);
        let seen = busy(&store, &rival).await.holder.unwrap();
        assert_eq!(
            seen.owner, other.owner,
            "not the grant of the dropped attempt"
        );
        let free = store.inspect(&"free".parse().unwrap()).await.unwrap();
        assert_eq!(free, None);
        assert_eq!(granted(&store, &dropped).await.holds, 1);
        store.release(&dropped).await.unwrap();
    }
}

/// A18: acquisitions that are dropped at any poll leave nothing behind, a second later.
#[tokio::test]
async fn a18_a_thousand_dropped_acquisitions_leave_nothing() {
    lock_core::conformance::cancel::drop_acquires(&File::new(), 1000).await;
}

#[async_trait]
impl lock_core::conformance::Subject for File {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.store().await)
    }
}

lock_core::conformance_tests!(File::new());
