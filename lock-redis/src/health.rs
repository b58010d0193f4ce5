//! How the server is set up, and what that weakens.

use std::time::{Duration, SystemTime};

use lock_core::{
    Capabilities, Durability, Finding, Severity, StoreError, StoreErrorKind, TokenSource,
};
use redis::Value;

use crate::{connection::Connection, record::text};

/// Asks the server how it is set up.
///
/// # Errors
///
/// When the server cannot be reached, refuses the user, or is too old.
pub(crate) async fn examine(connection: &Connection) -> Result<Capabilities, StoreError> {
    connection.ready().await?;
    let answers = Answers::ask(connection).await?;
    let setup = answers.setup();
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

/// Everything there is to say to an operator.
///
/// # Errors
///
/// When the server cannot be reached.
pub(crate) async fn findings(
    connection: &Connection,
    prefix: &str,
) -> Result<Vec<Finding>, StoreError> {
    let answers = Answers::ask(connection).await?;
    let setup = answers.setup();
    let mut findings = vec![setup.version()];
    findings.extend(setup.findings());
    findings.extend(setup.disk());
    findings.extend(clock(connection).await?);
    findings.push(notices(connection, prefix).await);
    Ok(findings)
}

async fn clock(connection: &Connection) -> Result<Option<Finding>, StoreError> {
    let sent = SystemTime::now();
    let reply = answer(connection, &["TIME"]).await?;
    let answered = SystemTime::now();
    let Some(Value::Array(parts)) = reply else {
        return Ok(None);
    };
    let mut parts = parts.iter().map(|part| text(part)?.parse::<u64>().ok());
    let (Some(Some(seconds)), Some(Some(micros))) = (parts.next(), parts.next()) else {
        return Ok(None);
    };
    let server =
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
    Ok(Some(Finding::clock(server, sent, answered)))
}

/// Whether the user may tell waiters, and be told.
async fn notices(connection: &Connection, prefix: &str) -> Finding {
    let channel = format!("{prefix}:wake:examine");
    let told = connection.server().subscribe(&channel, |_| {}).await;
    let tells = connection
        .call(redis::cmd("PUBLISH").arg(&channel).arg(""))
        .await;
    match told.map(drop).and(tells.map(drop)) {
        Ok(()) => Finding::ok("rights", "the user may publish and subscribe"),
        Err(why) => Finding::note(
            "rights",
            format!("the user may not publish or subscribe ({why})"),
            "waiters look twice a second instead of being told that it is their turn",
        ),
    }
}

/// What the server said to each question.
struct Answers {
    info: Option<Value>,
    save: Option<Value>,
    fsync: Option<Value>,
    policy: Option<Value>,
}

impl Answers {
    async fn ask(connection: &Connection) -> Result<Self, StoreError> {
        Ok(Self {
            info: answer(connection, &["INFO"]).await?,
            save: answer(connection, &["CONFIG", "GET", "save"]).await?,
            fsync: answer(connection, &["CONFIG", "GET", "appendfsync"]).await?,
            policy: answer(connection, &["CONFIG", "GET", "maxmemory-policy"]).await?,
        })
    }

    fn setup(&self) -> Setup<'_> {
        Setup {
            info: self.info.as_ref().and_then(text).unwrap_or_default(),
            save: setting(self.save.as_ref()),
            fsync: setting(self.fsync.as_ref()),
            policy: setting(self.policy.as_ref()),
        }
    }
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
        self.field("redis_version")
            .is_some_and(|version| numbers(version) < [6, 2, 0])
    }

    fn capabilities(&self) -> Capabilities {
        let (durability, _) = self.persistence();
        let mut found = Capabilities::new("redis", TokenSource::ServerClock, durability);
        let findings = self.findings().into_iter();
        let warnings = findings.filter(|finding| finding.severity >= Severity::Warning);
        found.warnings = warnings.map(|finding| finding.to_string()).collect();
        found
    }

    /// What bears on the guarantees.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.persistence().1, self.eviction()];
        findings.extend(self.topology());
        findings
    }

    fn version(&self) -> Finding {
        // The releases that mended CVE-2025-49844, by which a script may run any code.
        const REDIS: [[u32; 3]; 5] = [[6, 2, 20], [7, 2, 11], [7, 4, 6], [8, 0, 4], [8, 2, 2]];
        const VALKEY: [[u32; 3]; 3] = [[7, 2, 11], [8, 0, 6], [8, 1, 4]];
        let (name, version, fixed) = match self.field("valkey_version") {
            Some(version) => ("Valkey", Some(version), &VALKEY[..]),
            None => ("Redis", self.field("redis_version"), &REDIS[..]),
        };
        let Some(version) = version else {
            return Finding::note(
                "version",
                "the server's version is unknown: INFO is refused",
                "",
            );
        };
        let has = numbers(version);
        let is_fixed = match fixed.iter().find(|fixed| fixed[..2] == has[..2]) {
            Some(fixed) => has >= *fixed,
            None => fixed.last().is_some_and(|newest| has > *newest),
        };
        let what = format!("the server is {name} {version}");
        if is_fixed {
            return Finding::ok("version", what);
        }
        Finding::note(
            "version",
            what,
            "unless its distributor has mended CVE-2025-49844, whoever may run scripts in it may \
             take it over, and every lock with it",
        )
    }

    fn persistence(&self) -> (Durability, Finding) {
        let warning = |what: &str, meaning: &str| Finding::warning("persistence", what, meaning);
        match (self.field("aof_enabled"), self.save) {
            (Some("1"), _) => {
                let finding = match self.fsync {
                    Some("always") => Finding::ok(
                        "persistence",
                        "the server writes every change to disk before it answers",
                    ),
                    Some("everysec") => warning(
                        "the server flushes its log once a second (appendfsync everysec)",
                        "when its machine crashes, the last locks are forgotten and can be granted \
                         again",
                    ),
                    Some(_) => warning(
                        "the server leaves flushing its log to the system (appendfsync no)",
                        "when its machine crashes, locks are forgotten and can be granted again",
                    ),
                    None => warning(
                        "it is unknown how often the server flushes its log",
                        "CONFIG is refused",
                    ),
                };
                (Durability::Disk, finding)
            }
            (Some(_), Some("")) => (
                Durability::Volatile,
                warning(
                    "the server keeps nothing on disk",
                    "after a restart every lock can be granted again; holders learn it when they \
                     renew",
                ),
            ),
            (Some(_), Some(_)) => (
                Durability::Volatile,
                warning(
                    "the server only saves snapshots",
                    "a crash forgets the locks since the last one, and they can be granted again; \
                     holders learn it when they renew",
                ),
            ),
            _ => (
                Durability::Volatile,
                warning(
                    "it is unknown whether the server keeps locks on disk",
                    "INFO or CONFIG is refused",
                ),
            ),
        }
    }

    fn eviction(&self) -> Finding {
        match self.policy.or_else(|| self.field("maxmemory_policy")) {
            Some("noeviction") => Finding::ok("eviction", "the server evicts nothing"),
            Some(policy) => Finding::warning(
                "eviction",
                format!(
                    "the server may evict locks when its memory is full (maxmemory-policy \
                     {policy}; noeviction is safe)"
                ),
                "an evicted lock can be granted again; its holder learns it when it renews",
            ),
            None => Finding::warning(
                "eviction",
                "it is unknown whether the server evicts keys",
                "INFO and CONFIG are refused",
            ),
        }
    }

    fn topology(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(replicas) = self.field("connected_slaves").filter(|count| *count != "0") {
            findings.push(Finding::warning(
                "replication",
                format!("replication is asynchronous, to {replicas}"),
                "a fail-over can forget the last locks, and they can be granted again",
            ));
        }
        if self.field("cluster_enabled") == Some("1") {
            findings.push(Finding::warning(
                "cluster",
                "the server is one node of a cluster",
                "only locks in its slots can be used, and renewals go out one by one",
            ));
        }
        findings
    }

    /// Whether what is to be on disk gets there.
    fn disk(&self) -> Option<Finding> {
        let failed = ["aof_last_write_status", "rdb_last_bgsave_status"]
            .into_iter()
            .find(|field| self.field(field) == Some("err"))?;
        Some(Finding::warning(
            "disk",
            format!("the server cannot write to its disk ({failed} is err)"),
            "it may refuse changes, and forgets its locks at a restart",
        ))
    }
}

/// The first three numbers of a version.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
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

    #[test]
    fn versions_are_told() {
        let severity = |info| Setup { info, ..DURABLE }.version().severity;
        assert_eq!(severity("redis_version:8.2.2\r\n"), Severity::Ok);
        assert_eq!(severity("redis_version:9.0.0\r\n"), Severity::Ok);
        assert_eq!(severity("redis_version:7.4.6\r\n"), Severity::Ok);
        assert_eq!(severity("redis_version:7.0.15\r\n"), Severity::Note);
        assert_eq!(severity("redis_version:6.2.19\r\n"), Severity::Note);
        let valkey = "redis_version:7.2.4\r\nvalkey_version:8.1.4\r\n";
        assert_eq!(severity(valkey), Severity::Ok);
        assert_eq!(severity(""), Severity::Note);
    }

    #[test]
    fn a_disk_that_fails_is_told() {
        let info = "aof_last_write_status:err\r\n";
        assert!(DURABLE.disk().is_none());
        assert!(Setup { info, ..DURABLE }.disk().is_some());
    }
}
