//! What can go wrong, each kind on its own.

use std::{convert::Infallible, error::Error as StdError, fmt, time::Duration};

use crate::{Busy, Fenced, InvalidKey, InvalidTtl, LockKey, LostReason};

/// What [`LockClient`](crate::LockClient) and [`LockGuard`](crate::LockGuard) fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be the name of a lock; nothing was sent.
    #[error("the lock key cannot be used: {0}")]
    InvalidKey(#[from] InvalidKey),
    /// A setting, or a combination of settings, is impossible; nothing was sent.
    #[error("invalid configuration: {what}")]
    InvalidConfig {
        /// Which setting, what it is and what it may be.
        what: String,
    },
    /// The lock is held by somebody else and the caller did not want to wait.
    #[error("lock {key} is busy{}", describe(Some(busy)))]
    Busy {
        /// The lock.
        key: LockKey,
        /// Who holds it, since when and for how long at most.
        busy: Box<Busy>,
    },
    /// The lock did not become free within the wait.
    #[error("gave up lock {key} after {waited:.3?}{}", describe(busy.as_deref()))]
    Timeout {
        /// The lock.
        key: LockKey,
        /// How long the caller has waited.
        waited: Duration,
        /// Who held it when it was last tried.
        busy: Option<Box<Busy>>,
    },
    /// The client can no longer prove that it holds the lock.
    #[error("lock {key} is lost: {reason}")]
    Lost {
        /// The lock.
        key: LockKey,
        /// How it was lost.
        reason: LostReason,
    },
    /// A fence where the data is has seen a newer ticket of the lock; nothing was written.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The owner has entered as often as it may; the lock stays as it was.
    #[error("lock {key} is entered {limit} times already, which is the limit")]
    TooManyHolds {
        /// The lock.
        key: LockKey,
        /// The limit that the client was built with.
        limit: u32,
    },
    /// The store failed; what was asked for may or may not have happened.
    #[error("cannot {operation}{}: {source}", .key.as_ref().map(|key| format!(" lock {key}")).unwrap_or_default())]
    Store {
        /// What was being done, as a verb.
        operation: &'static str,
        /// The lock, when it was about one.
        key: Option<LockKey>,
        /// What the store said.
        source: StoreError,
    },
    /// The client was shut down.
    #[error("the lock client is closed")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed later with nothing else changed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Timeout { .. } => true,
            Self::Store { source, .. } => source.kind() == StoreErrorKind::Transient,
            _ => false,
        }
    }

    /// What the store said, when it is the store that failed.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store { source, .. } => Some(source),
            _ => None,
        }
    }

    pub(crate) fn store(operation: &'static str, key: &LockKey, source: StoreError) -> Self {
        Self::Store {
            operation,
            key: Some(key.clone()),
            source,
        }
    }
}

/// `, held by NAME for 3 s, for at most 27 s more`.
fn describe(busy: Option<&Busy>) -> String {
    match busy.and_then(|busy| busy.holder.as_ref()) {
        Some(holder) => format!(
            ", held by {} for {:.1?}, for at most {:.1?} more",
            holder.asker, holder.held_for, holder.remaining
        ),
        None => String::new(),
    }
}

impl From<InvalidTtl> for Error {
    fn from(why: InvalidTtl) -> Self {
        Self::InvalidConfig {
            what: why.to_string(),
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Work under a lock that could not be done, or not to the end.
///
/// It converts into [`Error`] with `?`; then a result that was finished is dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T> {
    /// The lock was not acquired; the work did not start.
    #[error(transparent)]
    NotAcquired(Error),
    /// The lock was lost. The work was stopped, or had finished too late.
    #[error("lock {key} is lost: {reason}")]
    Lost {
        /// The lock.
        key: LockKey,
        /// How it was lost.
        reason: LostReason,
        /// The result of the work if it came to its end all the same.
        finished: Option<T>,
    },
}

impl<T> From<RunError<T>> for Error {
    fn from(error: RunError<T>) -> Self {
        match error {
            RunError::NotAcquired(error) => error,
            RunError::Lost { key, reason, .. } => Self::Lost { key, reason },
        }
    }
}

/// What a store fails with.
///
/// The message is for people; the kind is for programs. A store keeps secrets, such as the
/// password of its URL, out of the message and the source.
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What a program can do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It may pass: not reachable, starting, failing over, too busy, no answer in time.
    Transient,
    /// It stays until somebody changes something: refused rights, missing table, foreign data.
    Permanent,
    /// The store cannot do this.
    NotSupported,
    /// The handle was closed.
    Closed,
}

impl StoreError {
    /// An error of `kind` with a message for people.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Shorthand for [`StoreErrorKind::Transient`].
    pub fn transient(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Transient, message)
    }

    /// Shorthand for [`StoreErrorKind::Permanent`].
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Permanent, message)
    }

    /// Shorthand for [`StoreErrorKind::Closed`].
    pub fn closed() -> Self {
        Self::new(StoreErrorKind::Closed, "the store is closed")
    }

    /// Adds what the error came from.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What a program can do about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether it may pass by itself.
    pub fn is_transient(&self) -> bool {
        self.kind == StoreErrorKind::Transient
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StoreError");
        debug
            .field("kind", &self.kind)
            .field("message", &self.message);
        if let Some(source) = &self.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
