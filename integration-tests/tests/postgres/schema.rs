//! The tables: making them, checking them, names.

use std::sync::Arc;

use integration_tests::{servers::postgres::PostgresServer, taker::Taker};
use lock_core::{DistributedLock, Error, HoldId, LockClient, StoreErrorKind, Wait};
use lock_postgres::{PostgresLock, SchemaMode};
use tokio::task::JoinSet;

use crate::support::{Place, busy, claim, granted, key, secs};

/// B114: twenty processes start at once on an empty database; all of them get their turn.
#[tokio::test]
async fn twenty_processes_may_start_at_once_b114() {
    let server = PostgresServer::start();
    let start = || Taker::start(env!("CARGO_BIN_EXE_lock-taker"), server.url());
    let mut takers: Vec<_> = (0..20).map(|_| start()).collect();
    for taker in &mut takers {
        taker.send("acquire k 30000 60000");
        taker.send("release");
    }
    for taker in &mut takers {
        let answer = taker.answer();
        assert!(answer.starts_with("granted"), "{answer}");
        assert_eq!(taker.answer(), "released");
    }
}

/// B114: the same in ten more schemas, with clients in the place of processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_may_start_at_once_b114() {
    let server = PostgresServer::shared();
    for _ in 0..10 {
        let place = Place::on(server.clone());
        let mut starting = JoinSet::new();
        for _ in 0..20 {
            let builder = place.builder();
            starting.spawn(async move {
                let client = LockClient::new(Arc::new(builder.connect().await.unwrap()));
                let guard = client
                    .lock("k")
                    .wait(Wait::Forever)
                    .acquire()
                    .await
                    .unwrap();
                guard.release().await.unwrap();
            });
        }
        while let Some(end) = starting.join_next().await {
            end.unwrap();
        }
    }
}

/// B114, D17: a role that may only read and write rows works when the tables are there, with no
/// DDL sent, and gets a clear, permanent error when they are not.
#[tokio::test]
async fn a_role_without_ddl_b114_d17() {
    let place = Place::on(Arc::new(PostgresServer::with(&["log_statement=ddl"])));
    let server = &place.server;
    server.sql("CREATE ROLE app LOGIN").await;
    let url = server.url_of("app", "postgres");

    let kind = |result: lock_core::Result<PostgresLock>| match result {
        Err(Error::Store { source, .. }) => (source.kind(), source.to_string()),
        other => panic!("{other:?}"),
    };
    let (found, message) = kind(place.builder_at(&url).connect().await);
    assert_eq!(found, StoreErrorKind::Permanent, "{message}");
    assert!(message.contains(&place.schema), "{message}");
    let check = place.builder_at(&url).schema_mode(SchemaMode::Check);
    let (found, message) = kind(check.connect().await);
    assert_eq!(found, StoreErrorKind::Permanent, "{message}");
    assert!(message.contains("is missing"), "{message}");

    place.store().await;
    let schema = &place.schema;
    // No right on the schema, then none on a table.
    let (found, message) = kind(place.builder_at(&url).connect().await);
    assert_eq!(found, StoreErrorKind::Permanent, "{message}");
    server
        .sql(&format!("GRANT USAGE ON SCHEMA \"{schema}\" TO app"))
        .await;
    let store = place.builder_at(&url).connect().await.unwrap();
    let why = store.try_acquire(&claim("k", 1_000)).await.unwrap_err();
    assert_eq!(why.kind(), StoreErrorKind::Permanent, "{why}");
    assert!(why.to_string().contains("right"), "{why}");

    server
        .sql(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO app"
        ))
        .await;
    let before = server.log();
    for mode in [SchemaMode::Ensure, SchemaMode::Check] {
        let store = place
            .builder_at(&url)
            .schema_mode(mode)
            .connect()
            .await
            .unwrap();
        let a = claim("k", 1_000);
        granted(store.try_acquire(&a).await.unwrap());
        let waiter = crate::support::queued("k", 1_000);
        busy(store.try_acquire(&waiter).await.unwrap());
        store.release(&waiter).await.unwrap();
        store.release(&a).await.unwrap();
        assert!(store.ensure_schema().await.is_ok());
    }
    let log = server.log();
    assert!(!log[before.len()..].contains("CREATE"), "{log}");
}

/// D17: a table that vanishes at run time is a permanent error that names it; nothing is made.
#[tokio::test]
async fn a_vanished_table_is_named_d17() {
    let place = Place::shared();
    let store = place.store().await;
    place
        .server
        .sql(&format!("DROP TABLE {}", place.table("lock")))
        .await;
    let why = store.try_acquire(&claim("k", 1_000)).await.unwrap_err();
    assert_eq!(why.kind(), StoreErrorKind::Permanent);
    assert!(why.to_string().contains("distlock_lock"), "{why}");
    store.ensure_schema().await.unwrap();
    granted(store.try_acquire(&claim("k", 1_000)).await.unwrap());
}

/// D17: neither the role's search_path nor other tables of the same name matter.
#[tokio::test]
async fn the_search_path_does_not_matter_d17() {
    let place = Place::shared();
    let role = format!("r{}", HoldId::random());
    place
        .server
        .sql(&format!(
            "CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET search_path = ''"
        ))
        .await;
    let url = place.server.url_of(&role, "postgres");
    let (one, two) = (
        place.builder_at(&url).connect().await.unwrap(),
        place.store().await,
    );
    granted(one.try_acquire(&claim("k", 30_000)).await.unwrap());
    busy(two.try_acquire(&claim("k", 30_000)).await.unwrap());
}

