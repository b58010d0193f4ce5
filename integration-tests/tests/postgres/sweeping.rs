//! The sweeper, tokens across deletion, and the size of the table.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{Attempt, DistributedLock, FencingToken, LockClient, Renewal};
use sqlx::Executor;

use crate::support::{Place, claim, granted, key, millis, queued, secs, until};

async fn rows(place: &Place) -> i64 {
    place
        .server
        .value(&format!("SELECT count(*) FROM {}", place.table("lock")))
        .await
}

/// D11, D12, B48, B67: four sweepers that never rest, and tasks that acquire, renew and release
/// the rows they sweep: no live lock is removed, and tokens grow over every deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweepers_and_locks_do_not_meet_d11_d12_b48_b67() {
    let place = Place::shared();
    place.store().await;
    let mut sweepers = Vec::new();
    for _ in 0..4 {
        let builder = place
            .builder()
            .sweep_interval(millis(1))
            .keep_idle(Duration::ZERO);
        sweepers.push(builder.connect().await.unwrap());
    }
    let end = Instant::now() + secs(6);
    let last: Arc<[AtomicU64; 4]> = Arc::default();
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (store, last) = (place.store().await, last.clone());
        tasks.push(tokio::spawn(async move {
            let mut grants = 0_u64;
            while Instant::now() < end {
                let lock = (task + grants as usize) % 4;
                let a = claim(&format!("k{lock}"), 5_000);
                if let Attempt::Granted(grant) = store.try_acquire(&a).await.unwrap() {
                    let before = last[lock].swap(grant.token.as_u64(), Ordering::SeqCst);
                    assert!(before < grant.token.as_u64(), "a token did not grow");
                    let renewal = store.renew(&a).await.unwrap();
                    assert!(
                        matches!(renewal, Renewal::Renewed { .. }),
                        "a live lock is gone"
                    );
                    assert_eq!(
                        last[lock].load(Ordering::SeqCst),
                        grant.token.as_u64(),
                        "somebody else was granted it meanwhile"
                    );
                    store.release(&a).await.unwrap();
                    grants += 1;
                }
                // Now and then nobody wants it, so that it can be swept.
                if grants.is_multiple_of(5) {
                    tokio::time::sleep(millis(3)).await;
                }
            }
            grants
        }));
    }
    let mut grants = 0;
    for task in tasks {
        grants += task.await.unwrap();
    }
    let floor: i64 = place
        .server
        .value(&format!("SELECT token FROM {}", place.table("floor")))
        .await;
    assert!(grants > 50 && floor > 0, "{grants} grants, floor {floor}");
}

/// D12: a key that was swept, by a clock that has gone back since: its next token is larger.
#[tokio::test]
async fn tokens_grow_over_a_deletion_d12() {
    let place = Place::shared();
    let store = place.store().await;
    let a = claim("k", 1_000);
    let first = granted(store.try_acquire(&a).await.unwrap()).token;
    store.release(&a).await.unwrap();
    let lock = place.table("lock");
    place
        .server
        .sql(&format!("UPDATE {lock} SET token = token + 3600000000"))
        .await;
    let builder = place
        .builder()
        .sweep_interval(millis(20))
        .keep_idle(Duration::ZERO);
    let sweeper = builder.connect().await.unwrap();
    until(secs(10), async || rows(&place).await == 0).await;
    sweeper.close().await.unwrap();
    let second = granted(store.try_acquire(&claim("k", 1_000)).await.unwrap()).token;
    assert_eq!(second.as_u64(), first.as_u64() + 3_600_000_001);
    let other = granted(store.try_acquire(&claim("other", 1_000)).await.unwrap()).token;
    assert!(
        other.as_u64() > first.as_u64() + 3_600_000_000,
        "past the floor"
    );
}

/// B49: two hundred thousand rows whose leases have ended, and the process that swept is gone:
/// each name can be had at once, another process sweeps, and nobody is slowed down.
/// B68: rows of names that are not used any more do not stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_expired_rows_b49_b68() {
    const ROWS: i64 = 200_000;
    let place = Place::on(Arc::new(PostgresServer::start()));
    let first = place
        .builder()
        .sweep_interval(secs(1))
        .connect()
        .await
        .unwrap();
    drop(first);
    place
        .server
        .sql(&format!(
            "INSERT INTO {} (key, token, owner, holds, since, expires, host, pid)
             SELECT 'flood/' || n, n, gen_random_uuid(), ARRAY[gen_random_uuid()],
                 now() - interval '2 hours', now() - interval '1 hour', 'gone', 1
             FROM generate_series(1, {ROWS}) n",
            place.table("lock")
        ))
        .await;
    let store = place.store().await;
    granted(store.try_acquire(&claim("flood/17", 60_000)).await.unwrap());
    let sweeper = place
        .builder()
        .sweep_interval(millis(200))
        .connect()
        .await
        .unwrap();
    let mut times = Vec::new();
    let end = Instant::now() + secs(120);
    while rows(&place).await > 1 {
        assert!(Instant::now() < end, "{} rows are left", rows(&place).await);
        for n in 0..20 {
            let a = claim(&format!("other/{n}"), 1_000);
            let begin = Instant::now();
            granted(store.try_acquire(&a).await.unwrap());
            times.push(begin.elapsed());
            store.release(&a).await.unwrap();
        }
        // These are young, so they stay; look at the flood only.
        let flood: i64 = place
            .server
            .value(&format!(
                "SELECT count(*) FROM {} WHERE key LIKE 'flood/%'",
                place.table("lock")
            ))
            .await;
        if flood == 1 {
            break;
        }
    }
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    assert!(p99 < secs(1), "{p99:?}");
    let info = store.inspect(&key("flood/17")).await.unwrap();
    assert!(info.is_some(), "the one that is held stays");
    sweeper.close().await.unwrap();
}

