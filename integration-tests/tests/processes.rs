//! Holders that fork, are blocked, or die, as processes of their own on the SQLite store.

#![allow(clippy::unwrap_used)]

use std::{
    thread,
    time::{Duration, Instant},
};

use integration_tests::taker::Taker;
use lock_core::{FencingToken, LockClient};
use tempfile::TempDir;

struct Setup {
    _dir: TempDir,
    url: String,
    rival: LockClient,
}

async fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("locks.db").display());
    Setup {
        rival: distlock::connect(&url).await.unwrap(),
        _dir: dir,
        url,
    }
}

fn taker(setup: &Setup) -> Taker {
    Taker::start(env!("CARGO_BIN_EXE_lock-taker"), &setup.url)
}

fn token(answer: &str) -> FencingToken {
    match answer.strip_prefix("granted ") {
        Some(token) => token.parse().unwrap(),
        None => panic!("not granted: {answer}"),
    }
}

/// A24, A40: in a forked child the copy of a guard holds nothing, sends nothing and does not
/// block; the parent keeps the lock.
#[tokio::test]
async fn a24_a_forked_child_has_no_part_in_the_lock() {
    let setup = setup().await;
    let mut holder = taker(&setup);
    token(&holder.ask("acquire k 500 0"));
    for _ in 0..5 {
        assert_eq!(holder.ask("fork"), "child 0");
        assert_eq!(holder.ask("is_held"), "true");
    }
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(holder.ask("is_held"), "true", "and goes on renewing it");
    assert!(setup.rival.try_acquire("k").await.is_err());
    assert_eq!(holder.ask("release"), "released");
}

/// A23: the only thread of the application's runtime is blocked for ten ttls.
#[tokio::test]
async fn a23_a_blocked_process_keeps_its_lock() {
    let setup = setup().await;
    let mut holder = taker(&setup);
    token(&holder.ask("acquire k 300 0"));
    assert_eq!(holder.ask("block 3000"), "blocked");
    assert_eq!(holder.ask("is_held"), "true");
}

/// A22, B37: a holder that is killed frees its lock at the end of its lease, for one who waits.
#[tokio::test]
async fn a22_a_killed_holder_frees_its_lock() {
    let setup = setup().await;
    let mut holder = taker(&setup);
    let stale = token(&holder.ask("acquire k 1000 0"));
    let start = Instant::now();
    let rival = setup.rival.clone();
    let waiting = tokio::spawn(async move {
        rival
            .lock("k")
            .wait(Duration::from_secs(60))
            .acquire()
            .await
    });
    holder.process.kill();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > stale);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}
