//! What the tests share: a file for each, and other processes on it.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use integration_tests::process::Process;
use lock_core::{
    Asker, Attempt, Busy, Claim, DistributedLock, Grant, HoldId, LockClient, LockKey, OwnerId, Ttl,
};
use lock_sqlite::SqliteLock;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
use tempfile::TempDir;

/// A file of its own for each test.
pub(crate) struct File(pub(crate) TempDir);

impl File {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    pub(crate) async fn store(&self) -> SqliteLock {
        SqliteLock::open(self.path()).await.expect("a new file")
    }

    pub(crate) async fn client(&self) -> LockClient {
        LockClient::new(Arc::new(self.store().await))
    }

    /// A connection of another program.
    pub(crate) async fn stranger(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().create_if_missing(true);
        options.filename(self.path()).connect().await.unwrap()
    }

    pub(crate) fn worker(&self, arguments: &[&str]) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sqlite-worker"));
        command.arg(arguments[0]).arg(self.path());
        Worker::start(command.args(&arguments[1..]))
    }
}

/// Another process on the file.
pub(crate) struct Worker {
    pub(crate) process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let output = process.child().stdout.take().expect("a pipe");
        Self {
            process,
            lines: BufReader::new(output).lines(),
        }
    }

    /// What it says next; blocks.
    pub(crate) fn says(&mut self) -> String {
        let line = self.lines.next().expect("the worker goes on");
        line.expect("a line of text")
    }

    /// Lets it release what it holds.
    pub(crate) fn go_on(&mut self) {
        drop(self.process.child().stdin.take());
    }

    pub(crate) fn ends_well(&mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

/// Waits until `what` is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn until_waiters(store: &SqliteLock, key: &LockKey, count: usize) {
    until("the waiters queue", async || {
        let info = store.inspect(key).await.unwrap();
        info.is_some_and(|info| info.waiters.len() == count)
    })
    .await;
}

/// How long something that has to happen may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn claim(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key.parse().unwrap(),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        queue: false,
        asker: Arc::new(Asker::this_process(Some("test")).unwrap()),
    }
}

pub(crate) fn queued(key: &str, ttl_ms: u64) -> Claim {
    Claim {
        queue: true,
        ..claim(key, ttl_ms)
    }
}

pub(crate) async fn granted(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

pub(crate) async fn busy(store: &dyn DistributedLock, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Waits for the turn of a claim as a client does.
pub(crate) async fn acquire(store: &dyn DistributedLock, claim: &Claim) -> Grant {
    loop {
        match store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant,
            Attempt::Busy(busy) => store.wait(claim, &busy).await,
        }
    }
}
