//! The lock is outside, the transaction inside, and the token is checked where the data is.

use std::{path::Path, sync::Arc, time::Duration};

use distlock::{FencingToken, LockClient, MemoryLock};
use futures_util::future::try_join_all;
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};

const ITEMS: i64 = 100;

async fn stock(folder: &Path) -> sqlx::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("stock.db"))
        .create_if_missing(true);
    let db = SqlitePool::connect_with(options).await?;
    sqlx::query("CREATE TABLE stock (items INTEGER NOT NULL, token INTEGER NOT NULL)")
        .execute(&db)
        .await?;
    sqlx::query("INSERT INTO stock VALUES (?, 0)")
        .bind(ITEMS)
        .execute(&db)
        .await?;
    Ok(db)
}

async fn items(db: &SqlitePool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT items FROM stock")
        .fetch_one(db)
        .await
}

/// Reads and writes in one transaction; `false` for a token that is not the newest.
async fn sell(db: &SqlitePool, token: FencingToken) -> sqlx::Result<bool> {
    let mut tx = db.begin().await?;
    let left: i64 = sqlx::query_scalar("SELECT items FROM stock")
        .fetch_one(&mut *tx)
        .await?;
    tokio::task::yield_now().await;
    let written = sqlx::query("UPDATE stock SET items = ?1, token = ?2 WHERE token <= ?2")
        .bind(left - 1)
        .bind(token.as_u64() as i64)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(written.rows_affected() == 1)
}

/// B122: whoever gets the lock next reads what was committed before.
#[tokio::test]
async fn a_lock_around_the_transaction_loses_no_sale() {
    let folder = tempfile::tempdir().unwrap();
    let db = stock(folder.path()).await.unwrap();
    let locks = LockClient::new(Arc::new(MemoryLock::new()));

    let sales = (0..20).map(|_| locks.run("stock", async |guard| sell(&db, guard.token()).await));
    for sale in try_join_all(sales).await.unwrap() {
        assert!(sale.unwrap(), "the newest token was refused");
    }
    assert_eq!(items(&db).await.unwrap(), ITEMS - 20);
}

/// B122, A12: a transaction that comes after the lease changes nothing.
#[tokio::test]
async fn a_late_transaction_is_refused_by_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let db = stock(folder.path()).await.unwrap();
    let locks = LockClient::new(Arc::new(MemoryLock::new()));

    let ttl = Duration::from_millis(50);
    let late = locks.lock("stock").ttl(ttl).manual_renewal();
    let late = late.acquire().await.unwrap();
    late.lost().await;
    let next = locks.acquire("stock").await.unwrap();
    assert!(sell(&db, next.token()).await.unwrap());

    assert!(!sell(&db, late.token()).await.unwrap());
    assert_eq!(items(&db).await.unwrap(), ITEMS - 1);
}