/// Two schemas, or two prefixes in one, are two sets of locks.
#[tokio::test]
async fn schemas_and_prefixes_separate() {
    let place = Place::shared();
    let other = Place::on(place.server.clone());
    let stores = [
        place.builder().connect().await.unwrap(),
        place
            .builder()
            .table_prefix("second")
            .connect()
            .await
            .unwrap(),
        other.builder().connect().await.unwrap(),
    ];
    for store in &stores {
        granted(store.try_acquire(&claim("k", 30_000)).await.unwrap());
    }
    for store in &stores {
        assert_eq!(
            store
                .list("", Default::default())
                .await
                .unwrap()
                .locks
                .len(),
            1
        );
    }
}

/// The file for migrations by hand makes the same tables.
#[tokio::test]
async fn the_sql_file_is_all_it_takes() {
    let server = Arc::new(PostgresServer::start());
    server
        .sql(include_str!("../../../lock-postgres/sql/schema.sql"))
        .await;
    let store = PostgresLock::builder(&server.url())
        .unwrap()
        .schema_mode(SchemaMode::Check)
        .connect()
        .await
        .unwrap();
    granted(store.try_acquire(&claim("k", 1_000)).await.unwrap());
}

/// D18, B73, B116: names are compared by bytes, in a database whose collation folds case too.
#[tokio::test]
async fn names_are_exact_d18_b73_b116() {
    let place = Place::shared();
    let name = format!("db_{}", place.schema);
    place
        .server
        .sql(&format!(
            "CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'und-u-ks-level2' LOCALE 'C.UTF-8'"
        ))
        .await;
    let url = place.server.url_of("postgres", &name);
    let store = place.builder_at(&url).connect().await.unwrap();
    let long = "ü".repeat(127);
    let names = [
        "a",
        "A",
        "á",
        "a\u{301}",
        "ab",
        "a/b",
        "a/",
        "a ",
        " a",
        "}x{",
        "%",
        "_",
        "a%",
        "'; --",
        "\"",
        "\\",
        "\u{10ffff}",
        "a\u{200b}",
        &long,
        &format!("{long}x"),
        &"x".repeat(255),
    ];
    for name in names {
        granted(store.try_acquire(&claim(name, 60_000)).await.unwrap());
    }
    for name in names {
        busy(store.try_acquire(&claim(name, 60_000)).await.unwrap());
        let info = store.inspect(&key(name)).await.unwrap().unwrap();
        assert_eq!(info.key.as_str(), name);
    }
    let listed = store.list("a", Default::default()).await.unwrap().locks;
    let mut expected: Vec<_> = names.iter().filter(|name| name.starts_with('a')).collect();
    expected.sort();
    let listed: Vec<_> = listed.iter().map(|lock| lock.key.as_str()).collect();
    assert_eq!(listed, expected.into_iter().copied().collect::<Vec<_>>());
}

/// B89: neither long names nor strange ones come near a channel or a payload: the waiter is told.
#[tokio::test]
async fn names_do_not_reach_notifications_b89() {
    let place = Place::shared();
    let (one, two) = (place.client().await, place.client().await);
    let same = "x".repeat(63);
    let names = [
        format!("{same}{}", "a".repeat(137)),
        format!("{same}{}", "b".repeat(137)),
        "名".repeat(40),
        "\"Upper\"; NOTIFY x".to_owned(),
    ];
    for name in &names {
        let guard = one.acquire(name).await.unwrap();
        let waiter = tokio::spawn({
            let (two, name) = (two.clone(), name.clone());
            async move { two.lock(name).wait(secs(30)).acquire().await.unwrap() }
        });
        while one.inspect(name).await.unwrap().unwrap().waiters.is_empty() {
            tokio::time::sleep(crate::support::millis(5)).await;
        }
        guard.release().await.unwrap();
        let begin = std::time::Instant::now();
        waiter.await.unwrap().release().await.unwrap();
        assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
    }
}

/// B89: a server that refuses to notify does not make a release fail.
#[tokio::test]
async fn a_release_does_not_depend_on_notify_b89() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let server = &place.server;
    let store = place.store().await;
    server
        .sql(&format!(
            "CREATE ROLE app LOGIN; REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC;
             GRANT USAGE ON SCHEMA \"{0}\" TO app;
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{0}\" TO app",
            place.schema
        ))
        .await;
    let url = server.url_of("app", "postgres");
    let app = place.builder_at(&url).connect().await.unwrap();
    let holder = claim("k", 30_000);
    granted(app.try_acquire(&holder).await.unwrap());
    let waiter = LockClient::new(store);
    let waiting = tokio::spawn(async move {
        waiter
            .lock("k")
            .wait(secs(30))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
    while app
        .inspect(&key("k"))
        .await
        .unwrap()
        .unwrap()
        .waiters
        .is_empty()
    {
        tokio::time::sleep(crate::support::millis(5)).await;
    }
    let released = app.release(&holder).await.unwrap();
    assert_eq!(released, lock_core::Release::Released { holds: 0 });
    tokio::time::timeout(secs(10), waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(
        server.log().contains("distlock cannot notify"),
        "the fault has happened"
    );
}
