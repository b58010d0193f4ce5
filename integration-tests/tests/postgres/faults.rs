//! Lost replies, dead connections, and servers that stop and come back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use integration_tests::{proxy::Proxy, servers::postgres::PostgresServer};
use lock_core::{DistributedLock, LockClient, Release, StoreErrorKind, Wait};
use lock_postgres::PostgresLock;
use sqlx::Connection;

use crate::support::{Place, busy, claim, granted, key, millis, secs, until};

async fn proxied(place: &Place, proxy: &Proxy, timeout: Duration) -> Arc<PostgresLock> {
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = place.builder_at(&url).request_timeout(timeout);
    Arc::new(builder.connect().await.unwrap())
}

/// D5, B07, A1: the reply of an acquire is lost, or the connection with it: the same claim again
/// is the same grant, counted once.
#[tokio::test]
async fn a_lost_reply_is_resolved_by_a_repeat_d5_b07() {
    let place = Place::shared();
    let proxy = Proxy::start(place.server.address()).await.unwrap();
    let store = proxied(&place, &proxy, millis(500)).await;
    for cut in [false, true] {
        let a = claim("k", 30_000);
        // The statement is prepared by now.
        granted(store.try_acquire(&a).await.unwrap());
        store.release(&a).await.unwrap();
        let a = claim("k", 30_000);
        proxy.faults().hold_replies(true);
        let asking = tokio::spawn({
            let (store, a) = (store.clone(), a.clone());
            async move { store.try_acquire(&a).await }
        });
        let direct = place.store().await;
        until(secs(10), async || {
            direct.inspect(&key("k")).await.unwrap().is_some()
        })
        .await;
        if cut {
            proxy.reset_all();
        }
        let why = asking.await.unwrap().unwrap_err();
        assert!(why.is_transient(), "{why}");
        proxy.faults().heal();
        let again = granted(store.try_acquire(&a).await.unwrap());
        assert_eq!(again.holds, 1);
        busy(direct.try_acquire(&claim("k", 30_000)).await.unwrap());
        assert_eq!(
            store.release(&a).await.unwrap(),
            Release::Released { holds: 0 }
        );
        assert!(direct.inspect(&key("k")).await.unwrap().is_none());
    }
}

/// A4: the reply of a release is lost and somebody else acquires: the release again changes
/// nothing.
#[tokio::test]
async fn a_release_again_leaves_the_next_owner_alone_a4() {
    let place = Place::shared();
    let proxy = Proxy::start(place.server.address()).await.unwrap();
    let store = proxied(&place, &proxy, millis(500)).await;
    let direct = place.store().await;
    let a = claim("k", 30_000);
    granted(store.try_acquire(&a).await.unwrap());
    proxy.faults().hold_replies(true);
    assert!(store.release(&a).await.is_err());
    let b = claim("k", 30_000);
    granted(direct.try_acquire(&b).await.unwrap());
    proxy.faults().heal();
    until(secs(10), async || {
        matches!(store.release(&a).await, Ok(Release::NotHeld))
    })
    .await;
    let info = direct.inspect(&key("k")).await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().owner, b.owner);
}

/// A2, D5: the server stops with an acquire on its way and goes on after the client has given
/// it up: what was sent before does not take effect after what is sent later.
#[tokio::test]
async fn a_late_acquire_does_not_overtake_its_withdrawal_a2() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let builder = place.builder().request_timeout(millis(300));
    let store = Arc::new(builder.connect().await.unwrap());
    for _ in 0..3 {
        let a = claim("k", 60_000);
        place.server.pause();
        let why = store.try_acquire(&a).await.unwrap_err();
        assert!(why.is_transient(), "{why}");
        let resume = async {
            tokio::time::sleep(millis(100)).await;
            place.server.resume();
        };
        let release = async {
            loop {
                if let Ok(answer) = store.release(&a).await {
                    break answer;
                }
            }
        };
        let (_, ()) = tokio::join!(release, resume);
        tokio::time::sleep(millis(300)).await;
        assert!(store.inspect(&key("k")).await.unwrap().is_none());
    }
}

