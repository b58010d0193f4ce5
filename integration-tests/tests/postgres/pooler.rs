//! Behind PgBouncer in transaction mode.

use std::time::{Duration, Instant};

use integration_tests::servers::{pgbouncer::PgBouncer, postgres::PostgresServer};
use lock_core::{DistributedLock, LockClient, Release, Wait};
use lock_postgres::PostgresLock;

use crate::support::{Place, claim, granted, key, queued, secs};

/// D9, B26: acquire, release, acquire by another, over sessions that change at every transaction.
#[tokio::test]
async fn locks_do_not_depend_on_a_session_d9_b26() {
    let place = Place::on(std::sync::Arc::new(PostgresServer::start()));
    // The first refuses the settings of a session, the second drops them silently.
    for settings in [
        vec!["default_pool_size = 2"],
        vec![
            "default_pool_size = 2",
            "ignore_startup_parameters = extra_float_digits, options",
        ],
    ] {
        let pooler = PgBouncer::with(&place.server, &settings);
        let open = async || place.builder_at(&pooler.url()).connect().await.unwrap();
        let (one, two) = (open().await, open().await);
        let warnings = one.capabilities().warnings;
        assert!(warnings.iter().any(|w| w.contains("poll")), "{warnings:?}");
        for _ in 0..20 {
            let (a, b) = (claim("k", 30_000), claim("k", 30_000));
            granted(one.try_acquire(&a).await.unwrap());
            assert_eq!(two.release(&b).await.unwrap(), Release::NotHeld);
            let released = one.release(&a).await.unwrap();
            assert_eq!(released, Release::Released { holds: 0 });
            granted(two.try_acquire(&b).await.unwrap());
            two.release(&b).await.unwrap();
        }
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(place.server.value::<i64>(sql).await, 0);
    }
}

/// D9: waiters behind a pooler poll, or listen at the server itself when they are told where.
#[tokio::test]
async fn waiters_are_served_behind_a_pooler_d9() {
    let place = Place::shared();
    let pooler = PgBouncer::start(&place.server);
    for listens in [false, true] {
        let open = async || {
            let mut builder = place.builder_at(&pooler.url());
            if listens {
                builder = builder.listen_url(&place.server.url()).unwrap();
            }
            LockClient::new(std::sync::Arc::new(builder.connect().await.unwrap()))
        };
        let (one, two) = (open().await, open().await);
        for _ in 0..5 {
            let guard = one.acquire("k").await.unwrap();
            let waiter = tokio::spawn({
                let two = two.clone();
                async move { two.lock("k").wait(Wait::Forever).acquire().await.unwrap() }
            });
            while one.inspect("k").await.unwrap().unwrap().waiters.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            guard.release().await.unwrap();
            let begin = Instant::now();
            let guard = waiter.await.unwrap();
            assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
            guard.release().await.unwrap();
        }
    }
}

/// D10: one session for everybody, sessions that end all the time, and a short patience.
#[tokio::test]
async fn a_tiny_pool_is_enough_d10() {
    let place = Place::shared();
    place.store().await;
    let pooler = PgBouncer::with(
        &place.server,
        &[
            "default_pool_size = 1",
            "server_lifetime = 1",
            "query_wait_timeout = 5",
        ],
    );
    let open = async || {
        let store = place.builder_at(&pooler.url()).connect().await.unwrap();
        LockClient::new(std::sync::Arc::new(store))
    };
    let clients = [open().await, open().await, open().await];
    let end = Instant::now() + secs(4);
    let mut tasks = Vec::new();
    for task in 0..12 {
        let client = clients[task % 3].clone();
        tasks.push(tokio::spawn(async move {
            let mut grants = 0;
            while Instant::now() < end {
                let lock = client.lock(format!("k{}", task % 4)).wait(Wait::Forever);
                lock.acquire().await.unwrap().release().await.unwrap();
                grants += 1;
            }
            grants
        }));
    }
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
}

/// D10: when the pooler has no session to give within its patience, the error is transient.
#[tokio::test]
async fn a_pool_that_is_taken_is_a_transient_error_d10() {
    let place = Place::shared();
    place.store().await;
    let pooler = PgBouncer::with(
        &place.server,
        &["default_pool_size = 1", "query_wait_timeout = 1"],
    );
    let store = place.builder_at(&pooler.url()).connect().await.unwrap();
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let options = options.connect_with(
        pooler
            .url()
            .parse::<sqlx::postgres::PgConnectOptions>()
            .unwrap()
            .extra_float_digits(None),
    );
    let pool = options.await.unwrap();
    let transaction = pool.begin().await.unwrap();
    let a = claim("k", 30_000);
    let why = store.try_acquire(&a).await.unwrap_err();
    assert!(why.is_transient(), "{why}");
    drop(transaction);
    crate::support::until(secs(10), async || store.try_acquire(&a).await.is_ok()).await;
    store.release(&a).await.unwrap();
}

/// B26: forgetting a pooler's sessions in the middle of a wait loses nothing.
#[tokio::test]
async fn ended_sessions_lose_nothing_b26() {
    let place = Place::shared();
    place.store().await;
    let pooler = PgBouncer::start(&place.server);
    let store: PostgresLock = place.builder_at(&pooler.url()).connect().await.unwrap();
    let holder = claim("k", 60_000);
    granted(store.try_acquire(&holder).await.unwrap());
    let waiter = queued("k", 60_000);
    store.try_acquire(&waiter).await.unwrap();
    place
        .server
        .sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE query LIKE '%{}%' AND pid <> pg_backend_pid()",
            place.schema
        ))
        .await;
    crate::support::until(secs(10), async || store.renew(&holder).await.is_ok()).await;
    let info = store.inspect(&key("k")).await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().owner, holder.owner);
    assert_eq!(info.waiters.len(), 1);
}
