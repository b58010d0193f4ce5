//! Conflicts with other sessions are not the caller's business.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{DistributedLock, LockClient, Wait};
use sqlx::{Connection, Executor};

use crate::support::{Place, busy, claim, granted, millis, queued, secs, until};

/// B22, D4: twenty clients on three names under SERIALIZABLE, while one statement in ten fails
/// with a serialization failure or a deadlock: nobody sees an error, nobody loses a lease, and no
/// two hold one lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialization_failures_are_tried_again_b22_d4() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let server = &place.server;
    server
        .sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
        .await;
    place.store().await;
    let (schema, lock) = (&place.schema, place.table("lock"));
    server
        .sql(&format!(
            "CREATE FUNCTION \"{schema}\".fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                IF random() < 0.05 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF;
                IF random() < 0.05 THEN RAISE EXCEPTION USING ERRCODE = '40P01'; END IF;
                RETURN NEW;
             END $$;
             CREATE TRIGGER fail BEFORE UPDATE ON {lock}
                FOR EACH ROW EXECUTE FUNCTION \"{schema}\".fail()"
        ))
        .await;
    let inside: Arc<[AtomicU64; 3]> = Arc::default();
    let end = Instant::now() + secs(6);
    let mut tasks = Vec::new();
    for task in 0..20 {
        let client = LockClient::new(place.store().await);
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            let mut grants = 0;
            while Instant::now() < end {
                let lock = (task + grants) % 3;
                let guard = client
                    .lock(format!("k{lock}"))
                    .ttl(secs(20))
                    .wait(Wait::Forever)
                    .acquire()
                    .await
                    .unwrap();
                assert_eq!(inside[lock].fetch_add(1, Ordering::SeqCst), 0, "exclusion");
                guard.renew(secs(20)).await.unwrap();
                assert!(guard.is_held());
                inside[lock].fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                grants += 1;
            }
            grants
        }));
    }
    let mut grants = 0;
    for task in tasks {
        grants += task.await.unwrap();
    }
    assert!(grants > 20, "{grants}");
    let log = server.log();
    assert!(log.contains("ERROR"), "the faults have happened");
}

/// D4: a foreign session that locks rows in another order: whichever of the two the server picks
/// as the victim, the requests are done in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_with_a_foreign_session_is_resolved_d4() {
    let place = Place::on(Arc::new(PostgresServer::with(&["deadlock_timeout=50ms"])));
    let store = place.store().await;
    for name in ["a", "b"] {
        let first = claim(name, 1_000);
        granted(store.try_acquire(&first).await.unwrap());
        store.release(&first).await.unwrap();
    }
    let lock = place.table("lock");
    let row = |name: &str| {
        sqlx::AssertSqlSafe(format!(
            "SELECT 1 FROM {lock} WHERE key = '{name}' FOR UPDATE"
        ))
    };
    for _ in 0..5 {
        let mut foreign = place.server.admin().await;
        foreign.execute("BEGIN").await.unwrap();
        foreign.execute(row("b")).await.unwrap();
        let (a, b) = (claim("a", 30_000), claim("b", 30_000));
        // Polled together they go out in one statement.
        let both = tokio::spawn({
            let (store, a, b) = (store.clone(), a.clone(), b.clone());
            async move { tokio::join!(acquire(&*store, &a), acquire(&*store, &b)) }
        });
        tokio::time::sleep(millis(100)).await;
        let _ = foreign.execute(row("a")).await;
        foreign.execute("ROLLBACK").await.unwrap();
        both.await.unwrap();
        foreign.close().await.unwrap();
        store.release(&a).await.unwrap();
        store.release(&b).await.unwrap();
    }
}

async fn acquire(store: &impl DistributedLock, claim: &lock_core::Claim) {
    loop {
        match store.try_acquire(claim).await {
            Ok(attempt) => {
                granted(attempt);
                break;
            }
            Err(why) => assert!(why.is_transient(), "{why}"),
        }
    }
}

/// B27: 200 names, 30 rounds each, short holds, leases of 300 ms, one connection for each client:
/// no release fails, except of a lease that this machine has slept through. And the log of the
/// server has no errors from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_leaves_no_errors_behind_b27() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let clients = [
        place.client().await,
        place.client().await,
        place.client().await,
    ];
    let mut tasks = Vec::new();
    for task in 0..200 {
        let client = clients[task % 3].clone();
        tasks.push(tokio::spawn(async move {
            let mut slept_through = 0;
            for round in 0..30 {
                let guard = client
                    .lock(format!("k{}", (task + round) % 200))
                    .ttl(millis(300))
                    .wait(secs(60))
                    .acquire()
                    .await
                    .unwrap();
                let deadline = Instant::now() + guard.valid_for();
                tokio::time::sleep(millis(1 + (task % 10) as u64)).await;
                match guard.release().await {
                    Ok(()) => {}
                    Err(lock_core::Error::Lost { reason, .. }) => {
                        assert!(Instant::now() >= deadline, "{reason:?}");
                        slept_through += 1;
                    }
                    Err(why) => panic!("{why}"),
                }
            }
            slept_through
        }));
    }
    let mut slept_through = 0;
    for task in tasks {
        slept_through += task.await.unwrap();
    }
    println!("{slept_through} of 6,000 leases were slept through");
    assert!(slept_through < 5_500, "{slept_through}");
    let held = format!(
        "SELECT count(*) FROM {} WHERE owner IS NOT NULL AND expires > clock_timestamp()",
        place.table("lock")
    );
    until(secs(5), async || {
        place.server.value::<i64>(&held).await == 0
    })
    .await;
    let log = place.server.log();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

