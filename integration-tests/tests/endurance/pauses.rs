//! Holders that stand still for longer than their lease.

use std::time::Duration;

use integration_tests::taker::Taker;
use lock_core::{FencingToken, LockClient};
use rand::random_range;
use tokio::{runtime::Handle, task::JoinSet};

use crate::place::{Place, times};

/// So many holders at a time, each with a lock and a rival of its own.
const HOLDERS: usize = 8;

/// A11, B56, A5, A6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_in_redis_knows_it_at_its_first_step() {
    pause_holders(Place::redis()).await;
}

/// A11, B56, A5, A6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_in_postgres_knows_it_at_its_first_step() {
    pause_holders(Place::postgres()).await;
}

/// A11, B56, A5, A6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_in_etcd_knows_it_at_its_first_step() {
    pause_holders(Place::etcd()).await;
}

/// A11, B56, A5, A6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_in_sqlite_knows_it_at_its_first_step() {
    pause_holders(Place::sqlite()).await;
}

/// The first look of a holder after it goes on says lost, every time; its release changes nothing; whoever
/// came next has a larger token and keeps the lock.
async fn pause_holders(place: Place) {
    let rounds = times(5, 125);
    let rivals = place.client().await;
    let mut holders = JoinSet::new();
    for number in 0..HOLDERS {
        let (taker, rivals, ttl) = (place.taker(), rivals.clone(), place.ttl);
        let key = format!("k{number}");
        // A holder is driven over a pipe.
        holders.spawn_blocking(move || pause(taker, &rivals, &key, ttl, rounds));
    }
    let mut taken_over = 0;
    while let Some(rounds) = holders.join_next().await {
        taken_over += rounds.unwrap();
    }
    // Not when a holder of a file was stopped in the midst of a renewal: it keeps the file locked.
    assert!(
        taken_over * 5 > HOLDERS * rounds,
        "the rivals got in meanwhile only {taken_over} times"
    );
}

/// How often the rival got the lock while the holder stood still.
fn pause(mut holder: Taker, rivals: &LockClient, key: &str, ttl: Duration, rounds: usize) -> usize {
    let runtime = Handle::current();
    let mut taken_over = 0;
    for round in 0..rounds {
        let stale = token(&holder.ask(&format!("acquire {key} {} 60000", ttl.as_millis())));
        assert_eq!(holder.ask("is_held"), "true");
        holder.process.pause();
        holder.send("is_held");
        let acquire = rivals.lock(key).wait(Duration::from_secs(60)).acquire();
        let next = runtime.spawn(acquire);
        std::thread::sleep(ttl.mul_f64(random_range(1.0..3.0)));
        taken_over += usize::from(next.is_finished());
        holder.process.resume();
        assert_eq!(holder.answer(), "false", "round {round}");
        let answer = holder.ask("release");
        assert!(answer.contains("lost"), "{answer}");
        let next = runtime.block_on(next).unwrap().unwrap();
        assert!(next.token() > stale);
        assert!(next.is_held());
        runtime.block_on(next.release()).unwrap();
    }
    taken_over
}

fn token(answer: &str) -> FencingToken {
    match answer.strip_prefix("granted ") {
        Some(token) => token.parse().unwrap(),
        None => panic!("not granted: {answer}"),
    }
}
