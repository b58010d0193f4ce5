//! What an error of the server means to a program.

use etcd_client::Error;
use lock_core::{StoreError, StoreErrorKind};

/// Why a request failed, for those who carry it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) cure: Cure,
}

/// What may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// The same request at another member, or again.
    Elsewhere,
    /// The same request over a new connection.
    Reconnect,
    /// The same request with a new token.
    Authenticate,
    /// Another lease: this one is gone.
    Lease,
    /// Room: nothing may be put.
    Space,
    /// Nothing.
    None,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            cure: Cure::None,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, cure, meaning) = match &error {
            Error::GRpcStatus(status) => {
                let code = i32::from(status.code());
                let (kind, cure, meaning) = meaning(code, status.message());
                return Self {
                    error: StoreError::new(kind, format!("{meaning}: {}", text(&error))),
                    cure,
                };
            }
            Error::IoError(_)
            | Error::TransportError(_)
            | Error::WatchError(_)
            | Error::EndpointError(_)
            | Error::Internal(_) => (
                StoreErrorKind::Transient,
                Cure::Reconnect,
                "the connection broke",
            ),
            Error::LeaseKeepAliveError(_) => {
                (StoreErrorKind::Transient, Cure::Lease, "the lease is gone")
            }
            _ => (
                StoreErrorKind::Permanent,
                Cure::None,
                "the connection is set up wrongly",
            ),
        };
        Self {
            error: StoreError::new(kind, format!("{meaning}: {}", text(&error))),
            cure,
        }
    }
}

/// gRPC's codes, by number so that tonic's types stay out of this crate.
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// What a status means; etcd's texts are in its `api/v3rpc/rpctypes/error.go`.
fn meaning(code: i32, message: &str) -> (StoreErrorKind, Cure, &'static str) {
    use StoreErrorKind::{NotSupported, Permanent, Transient};
    let says = |text: &str| message.contains(text);
    // By text first: some codes are shared.
    if says("database space exceeded") {
        return (
            Transient,
            Cure::Space,
            "the server is out of space (NOSPACE) and takes nothing new",
        );
    }
    if says("no leader") || says("leader changed") || says("not leader") {
        return (
            Transient,
            Cure::Elsewhere,
            "the member knows no leader; an election may be under way",
        );
    }
    if says("request timed out") || says("too many requests") || says("stopped") {
        return (
            Transient,
            Cure::Elsewhere,
            "the member could not answer in time",
        );
    }
    if says("requested lease not found") {
        return (Transient, Cure::Lease, "the lease is gone");
    }
    if says("invalid auth token") || says("revision of auth store is old") {
        return (
            Transient,
            Cure::Authenticate,
            "the token of the connection has expired",
        );
    }
    if says("authentication failed") {
        return (
            Permanent,
            Cure::None,
            "the server refused the user or the password",
        );
    }
    if says("user name is empty") {
        return (Permanent, Cure::Authenticate, "the server wants a user");
    }
    if says("request is too large") || says("larger than max") {
        return (
            Permanent,
            Cure::None,
            "the request is larger than the server takes",
        );
    }
    if says("certificate") {
        return (
            Permanent,
            Cure::None,
            "the server's certificate is not trusted",
        );
    }
    match code {
        code::UNAVAILABLE => (Transient, Cure::Reconnect, "the server cannot be reached"),
        code::CANCELLED | code::UNKNOWN | code::INTERNAL => {
            (Transient, Cure::Reconnect, "the connection broke")
        }
        code::DEADLINE_EXCEEDED | code::RESOURCE_EXHAUSTED => (
            Transient,
            Cure::Elsewhere,
            "the member could not answer in time",
        ),
        code::UNAUTHENTICATED => (Permanent, Cure::Authenticate, "the server refused the user"),
        code::PERMISSION_DENIED => (
            Permanent,
            Cure::None,
            "the user lacks a right on the keys of the prefix",
        ),
        code::UNIMPLEMENTED => (NotSupported, Cure::None, "the server lacks a request"),
        code::NOT_FOUND => (Permanent, Cure::None, "the server does not know it"),
        _ => (Permanent, Cure::None, "the server refused the request"),
    }
}

/// What was said, in one line.
fn text(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => {
            let mut text = status.message().to_owned();
            // The transport hides its reason in the sources.
            let mut source = std::error::Error::source(status);
            while let Some(why) = source {
                let why_text = why.to_string();
                if !text.contains(&why_text) {
                    text = format!("{text}: {why_text}");
                }
                source = why.source();
            }
            text
        }
        other => other.to_string(),
    }
}

/// A key of a lock does not hold what it should.
pub(crate) fn foreign(key: &[u8]) -> StoreError {
    StoreError::permanent(format!(
        "the key {} is not of a lock, and is left alone",
        String::from_utf8_lossy(key)
    ))
}

/// An answer that none of our requests has.
pub(crate) fn strange() -> StoreError {
    StoreError::permanent("the server's answer makes no sense")
}

/// Somebody else was faster, again and again.
pub(crate) fn contended() -> StoreError {
    StoreError::transient("the lock changed under every attempt to change it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_words() {
        use StoreErrorKind::{NotSupported, Permanent, Transient};
        let cases = [
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                Transient,
                Cure::Space,
            ),
            (14, "etcdserver: no leader", Transient, Cure::Elsewhere),
            (
                14,
                "etcdserver: request timed out",
                Transient,
                Cure::Elsewhere,
            ),
            (
                5,
                "etcdserver: requested lease not found",
                Transient,
                Cure::Lease,
            ),
            (
                16,
                "etcdserver: invalid auth token",
                Transient,
                Cure::Authenticate,
            ),
            (
                3,
                "etcdserver: revision of auth store is old",
                Transient,
                Cure::Authenticate,
            ),
            (
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                Permanent,
                Cure::None,
            ),
            (
                3,
                "etcdserver: user name is empty",
                Permanent,
                Cure::Authenticate,
            ),
            (7, "etcdserver: permission denied", Permanent, Cure::None),
            (3, "etcdserver: request is too large", Permanent, Cure::None),
            (12, "unknown service", NotSupported, Cure::None),
            (14, "tcp connect error", Transient, Cure::Reconnect),
        ];
        for (code, text, kind, cure) in cases {
            let found = meaning(code, text);
            assert_eq!((found.0, found.1), (kind, cure), "{text}");
        }
        let words: std::collections::BTreeSet<_> = cases
            .iter()
            .map(|(code, text, ..)| meaning(*code, text).2)
            .collect();
        assert!(words.len() >= 9);
    }
}
