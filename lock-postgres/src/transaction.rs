//! Locks that are tied to a transaction of the application, in the same database.

use lock_core::{
    Busy, DistributedLock, Error, LockGuard, LockInfo, LockKey, LostReason, Result, StoreError,
};
use sqlx::{AssertSqlSafe, Connection, PgTransaction, Row};

use crate::{PostgresLock, error::store_error};

impl PostgresLock {
    /// Locks `key` until `transaction` ends, by commit or by rollback.
    ///
    /// It waits for other transactions that have the key, as for a row, with the transaction's
    /// `lock_timeout`. It does not wait for leases: when somebody holds `key`, or is first in the
    /// queue for it, it fails with [`Error::Busy`] and leaves the transaction usable. Meanwhile
    /// nobody gets a lease on `key`; who asks for one is told that it is busy, or waits.
    ///
    /// The transaction has to be in the store's database. Its isolation level does not matter to
    /// the lock; what it reads afterwards is as new as the lock only under READ COMMITTED.
    ///
    /// ```no_run
    /// # async fn example(store: lock_postgres::PostgresLock, pool: sqlx::PgPool)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let key = "stock/7".parse()?;
    /// let mut transaction = pool.begin().await?;
    /// store.lock_in_transaction(&mut transaction, &key).await?;
    /// sqlx::query("UPDATE stock SET left_over = left_over - 1 WHERE item = 7 AND left_over > 0")
    ///     .execute(&mut *transaction)
    ///     .await?;
    /// transaction.commit().await?; // gives the lock back as well
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] or [`Error::Store`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the transaction may have the lock, until it ends.
    pub async fn lock_in_transaction(
        &self,
        transaction: &mut PgTransaction<'_>,
        key: &LockKey,
    ) -> Result<()> {
        let failed = |source| Error::Store {
            operation: "lock in a transaction",
            key: Some(key.clone()),
            source,
        };
        let busy = |info: LockInfo| Error::Busy {
            key: key.clone(),
            busy: Box::new(Busy {
                remaining: info
                    .holder
                    .as_ref()
                    .map(|holder| holder.remaining)
                    .unwrap_or_default(),
                queued: u32::try_from(info.waiters.len()).unwrap_or(u32::MAX),
                holder: info.holder,
                position: None,
            }),
        };
        // Who only finds out that it is busy must not be in the way of the waiter whose turn it is.
        if let Some(info) = self.inspect(key).await.map_err(failed)? {
            return Err(busy(info));
        }
        // The savepoint lets go of the advisory lock when the key is busy.
        let mut attempt = transaction
            .begin()
            .await
            .map_err(|why| failed(store_error(why)))?;
        self.pin(&mut attempt, key, "pg_advisory_xact_lock")
            .await
            .map_err(failed)?;
        // From here on nobody is granted a lease; look whether somebody has one already.
        match self.inspect(key).await.map_err(failed)? {
            None => attempt
                .commit()
                .await
                .map_err(|why| failed(store_error(why))),
            Some(info) => {
                attempt
                    .rollback()
                    .await
                    .map_err(|why| failed(store_error(why)))?;
                Err(busy(info))
            }
        }
    }

    /// Makes sure that `transaction` commits only while nobody else has been granted the lock of
    /// `guard`: it checks that the lease is still the current one, and from then on until the
    /// transaction ends the lock does not change hands, even if the lease runs out.
    ///
    /// Call it anywhere in the transaction before the commit. The lease can be renewed meanwhile.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     store: std::sync::Arc<lock_postgres::PostgresLock>, pool: sqlx::PgPool,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let client = lock_core::LockClient::new(store.clone());
    /// let guard = client.acquire("stock/7").await?;
    /// // ... long work under the lease, outside any transaction ...
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE stock SET left_over = left_over - 1 WHERE item = 7")
    ///     .execute(&mut *transaction)
    ///     .await?;
    /// store.verify_in(&mut transaction, &guard).await?; // Err(Lost): nothing is committed
    /// transaction.commit().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lease is not the current one: roll back. [`Error::Store`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, nothing is known about the lease; the lock may be pinned until the
    /// transaction ends.
    pub async fn verify_in(
        &self,
        transaction: &mut PgTransaction<'_>,
        guard: &LockGuard,
    ) -> Result<()> {
        let key = guard.key();
        let failed = |source| Error::Store {
            operation: "verify",
            key: Some(key.clone()),
            source,
        };
        self.pin(transaction, key, "pg_advisory_xact_lock_shared")
            .await
            .map_err(failed)?;
        let holder = self
            .inspect(key)
            .await
            .map_err(failed)?
            .and_then(|info| info.holder);
        let lost = |reason| {
            Err(Error::Lost {
                key: key.clone(),
                reason,
            })
        };
        match holder {
            Some(holder) if holder.owner == guard.owner() && holder.token == guard.token() => {
                Ok(())
            }
            Some(_) => lost(LostReason::TakenOver),
            None => lost(LostReason::Expired),
        }
    }

    /// Takes the advisory lock that a new grant of `key` needs, until the transaction ends.
    async fn pin(
        &self,
        transaction: &mut PgTransaction<'_>,
        key: &LockKey,
        lock: &str,
    ) -> Result<(), StoreError> {
        let table = self.connector.names.sql("public.distlock_lock");
        let sql = format!(
            "SELECT to_regclass('{table}')::oid::bigint,
                {lock}(hashtextextended($1 COLLATE \"C\", to_regclass('{table}')::oid::bigint))"
        );
        let row = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(key.as_str())
            .fetch_one(&mut **transaction)
            .await
            .map_err(store_error)?;
        let found: Option<i64> = row.try_get(0).map_err(store_error)?;
        if found == Some(i64::from(self.lock_table)) {
            Ok(())
        } else {
            Err(StoreError::permanent(
                "the transaction is in another database than the store",
            ))
        }
    }
}
