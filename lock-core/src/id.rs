//! Random identities: who owns, and which acquisition.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Who may re-enter a lock: a random 128-bit id, chosen before the first request.
///
/// Never a thread, task, host or connection: whoever carries the id is the owner. It comes from
/// the operating system's random source at every call, so that a fork repeats none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerId(Uuid);

/// One acquisition by an owner; it makes every request about that acquisition idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HoldId(Uuid);

/// The text is not an id: 32 hexadecimal digits are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of 32 hexadecimal digits")]
pub struct InvalidId;

macro_rules! id {
    ($name:ident) => {
        impl $name {
            /// A new id from the operating system's random source.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// The id as a number.
            pub fn as_u128(&self) -> u128 {
                self.0.as_u128()
            }

            /// The id of a number.
            pub fn from_u128(id: u128) -> Self {
                Self(Uuid::from_u128(id))
            }
        }

        impl fmt::Display for $name {
            /// 32 lower-case hexadecimal digits.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self.0.as_simple(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Uuid::try_parse(text).map(Self).map_err(|_| InvalidId)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    };
}

id!(OwnerId);
id!(HoldId);