/// A lock whose waiters have all died is seen to by the sweeper, so that its row can go.
#[tokio::test]
async fn dead_waiters_are_swept() {
    let place = Place::shared();
    let store = place.store().await;
    let holder = claim("k", 300);
    granted(store.try_acquire(&holder).await.unwrap());
    let dying = place.store().await;
    dying.try_acquire(&queued("k", 1_000)).await.unwrap();
    drop(dying);
    let builder = place
        .builder()
        .sweep_interval(millis(100))
        .keep_idle(millis(500));
    let sweeper = builder.connect().await.unwrap();
    until(secs(30), async || rows(&place).await == 0).await;
    let queue = format!("SELECT count(*) FROM {}", place.table("queue"));
    assert_eq!(place.server.value::<i64>(&queue).await, 0);
    sweeper.close().await.unwrap();
}

/// D21: an old backup: its leases are over by the clock, and an operator can put the tokens past
/// all that were given since.
#[tokio::test]
async fn an_old_backup_d21() {
    let place = Place::shared();
    let store = place.store().await;
    let a = claim("k", 500);
    granted(store.try_acquire(&a).await.unwrap());
    let copy = format!(
        "CREATE TABLE {0}_copy AS SELECT * FROM {0}",
        place.table("lock").replace('"', "")
    );
    place.server.sql(&copy).await;
    tokio::time::sleep(millis(600)).await;
    let latest = granted(store.try_acquire(&claim("k", 100)).await.unwrap()).token;
    let (lock, plain) = (place.table("lock"), place.table("lock").replace('"', ""));
    place
        .server
        .sql(&format!(
            "DELETE FROM {lock}; INSERT INTO {lock} SELECT * FROM {plain}_copy"
        ))
        .await;
    assert_eq!(
        store.renew(&a).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    // The clock alone is enough as long as it runs on; with the floor it need not.
    let far = FencingToken::new(latest.as_u64() + 1_000_000_000_000).unwrap();
    store.raise_token_floor(far).await.unwrap();
    let next = granted(store.try_acquire(&claim("k", 1_000)).await.unwrap()).token;
    assert!(next > far);
    store.raise_token_floor(latest).await.unwrap();
    let next = granted(store.try_acquire(&claim("new", 1_000)).await.unwrap()).token;
    assert!(next > far, "a floor is never lowered");
}

/// D22: places and tokens may have gaps and never repeat, also when requests are rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_do_not_repeat_over_rollbacks_d22() {
    let place = Place::shared();
    let store = place.store().await;
    let mut tokens = HashMap::new();
    for round in 0..30 {
        // The connection is cut at a random moment.
        let a = claim("k", 30_000);
        let asking = tokio::spawn({
            let (store, a) = (store.clone(), a.clone());
            async move { store.try_acquire(&a).await }
        });
        if round % 3 == 0 {
            place
                .server
                .sql(&format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE query LIKE '%{}%' AND pid <> pg_backend_pid()",
                    place.schema
                ))
                .await;
        }
        let _ = asking.await.unwrap();
        let mut grant = None;
        until(secs(10), async || match store.try_acquire(&a).await {
            Ok(attempt) => {
                grant = Some(granted(attempt));
                true
            }
            Err(_) => false,
        })
        .await;
        let token = grant.unwrap().token;
        assert!(
            tokens.insert(token, round).is_none(),
            "{token} was given before"
        );
        assert!(tokens.keys().all(|earlier| *earlier <= token));
        until(secs(10), async || store.release(&a).await.is_ok()).await;
    }
}

