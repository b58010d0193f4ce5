//! Processes that take turns, and that are killed, stopped or blocked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{DistributedLock, Wait};
use sqlx::Row;

use crate::support::*;

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
