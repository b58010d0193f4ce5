//! The file: its connections, and what becomes of it when it is locked, full, damaged or not ours.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{
    Claim, DistributedLock, LockKey, Page, Release, Renewal, StoreError, StoreErrorKind,
};
use lock_sqlite::SqliteLock;
use sqlx::Connection;
use tempfile::TempDir;

use crate::support::*;

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
