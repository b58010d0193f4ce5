//! Connections: how few there are, and what they survive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use integration_tests::{proxy::Proxy, servers::postgres::PostgresServer};
use lock_core::{DistributedLock, LockClient, Wait};
use lock_postgres::PostgresLock;
use sqlx::{
    Executor,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::task::JoinSet;

use crate::support::{Place, claim, granted, key, millis, secs, until};

async fn connections(server: &PostgresServer) -> i64 {
    server
        .value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'")
        .await
}

/// B88, D7: an application that hogs its pool for ten seconds, and two hundred waiters: the holder's
/// renewals do not wait behind either, waiters hold no connection, and their time-outs are time-outs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_wait_behind_waiters_b88_d7() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .connect(&place.server.url())
        .await
        .unwrap();
    let builder = PostgresLock::builder_for(&pool).schema(&place.schema);
    let client = LockClient::new(Arc::new(builder.connect().await.unwrap()));
    let guard = client.lock("k").ttl(secs(2)).acquire().await.unwrap();
    let mut slow = JoinSet::new();
    for _ in 0..5 {
        let pool = pool.clone();
        slow.spawn(async move { pool.execute("SELECT pg_sleep(10)").await.map(drop) });
    }
    let mut waiters = JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        waiters.spawn(async move { client.lock("k").wait(secs(12)).acquire().await.map(drop) });
    }
    let end = Instant::now() + secs(11);
    let mut least = Duration::MAX;
    let mut most = 0;
    while Instant::now() < end {
        assert!(guard.is_held());
        least = least.min(guard.valid_for());
        most = most.max(connections(&place.server).await);
        tokio::time::sleep(millis(20)).await;
    }
    assert!(least > millis(300), "{least:?}");
    assert!(most <= 3, "{most}");
    while let Some(end) = waiters.join_next().await {
        let why = end.unwrap().unwrap_err();
        assert!(matches!(why, lock_core::Error::Timeout { .. }), "{why}");
    }
    guard.release().await.unwrap();
    while slow.join_next().await.is_some() {}
    until(secs(10), async || pool.size() as usize == pool.num_idle()).await;
}

/// B40, D8: the connection that listens is cut again and again while locks are handed over: each
/// waiter gets its lock long before its wait is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_notices_cost_little_b40_d8() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let (one, two) = (place.client().await, place.client().await);
    let cutting = tokio::spawn({
        let server = place.server.clone();
        async move {
            let mut cut = 0;
            loop {
                cut += server
                    .value::<i64>(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name = 'distlock' AND query ILIKE 'LISTEN%'",
                    )
                    .await;
                tokio::time::sleep(millis(30)).await;
                if cut > 10_000 {
                    break;
                }
            }
        }
    });
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let guard = one.acquire("k").await.unwrap();
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { two.lock("k").wait(secs(40)).acquire().await.unwrap() }
        });
        while one.inspect("k").await.unwrap().unwrap().waiters.is_empty() {
            tokio::time::sleep(millis(5)).await;
        }
        tokio::time::sleep(millis(50)).await;
        guard.release().await.unwrap();
        let begin = Instant::now();
        waiter.await.unwrap().release().await.unwrap();
        slowest = slowest.max(begin.elapsed());
    }
    cutting.abort();
    assert!(slowest < secs(5), "{slowest:?}");
    // One connection listens in the end, not one for each that was cut.
    let listening = "SELECT count(*) FROM pg_stat_activity
                     WHERE application_name = 'distlock' AND query ILIKE 'LISTEN%'";
    assert!(place.server.value::<i64>(listening).await <= 1);
}

/// B40, D8: the connection that listens is cut and cannot come back, the application's pool is
/// taken, and the lock is released meanwhile: the waiter gets it by looking, and is told again once
/// the connection is up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_the_gap_of_the_listener_b40_d8() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let proxy = Proxy::start(place.server.address()).await.unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .connect(&place.server.url())
        .await
        .unwrap();
    let one = place.client().await;
    let listen = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresLock::builder_for(&pool)
        .schema(&place.schema)
        .listen_url(&listen);
    let two = LockClient::new(Arc::new(builder.unwrap().connect().await.unwrap()));
    let mut slow = JoinSet::new();
    for _ in 0..20 {
        let pool = pool.clone();
        slow.spawn(async move { pool.execute("SELECT pg_sleep(1)").await.map(drop) });
    }
    let listeners = "SELECT count(*) FROM pg_stat_activity
                     WHERE application_name = 'distlock' AND query ILIKE 'LISTEN%'";
    for gap in [true, false] {
        let guard = one.lock("k").ttl(secs(60)).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { two.lock("k").wait(secs(40)).acquire().await.unwrap() }
        });
        until(secs(10), async || {
            one.inspect("k").await.unwrap().unwrap().waiters.len() == 1
        })
        .await;
        until(secs(10), async || {
            place.server.value::<i64>(listeners).await == 1
        })
        .await;
        if gap {
            // New connections hang from here on.
            proxy.faults().hold_requests(true);
            proxy.reset_all();
            tokio::time::sleep(millis(500)).await;
        }
        let begin = Instant::now();
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        assert!(
            begin.elapsed() < secs(5),
            "gap: {gap}: {:?}",
            begin.elapsed()
        );
        proxy.faults().heal();
    }
    while slow.join_next().await.is_some() {}
}

