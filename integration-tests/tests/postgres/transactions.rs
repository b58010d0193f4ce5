//! Locks that are tied to a transaction of the application.

use std::{sync::Arc, time::Duration};

use lock_core::{DistributedLock, Error, LockClient, LostReason, Wait};
use sqlx::{Connection, PgConnection, postgres::PgPoolOptions};

use crate::support::{Place, busy, claim, granted, key, millis, queued, secs, until};

async fn connection(place: &Place) -> PgConnection {
    PgConnection::connect(&place.server.url()).await.unwrap()
}

#[tokio::test]
async fn a_transaction_and_a_lease_exclude_each_other() {
    let place = Place::shared();
    let store = place.store().await;
    let mut connection = connection(&place).await;

    // The lease first.
    let holder = claim("k", 30_000);
    granted(store.try_acquire(&holder).await.unwrap());
    let mut transaction = connection.begin().await.unwrap();
    let refused = store.lock_in_transaction(&mut transaction, &key("k")).await;
    match refused {
        Err(Error::Busy { busy, .. }) => assert_eq!(busy.holder.unwrap().owner, holder.owner),
        other => panic!("{other:?}"),
    }
    // The transaction is as good as before, and another key is free.
    store
        .lock_in_transaction(&mut transaction, &key("other"))
        .await
        .unwrap();
    sqlx::query("SELECT 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    store.release(&holder).await.unwrap();

    // Then the transaction.
    store
        .lock_in_transaction(&mut transaction, &key("k"))
        .await
        .unwrap();
    let rival = queued("k", 30_000);
    let refused = busy(store.try_acquire(&rival).await.unwrap());
    assert_eq!(refused.holder, None);
    assert_eq!(refused.position, Some(1));
    assert!(refused.remaining <= millis(200), "{:?}", refused.remaining);
    busy(store.try_acquire(&claim("k", 30_000)).await.unwrap());
    tokio::time::sleep(Duration::from_secs(3)).await;
    busy(store.try_acquire(&rival).await.unwrap());
    transaction.commit().await.unwrap();
    granted(store.try_acquire(&rival).await.unwrap());
    store.release(&rival).await.unwrap();

    // It does not push in before a waiter either.
    granted(store.try_acquire(&holder).await.unwrap());
    let waiter = queued("k", 30_000);
    busy(store.try_acquire(&waiter).await.unwrap());
    store.release(&holder).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let refused = store.lock_in_transaction(&mut transaction, &key("k")).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_waiting_client_gets_the_lock_soon_after_the_transaction() {
    let place = Place::shared();
    let store = place.store().await;
    let client = LockClient::new(store.clone());
    let mut connection = connection(&place).await;
    let mut transaction = connection.begin().await.unwrap();
    store
        .lock_in_transaction(&mut transaction, &key("k"))
        .await
        .unwrap();
    let waiter = tokio::spawn(async move {
        client
            .lock("k")
            .wait(Wait::Forever)
            .acquire()
            .await
            .unwrap()
    });
    until(secs(10), async || {
        store.inspect(&key("k")).await.unwrap().is_some()
    })
    .await;
    tokio::time::sleep(secs(1)).await;
    assert!(!waiter.is_finished());
    transaction.rollback().await.unwrap();
    let guard = tokio::time::timeout(secs(5), waiter)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
}

/// B122: what was read under the lock is still true when it is committed, although the lock is
/// given back by the commit itself; at every isolation level that lets the counter be read anew.
#[tokio::test]
async fn a_counter_under_a_transactions_lock_is_exact_b122() {
    let place = Place::shared();
    let store = place.store().await;
    let table = place.table("counter");
    place
        .server
        .sql(&format!(
            "CREATE TABLE {table} (n bigint); INSERT INTO {table} VALUES (0)"
        ))
        .await;
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .connect(&place.server.url())
        .await
        .unwrap();
    let client = LockClient::new(store.clone());
    let mut tasks = Vec::new();
    for task in 0..20 {
        let (store, pool, client) = (store.clone(), pool.clone(), client.clone());
        let read = format!("SELECT n FROM {table}");
        let write = format!("UPDATE {table} SET n = $1");
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                // Half of them hold a lease around the transaction, the others a transaction lock.
                let guard = match task % 2 {
                    0 => Some(
                        client
                            .lock("k")
                            .wait(Wait::Forever)
                            .acquire()
                            .await
                            .unwrap(),
                    ),
                    _ => None,
                };
                loop {
                    let mut transaction = pool.begin().await.unwrap();
                    if guard.is_none()
                        && let Err(why) =
                            store.lock_in_transaction(&mut transaction, &key("k")).await
                    {
                        assert!(matches!(why, Error::Busy { .. }), "{why}");
                        transaction.rollback().await.unwrap();
                        tokio::time::sleep(millis(20)).await;
                        continue;
                    }
                    let sql = sqlx::AssertSqlSafe(read.clone());
                    let n: i64 = sqlx::query_scalar(sql)
                        .fetch_one(&mut *transaction)
                        .await
                        .unwrap();
                    tokio::time::sleep(millis(1)).await;
                    let sql = sqlx::AssertSqlSafe(write.clone());
                    sqlx::query(sql)
                        .bind(n + 1)
                        .execute(&mut *transaction)
                        .await
                        .unwrap();
                    if let Some(guard) = &guard {
                        store.verify_in(&mut transaction, guard).await.unwrap();
                    }
                    transaction.commit().await.unwrap();
                    break;
                }
                if let Some(guard) = guard {
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let n: i64 = place.server.value(&format!("SELECT n FROM {table}")).await;
    assert_eq!(n, 100);
}

/// A guard whose lease has gone to somebody else cannot commit; and while a verified transaction
/// is open the lock does not change hands, even when the lease has run out.
#[tokio::test]
async fn verify_in_stops_a_stale_holder() {
    let place = Place::shared();
    let store = place.store().await;
    let client = LockClient::new(store.clone());
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let mut connection = connection(&place).await;
        let begin = || sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {isolation}"));

        let guard = client
            .lock("k")
            .ttl(secs(2))
            .manual_renewal()
            .acquire()
            .await
            .unwrap();
        let mut transaction = connection.begin_with(begin()).await.unwrap();
        // A snapshot from before anything that happens to the lock.
        sqlx::query("SELECT 1")
            .execute(&mut *transaction)
            .await
            .unwrap();
        store.verify_in(&mut transaction, &guard).await.unwrap();
        // Two may verify, and a renewal goes through.
        let mut other = PgConnection::connect(&place.server.url()).await.unwrap();
        let mut second = other.begin().await.unwrap();
        store.verify_in(&mut second, &guard).await.unwrap();
        second.rollback().await.unwrap();
        guard.renew(secs(2)).await.unwrap();

        guard.lost().await;
        let rival = queued("k", 30_000);
        until(secs(10), async || {
            store
                .inspect(&key("k"))
                .await
                .unwrap()
                .is_none_or(|info| info.holder.is_none())
        })
        .await;
        busy(store.try_acquire(&rival).await.unwrap());
        transaction.commit().await.unwrap();
        granted(store.try_acquire(&rival).await.unwrap());

        // Now the guard is stale.
        let mut transaction = connection.begin_with(begin()).await.unwrap();
        sqlx::query("SELECT 1")
            .execute(&mut *transaction)
            .await
            .unwrap();
        let refused = store.verify_in(&mut transaction, &guard).await;
        match refused {
            Err(Error::Lost { reason, .. }) => assert_eq!(reason, LostReason::TakenOver),
            other => panic!("{isolation}: {other:?}"),
        }
        transaction.rollback().await.unwrap();
        store.release(&rival).await.unwrap();
    }
}

/// A transaction of another database protects nothing, and says so.
#[tokio::test]
async fn another_database_is_refused() {
    let place = Place::shared();
    let store = place.store().await;
    let name = format!("db_{}", place.schema);
    place.server.sql(&format!("CREATE DATABASE {name}")).await;
    let mut connection = place.server.connect(&name).await;
    let mut transaction = connection.begin().await.unwrap();
    let refused = store.lock_in_transaction(&mut transaction, &key("k")).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
}

/// B23: a lock takes no part in a transaction of the application, whatever its pool looks like.
#[tokio::test]
async fn locks_take_no_part_in_the_applications_transaction_b23() {
    let place = Place::shared();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::query("SET default_transaction_isolation = 'repeatable read'")
                    .execute(connection)
                    .await
                    .map(drop)
            })
        })
        .connect(&place.server.url())
        .await
        .unwrap();
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("SELECT 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let store = PostgresLockFor(&place, &pool).connect().await;
    let client = LockClient::new(store);
    let guard = client.acquire("k").await.unwrap();
    let other = place.store().await;
    busy(other.try_acquire(&claim("k", 1000)).await.unwrap());
    transaction.rollback().await.unwrap();
    busy(other.try_acquire(&claim("k", 1000)).await.unwrap());
    assert!(guard.is_held());
    guard.release().await.unwrap();
    granted(other.try_acquire(&claim("k", 1000)).await.unwrap());
}

struct PostgresLockFor<'a>(&'a Place, &'a sqlx::PgPool);

impl PostgresLockFor<'_> {
    async fn connect(&self) -> Arc<lock_postgres::PostgresLock> {
        let builder = lock_postgres::PostgresLock::builder_for(self.1);
        Arc::new(builder.schema(&self.0.schema).connect().await.unwrap())
    }
}
