//! The tables: their names, making them, checking them.

use std::{sync::Arc, time::Duration};

use lock_core::{Error, Result, StoreError};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::error::{sqlstate, store_error};

/// The tables and functions, as a file for those who migrate by hand.
const SCHEMA: &str = include_str!("../sql/schema.sql");

/// Where the tables are and what they are called.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) prefix: String,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            schema: "public".to_owned(),
            prefix: "distlock".to_owned(),
        }
    }
}

impl Names {
    pub(crate) fn check(&self) -> Result<()> {
        let starts = |name: &str, first: fn(char) -> bool| name.starts_with(first);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let invalid = |what: String| Err(Error::InvalidConfig { what });
        if !starts(&self.schema, |c| c.is_ascii_alphabetic() || c == '_')
            || !self.schema.chars().all(is_word)
            || self.schema.len() > 63
        {
            return invalid(format!(
                "the schema {:?} is not a word of 1 to 63 ASCII letters, digits and underscores",
                self.schema
            ));
        }
        if !starts(&self.prefix, |c| c.is_ascii_lowercase() || c == '_')
            || !self.prefix.chars().all(|c| is_word(c) && !c.is_uppercase())
            || self.prefix.len() > 40
        {
            return invalid(format!(
                "the table prefix {:?} is not a word of 1 to 40 lower-case ASCII letters, digits \
                 and underscores",
                self.prefix
            ));
        }
        Ok(())
    }

    /// The statement with these names instead of the default ones.
    pub(crate) fn sql(&self, statement: &str) -> Arc<str> {
        statement
            .replace(
                "public.distlock_",
                &format!("\"{}\".{}_", self.schema, self.prefix),
            )
            .replace(
                "INDEX IF NOT EXISTS distlock_",
                &format!("INDEX IF NOT EXISTS {}_", self.prefix),
            )
            .into()
    }
}

/// Fails when a table or function is missing, with the name of it.
pub(crate) async fn check(connection: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    match missing(connection, names).await.map_err(store_error)? {
        None => Ok(()),
        Some(what) => Err(StoreError::permanent(format!(
            "{what} is missing, or out of this role's sight; run ensure_schema() with a role that \
             may create it, or sql/schema.sql"
        ))),
    }
}

/// Makes what is missing; sends no DDL when nothing is. Any number of processes may start at once.
pub(crate) async fn ensure(connection: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    for attempt in 1.. {
        let Some(what) = missing(connection, names).await.map_err(store_error)? else {
            return Ok(());
        };
        match create(connection, names).await {
            Ok(()) => return Ok(()),
            // Somebody else is at it as well: IF NOT EXISTS is not atomic.
            Err(why) if attempt < 20 && is_race(&why) => {
                let pause = rand::random_range(10..100);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Err(why) => {
                let why = store_error(why);
                return Err(StoreError::new(
                    why.kind(),
                    format!("{what} is missing and cannot be made: {why}"),
                )
                .with_source(why));
            }
        }
    }
    unreachable!("the loop returns")
}

async fn missing(
    connection: &mut PgConnection,
    names: &Names,
) -> Result<Option<String>, sqlx::Error> {
    let kinds = [
        ("table", "lock"),
        ("table", "queue"),
        ("table", "process"),
        ("table", "floor"),
        ("function", "tell_v1"),
        ("function", "run_v1"),
    ];
    // Words that were checked, as literals: without parameters it is one message, and behind a
    // pooler two messages may reach two servers.
    let Names { schema, prefix } = names;
    let sql = format!(
        "SELECT ARRAY(SELECT c.relname::text FROM pg_catalog.pg_class c
                WHERE c.relnamespace = n.oid AND starts_with(c.relname, '{prefix}_')),
            ARRAY(SELECT p.proname::text FROM pg_catalog.pg_proc p
                WHERE p.pronamespace = n.oid AND starts_with(p.proname, '{prefix}_'))
         FROM pg_catalog.pg_namespace n WHERE n.nspname = '{schema}'"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else {
        return Ok(Some(format!("the schema {}", names.schema)));
    };
    let (tables, functions): (Vec<String>, Vec<String>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(kinds.iter().find_map(|(kind, name)| {
        let found = if *kind == "table" {
            &tables
        } else {
            &functions
        };
        let name = format!("{}_{name}", names.prefix);
        (!found.contains(&name)).then(|| format!("the {kind} {}.{name}", names.schema))
    }))
}

async fn create(connection: &mut PgConnection, names: &Names) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let exists = sqlx::query("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1")
        .persistent(false)
        .bind(&names.schema)
        .fetch_optional(&mut *transaction)
        .await?
        .is_some();
    let mut statements = String::from("SET LOCAL client_min_messages = warning;");
    if !exists {
        statements += &format!("CREATE SCHEMA IF NOT EXISTS \"{}\";", names.schema);
    }
    statements += &names.sql(SCHEMA);
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

fn is_race(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| {
        matches!(
            code.as_str(),
            "23505" | "42P06" | "42P07" | "42710" | "42723" | "XX000" | "40P01" | "40001" | "55P03"
        )
    })
}
