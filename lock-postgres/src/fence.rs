//! The check of fencing tokens in the rows of an application.

use std::sync::Arc;

use lock_core::{Error, Fenced, FencingToken, Result, StoreError, Ticket};
use sqlx::{
    AssertSqlSafe, Encode, PgTransaction, Postgres, Row, Type, postgres::PgArguments, query::Query,
};

use crate::error::store_error;

/// Fences the rows of a table: a transaction writes to a row only with a ticket that is not older
/// than the last one which the row has seen, and not the same token of another owner.
///
/// The locks may be in any store. Each row keeps its last ticket in two columns:
///
/// ```sql
/// ALTER TABLE stock ADD fence_token bigint NOT NULL DEFAULT 0, ADD fence_owner uuid;
/// ```
///
/// ```no_run
/// # async fn example(locks: lock_core::LockClient, pool: sqlx::PgPool)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use lock_postgres::RowFence;
///
/// let fence = RowFence::new("stock", "id")?;
/// let guard = locks.acquire("stock/42").await?;
/// let mut transaction = pool.begin().await?;
/// fence.pass(&mut transaction, 42_i64, &guard.ticket()).await?; // Err(Fenced): roll back
/// sqlx::query("UPDATE stock SET items = items - 1 WHERE id = 42")
///     .execute(&mut *transaction)
///     .await?;
/// transaction.commit().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// By hand it is a condition of the `UPDATE`; when no row is changed, the ticket was too old:
///
/// ```sql
/// UPDATE stock SET items = items - 1, fence_token = $2, fence_owner = $3
/// WHERE id = $1 AND (fence_token < $2 OR fence_token = $2 AND fence_owner = $3)
/// ```
#[derive(Clone, Debug)]
pub struct RowFence {
    pass: Arc<str>,
    newest: Arc<str>,
}

impl RowFence {
    /// A fence for the rows of `table`, which is `name` or `schema.name`, that are found by the
    /// column `id`, with the columns `fence_token` and `fence_owner`. Names are as Postgres keeps
    /// them: in lower case unless they were quoted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a name that Postgres cannot have.
    pub fn new(table: &str, id: &str) -> Result<Self> {
        Self::with_columns(table, id, "fence_token", "fence_owner")
    }

    /// As [`new`](Self::new), with other names for the columns of the token (`bigint`) and of the
    /// owner (`uuid`).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_columns(table: &str, id: &str, token: &str, owner: &str) -> Result<Self> {
        let table: Vec<_> = table.splitn(2, '.').map(quoted).collect::<Result<_>>()?;
        let table = table.join(".");
        let [id, token, owner] = [quoted(id)?, quoted(token)?, quoted(owner)?];
        let pass = format!(
            "UPDATE {table} SET {token} = $2, {owner} = $3 WHERE {id} = $1
             AND (coalesce({token}, 0) < $2 OR {token} = $2 AND {owner} = $3)"
        );
        let newest = format!("SELECT coalesce({token}, 0) FROM {table} WHERE {id} = $1");
        Ok(Self {
            pass: pass.into(),
            newest: newest.into(),
        })
    }

    /// Passes if the row has seen no newer ticket, notes this one in the row, and keeps others off
    /// the row until the transaction ends.
    ///
    /// Call it before the transaction reads what it is going to change. The same ticket passes
    /// again. A transaction that is rolled back has not passed.
    ///
    /// # Errors
    ///
    /// * [`Error::Fenced`] when the row has seen a newer token, or this one of another owner: roll
    ///   back.
    /// * [`Error::Store`] when there is no such row, table or column, or the database failed.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the transaction may have passed.
    pub async fn pass<'q, I>(
        &self,
        transaction: &mut PgTransaction<'_>,
        id: I,
        ticket: &Ticket,
    ) -> Result<()>
    where
        I: 'q + Clone + Encode<'q, Postgres> + Type<Postgres>,
    {
        let failed = |source| Error::Store {
            operation: "pass the fence of",
            key: Some(ticket.key.clone()),
            source,
        };
        let number = ticket.token.as_u64();
        let token = i64::try_from(number).map_err(|_| {
            failed(StoreError::permanent(format!(
                "the token {number} does not fit in a bigint"
            )))
        })?;
        let pass = statement(&self.pass)
            .bind(id.clone())
            .bind(token)
            .bind(uuid::Uuid::from_u128(ticket.owner.as_u128()));
        let passed = pass.execute(&mut **transaction).await;
        if passed
            .map_err(|why| failed(store_error(why)))?
            .rows_affected()
            > 0
        {
            return Ok(());
        }
        let newest = statement(&self.newest).bind(id);
        let row = newest.fetch_optional(&mut **transaction).await;
        let row = row.map_err(|why| failed(store_error(why)))?;
        let row = row.ok_or_else(|| failed(StoreError::permanent("there is no such row")))?;
        let newest: i64 = row.try_get(0).map_err(|why| failed(store_error(why)))?;
        match u64::try_from(newest).ok().and_then(FencingToken::new) {
            Some(newest) => Err(Fenced::new(ticket, newest).into()),
            None => Err(failed(StoreError::permanent(
                "the row's token is not positive, and yet not older",
            ))),
        }
    }
}

fn statement<'q>(sql: &Arc<str>) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(AssertSqlSafe(sql.clone()))
}

/// An identifier as it is written in a statement.
fn quoted(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > 63 || name.contains('\0') {
        return Err(Error::InvalidConfig {
            what: format!("the name {name:?} of the fence is not 1 to 63 bytes without NUL"),
        });
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_or_refused() {
        let fence = RowFence::with_columns("my.ta\"ble", "Id", "t", "o").unwrap();
        assert!(
            fence
                .pass
                .starts_with(r#"UPDATE "my"."ta""ble" SET "t" = $2"#),
            "{fence:?}"
        );
        assert!(fence.newest.ends_with(r#"WHERE "Id" = $1"#), "{fence:?}");
        for (table, id) in [("", "id"), ("a.", "id"), ("a", ""), ("a", "i\0d")] {
            let refused = RowFence::new(table, id);
            assert!(
                matches!(refused, Err(Error::InvalidConfig { .. })),
                "{table} {id}"
            );
        }
        assert!(RowFence::new("a", &"x".repeat(64)).is_err());
    }
}