/// B101, D16: locks that are renewed all the time while another session is idle in a transaction:
/// updates stay in their pages, the table stays small, renewals stay fast.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_bloat_the_table_b101_d16() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let store = place.store().await;
    let mut other = place.server.admin().await;
    other.execute("BEGIN").await.unwrap();
    other.execute("SELECT 1").await.unwrap();
    let claims: Vec<_> = (0..200).map(|n| claim(&format!("k{n}"), 60_000)).collect();
    for claim in &claims {
        granted(store.try_acquire(claim).await.unwrap());
    }
    let mut times = Vec::new();
    let stop = AtomicBool::new(false);
    for _ in 0..150 {
        let begin = Instant::now();
        for renewal in store.renew_all(&claims).await {
            assert!(matches!(renewal.unwrap(), Renewal::Renewed { .. }));
        }
        times.push(begin.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    other.execute("ROLLBACK").await.unwrap();
    let (mut updates, mut hot) = (0, 0);
    until(secs(20), async || {
        let sql = |column: &str| {
            format!(
                "SELECT {column} FROM pg_stat_user_tables
                 WHERE schemaname = '{}' AND relname = 'distlock_lock'",
                place.schema
            )
        };
        updates = place.server.value::<i64>(&sql("n_tup_upd")).await;
        hot = place.server.value::<i64>(&sql("n_tup_hot_upd")).await;
        updates >= 30_000
    })
    .await;
    assert!(hot as f64 >= 0.9 * updates as f64, "{hot} of {updates}");
    let size: i64 = place
        .server
        .value(&format!("SELECT pg_table_size('{}')", place.table("lock")))
        .await;
    assert!(size < 2_000_000, "{size}");
    times.sort();
    let (middle, last) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("200 renewals in one statement: p50 {middle:?}, p99 {last:?}, {size} bytes");
}

/// B48: four sweepers at their work, and fifty guards with leases of a second that are renewed all
/// the time: no row of a live lock is removed, those of the dead are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweepers_leave_what_is_renewed_b48() {
    let place = Place::on(Arc::new(PostgresServer::start()));
    let mut sweepers = Vec::new();
    for _ in 0..4 {
        let builder = place
            .builder()
            .sweep_interval(millis(200))
            .keep_idle(Duration::ZERO);
        sweepers.push(builder.connect().await.unwrap());
    }
    // A row that goes is written down, with what was left of its lease.
    let (schema, lock) = (&place.schema, place.table("lock"));
    place
        .server
        .sql(&format!(
            "CREATE TABLE \"{schema}\".gone (key text, remaining interval);
             CREATE FUNCTION \"{schema}\".note() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                INSERT INTO \"{schema}\".gone VALUES (OLD.key, OLD.expires - clock_timestamp());
                RETURN OLD;
             END $$;
             CREATE TRIGGER note BEFORE DELETE ON {lock}
                FOR EACH ROW EXECUTE FUNCTION \"{schema}\".note()"
        ))
        .await;
    let client = place.client().await;
    let mut guards = Vec::new();
    for n in 0..50 {
        let lock = client.lock(format!("live/{n}")).ttl(secs(1));
        guards.push(lock.acquire().await.unwrap());
    }
    let store = place.store().await;
    let end = Instant::now() + secs(15);
    let mut dead = 0;
    while Instant::now() < end {
        let a = claim(&format!("dead/{dead}"), 10);
        granted(store.try_acquire(&a).await.unwrap());
        dead += 1;
        tokio::time::sleep(millis(50)).await;
    }
    let count = |what: &str| format!("SELECT count(*) FROM \"{schema}\".gone WHERE {what}");
    let server = &place.server;
    assert_eq!(server.value::<i64>(&count("remaining > '0'")).await, 0);
    let held = guards.iter().filter(|guard| guard.is_held()).count() as i64;
    println!("{held} of 50 are held; {dead} others came and went");
    // A lease that this machine has slept through is over, and its row may go.
    let live = format!("SELECT count(*) FROM {lock} WHERE key LIKE 'live/%'");
    assert!(server.value::<i64>(&live).await >= held);
    until(secs(10), async || {
        server.value::<i64>(&count("key LIKE 'dead/%'")).await == dead
    })
    .await;
    for sweeper in sweepers {
        sweeper.close().await.unwrap();
    }
}

/// B58: a renewal that races a release is not a loss, 5,000 times with leases of 90 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_never_taken_for_a_loss_b58() {
    let place = Place::shared();
    let client: LockClient = place.client().await;
    let mut tasks = Vec::new();
    for task in 0..50_u64 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut slept_through = 0;
            for round in 0..100_u64 {
                let lock = client.lock(format!("k{task}")).ttl(millis(90));
                let guard = lock.wait(secs(60)).acquire().await.unwrap();
                let deadline = Instant::now() + guard.valid_for();
                // Around the time of the first renewal, or the second.
                tokio::time::sleep(millis(15 + (task * 7 + round * 13) % 55)).await;
                match guard.release().await {
                    Ok(()) => {}
                    // Only when this machine was away for longer than the lease.
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
    println!("{slept_through} of 5,000 leases were slept through");
    assert!(slept_through < 4_500, "{slept_through}");
}
