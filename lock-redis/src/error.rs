//! What a reply of the server means to a program.

use lock_core::{StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError};

/// Why a command failed, for the connection that carried it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    /// The connection is of no use any more.
    pub(crate) broken: bool,
    /// The server does not know the script.
    pub(crate) no_script: bool,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let code = code(&error);
        Self {
            broken: match error.kind() {
                ErrorKind::Io | ErrorKind::Parse => true,
                // Another server has taken over, or will: look for it.
                _ => matches!(
                    code,
                    "READONLY" | "MASTERDOWN" | "LOADING" | "CLUSTERDOWN" | "MOVED" | "NOAUTH"
                ),
            },
            no_script: code == "NOSCRIPT",
            error: store_error(&error),
        }
    }
}

/// The error of a store, with a message of its own for each kind and without secrets.
pub(crate) fn store_error(error: &RedisError) -> StoreError {
    let (kind, meaning) = match error.kind() {
        ErrorKind::Io => return StoreError::transient(format!("the connection broke: {error}")),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
            StoreErrorKind::Transient,
            "the server sent something that is not a reply",
        ),
        ErrorKind::AuthenticationFailed => {
            (StoreErrorKind::Permanent, "the server refused the password")
        }
        ErrorKind::InvalidClientConfig => (
            StoreErrorKind::Permanent,
            "the connection is set up wrongly",
        ),
        _ => meaning(code(error)),
    };
    StoreError::new(kind, format!("{meaning}: {}", said(error)))
}

/// What the code of a reply means.
fn meaning(code: &str) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{NotSupported, Permanent, Transient};
    match code {
        "LOADING" => (Transient, "the server is still loading its data"),
        "READONLY" => (
            Transient,
            "the server is a read-only replica; a fail-over may be under way",
        ),
        "MASTERDOWN" => (Transient, "the replica has lost its master"),
        "BUSY" | "UNKILLABLE" => (Transient, "a script keeps the server busy"),
        "CLUSTERDOWN" => (Transient, "the cluster is down"),
        "TRYAGAIN" => (Transient, "the cluster is moving the key"),
        "MOVED" | "ASK" => (
            Transient,
            "the key has moved to another node of the cluster",
        ),
        "OOM" => (Transient, "the server is out of memory"),
        "MISCONF" => (
            Transient,
            "the server cannot write to its disk and refuses changes",
        ),
        "NOREPLICAS" => (Transient, "the server has too few replicas"),
        "MAXCLIENTS" => (Transient, "the server has too many clients"),
        "NOSCRIPT" => (Transient, "the server forgot a script"),
        "NOAUTH" => (Permanent, "the server wants a password"),
        "WRONGPASS" => (Permanent, "the server refused the user or the password"),
        "NOPERM" => (Permanent, "the user lacks a right on the server"),
        "WRONGTYPE" => (
            Permanent,
            "a key of the lock holds a value of another type, which is left alone",
        ),
        "DISTLOCK" => (
            Permanent,
            "a key of the lock holds a foreign value, which is left alone",
        ),
        "UNKNOWN" => (NotSupported, "the server lacks a command"),
        _ => (Permanent, "the server refused the command"),
    }
}

/// The code of an error reply; older servers wrap that of a script's command in `ERR`.
fn code(error: &RedisError) -> &str {
    let code = error.code().unwrap_or_default();
    if code != "ERR" {
        return code;
    }
    let text = error.detail().unwrap_or_default();
    if text.contains("unknown command") || text.contains("Unknown Redis command") {
        return "UNKNOWN";
    }
    if text.contains("max number of clients") {
        return "MAXCLIENTS";
    }
    if text.contains("ACL failure in script")
        || text.contains("can't run this command or subcommand")
    {
        return "NOPERM";
    }
    const WRAPPED: [&str; 8] = [
        "WRONGTYPE",
        "READONLY",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "NOPERM",
        "DISTLOCK",
        "LOADING",
    ];
    if text.contains("@user_script") || text.contains("Error running script") {
        let found = WRAPPED.into_iter().find(|code| text.contains(code));
        return found.unwrap_or(code);
    }
    code
}

/// What the server said, as it said it.
fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

/// An error text inside a reply, such as that of one claim of many.
pub(crate) fn reply_error(text: &str) -> StoreError {
    let text = text.trim_start_matches('-');
    let code = text.split(' ').next().unwrap_or_default();
    let (kind, meaning) = meaning(code);
    StoreError::new(kind, format!("{meaning}: {text}"))
}

/// A key of a lock does not hold what it should.
pub(crate) fn foreign() -> StoreError {
    reply_error("DISTLOCK the key holds a value that is not a lock")
}

/// A reply that none of our scripts gives.
pub(crate) fn strange(reply: &redis::Value) -> StoreError {
    StoreError::permanent(format!("the server's reply makes no sense: {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_kind_and_its_own_words() {
        let kind = |text: &str| reply_error(text).kind();
        for transient in [
            "LOADING",
            "READONLY",
            "MASTERDOWN",
            "BUSY",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "MOVED",
            "OOM",
            "MISCONF",
            "NOREPLICAS",
        ] {
            assert_eq!(kind(transient), StoreErrorKind::Transient, "{transient}");
        }
        for permanent in [
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "WRONGTYPE",
            "DISTLOCK",
            "ERR",
        ] {
            assert_eq!(kind(permanent), StoreErrorKind::Permanent, "{permanent}");
        }
        let texts: std::collections::BTreeSet<_> = ["LOADING", "READONLY", "OOM", "NOPERM", "ERR"]
            .map(|code| meaning(code).1)
            .into();
        assert_eq!(texts.len(), 5);
    }
}
