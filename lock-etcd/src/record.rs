//! The names and the values of a lock's keys. docs/storage.md describes them for others.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use etcd_client::KeyValue;
use lock_core::{Asker, Claim, HoldId, Holder, LockKey, OwnerId, StoreError, Waiter};
use serde::{Deserialize, Serialize};

use crate::error::foreign;

/// How keys are named: `PREFIX:NAME/OWNER/HOLD`.
///
/// The prefix has no colon and the name's slashes are escaped, so that the keys of one lock, or
/// of one prefix, never begin with those of another.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

/// The names of one claim.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    key: String,
    lock: usize,
    owner: usize,
}

impl Name {
    /// `PREFIX:NAME/OWNER/HOLD`: the key that the claim puts.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// `PREFIX:NAME/OWNER/`: what all keys of the owner begin with.
    pub(crate) fn owner(&self) -> &str {
        &self.key[..self.owner]
    }

    /// `PREFIX:NAME/`: what all keys of the lock begin with.
    pub(crate) fn lock(&self) -> &str {
        &self.key[..self.lock]
    }
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: format!("{prefix}:"),
        }
    }

    pub(crate) fn of(&self, claim: &Claim) -> Name {
        let mut key = self.lock(&claim.key);
        let lock = key.len();
        key.push_str(&claim.owner.to_string());
        key.push('/');
        let owner = key.len();
        key.push_str(&claim.hold.to_string());
        Name { key, lock, owner }
    }

    /// What all keys of a lock begin with.
    pub(crate) fn lock(&self, key: &LockKey) -> String {
        let mut name = self.locks(key.as_str());
        name.push('/');
        name
    }

    /// What the keys of all locks begin with whose name starts with `start`.
    pub(crate) fn locks(&self, start: &str) -> String {
        let mut name = String::with_capacity(self.prefix.len() + start.len() + 72);
        name.push_str(&self.prefix);
        for c in start.chars() {
            match c {
                '%' => name.push_str("%25"),
                '/' => name.push_str("%2F"),
                c => name.push(c),
            }
        }
        name
    }

    /// Reads a key: which lock, and who.
    pub(crate) fn read(&self, key: &[u8]) -> Option<(LockKey, OwnerId, HoldId)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let mut parts = rest.split('/');
        let (name, owner, hold) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let name = name.replace("%2F", "/").replace("%25", "%");
        Some((
            LockKey::new(name).ok()?,
            owner.parse().ok()?,
            hold.parse().ok()?,
        ))
    }

    /// Reads a key and its value.
    pub(crate) fn entry(&self, kv: &KeyValue) -> Result<Entry, StoreError> {
        let (_, owner, _) = self.read(kv.key()).ok_or_else(|| foreign(kv.key()))?;
        let value = serde_json::from_slice(kv.value()).map_err(|_| foreign(kv.key()))?;
        Ok(Entry {
            key: kv.key_str().map_err(|_| foreign(kv.key()))?.to_owned(),
            owner,
            value,
            lease: kv.lease(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
        })
    }
}

/// The value of a key, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    /// The holds of the owner under this key.
    pub(crate) holds: Vec<HoldId>,
    /// When the claim came, in milliseconds since 1970 by the clock of its process.
    since: u64,
    #[serde(flatten)]
    asker: Arc<Asker>,
}

impl Value {
    pub(crate) fn new(claim: &Claim) -> Self {
        Self {
            holds: vec![claim.hold],
            since: now(),
            asker: claim.asker.clone(),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn age(&self) -> Duration {
        Duration::from_millis(now().saturating_sub(self.since))
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// A key of a lock, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) owner: OwnerId,
    pub(crate) value: Value,
    pub(crate) lease: i64,
    pub(crate) created: i64,
    pub(crate) modified: i64,
}

impl Entry {
    pub(crate) fn has(&self, hold: HoldId) -> bool {
        self.value.holds.contains(&hold)
    }

    pub(crate) fn holder(&self, remaining: Duration) -> Result<Holder, StoreError> {
        Ok(Holder {
            owner: self.owner,
            asker: self.value.asker.clone(),
            token: crate::view::token(self.created)?,
            holds: self.value.holds.len() as u32,
            held_for: self.value.age(),
            remaining,
        })
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter {
            owner: self.owner,
            asker: self.value.asker.clone(),
            waiting_for: self.value.age(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        let names = Names::new("p/q");
        let mut seen: Vec<String> = Vec::new();
        for name in [
            "a", "ab", "a/b", "a/", "/a", "%2F", "%252F", "a:b", ":", "ключ", "A",
        ] {
            let key = LockKey::new(name).unwrap();
            let dir = names.lock(&key);
            for other in &seen {
                assert!(
                    !dir.starts_with(other) && !other.starts_with(&dir),
                    "{dir} {other}"
                );
            }
            let owner = OwnerId::random();
            let hold = HoldId::random();
            let full = format!("{dir}{owner}/{hold}");
            assert_eq!(names.read(full.as_bytes()), Some((key, owner, hold)));
            seen.push(dir);
        }
    }

    #[test]
    fn prefixes_never_meet() {
        let key = LockKey::new("b/x").unwrap();
        let (short, long) = (Names::new("a"), Names::new("a/b"));
        assert!(!long.lock(&key).starts_with(&short.locks("")));
        assert_eq!(short.read(format!("{}x", long.lock(&key)).as_bytes()), None);
    }

    #[test]
    fn a_prefix_of_names_is_a_prefix_of_keys() {
        let names = Names::new("p");
        let key = LockKey::new("a/b/c").unwrap();
        assert!(names.lock(&key).starts_with(&names.locks("a/b")));
        assert!(!names.lock(&key).starts_with(&names.locks("a/c")));
    }
}
