//! The names and the values of a lock's keys. docs/storage.md describes them for others.

use std::{fmt::Write, sync::Arc, time::Duration};

use lock_core::{
    Asker, Busy, FencingToken, Holder, LockInfo, LockKey, OwnerId, StoreError, Ttl, Waiter,
};
use redis::{Cmd, Value};

use crate::error::foreign;

/// Which key of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Claim,
    Queue,
    Waiters,
    Token,
}

impl Part {
    /// In the order in which scripts take them.
    pub(crate) const ALL: [Self; 4] = [Self::Claim, Self::Queue, Self::Waiters, Self::Token];
    /// All but the token.
    pub(crate) const STATE: [Self; 3] = [Self::Claim, Self::Queue, Self::Waiters];

    fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Queue => "queue",
            Self::Waiters => "waiters",
            Self::Token => "token",
        }
    }
}

/// Adds the names of a lock's keys to a command.
///
/// A name is `PREFIX:{KEY}:PART`: the braces make a hash tag, so that all keys of a lock are in
/// one slot of a cluster. The prefix has no braces, and the key's are escaped.
pub(crate) fn add_keys(command: &mut Cmd, prefix: &str, key: &LockKey, parts: &[Part]) {
    let mut name = String::with_capacity(prefix.len() + key.as_str().len() + 16);
    name.push_str(prefix);
    name.push_str(":{");
    escape(key.as_str(), &mut name);
    name.push_str("}:");
    let stem = name.len();
    for part in parts {
        name.push_str(part.name());
        command.arg(name.as_bytes());
        name.truncate(stem);
    }
}

fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '%' => into.push_str("%25"),
            '{' => into.push_str("%7B"),
            '}' => into.push_str("%7D"),
            c => into.push(c),
        }
    }
}

/// A pattern for SCAN: the keys of all locks whose name starts with `start`.
pub(crate) fn pattern(prefix: &str, start: &str) -> String {
    let mut plain = format!("{prefix}:{{");
    escape(start, &mut plain);
    let mut pattern = String::new();
    for c in plain.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

/// The lock that a claim or a queue belongs to, and which of the two it is; `None` for other keys.
pub(crate) fn lock_of(prefix: &str, name: &[u8]) -> Option<(LockKey, Part)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(prefix)?;
    let (escaped, part) = rest.strip_prefix(":{")?.split_once("}:")?;
    let part = [Part::Claim, Part::Queue]
        .into_iter()
        .find(|known| known.name() == part)?;
    let name = escaped
        .replace("%7B", "{")
        .replace("%7D", "}")
        .replace("%25", "%");
    Some((LockKey::new(name).ok()?, part))
}

/// `PID\nHOST\nLABEL`, with an empty label for none.
pub(crate) fn asker(asker: &Asker) -> String {
    let (host, label) = (asker.host(), asker.label().unwrap_or_default());
    let mut text = String::with_capacity(12 + host.len() + label.len());
    // Writing to a string cannot fail.
    let _ = write!(text, "{}\n{host}\n{label}", asker.pid());
    text
}

fn read_asker(text: &str) -> Option<Arc<Asker>> {
    let mut parts = text.splitn(3, '\n');
    let pid = parts.next()?.parse().ok()?;
    let host = parts.next()?.to_owned();
    let label = parts.next().filter(|label| !label.is_empty());
    Asker::new(label.map(str::to_owned), host, pid)
        .ok()
        .map(Arc::new)
}

/// What the claim key says.
#[derive(Debug)]
enum Claimed {
    Nobody,
    Held {
        owner: OwnerId,
        holds: u32,
        token: FencingToken,
        since: u64,
        asker: Arc<Asker>,
    },
}

/// An entry of the waiters.
#[derive(Debug)]
struct Waiting {
    owner: OwnerId,
    since: u64,
    asker: Arc<Asker>,
}

impl Waiting {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '\n');
        let owner = parts.next()?.parse().ok()?;
        let _channel = parts.next()?;
        let since = parts.next()?.parse().ok()?;
        let asker = read_asker(parts.next()?)?;
        Some(Self {
            owner,
            since,
            asker,
        })
    }

    fn waiter(self, now: u64) -> Waiter {
        Waiter {
            owner: self.owner,
            asker: self.asker,
            waiting_for: Duration::from_micros(now.saturating_sub(self.since)),
        }
    }
}

