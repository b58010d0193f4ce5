//! What SQLite says, in the words and kinds of the contract.

use std::{path::Path, time::Duration};

use lock_core::{StoreError, StoreErrorKind};

/// The error of a request to the file at `path`.
pub(crate) fn explain(path: &Path, busy_timeout: Duration, error: sqlx::Error) -> StoreError {
    let (kind, what) = match &error {
        sqlx::Error::Database(refusal) => refused(refusal.as_ref(), busy_timeout),
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => {
            (StoreErrorKind::Transient, "the connection broke".to_owned())
        }
        _ => (
            StoreErrorKind::Permanent,
            "it does not hold what was expected".to_owned(),
        ),
    };
    StoreError::new(kind, format!("lock file {}: {what}", path.display())).with_source(error)
}

/// Nothing was heard within the busy timeout.
pub(crate) fn too_busy(path: &Path, busy_timeout: Duration) -> StoreError {
    StoreError::transient(format!(
        "lock file {}: {}",
        path.display(),
        locked(busy_timeout)
    ))
}

/// A value in the file that this crate did not write.
pub(crate) fn foreign_value(path: &Path, what: &str) -> StoreError {
    StoreError::permanent(format!(
        "lock file {}: {what} was not written by this program",
        path.display()
    ))
}

fn locked(busy_timeout: Duration) -> String {
    format!("it was kept locked by another program for {busy_timeout:?}")
}

fn refused(
    refusal: &dyn sqlx::error::DatabaseError,
    busy_timeout: Duration,
) -> (StoreErrorKind, String) {
    use StoreErrorKind::{Permanent, Transient};
    let code: i32 = refusal
        .code()
        .and_then(|code| code.parse().ok())
        .unwrap_or_default();
    let (kind, what) = match code & 0xff {
        BUSY | LOCKED => return (Transient, locked(busy_timeout)),
        FULL => (Transient, "the disk or the file is full"),
        IOERR => (Transient, "the disk failed"),
        NOMEM | INTERRUPT | PROTOCOL | SCHEMA => (Transient, "SQLite could not do it now"),
        READONLY => (Permanent, "it, or its folder, cannot be written"),
        PERM | AUTH => (Permanent, "access is refused"),
        CANTOPEN => (
            Permanent,
            "it cannot be opened or created; check that its folder exists and can be written",
        ),
        CORRUPT => (Permanent, "it is damaged"),
        NOTADB => (
            Permanent,
            "it is not an SQLite database; it was left untouched",
        ),
        _ => (Permanent, "SQLite refused the request"),
    };
    (kind, format!("{what} (SQLite: {})", refusal.message()))
}

// SQLite's primary result codes, https://www.sqlite.org/rescode.html
const PERM: i32 = 3;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const INTERRUPT: i32 = 9;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const SCHEMA: i32 = 17;
const AUTH: i32 = 23;
const NOTADB: i32 = 26;