/// B05: the lock is released after the waiter's first attempt and before it listens: it does not
/// sleep through it, whether LISTEN comes late or never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_before_the_listener_is_up_b05() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let one = place.client().await;
    for never in [false, true] {
        let proxy = Proxy::start(place.server.address()).await.unwrap();
        match never {
            true => proxy.faults().hold_requests(true),
            false => proxy.faults().delay_requests(millis(500)),
        }
        let listen = format!("postgres://postgres@{}/postgres", proxy.address());
        let store = place.builder().listen_url(&listen).unwrap().connect().await;
        let two = LockClient::new(Arc::new(store.unwrap()));
        let guard = one.lock("k").ttl(secs(60)).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let two = two.clone();
            async move {
                let lock = two.lock("k").ttl(secs(60)).wait(secs(20));
                lock.acquire().await.unwrap()
            }
        });
        until(secs(10), async || {
            one.inspect("k").await.unwrap().unwrap().waiters.len() == 1
        })
        .await;
        tokio::time::sleep(millis(100)).await;
        let begin = Instant::now();
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap();
        assert!(
            begin.elapsed() < secs(5),
            "never: {never}: {:?}",
            begin.elapsed()
        );
        guard.release().await.unwrap();
    }
}

/// A password that changes: connections that are made later use what the application's pool has
/// been told, those for requests as well as the one that listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pools_new_password_is_used() {
    let server = PostgresServer::start();
    server.write(
        "pg_hba.conf",
        b"host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    );
    server.sql("SELECT pg_reload_conf()").await;
    server
        .sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'")
        .await;
    let place = Place::on(Arc::new(server));
    let options = |password: &str| {
        let url = place.server.url_of("app", "postgres");
        let options: PgConnectOptions = url.parse().unwrap();
        options.password(password)
    };
    let pool = PgPoolOptions::new().connect_lazy_with(options("first"));
    let builder = PostgresLock::builder_for(&pool).schema(&place.schema);
    let client = LockClient::new(Arc::new(builder.connect().await.unwrap()));
    let guard = client.lock("k").ttl(secs(30)).acquire().await.unwrap();

    place.server.sql("ALTER ROLE app PASSWORD 'second'").await;
    let cut = async || {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE application_name = 'distlock'";
        place.server.sql(sql).await;
    };
    cut().await;
    let mut why = None;
    until(secs(10), async || {
        why = client.inspect("k").await.err();
        matches!(&why, Some(lock_core::Error::Store { source, .. })
            if source.to_string().contains("refuses the user"))
    })
    .await;
    assert!(!format!("{why:?}").contains("first"), "{why:?}");

    pool.set_connect_options(options("second"));
    until(secs(10), async || client.inspect("k").await.is_ok()).await;
    assert!(guard.is_held());
    let waiter = tokio::spawn({
        let client = client.clone();
        async move { client.lock("k").wait(secs(30)).acquire().await.unwrap() }
    });
    let listeners = "SELECT count(*) FROM pg_stat_activity
                     WHERE application_name = 'distlock' AND query ILIKE 'LISTEN%'";
    until(secs(10), async || {
        place.server.value::<i64>(listeners).await == 1
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    // The pool is the application's: closing it ends nothing here.
    pool.close().await;
    client.acquire("k").await.unwrap().release().await.unwrap();
}

/// B54: neither holders nor waiters have a transaction open, so that an index can be built while
/// they hold and wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_holds_no_snapshot_b54() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let clients = [
        place.client().await,
        place.client().await,
        place.client().await,
    ];
    place
        .server
        .sql("CREATE TABLE data AS SELECT generate_series(1, 10000) AS n")
        .await;
    let guard = clients[0].acquire("k").await.unwrap();
    let mut waiters = JoinSet::new();
    for client in &clients[1..] {
        let client = client.clone();
        waiters.spawn(async move {
            let guard = client.lock("k").wait(secs(60)).acquire().await.unwrap();
            guard.release().await.unwrap();
        });
    }
    until(secs(10), async || {
        let info = clients[0].inspect("k").await.unwrap().unwrap();
        info.waiters.len() == 2
    })
    .await;
    let begin = Instant::now();
    let mut admin = place.server.admin().await;
    admin
        .execute("CREATE INDEX CONCURRENTLY ON data (n)")
        .await
        .unwrap();
    assert!(begin.elapsed() < secs(10), "{:?}", begin.elapsed());
    for _ in 0..20 {
        let open: i64 = place
            .server
            .value(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'
                 AND state LIKE 'idle%' AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)",
            )
            .await;
        assert_eq!(open, 0);
        tokio::time::sleep(millis(20)).await;
    }
    guard.release().await.unwrap();
    while let Some(end) = waiters.join_next().await {
        end.unwrap();
    }
}