/// B28, B65: acquires dropped at any moment leave nothing behind, and nobody gets the answer to
/// another's request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_nothing_behind_b28_b65() {
    let place = Place::shared();
    let client = place.client().await;
    let store = place.store().await;
    let mut granted_in_time = 0;
    for round in 0..500_u64 {
        let name = if round % 2 == 0 { "hot" } else { "cold" };
        let acquire = client.lock(name).wait(secs(10)).acquire();
        let limit = Duration::from_micros(rand_below(5_000));
        if let Ok(guard) = tokio::time::timeout(limit, acquire).await {
            let guard = guard.unwrap();
            assert_eq!(guard.key().as_str(), name);
            granted_in_time += 1;
            drop(guard);
        }
    }
    for name in ["hot", "cold"] {
        until(secs(5), async || {
            store.inspect(&key(name)).await.unwrap().is_none()
        })
        .await;
        let guard = client.lock(name).wait(secs(5)).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    let advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    until(secs(5), async || {
        place.server.value::<i64>(advisory).await == 0
    })
    .await;
    println!("{granted_in_time} of 500 in time");
}

fn rand_below(limit: u64) -> u64 {
    // Any spread will do.
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    u64::from(nanos / 7) % limit
}

/// B46: every connection is cut while the holder only computes: the lock is kept.
#[tokio::test]
async fn cut_connections_lose_no_lock_b46() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let client = place.client().await;
    let guard = client.lock("k").ttl(secs(3)).acquire().await.unwrap();
    assert!(
        client.try_acquire("k").await.is_err(),
        "the same connection is no reason to enter"
    );
    let end = Instant::now() + secs(7);
    let mut cut = 0;
    while Instant::now() < end {
        cut += place
            .server
            .value::<i64>(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE application_name = 'distlock'",
            )
            .await;
        tokio::time::sleep(millis(300)).await;
        assert!(guard.is_held());
    }
    assert!(cut > 5, "{cut}");
    until(secs(5), async || client.inspect("k").await.is_ok()).await;
    guard.release().await.unwrap();
}

