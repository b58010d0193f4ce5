//! What every verb of a store is about.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, HoldId, LockKey, OwnerId, Ttl, key::check_text};

/// One acquisition: which lock, for whom, for how long, and who is asking.
///
/// It is chosen by the client before the first request and does not change afterwards, so that
/// every request about it can be repeated. Its serialised form is checked on the way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The lock.
    pub key: LockKey,
    /// Who will own it, and may re-enter.
    pub owner: OwnerId,
    /// This acquisition.
    pub hold: HoldId,
    /// The length of the lease, in milliseconds when serialised.
    pub ttl: Ttl,
    /// Whether the claim takes its place in the queue when the lock is busy.
    pub queue: bool,
    /// Who is asking, for people who look at the lock.
    pub asker: Arc<Asker>,
}

/// Who asks for a lock; shown to people, never used to decide anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawAsker")]
pub struct Asker {
    label: Option<String>,
    host: String,
    pid: u32,
}

impl Asker {
    /// This process, under a name of your choice: 1 to 255 bytes without control characters.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when the label breaks that rule.
    pub fn this_process(label: Option<&str>) -> Result<Self, Error> {
        Self::new(label.map(str::to_owned), host_name(), std::process::id())
    }

    /// An asker of known parts, for a store that reads one back.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] when label or host is not 1 to 255 bytes without control
    /// characters.
    pub fn new(label: Option<String>, host: String, pid: u32) -> Result<Self, Error> {
        for (name, text) in [("label", label.as_ref()), ("host name", Some(&host))] {
            if let Some(text) = text {
                check_text(text).map_err(|why| Error::InvalidConfig {
                    what: format!("the {name} cannot be used: {why}"),
                })?;
            }
        }
        Ok(Self { label, host, pid })
    }

    /// The name that the application gave itself.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The name of the machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The process id on that machine.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl std::fmt::Display for Asker {
    /// `label (host, pid 42)`, or `host, pid 42` without a label.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{label} ({}, pid {})", self.host, self.pid),
            None => write!(f, "{}, pid {}", self.host, self.pid),
        }
    }
}

fn host_name() -> String {
    #[cfg(unix)]
    let system = rustix::system::uname();
    #[cfg(unix)]
    let name = system.nodename().to_string_lossy();
    #[cfg(not(unix))]
    let name = gethostname::gethostname();
    #[cfg(not(unix))]
    let name = name.to_string_lossy();
    let mut name = name.replace(char::is_control, "");
    name.truncate(name.floor_char_boundary(LockKey::MAX_LEN));
    if name.is_empty() {
        name.push_str("localhost");
    }
    name
}

#[derive(Deserialize)]
struct RawAsker {
    label: Option<String>,
    host: String,
    pid: u32,
}

impl TryFrom<RawAsker> for Asker {
    type Error = Error;
    fn try_from(raw: RawAsker) -> Result<Self, Error> {
        Self::new(raw.label, raw.host, raw.pid)
    }
}
