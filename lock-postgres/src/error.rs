//! What the errors of Postgres mean for a lock.

use std::io;

use lock_core::{StoreError, StoreErrorKind};
use sqlx::error::DatabaseError;

/// The kind and the message of what the driver says. No message of it holds a password.
pub(crate) fn store_error(error: sqlx::Error) -> StoreError {
    let (kind, message) = match &error {
        sqlx::Error::Database(error) => {
            let (kind, advice) = meaning(&code(error.as_ref()));
            (kind, format!("{advice}{}", error.message()))
        }
        // The driver has no kind of its own for it.
        sqlx::Error::Io(error)
            if error.kind() == io::ErrorKind::InvalidData
                && error.to_string().contains("certificate") =>
        {
            (
                StoreErrorKind::Permanent,
                format!("the server cannot be trusted: {error}"),
            )
        }
        sqlx::Error::Io(error) => (
            StoreErrorKind::Transient,
            format!("cannot reach the server: {error}"),
        ),
        sqlx::Error::PoolTimedOut => (
            StoreErrorKind::Transient,
            "no connection within the time-out".to_owned(),
        ),
        sqlx::Error::Protocol(_) => (
            StoreErrorKind::Transient,
            format!("the connection broke: {error}"),
        ),
        _ => (StoreErrorKind::Permanent, error.to_string()),
    };
    StoreError::new(kind, message).with_source(error)
}

fn meaning(code: &str) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Permanent, Transient};
    match code {
        "25006" => (Transient, "the server is read-only or a standby: "),
        "57P01" | "57P02" => (Transient, "the server is shutting down: "),
        "57P03" => (Transient, "the server is starting, or not ready: "),
        "57P05" => (Transient, "the connection was idle for too long: "),
        "57014" => (
            Transient,
            "cancelled by an administrator or by statement_timeout: ",
        ),
        "55P03" => (Transient, "somebody else has locked a table: "),
        "53300" => (Transient, "too many connections: "),
        "25P03" => (Transient, "idle_in_transaction_session_timeout: "),
        "40001" | "40P01" => (Transient, "still in conflict after several attempts: "),
        "42P01" | "42883" | "42703" | "42804" | "3F000" => (
            Permanent,
            "a table or function of distlock is missing or of another version; \
             run ensure_schema() or sql/schema.sql: ",
        ),
        "26000" | "42P05" => (
            Permanent,
            "a pooler is in between that was not noticed; say so with Pooler::Transaction: ",
        ),
        "42501" => (Permanent, "the role lacks a right: "),
        "28000" | "28P01" => (Permanent, "the server refuses the user: "),
        "3D000" => (Permanent, "the database is missing: "),
        _ => match code.get(..2).unwrap_or_default() {
            // Connection, insufficient resources, operator intervention, rollback, system error.
            "08" | "53" | "57" | "40" | "58" => (Transient, ""),
            _ => (Permanent, ""),
        },
    }
}

fn code(error: &dyn DatabaseError) -> String {
    error.code().unwrap_or_default().into_owned()
}

/// The SQLSTATE, when the server has answered with an error.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().map(code)
}

/// Whether the connection cannot be used any more, or leads to the wrong server.
pub(crate) fn breaks_connection(error: &sqlx::Error) -> bool {
    match sqlstate(error) {
        Some(code) => {
            code.starts_with("08")
                || (code.starts_with("57P"))
                || matches!(code.as_str(), "25006" | "25P03" | "25P02")
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for code in [
            "25006", "57P01", "57P03", "57014", "55P03", "53300", "40001", "08006", "53100",
        ] {
            assert_eq!(meaning(code).0, StoreErrorKind::Transient, "{code}");
        }
        for code in ["42P01", "42501", "28P01", "3D000", "22021", ""] {
            assert_eq!(meaning(code).0, StoreErrorKind::Permanent, "{code}");
        }
    }
}