/// D20, B107: the server is killed, or stopped, and comes back within the lease: the holder keeps
/// its lock, the waiter still waits and gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_within_the_lease_loses_nothing_d20_b107() {
    for kill in [true, false] {
        let mut server = PostgresServer::with(&["fsync=on"]);
        let open = async || {
            LockClient::new(Arc::new(
                PostgresLock::connect(&server.url()).await.unwrap(),
            ))
        };
        let (one, two) = (open().await, open().await);
        let guard = one.lock("k").ttl(secs(20)).acquire().await.unwrap();
        let token = guard.token();
        let waiter =
            tokio::spawn(async move { two.lock("k").wait(secs(60)).acquire().await.unwrap() });
        while one.inspect("k").await.unwrap().unwrap().waiters.is_empty() {
            tokio::time::sleep(millis(10)).await;
        }
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        let why = one.store().inspect(guard.key()).await.unwrap_err();
        assert_eq!(why.kind(), StoreErrorKind::Transient, "{why}");
        tokio::time::sleep(secs(2)).await;
        server.launch();
        tokio::time::sleep(secs(6)).await;
        assert!(guard.is_held(), "kill: {kill}");
        assert!(!waiter.is_finished());
        until(secs(10), async || one.inspect("k").await.is_ok()).await;
        guard.release().await.unwrap();
        let next = waiter.await.unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

/// B66: a server that does not answer: each call ends within its time-out, and all is well again
/// afterwards. A wrong address and a refused user fail at once.
#[tokio::test]
async fn no_call_hangs_b66() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let store = Arc::new(place.builder().connect().await.unwrap());
    let client = LockClient::builder(store.clone())
        .operation_timeout(secs(1))
        .build()
        .unwrap();
    let guard = client.lock("held").ttl(secs(3)).acquire().await.unwrap();
    place.server.pause();
    let begin = Instant::now();
    assert!(client.lock("k").wait(secs(1)).acquire().await.is_err());
    assert!(client.inspect("k").await.is_err());
    guard.lost().await;
    assert!(guard.release().await.is_err());
    assert!(begin.elapsed() < secs(15), "{:?}", begin.elapsed());
    place.server.resume();
    let guard = client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();

    let begin = Instant::now();
    let closed = PostgresLock::connect("postgres://postgres@127.0.0.1:1/postgres").await;
    assert!(closed.is_err());
    let missing = PostgresLock::connect(&place.server.url_of("nobody_there", "postgres")).await;
    match missing {
        Err(lock_core::Error::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Permanent, "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
}

/// D6: a commit that waits for a standby which is not there: the answer is unknown within the
/// time-out; statement_timeout does not fire, our own does.
#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_unknown_d6() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let store = place
        .builder()
        .request_timeout(millis(700))
        .connect()
        .await
        .unwrap();
    let server = &place.server;
    // The table is there: from now on every commit waits.
    server
        .sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        .await;
    server.sql("SELECT pg_reload_conf()").await;
    until(secs(10), async || {
        server
            .value::<String>("SHOW synchronous_standby_names")
            .await
            == "*"
    })
    .await;
    tokio::time::sleep(millis(300)).await;
    let a = claim("k", 60_000);
    let begin = Instant::now();
    let why = store.try_acquire(&a).await.unwrap_err();
    assert!(why.is_transient(), "{why}");
    assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
    let mut admin = server.admin().await;
    for sql in [
        "SET synchronous_commit = local",
        "ALTER SYSTEM RESET synchronous_standby_names",
    ] {
        sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    }
    server.sql("SELECT pg_reload_conf()").await;
    admin.close().await.unwrap();
    // The same claim again says what has become of it, once.
    let mut grant = None;
    until(secs(20), async || match store.try_acquire(&a).await {
        Ok(attempt) => {
            grant = Some(granted(attempt));
            true
        }
        Err(_) => false,
    })
    .await;
    assert_eq!(grant.unwrap().holds, 1);
    store.release(&a).await.unwrap();
}

/// D19: time-outs that an administrator has set for everybody do no harm.
#[tokio::test]
async fn time_outs_of_the_administrator_d19() {
    let place = Place::on(Arc::new(PostgresServer::with(&[
        "statement_timeout=100ms",
        "lock_timeout=100ms",
        "idle_in_transaction_session_timeout=100ms",
        "idle_session_timeout=100ms",
    ])));
    let (one, two) = (place.client().await, place.client().await);
    for _ in 0..3 {
        let guard = one.lock("k").ttl(secs(2)).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { two.lock("k").wait(secs(30)).acquire().await.unwrap() }
        });
        tokio::time::sleep(millis(1_200)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
    }
    // A statement that somebody cancels, here behind a table that is being altered, is a transient
    // error.
    let store = place.store().await;
    let mut other = place.server.admin().await;
    let mut transaction = other.begin().await.unwrap();
    let a = claim("cancelled", 1_000);
    granted(store.try_acquire(&a).await.unwrap());
    let sql = format!("LOCK TABLE {}", place.table("lock"));
    sqlx::query("SET LOCAL idle_in_transaction_session_timeout = 0")
        .execute(&mut *transaction)
        .await
        .unwrap();
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let asking = tokio::spawn(async move {
        loop {
            let why = store.renew(&a).await.unwrap_err();
            assert!(why.is_transient(), "{why}");
            if why.to_string().contains("cancelled") {
                break;
            }
        }
    });
    until(secs(20), async || {
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'distlock' AND wait_event_type = 'Lock'";
        place.server.value::<i64>(sql).await;
        asking.is_finished()
    })
    .await;
    asking.await.unwrap();
}

/// D14: a server that can only be read is a transient error that says so.
#[tokio::test]
async fn a_server_in_recovery_is_refused_d14() {
    let mut server = PostgresServer::start();
    PostgresLock::connect(&server.url()).await.unwrap();
    server.stop();
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.launch_without_waiting();
    server.wait_until_ready();
    match PostgresLock::connect(&server.url()).await {
        Err(lock_core::Error::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Transient, "{source}");
            assert!(source.to_string().contains("standby"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    server.sql("SELECT pg_promote()").await;
    until(secs(20), async || {
        PostgresLock::connect(&server.url()).await.is_ok()
    })
    .await;
}

/// Secrets stay out of errors.
#[tokio::test]
async fn a_password_is_in_no_error() {
    let why = PostgresLock::connect("postgres://u:hunter2@127.0.0.1:1/d")
        .await
        .unwrap_err();
    assert!(!format!("{why} {why:?}").contains("hunter2"));
}
