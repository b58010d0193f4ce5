//! What distlock itself ends with when it is not the command's exit code.

use std::{error::Error as _, ffi::OsStr, fmt::Display, io};

use distlock::{Busy, Error, Holder, LockKey, StoreErrorKind};
use serde::Serialize;

/// The outcomes that have an exit code of their own; the number is added to the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Busy = 0,
    Timeout = 1,
    Lost = 2,
    StoreUnavailable = 3,
    StoreRefused = 4,
    Usage = 5,
    NotHeld = 6,
    OtherToken = 7,
    Internal = 8,
    Unhealthy = 9,
}

impl Kind {
    pub(crate) fn exit_code(self, base: u8) -> i32 {
        i32::from(base) + self as i32
    }
}

/// An outcome to be told to people and programs.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    key: Option<LockKey>,
    holder: Option<Holder>,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            key: None,
            holder: None,
        }
    }

    pub(crate) fn about(mut self, key: &LockKey, holder: Option<Holder>) -> Self {
        self.key = Some(key.clone());
        self.holder = holder;
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Writes it to stderr: a line for people, or one JSON object.
    pub(crate) fn report(&self, json: bool, base: u8) {
        #[derive(Serialize)]
        struct Object<'a> {
            error: Kind,
            message: &'a str,
            exit_code: i32,
            #[serde(skip_serializing_if = "Option::is_none")]
            key: Option<&'a LockKey>,
            #[serde(skip_serializing_if = "Option::is_none")]
            holder: Option<&'a Holder>,
        }
        if !json {
            return eprintln!("distlock: {}", self.message);
        }
        let object = Object {
            error: self.kind,
            message: &self.message,
            exit_code: self.kind.exit_code(base),
            key: self.key.as_ref(),
            holder: self.holder.as_ref(),
        };
        eprintln!("{}", serde_json::json!(object));
    }
}

/// Something to know that does not end the command; on stderr.
pub(crate) fn warn(json: bool, message: impl Display) {
    tell(json, "warning", message);
}

/// Writes a line for people, or an object with one member, to stderr.
pub(crate) fn tell(json: bool, what: &str, message: impl Display) {
    if json {
        eprintln!("{}", serde_json::json!({ what: message.to_string() }));
    } else {
        eprintln!("distlock: {what}: {message}");
    }
}

/// Says that a command cannot be executed. Returns the exit code that shells have for it: 127 when
/// there is no such command, 126 otherwise.
pub(crate) fn not_executed(command: &OsStr, why: &io::Error, json: bool) -> i32 {
    let name = command.to_string_lossy();
    tell(json, "error", format!("cannot execute {name}: {why}"));
    match why.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::InvalidKey(_) | Error::InvalidConfig { .. } => Kind::Usage,
            Error::Busy { .. } => Kind::Busy,
            Error::Timeout { .. } => Kind::Timeout,
            Error::Lost { .. } => Kind::Lost,
            Error::Store { source, .. } => match source.kind() {
                StoreErrorKind::Transient => Kind::StoreUnavailable,
                StoreErrorKind::Permanent | StoreErrorKind::NotSupported => Kind::StoreRefused,
                _ => Kind::Internal,
            },
            Error::TooManyHolds { .. } => Kind::StoreRefused,
            _ => Kind::Internal,
        };
        let mut failure = Self::new(kind, with_causes(&error));
        match error {
            Error::Busy { key, busy } => failure = failure.about(&key, holder(*busy)),
            Error::Timeout { key, busy, .. } => {
                failure = failure.about(&key, busy.and_then(|busy| holder(*busy)));
            }
            Error::Lost { key, .. } | Error::TooManyHolds { key, .. } => {
                failure = failure.about(&key, None);
            }
            Error::Store { key, .. } => failure.key = key,
            _ => {}
        }
        failure
    }
}

fn holder(busy: Busy) -> Option<Holder> {
    busy.holder
}

/// The error and what it came from, without what is said already.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
