//! What can go wrong with a benchmark.

use std::{fmt::Display, io};

/// Why a benchmark did not start, or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was measured: an option cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A file for the results cannot be written.
    #[error("cannot write {path}: {why}")]
    Output {
        /// The file.
        path: String,
        /// Why not.
        why: io::Error,
    },
    /// A contender, or the store under it, failed; without the URL, which may hold a password.
    #[error("{0}")]
    Failed(String),
}

/// As in std, with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Something that failed while it was measured, and what it said.
    pub fn failed(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl From<distlock::Error> for Error {
    fn from(why: distlock::Error) -> Self {
        match why {
            distlock::Error::InvalidConfig { .. } => Self::Usage(why.to_string()),
            _ => Self::failed("distlock", why),
        }
    }
}
