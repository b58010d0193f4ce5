//! The names and the values of a lock's keys. docs/storage.md describes them for others.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use etcd_client::KeyValue;
use lock_core::{Asker, Claim, HoldId, Holder, LockKey, OwnerId, StoreError, Waiter};
use serde::{Deserialize, Serialize};

use crate::error::foreign;

/// How keys are named: `PREFIX:NAME/LEASE`, the lease in hexadecimal digits.
///
/// The prefix has no colon and the name's slashes are escaped, so that the keys of one lock, or
/// of one prefix, never begin with those of another. Leases are used again, so the names are few:
/// etcd walks past the deleted keys of a range until its history is compacted.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

/// What a claim is found by: at the server what all keys of its lock begin with, here its id.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    lock: String,
    pub(crate) id: Id,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    lock: LockKey,
    pub(crate) owner: OwnerId,
    hold: HoldId,
}

impl Name {
    /// `PREFIX:NAME/`: what all keys of the lock begin with.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// `PREFIX:NAME/LEASE`: the key that a claim puts with this lease.
    pub(crate) fn key(&self, lease: i64) -> String {
        format!("{}{lease:016x}", self.lock)
    }
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: format!("{prefix}:"),
        }
    }

    pub(crate) fn of(&self, claim: &Claim) -> Name {
        Name {
            lock: self.lock(&claim.key),
            id: Id {
                lock: claim.key.clone(),
                owner: claim.owner,
                hold: claim.hold,
            },
        }
    }

    /// What all keys of a lock begin with.
    pub(crate) fn lock(&self, key: &LockKey) -> String {
        let mut name = self.locks(key.as_str());
        name.push('/');
        name
    }

    /// What the keys of all locks begin with whose name starts with `start`.
    pub(crate) fn locks(&self, start: &str) -> String {
        let mut name = String::with_capacity(self.prefix.len() + start.len() + 8);
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

    /// Which lock a key is of.
    pub(crate) fn read(&self, key: &[u8]) -> Option<LockKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (name, lease) = rest.split_once('/')?;
        let is_lease = lease.len() == 16 && lease.bytes().all(|b| b.is_ascii_hexdigit());
        let name = name.replace("%2F", "/").replace("%25", "%");
        LockKey::new(name).ok().filter(|_| is_lease)
    }

    /// Reads a key and its value.
    pub(crate) fn entry(&self, kv: &KeyValue) -> Result<Entry, StoreError> {
        self.read(kv.key()).ok_or_else(|| foreign(kv.key()))?;
        let value = serde_json::from_slice(kv.value()).map_err(|_| foreign(kv.key()))?;
        Ok(Entry {
            key: kv.key_str().map_err(|_| foreign(kv.key()))?.to_owned(),
            value,
            lease: kv.lease(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
        })
    }
}

/// The owner in the value of a key.
pub(crate) fn owner(kv: &KeyValue) -> Option<OwnerId> {
    #[derive(Deserialize)]
    struct Owned {
        owner: OwnerId,
    }
    let owned: Owned = serde_json::from_slice(kv.value()).ok()?;
    Some(owned.owner)
}

/// The value of a key, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
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
            owner: claim.owner,
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
    pub(crate) value: Value,
    pub(crate) lease: i64,
    pub(crate) created: i64,
    pub(crate) modified: i64,
}

impl Entry {
    /// Whether the hold of a claim is under this key.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.is_of(claim) && self.value.holds.contains(&claim.hold)
    }

    pub(crate) fn is_of(&self, claim: &Claim) -> bool {
        self.value.owner == claim.owner
    }

    pub(crate) fn holder(&self, remaining: Duration) -> Result<Holder, StoreError> {
        Ok(Holder {
            owner: self.value.owner,
            asker: self.value.asker.clone(),
            token: crate::view::token(self.created)?,
            holds: self.value.holds.len() as u32,
            held_for: self.value.age(),
            remaining,
        })
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter {
            owner: self.value.owner,
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
            for lease in [1, i64::MAX] {
                let full = format!("{dir}{lease:016x}");
                assert_eq!(names.read(full.as_bytes()), Some(key.clone()));
            }
            for foreign in ["", "x", "12/0123456789abcdef", "0123456789abcde/"] {
                assert_eq!(names.read(format!("{dir}{foreign}").as_bytes()), None);
            }
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
