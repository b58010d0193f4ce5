//! Many locks and many waiters: connections, commands, keys.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use integration_tests::servers::redis::RedisServer;
use lock_core::{DistributedLock, Page};
use tokio::time::{Instant, sleep};

use crate::support::*;

/// Commands that clients sent; what scripts call does not count.
fn sent(server: &RedisServer) -> u64 {
    ["evalsha", "eval", "ping", "subscribe", "hello"]
        .map(|command| server.calls(command))
        .iter()
        .sum()
}

/// Clause 11 and the "Idle": a thousand held locks with a ttl of 30 s cost at most 20
/// commands a second, a thousand waiters on one key at most 200, on two connections and the
/// watchdog's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_and_a_thousand_waiters_are_cheap() {
    let server = RedisServer::start();
    let (holders, waiters) = (client(&server).await, client(&server).await);
    let held = join_all((0..1000).map(|n| holders.acquire(format!("held {n}")))).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let busy = holders.acquire("busy").await.unwrap();

    let measure = async |time: Duration| {
        server.command(&["CONFIG", "RESETSTAT"]);
        let begin = Instant::now();
        sleep(time).await;
        sent(&server) as f64 / begin.elapsed().as_secs_f64()
    };
    let holding = measure(ms(12_000)).await; // more than ttl / 3: all are renewed once
    assert!(
        holding > 0.0 && holding <= 20.0,
        "{holding} commands a second"
    );
    assert!(held.iter().all(|guard| guard.is_held()));

    let mut waiting = Vec::new();
    for _ in 0..1000 {
        let waiters = waiters.clone();
        let wait = Duration::from_secs(120);
        waiting.push(tokio::spawn(async move {
            waiters.lock("busy").wait(wait).acquire().await
        }));
    }
    queued(&**holders.store(), "busy", 1000).await;
    let waiting_rate = measure(ms(12_000)).await - holding;
    assert!(waiting_rate <= 200.0, "{waiting_rate} commands a second");
    // Two stores: commands and the watchdog's each, one subscription, and this test's own.
    let connected: u64 = server.info("connected_clients").parse().unwrap();
    assert!(connected <= 6, "{connected} connections");
    println!("1,000 held: {holding:.1} commands/s; 1,000 waiting: {waiting_rate:.1} commands/s");
    for task in waiting {
        task.abort();
    }
    drop((held, busy));
    let left = waiters.shutdown().await;
    assert!(left.is_clean(), "{left:?}");
}

/// Who watches the locks of a server costs it little: a thousand are listed with a few commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_are_listed_with_a_few_commands() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let held = join_all((0..1000).map(|n| client.acquire(format!("held {n}")))).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    let mut page = Page {
        limit: 1000,
        cursor: None,
    };
    let mut listed = HashSet::new();
    loop {
        let part = client.list("held", page.clone()).await.unwrap();
        listed.extend(part.locks.into_iter().map(|info| info.key));
        match part.next {
            Some(next) => page.cursor = Some(next),
            None => break,
        }
    }
    let commands = sent(&server) + server.calls("scan");
    assert_eq!(listed.len(), 1000);
    // A renewal may be among them.
    assert!(commands <= 6, "{commands} commands");
    drop(held);
}

/// A30, B128, and the "Contention": at most 5 commands a hand-over, for 16 waiters and
/// for 300.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_a_hand_over_costs_at_most_five_commands() {
    let server = RedisServer::start();
    let client = client(&server).await;
    for tasks in [16_usize, 300] {
        let rounds = 600 / tasks + 1;
        let warm = client.acquire("l").await.unwrap();
        let all = (0..tasks).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let lock = client.lock("l").wait(Duration::from_secs(120));
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        });
        let all: Vec<_> = all.collect();
        queued(&**client.store(), "l", tasks).await;
        server.command(&["CONFIG", "RESETSTAT"]);
        warm.release().await.unwrap();
        for task in all {
            task.await.unwrap();
        }
        let each = sent(&server) as f64 / (tasks * rounds) as f64;
        assert!(each <= 5.0, "{tasks} tasks: {each} commands a hand-over");
        println!("{tasks} tasks: {each:.2} commands a hand-over");
    }
}

/// An uncontended lock costs two commands, and many at once fewer: one script for many.
#[tokio::test]
async fn an_uncontended_lock_costs_two_commands_at_most() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let warm = claim("l");
    granted(&*store, &warm).await;
    store.release(&warm).await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..10 {
        let claim = queuing("l");
        granted(&*store, &claim).await;
        store.release(&claim).await.unwrap();
    }
    assert_eq!(sent(&server), 20);
    assert_eq!(server.calls("subscribe"), 0);
    server.command(&["CONFIG", "RESETSTAT"]);
    let pair = async |n: usize| {
        let claim = claim(&format!("l {n}"));
        granted(&*store, &claim).await;
        store.release(&claim).await.unwrap();
    };
    join_all((0..500).map(pair)).await;
    assert!(sent(&server) <= 500, "{}", sent(&server));
}

/// B68, B20: twenty thousand names leave nothing but token keys, and these go by themselves.
#[tokio::test]
async fn b68_b20_twenty_thousand_names_leave_nothing() {
    let server = RedisServer::start();
    let store = lock_redis::RedisLock::builder(&server.url())
        .unwrap()
        .token_retention(Duration::from_secs(5))
        .connect()
        .await
        .unwrap();
    for thousand in 0..20 {
        let pairs = (0..1000).map(|n| {
            let (store, claim) = (&store, claim(&format!("l {thousand} {n}")));
            async move {
                granted(store, &claim).await;
                store.release(&claim).await.unwrap();
            }
        });
        join_all(pairs).await;
    }
    let left = server.keys("*");
    assert!(left.iter().all(|key| key.ends_with(":token")));
    eventually("the token keys have expired", async || {
        server.command(&["DBSIZE"]) == "0"
    })
    .await;
}

/// B20: waiters are woken, and look seldom for themselves.
#[tokio::test]
async fn b20_waiters_do_not_poll() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.acquire("l").await.unwrap();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.acquire("l").await.unwrap().release().await })
        })
        .collect();
    queued(&**client.store(), "l", 50).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    sleep(ms(5000)).await;
    let rate = sent(&server) as f64 / 5.0;
    assert!(rate <= 50.0, "{rate} commands a second");
    guard.release().await.unwrap();
    for task in waiting {
        task.await.unwrap().unwrap();
    }
}
