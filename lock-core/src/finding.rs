//! What an examination of a store finds.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{Capabilities, Durability};

/// Something about a store as it is set up now, and what that means for the guarantees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about, in a word such as `persistence`.
    pub subject: &'static str,
    /// What was found, in a sentence for people.
    pub what: String,
    /// What it means for the guarantees; empty when all is well.
    pub meaning: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Good to know; every guarantee holds.
    Note,
    /// A guarantee is weaker than it could be.
    Warning,
    /// Locks cannot be used like this.
    Failure,
}

impl Finding {
    /// Something that is as it should be.
    pub fn ok(subject: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, subject, what, "")
    }

    /// Something that weakens nothing, and is good to know.
    pub fn note(
        subject: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Note, subject, what, meaning)
    }

    /// Something that makes a guarantee weaker.
    pub fn warning(
        subject: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warning, subject, what, meaning)
    }

    /// Something that keeps locks from being used.
    pub fn failure(
        subject: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Failure, subject, what, meaning)
    }

    fn new(
        severity: Severity,
        subject: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            subject,
            what: what.into(),
            meaning: meaning.into(),
        }
    }

    /// Compares the wall clock of a server with this machine's: `server` was read by a request
    /// that was sent at `sent` and answered at `answered`.
    pub fn clock(server: SystemTime, sent: SystemTime, answered: SystemTime) -> Self {
        const NOTICEABLE: Duration = Duration::from_secs(1);
        // It was read somewhere in between.
        let apart = if server > answered {
            server.duration_since(answered)
        } else {
            sent.duration_since(server)
        };
        let apart = apart.unwrap_or_default();
        if apart < NOTICEABLE {
            return Self::ok("clock", "the server's clock and this machine's agree");
        }
        let direction = if server > answered {
            "ahead of"
        } else {
            "behind"
        };
        Self::warning(
            "clock",
            format!("the server's clock is {apart:.1?} {direction} this machine's"),
            "leases do not depend on it; but tokens follow the server's clock, and setting it back \
             lengthens leases, setting it forward ends them early",
        )
    }

    /// What the capabilities of a store say: all that is known of a store that does not look
    /// closer.
    pub fn of_capabilities(capabilities: &Capabilities) -> Vec<Self> {
        let durability = match capabilities.durability {
            Durability::Volatile => Self::warning(
                "persistence",
                "the store keeps locks in memory only",
                "after a restart of it every lock can be granted again",
            ),
            Durability::Disk => Self::ok("persistence", "locks survive a restart of the store"),
            Durability::Replicated => Self::ok(
                "persistence",
                "locks survive the loss of a minority of the store's members",
            ),
        };
        let warnings = capabilities.warnings.iter();
        let warnings = warnings.map(|warning| match warning.split_once(": ") {
            Some((what, meaning)) => Self::warning("setup", what, meaning),
            None => Self::warning("setup", warning, ""),
        });
        [durability].into_iter().chain(warnings).collect()
    }
}

impl fmt::Display for Finding {
    /// What was found, and behind a colon what it means.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.meaning.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_with_the_time_of_the_request() {
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let second = Duration::from_secs(1);
        let answered = sent + 5 * second;
        let severity = |server| Finding::clock(server, sent, answered).severity;
        assert_eq!(severity(sent), Severity::Ok);
        assert_eq!(severity(answered), Severity::Ok);
        assert_eq!(severity(sent - second / 2), Severity::Ok);
        let ahead = Finding::clock(answered + 90 * second, sent, answered);
        assert_eq!(ahead.severity, Severity::Warning);
        assert!(ahead.what.contains("90.0s ahead"), "{ahead}");
        let behind = Finding::clock(sent - 2 * second, sent, answered);
        assert!(behind.what.contains("2.0s behind"), "{behind}");
    }
}