/// A thousand locks, five hundred waiters: three connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_connections_do_for_everything() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let client = place.client().await;
    let mut guards = Vec::new();
    for lock in 0..1000 {
        guards.push(client.acquire(format!("k{lock}")).await.unwrap());
    }
    let mut waiters = JoinSet::new();
    for waiter in 0..500 {
        let client = client.clone();
        waiters.spawn(async move {
            let lock = client.lock(format!("k{}", waiter % 10));
            lock.wait(Wait::Forever)
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        });
    }
    until(secs(30), async || {
        let info = client.inspect("k0").await.unwrap().unwrap();
        info.waiters.len() == 50
    })
    .await;
    // The watchdog's comes with the first renewal.
    assert!(connections(&place.server).await <= 3);
    drop(guards);
    while let Some(end) = waiters.join_next().await {
        end.unwrap();
    }
    let held = format!(
        "SELECT count(*) FROM {} WHERE owner IS NOT NULL",
        place.table("lock")
    );
    until(secs(30), async || {
        place.server.value::<i64>(&held).await == 0
    })
    .await;
    client.shutdown().await;
}

/// D7: no connection to be had: transient, and fine once there is one.
#[tokio::test]
async fn too_many_connections_are_a_transient_error_d7() {
    let place = Place::on(Arc::new(PostgresServer::with(&[
        "max_connections=6",
        "superuser_reserved_connections=2",
    ])));
    place.store().await.close().await.unwrap();
    place.server.sql("CREATE ROLE app LOGIN").await;
    place
        .server
        .sql(&format!(
            "GRANT USAGE ON SCHEMA \"{0}\" TO app;
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{0}\" TO app",
            place.schema
        ))
        .await;
    let url = place.server.url_of("app", "postgres");
    let pool = PgPoolOptions::new().min_connections(4).max_connections(4);
    let pool = pool.connect(&url).await.unwrap();
    until(secs(10), async || pool.size() == 4).await;
    match place.builder_at(&url).connect().await {
        Err(lock_core::Error::Store { source, .. }) => {
            assert!(source.is_transient(), "{source}");
            assert!(source.to_string().contains("too many"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    pool.close().await;
    until(secs(10), async || {
        place.builder_at(&url).connect().await.is_ok()
    })
    .await;
}

/// B41, A20: the runtime that works a store's connection ends: other runtimes go on with it.
#[test]
fn a_store_survives_the_runtime_it_was_made_on_b41_a20() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let place = Place::shared();
    let first = runtime();
    let store = first.block_on(place.store());
    let a = claim("k", 30_000);
    first.block_on(async {
        granted(store.try_acquire(&a).await.unwrap());
        // A waiter, so that the connection that listens is up as well.
        store
            .try_acquire(&crate::support::queued("k", 1_000))
            .await
            .unwrap();
        tokio::time::sleep(secs(1)).await;
    });
    // A request that is under way when the runtime ends.
    let (asked, a2) = (store.clone(), a.clone());
    first.spawn(async move { asked.renew(&a2).await });
    first.shutdown_background();
    let second = runtime();
    second.block_on(async {
        until(secs(10), async || store.renew(&a).await.is_ok()).await;
        store.release(&a).await.unwrap();
    });
    drop(second);
    // Dropped outside of any runtime.
    drop(store);
}

/// A closed handle says so; its connections end, others go on.
#[tokio::test]
async fn a_closed_handle_is_closed() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let store = place.store().await;
    let other = store.dedicated().await.unwrap();
    let a = claim("k", 30_000);
    granted(store.try_acquire(&a).await.unwrap());
    store.close().await.unwrap();
    let why = store.try_acquire(&a).await.unwrap_err();
    assert_eq!(why.kind(), lock_core::StoreErrorKind::Closed);
    assert!(other.inspect(&key("k")).await.unwrap().is_some());
    other.close().await.unwrap();
    until(secs(10), async || connections(&place.server).await == 0).await;
}