impl Claimed {
    fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Nobody);
        }
        let mut parts = text.strip_prefix(['-', '+'])?.splitn(5, '\n');
        Some(Self::Held {
            owner: parts.next()?.parse().ok()?,
            holds: parts.next()?.split(',').count() as u32,
            token: parts.next()?.parse().ok()?,
            since: parts.next()?.parse().ok()?,
            asker: read_asker(parts.next()?)?,
        })
    }

    fn holder(&self, now: u64, remaining: Duration) -> Option<Holder> {
        let Self::Held {
            owner,
            holds,
            token,
            since,
            asker,
        } = self
        else {
            return None;
        };
        Some(Holder {
            owner: *owner,
            asker: asker.clone(),
            token: *token,
            holds: *holds,
            held_for: Duration::from_micros(now.saturating_sub(*since)),
            remaining,
        })
    }
}

/// Reads `[claim, ms left, position, queued, now]`.
pub(crate) fn busy(parts: &[Value]) -> Option<Busy> {
    let [claim, left, position, queued, now] = parts else {
        return None;
    };
    let remaining = left_over(int(left)?);
    Some(Busy {
        holder: Claimed::read(text(claim)?)?.holder(text(now)?.parse().ok()?, remaining),
        remaining,
        position: u32::try_from(int(position)?)
            .ok()
            .filter(|position| *position > 0),
        queued: u32::try_from(int(queued)?).ok()?,
    })
}

/// The server's time in a busy reply of acquire.lua, in µs since 1970.
pub(crate) fn busy_at(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(parts) => text(parts.last()?)?.parse().ok(),
        _ => None,
    }
}

/// Whether a reply of inspect.lua has a claim.
pub(crate) fn has_claim(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => parts.first().and_then(text) != Some(""),
        _ => false,
    }
}

/// Reads the reply of inspect.lua.
pub(crate) fn info(key: &LockKey, reply: &Value) -> Result<Option<LockInfo>, StoreError> {
    let read = || {
        let Value::Array(parts) = reply else {
            return None;
        };
        let [claim, left, now, waiters @ ..] = parts.as_slice() else {
            return None;
        };
        let now = text(now)?.parse().ok()?;
        let waiters = waiters
            .iter()
            .map(|entry| Some(Waiting::read(text(entry)?)?.waiter(now)));
        Some(LockInfo {
            key: key.clone(),
            holder: Claimed::read(text(claim)?)?.holder(now, left_over(int(left)?)),
            waiters: waiters.collect::<Option<_>>()?,
        })
    };
    match reply {
        Value::Nil => Ok(None),
        _ => read().map(Some).ok_or_else(foreign),
    }
}

/// What PTTL says: -1 for a key that somebody made permanent, -2 for none.
fn left_over(millis: i64) -> Duration {
    match millis {
        -1 => Ttl::MAX.as_duration(),
        millis => Duration::from_millis(u64::try_from(millis).unwrap_or(0)),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(key: &str) -> Vec<String> {
        let mut command = Cmd::new();
        add_keys(&mut command, "p", &LockKey::new(key).unwrap(), &Part::ALL);
        let bytes = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => unreachable!(),
        });
        bytes.collect()
    }

    #[test]
    fn names_are_exact_and_share_a_hash_tag() {
        assert_eq!(names("a/b")[0], "p:{a/b}:claim");
        assert_eq!(names("}x{")[3], "p:{%7Dx%7B}:token");
        let mut seen = std::collections::BTreeSet::new();
        for key in [
            "a", "ab", "a/b", "A", "}x{", "%7Dx%7B", "{}", "a}:claim", "%257B", "ключ",
        ] {
            for name in names(key) {
                let tag = name.split_once('{').unwrap().1.split_once('}').unwrap().0;
                assert!(!tag.is_empty());
                assert!(
                    !name
                        .replacen(&format!("{{{tag}}}"), "", 1)
                        .contains(['{', '}'])
                );
                assert!(seen.insert(name.clone()), "{name}");
                if name.ends_with("}:claim") {
                    assert_eq!(lock_of("p", name.as_bytes()).unwrap().0.as_str(), key);
                }
            }
        }
    }

    #[test]
    fn patterns_match_their_prefix_only() {
        assert_eq!(pattern("p", "a*{"), "p:{a\\*%7B*");
    }
}
