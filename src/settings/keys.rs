//! Every key, with its range and default. The checks, and the page docs/configuration.md, come
//! from here.

use std::time::Duration;

/// A setting.
#[derive(Debug)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "part of it is for the page only")
)]
pub(super) struct Key {
    /// Its name; after the section and a dot where it has one.
    pub(super) name: &'static str,
    pub(super) range: Range,
    /// What it is when it is not set, as one would write it; empty for nothing.
    pub(super) default: &'static str,
    pub(super) about: &'static str,
}

/// What a setting may be.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "part of it is for the page only")
)]
pub(super) enum Range {
    /// From … to, or one of these words.
    Time(Duration, Duration, &'static [&'static str]),
    Count(u64, u64),
    Words(&'static [&'static str]),
    /// What the text has to be like.
    Text(&'static str),
}

impl Key {
    pub(super) fn section(&self) -> Option<&'static str> {
        self.name.split_once('.').map(|(section, _)| section)
    }
}

pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether the store that a section is for is there.
pub(super) fn is_compiled_in(section: &str) -> bool {
    let stores = [
        ("redis", cfg!(feature = "redis")),
        ("postgres", cfg!(feature = "postgres")),
        ("etcd", cfg!(feature = "etcd")),
        ("sqlite", cfg!(feature = "sqlite")),
    ];
    !stores.contains(&(section, false))
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const DECADE: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
const FLAG: Range = Range::Words(&["false", "true"]);
const FILE: Range = Range::Text("a file in PEM form");

const fn time(least: Duration, most: Duration) -> Range {
    Range::Time(least, most, &[])
}

const fn key(name: &'static str, range: Range, default: &'static str, about: &'static str) -> Key {
    Key {
        name,
        range,
        default,
        about,
    }
}

pub(super) const KEYS: &[Key] = &[
    key(
        "url",
        Range::Text("a URL of a store that is compiled in; it has to be set"),
        "",
        "the store; it may hold a password, which is never shown",
    ),
    key(
        "prefix",
        Range::Text(
            "Redis: 1 to 100 bytes without braces; etcd: 1 to 100 bytes without colons; Postgres: \
             1 to 40 lower-case letters, digits and `_`; not for SQLite and memory",
        ),
        "distlock",
        "what the names of keys or tables begin with; separates applications on one store",
    ),
    key(
        "ttl",
        time(MS, YEAR),
        "30s",
        "the length of a lease: how long a lock stays taken when its holder has crashed",
    ),
    key(
        "wait",
        Range::Time(MS, DECADE, &["none", "forever"]),
        "30s",
        "how long an acquire waits while the lock is busy",
    ),
    key(
        "max_hold",
        time(MS, DECADE),
        "",
        "the longest time that a lock may be held in all; without it there is no limit",
    ),
    key(
        "renewal",
        time(MS, YEAR),
        "",
        "how long after a grant or a renewal the lease is renewed, shorter than `ttl`; without it \
         a third of the ttl",
    ),
    key(
        "operation_timeout",
        time(MS, HOUR),
        "5s",
        "how long one request to the store may take",
    ),
    key(
        "max_holds",
        Range::Count(1, u32::MAX as u64),
        "1000",
        "how often an owner may enter one lock",
    ),
    key(
        "label",
        Range::Text("1 to 255 bytes without control characters"),
        "",
        "a name for people who look at a lock, and the label `client` of metrics",
    ),
    key(
        "metrics_by_key",
        FLAG,
        "false",
        "whether every metric is labelled with the lock's key, which costs a series for each",
    ),
    key(
        "tls.ca",
        FILE,
        "",
        "the authorities to trust instead of the system's",
    ),
    key(
        "tls.certificate",
        FILE,
        "",
        "the client's own certificate; with `tls.key`",
    ),
    key(
        "tls.key",
        FILE,
        "",
        "the key of that certificate; with `tls.certificate`",
    ),
    key(
        "redis.operation_timeout",
        time(MS, YEAR),
        "3s",
        "how long one command may take, connecting included; keep it below `operation_timeout`",
    ),
    key(
        "redis.claim_window",
        time(MS, YEAR),
        "2s",
        "how long the first waiter has to claim a lock that became free",
    ),
    key(
        "redis.token_retention",
        time(SECOND, YEAR),
        "2h",
        "how long the last token of a lock is remembered after its grant",
    ),
    key(
        "postgres.schema",
        Range::Text("1 to 63 ASCII letters, digits and `_`"),
        "public",
        "the schema of the tables",
    ),
    key(
        "postgres.schema_mode",
        Range::Words(&["ensure", "check"]),
        "ensure",
        "whether missing tables are created, or an error",
    ),
    key(
        "postgres.listen_url",
        Range::Text("a URL of Postgres"),
        "",
        "the server's own address, to be told on when `url` is a pooler",
    ),
    key(
        "postgres.listen",
        FLAG,
        "true",
        "whether waiters are told, instead of looking every `postgres.poll_interval`",
    ),
    key(
        "postgres.pooler",
        Range::Words(&["detect", "none", "transaction"]),
        "detect",
        "whether a pooler is in between",
    ),
    key(
        "postgres.synchronous_commit",
        Range::Words(&["server_default", "on", "remote_apply", "local", "off"]),
        "server_default",
        "how safe a commit is before it is answered",
    ),
    key(
        "postgres.request_timeout",
        time(Duration::from_millis(100), HOUR),
        "5s",
        "how long one statement, or the making of a connection, may take",
    ),
    key(
        "postgres.batch_limit",
        Range::Count(1, 1000),
        "256",
        "how many requests go out in one statement at most",
    ),
    key(
        "postgres.sweep_interval",
        Range::Time(MS, YEAR, &["never"]),
        "1m",
        "how often this process looks for rows that nobody uses any more",
    ),
    key(
        "postgres.keep_idle",
        time(Duration::ZERO, DECADE),
        "10m",
        "how long a row is kept after its lock was last held",
    ),
    key(
        "postgres.poll_interval",
        time(Duration::from_millis(10), SECOND),
        "100ms",
        "how often waiters look where they cannot be told",
    ),
    key(
        "etcd.operation_timeout",
        time(MS, YEAR),
        "3s",
        "how long one request may take, connecting and other members included; keep it below \
         `operation_timeout`",
    ),
    key(
        "etcd.lease_pool",
        Range::Count(0, 10_000),
        "128",
        "how many unused leases are kept for the next locks",
    ),
    key(
        "sqlite.busy_timeout",
        time(Duration::ZERO, MINUTE),
        "3s",
        "how long a call waits while another program keeps the file locked",
    ),
    key(
        "sqlite.poll_interval",
        time(MS, SECOND),
        "10ms",
        "how often a process with waiters looks whether the file has changed",
    ),
    key(
        "sqlite.claim_window",
        time(Duration::from_millis(100), Duration::from_secs(10)),
        "1s 900ms",
        "how long a waiter that gives no sign of life keeps its place",
    ),
    key(
        "sqlite.forget_after",
        time(Duration::ZERO, DECADE),
        "1day",
        "how long a lock has to be unused before its row may be deleted",
    ),
];
