//! The name of a lock.

use std::{convert::Infallible, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// The name of a lock: 1 to 255 bytes of UTF-8 without control characters.
///
/// Names are exact: the same bytes are the same lock, different bytes are different locks, on
/// every store. Cloning is cheap.
///
/// ```
/// use lock_core::LockKey;
///
/// let key: LockKey = "orders/42".parse()?;
/// assert_eq!(key.as_str(), "orders/42");
/// assert!("".parse::<LockKey>().is_err());
/// # Ok::<(), lock_core::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// The largest length of a key, in bytes.
    pub const MAX_LEN: usize = 255;

    /// Checks `name` and makes it a key.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when the name is empty, longer than [`LockKey::MAX_LEN`] bytes, or holds a
    /// control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidKey> {
        let name = name.as_ref();
        check_text(name).map(|()| Self(Arc::from(name)))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The rule that keys, labels and host names share.
pub(crate) fn check_text(text: &str) -> Result<(), InvalidKey> {
    if text.is_empty() {
        return Err(InvalidKey::Empty);
    }
    if text.len() > LockKey::MAX_LEN {
        return Err(InvalidKey::TooLong { len: text.len() });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidKey::ControlCharacter { at }),
        None => Ok(()),
    }
}

/// Why a text cannot be the name of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The text has no characters.
    #[error("it is empty")]
    Empty,
    /// The text is longer than [`LockKey::MAX_LEN`] bytes.
    #[error("it has {len} bytes, at most {} are allowed", LockKey::MAX_LEN)]
    TooLong {
        /// The length that was given, in bytes.
        len: usize,
    },
    /// The text holds a control character, such as NUL or a line break.
    #[error("it has a control character at byte {at}")]
    ControlCharacter {
        /// Where the first one is, in bytes from the start.
        at: usize,
    },
}

impl From<Infallible> for InvalidKey {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for LockKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for LockKey {
    type Err = InvalidKey;
    fn from_str(name: &str) -> Result<Self, InvalidKey> {
        Self::new(name)
    }
}

impl TryFrom<&str> for LockKey {
    type Error = InvalidKey;
    fn try_from(name: &str) -> Result<Self, InvalidKey> {
        Self::new(name)
    }
}

impl TryFrom<&String> for LockKey {
    type Error = InvalidKey;
    fn try_from(name: &String) -> Result<Self, InvalidKey> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockKey {
    type Error = InvalidKey;
    fn try_from(name: String) -> Result<Self, InvalidKey> {
        Self::new(name)
    }
}

impl From<&LockKey> for LockKey {
    fn from(key: &LockKey) -> Self {
        key.clone()
    }
}

impl From<LockKey> for String {
    fn from(key: LockKey) -> Self {
        key.as_str().to_owned()
    }
}