/// A row that somebody locks by hand: requests for that key wait, keep their order, and fail after a
/// second with a transient error; those for other keys are not kept, on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_by_hand_keeps_nobody_else() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let store = place.store().await;
    let held = claim("k", 60_000);
    granted(store.try_acquire(&held).await.unwrap());
    let mut foreign = place.server.admin().await;
    let lock_row = async |foreign: &mut sqlx::PgConnection| {
        let sql = format!(
            "BEGIN; SELECT 1 FROM {} WHERE key = 'k' FOR UPDATE",
            place.table("lock")
        );
        foreign.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    };
    lock_row(&mut foreign).await;
    let failed = Arc::new(AtomicU64::new(0));
    let asking = tokio::spawn({
        let (store, held, failed) = (store.clone(), held.clone(), failed.clone());
        async move {
            while let Err(why) = store.renew(&held).await {
                assert!(why.is_transient(), "{why}");
                assert!(why.to_string().contains("row is locked"), "{why}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let mut times = Vec::new();
    while failed.load(Ordering::Relaxed) < 3 {
        let a = claim("other", 30_000);
        let begin = Instant::now();
        granted(store.try_acquire(&a).await.unwrap());
        store.release(&a).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    let (p99, pairs) = (times[times.len() * 99 / 100], times.len());
    println!("{pairs} pairs meanwhile, p99 {p99:?}");
    // A connection that waited for the row would do three or six in these three seconds.
    assert!(pairs > 12, "{pairs}");
    foreign.execute("COMMIT").await.unwrap();
    asking.await.unwrap();

    // Three that come while the row is locked queue in the order in which they came.
    lock_row(&mut foreign).await;
    let waiters = [
        queued("k", 30_000),
        queued("k", 30_000),
        queued("k", 30_000),
    ];
    let unlock = async {
        tokio::time::sleep(millis(100)).await;
        foreign.execute("COMMIT").await.unwrap();
    };
    let asking = waiters.iter().map(|waiter| store.try_acquire(waiter));
    let (answers, ()) = tokio::join!(futures_util::future::join_all(asking), unlock);
    for (place, answer) in (1..).zip(answers) {
        assert_eq!(busy(answer.unwrap()).position, Some(place));
    }
    store.release(&held).await.unwrap();
}

/// A batch with a request that the server refuses is sent again one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_request_does_not_fail_its_neighbours() {
    let place = Place::shared();
    let store = place.store().await;
    // A key that the server refuses to store.
    place
        .server
        .sql(&format!(
            "ALTER TABLE {} ADD CONSTRAINT poison CHECK (key <> 'poison')",
            place.table("lock")
        ))
        .await;
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in 0..20 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let a = claim(&format!("k{task}"), 30_000);
                granted(store.try_acquire(&a).await.unwrap());
                store.release(&a).await.unwrap();
            }
        }));
    }
    let poisoner = tokio::spawn({
        let (store, done) = (store.clone(), done.clone());
        async move {
            let mut refused = 0;
            while !done.load(Ordering::Relaxed) {
                let why = store
                    .try_acquire(&claim("poison", 1_000))
                    .await
                    .unwrap_err();
                assert!(!why.is_transient(), "{why}");
                refused += 1;
            }
            refused
        }
    });
    for task in tasks {
        task.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    assert!(poisoner.await.unwrap() > 0);
}

/// B62: a foreign session that has read a row long ago changes nothing about who holds it: a
/// renew and a release match owner and hold, in one statement.
#[tokio::test]
async fn stale_requests_affect_nothing_b62() {
    let place = Place::shared();
    let store = place.store().await;
    let stale = claim("k", 100);
    granted(store.try_acquire(&stale).await.unwrap());
    tokio::time::sleep(millis(150)).await;
    let mut last = None;
    for _ in 0..3 {
        let next = claim("k", 30_000);
        let token = granted(store.try_acquire(&next).await.unwrap()).token;
        assert!(last < Some(token));
        last = Some(token);
        assert!(matches!(
            store.renew(&stale).await.unwrap(),
            lock_core::Renewal::Gone { taken_over: true }
        ));
        assert_eq!(
            store.release(&stale).await.unwrap(),
            lock_core::Release::NotHeld
        );
        let released = store.release(&next).await.unwrap();
        assert_eq!(released, lock_core::Release::Released { holds: 0 });
    }
}
