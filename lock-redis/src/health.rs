//! How the server is set up, and what that weakens.

use lock_core::{Capabilities, Durability, StoreError, StoreErrorKind, TokenSource};
use redis::Value;

use crate::{connection::Connection, record::text};

/// Asks the server how it is set up.
///
/// # Errors
///
/// When the server cannot be reached, refuses the user, or is too old.
pub(crate) async fn examine(connection: &Connection) -> Result<Capabilities, StoreError> {
    connection.ready().await?;
    let info = answer(connection, &["INFO"]).await?;
    let save = answer(connection, &["CONFIG", "GET", "save"]).await?;
    let fsync = answer(connection, &["CONFIG", "GET", "appendfsync"]).await?;
    let policy = answer(connection, &["CONFIG", "GET", "maxmemory-policy"]).await?;
    let setup = Setup {
        info: info.as_ref().and_then(text).unwrap_or_default(),
        save: setting(save.as_ref()),
        fsync: setting(fsync.as_ref()),
        policy: setting(policy.as_ref()),
    };
    if setup.is_too_old() {
        return Err(StoreError::new(
            StoreErrorKind::NotSupported,
            format!(
                "the server is Redis {}; 6.2 or later is needed",
                setup.field("redis_version").unwrap_or_default()
            ),
        ));
    }
    Ok(setup.capabilities())
}

/// The reply; `None` when the user may not ask.
async fn answer(connection: &Connection, command: &[&str]) -> Result<Option<Value>, StoreError> {
    let mut request = redis::cmd(command[0]);
    request.arg(&command[1..]);
    match connection.call(&request).await {
        Ok(value) => Ok(Some(value)),
        Err(why) if is_about_access(&why) => Err(why),
        Err(why) if why.is_transient() => Err(why),
        Err(_) => Ok(None),
    }
}

/// Whether the user may do nothing at all.
fn is_about_access(why: &StoreError) -> bool {
    let text = why.to_string();
    why.kind() == StoreErrorKind::Permanent
        && (text.contains("NOAUTH") || text.contains("WRONGPASS") || text.contains("password"))
}

/// The value in a reply of CONFIG GET.
fn setting(reply: Option<&Value>) -> Option<&str> {
    match reply? {
        Value::Array(parts) => text(parts.get(1)?),
        Value::Map(pairs) => text(&pairs.first()?.1),
        _ => None,
    }
}

#[derive(Debug, Default)]
struct Setup<'a> {
    info: &'a str,
    save: Option<&'a str>,
    fsync: Option<&'a str>,
    policy: Option<&'a str>,
}

impl<'a> Setup<'a> {
    fn field(&self, name: &str) -> Option<&'a str> {
        self.info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }

    fn is_too_old(&self) -> bool {
        let Some(version) = self.field("redis_version") else {
            return false;
        };
        let mut parts = version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (6, 2)
    }

    fn capabilities(&self) -> Capabilities {
        let mut warnings = Vec::new();
        let durability = self.durability(&mut warnings);
        self.eviction(&mut warnings);
        self.topology(&mut warnings);
        let mut found = Capabilities::new("redis", TokenSource::ServerClock, durability);
        found.warnings = warnings;
        found
    }

    fn durability(&self, warnings: &mut Vec<String>) -> Durability {
        match (self.field("aof_enabled"), self.save) {
            (Some("1"), _) => {
                match self.fsync {
                    Some("always") => {}
                    Some("everysec") => warnings.push(
                        "the server flushes its log once a second (appendfsync everysec): when \
                         its machine crashes, the last locks are forgotten and can be granted again"
                            .into(),
                    ),
                    Some(_) => warnings.push(
                        "the server leaves flushing its log to the system (appendfsync no): when \
                         its machine crashes, locks are forgotten and can be granted again"
                            .into(),
                    ),
                    None => warnings.push(
                        "it is unknown how often the server flushes its log: CONFIG is refused"
                            .into(),
                    ),
                }
                Durability::Disk
            }
            (Some(_), Some("")) => {
                warnings.push(
                    "the server keeps nothing on disk: after a restart every lock can be granted \
                     again; holders learn it when they renew"
                        .into(),
                );
                Durability::Volatile
            }
            (Some(_), Some(_)) => {
                warnings.push(
                    "the server only saves snapshots: a crash forgets the locks since the last \
                     one, and they can be granted again; holders learn it when they renew"
                        .into(),
                );
                Durability::Volatile
            }
            _ => {
                warnings.push(
                    "it is unknown whether the server keeps locks on disk: INFO or CONFIG is refused"
                        .into(),
                );
                Durability::Volatile
            }
        }
    }

    fn eviction(&self, warnings: &mut Vec<String>) {
        match self.policy.or_else(|| self.field("maxmemory_policy")) {
            Some("noeviction") => {}
            Some(policy) => warnings.push(format!(
                "the server may evict locks when its memory is full (maxmemory-policy {policy}; \
                 noeviction is safe)"
            )),
            None => warnings.push(
                "it is unknown whether the server evicts keys: INFO and CONFIG are refused".into(),
            ),
        }
    }

    fn topology(&self, warnings: &mut Vec<String>) {
        if self
            .field("connected_slaves")
            .is_some_and(|replicas| replicas != "0")
        {
            warnings.push(
                "replication is asynchronous: a fail-over can forget the last locks, and they can \
                 be granted again"
                    .into(),
            );
        }
        if self.field("cluster_enabled") == Some("1") {
            warnings.push(
                "the server is one node of a cluster: only locks in its slots can be used, and \
                 renewals go out one by one"
                    .into(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURABLE: Setup<'_> = Setup {
        info: "redis_version:7.0.15\r\naof_enabled:1\r\nconnected_slaves:0\r\n",
        save: Some(""),
        fsync: Some("always"),
        policy: Some("noeviction"),
    };

    #[test]
    fn a_durable_server_gives_no_warning() {
        let found = DURABLE.capabilities();
        assert_eq!(found.durability, Durability::Disk);
        assert_eq!(found.warnings, Vec::<String>::new());
    }

    #[test]
    fn what_weakens_the_guarantees_is_said() {
        let said = |setup: Setup<'_>| setup.capabilities().warnings.join("\n");
        let info = "aof_enabled:0\r\nconnected_slaves:2\r\n";
        assert!(said(Setup { info, ..DURABLE }).contains("nothing on disk"));
        assert!(said(Setup { info, ..DURABLE }).contains("asynchronous"));
        assert!(
            said(Setup {
                info,
                save: Some("60 1"),
                ..DURABLE
            })
            .contains("snapshots")
        );
        assert!(
            said(Setup {
                policy: Some("allkeys-lru"),
                ..DURABLE
            })
            .contains("evict")
        );
        assert!(
            said(Setup {
                fsync: Some("everysec"),
                ..DURABLE
            })
            .contains("once a second")
        );
        let denied = Setup::default().capabilities();
        assert_eq!(denied.durability, Durability::Volatile);
        assert_eq!(
            denied
                .warnings
                .iter()
                .filter(|said| said.contains("unknown"))
                .count(),
            2
        );
    }

    #[test]
    fn old_servers_are_refused() {
        let old = |info| Setup { info, ..DURABLE }.is_too_old();
        assert!(old("redis_version:6.0.16\r\n"));
        assert!(!old("redis_version:6.2.0\r\n"));
        assert!(!old("redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n"));
        assert!(!old(""));
    }
}
