//! How many statements it takes, counted by the server.

use std::sync::Arc;

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{LockClient, Wait};
use tokio::task::JoinSet;

use crate::support::{Place, secs, until};

async fn place() -> Place {
    let server = PostgresServer::with(&[
        "shared_preload_libraries=pg_stat_statements",
        "pg_stat_statements.track=top",
    ]);
    server.sql("CREATE EXTENSION pg_stat_statements").await;
    Place::on(Arc::new(server))
}

/// Statements of the store since the last reset.
async fn statements(server: &PostgresServer) -> f64 {
    let sql = "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements
               WHERE query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_stat_activity%'";
    server.value(sql).await
}

/// What they were, for a test that fails.
async fn which(server: &PostgresServer) -> String {
    let sql = "SELECT coalesce(string_agg(calls || ' x ' || left(query, 60), '; '), '')
               FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_%'";
    server.value(sql).await
}

async fn reset(server: &PostgresServer) {
    server.sql("SELECT pg_stat_statements_reset()").await;
}

fn wait_for(waiters: &mut JoinSet<()>, client: &LockClient, name: &'static str) {
    let client = client.clone();
    waiters.spawn(async move {
        let lock = client.lock(name).wait(Wait::Forever);
        lock.acquire().await.unwrap().release().await.unwrap();
    });
}

async fn waiting(client: &LockClient, name: &str) -> usize {
    let info = client.inspect(name).await.unwrap();
    info.map_or(0, |info| info.waiters.len())
}

/// A30, B128: a hand-over takes a release and a claim, however many wait, and wakes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_few_statements_a30_b128() {
    let place = place().await;
    let client = place.client().await;
    for tasks in [16, 500] {
        let guard = client.lock("k").ttl(secs(60)).acquire().await.unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..tasks {
            wait_for(&mut waiters, &client, "k");
        }
        until(secs(60), async || waiting(&client, "k").await == tasks).await;
        reset(&place.server).await;
        guard.release().await.unwrap();
        while let Some(end) = waiters.join_next().await {
            end.unwrap();
        }
        let each = statements(&place.server).await / tasks as f64;
        println!("{tasks} waiters: {each:.2} statements a hand-over");
        assert!(each <= 4.0, "{each}");
    }
}

/// B20, B128: five hundred waiters of one process cost a few statements a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_takes_few_statements_b20_b128() {
    let place = place().await;
    let client = place.client().await;
    // Long enough to need no renewal meanwhile.
    let guard = client.lock("k").ttl(secs(3600)).acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..500 {
        wait_for(&mut waiters, &client, "k");
    }
    until(secs(60), async || waiting(&client, "k").await == 500).await;
    let rate = rate(&place).await;
    assert!(rate <= 3.0, "{rate}: {}", which(&place.server).await);
    assert!(guard.is_held());
}

/// B128: a thousand locks cost their renewals, in batches; over two rounds of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_takes_few_statements_b128() {
    let place = place().await;
    let client = place.client().await;
    let mut guards = Vec::new();
    for lock in 0..1000 {
        let lock = client.lock(format!("k{lock}")).ttl(secs(30));
        guards.push(lock.acquire().await.unwrap());
    }
    tokio::time::sleep(secs(2)).await;
    let rate = rate(&place).await;
    assert!(rate <= 2.0, "{rate}: {}", which(&place.server).await);
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// Statements a second over 20 s.
async fn rate(place: &Place) -> f64 {
    let begin = tokio::time::Instant::now();
    reset(&place.server).await;
    tokio::time::sleep(secs(20)).await;
    let rate = statements(&place.server).await / begin.elapsed().as_secs_f64();
    println!("{rate:.2} statements a second");
    rate
}
