//! What cannot be, before anything is sent.

use std::{fmt, time::Duration};

use humantime_serde::re::humantime::format_duration;

use super::{
    LockConfig,
    keys::{self, Range},
};
use crate::{Error, Wait};

/// A setting that cannot be used.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) key: String,
    what: String,
}

impl Problem {
    pub(super) fn new(key: &str, what: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.key, self.what)
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::InvalidConfig {
            what: problem.to_string(),
        }
    }
}

pub(super) fn check(config: &LockConfig) -> Result<(), Problem> {
    if config.url.expose().is_empty() {
        return Err(Problem::new("url", "it has to be set"));
    }
    for (key, value) in values(config) {
        within(key, value)?;
    }
    words(config)?;
    if let Some(renewal) = config.renewal
        && renewal >= config.ttl
    {
        let (renewal, ttl) = (shown(renewal), shown(config.ttl));
        let what = format!("it is {renewal}; it has to be shorter than `ttl`, which is {ttl}");
        return Err(Problem::new("renewal", what));
    }
    sections(config)?;
    tls(config)
}

#[derive(Clone, Copy)]
enum Value {
    Time(Duration),
    Count(u64),
}

/// Everything that has a range.
fn values(config: &LockConfig) -> Vec<(&'static str, Value)> {
    use Value::{Count, Time};
    let mut values = vec![
        ("ttl", Time(config.ttl)),
        ("operation_timeout", Time(config.operation_timeout)),
        ("max_holds", Count(config.max_holds.into())),
    ];
    let wait = match config.wait {
        Wait::AtMost(limit) => Some(limit),
        Wait::No | Wait::Forever => None,
    };
    let optional = [
        ("wait", wait),
        ("max_hold", config.max_hold),
        ("renewal", config.renewal),
    ];
    values.extend(
        optional
            .map(|(key, time)| time.map(|time| (key, Time(time))))
            .into_iter()
            .flatten(),
    );
    #[cfg(feature = "redis")]
    if let Some(redis) = &config.redis {
        values.extend([
            ("redis.operation_timeout", Time(redis.operation_timeout)),
            ("redis.claim_window", Time(redis.claim_window)),
            ("redis.token_retention", Time(redis.token_retention)),
        ]);
    }
    #[cfg(feature = "postgres")]
    if let Some(postgres) = &config.postgres {
        values.extend([
            ("postgres.request_timeout", Time(postgres.request_timeout)),
            ("postgres.batch_limit", Count(postgres.batch_limit.into())),
            ("postgres.keep_idle", Time(postgres.keep_idle)),
            ("postgres.poll_interval", Time(postgres.poll_interval)),
        ]);
        let sweep = postgres.sweep_interval;
        values.extend(sweep.map(|every| ("postgres.sweep_interval", Time(every))));
    }
    #[cfg(feature = "etcd")]
    if let Some(etcd) = &config.etcd {
        values.extend([
            ("etcd.operation_timeout", Time(etcd.operation_timeout)),
            ("etcd.lease_pool", Count(etcd.lease_pool.into())),
        ]);
    }
    #[cfg(feature = "sqlite")]
    if let Some(sqlite) = &config.sqlite {
        values.extend([
            ("sqlite.busy_timeout", Time(sqlite.busy_timeout)),
            ("sqlite.poll_interval", Time(sqlite.poll_interval)),
            ("sqlite.claim_window", Time(sqlite.claim_window)),
            ("sqlite.forget_after", Time(sqlite.forget_after)),
        ]);
    }
    values
}

fn within(key: &str, value: Value) -> Result<(), Problem> {
    let range = keys::find(key).map(|key| key.range);
    match (value, range) {
        (Value::Time(time), Some(Range::Time(least, most, words))) => {
            if time >= least && time <= most {
                return Ok(());
            }
            let [time, least, most] = [time, least, most].map(shown);
            let mut what = format!("it is {time}; it has to be from {least} to {most}");
            for word in words {
                what += &format!(", or `{word}`");
            }
            Err(Problem::new(key, what))
        }
        (Value::Count(count), Some(Range::Count(least, most))) => {
            if count >= least && count <= most {
                return Ok(());
            }
            let what = format!("it is {count}; it has to be from {least} to {most}");
            Err(Problem::new(key, what))
        }
        _ => unreachable!("{key} has no such range"),
    }
}

/// Texts that a store would put into its names.
fn words(config: &LockConfig) -> Result<(), Problem> {
    if let Some(label) = &config.label
        && (label.is_empty() || label.len() > 255 || label.contains(char::is_control))
    {
        let what =
            format!("it is {label:?}; it has to be 1 to 255 bytes without control characters");
        return Err(Problem::new("label", what));
    }
    let Some(prefix) = &config.prefix else {
        return Ok(());
    };
    let sized = |most| !prefix.is_empty() && prefix.len() <= most;
    let free_of = |bad: &[char]| !prefix.contains(|c: char| c.is_control() || bad.contains(&c));
    let (good, what) = match section_of(&config.url.scheme()) {
        Some("redis") => (
            sized(100) && free_of(&['{', '}']),
            "1 to 100 bytes without braces and control characters",
        ),
        Some("etcd") => (
            sized(100) && free_of(&[':']),
            "1 to 100 bytes without colons and control characters",
        ),
        Some("postgres") => {
            let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let digit_first = prefix.starts_with(|c: char| c.is_ascii_digit());
            (
                sized(40) && prefix.chars().all(word) && !digit_first,
                "1 to 40 lower-case ASCII letters, digits and underscores, no digit first",
            )
        }
        Some(_) => {
            let what = "a file of SQLite has no prefix; give each application a file";
            return Err(Problem::new("prefix", what));
        }
        None => {
            let what = "the memory store has no prefix";
            return Err(Problem::new("prefix", what));
        }
    };
    if good {
        return Ok(());
    }
    let what = format!("it is {prefix:?}; it has to be {what}");
    Err(Problem::new("prefix", what))
}

/// A section is for one store only.
fn sections(config: &LockConfig) -> Result<(), Problem> {
    let given: &[(&str, bool)] = &[
        #[cfg(feature = "redis")]
        ("redis", config.redis.is_some()),
        #[cfg(feature = "postgres")]
        ("postgres", config.postgres.is_some()),
        #[cfg(feature = "etcd")]
        ("etcd", config.etcd.is_some()),
        #[cfg(feature = "sqlite")]
        ("sqlite", config.sqlite.is_some()),
    ];
    let store = section_of(&config.url.scheme());
    for (section, given) in given {
        if *given && Some(*section) != store {
            let what = format!(
                "this section is for another store than that of `url`, which is {}",
                store.unwrap_or("memory or unknown")
            );
            return Err(Problem::new(section, what));
        }
    }
    #[cfg(feature = "postgres")]
    if let Some(postgres) = &config.postgres {
        postgres_itself(postgres)?;
    }
    #[cfg(feature = "sqlite")]
    if config.sqlite.is_some() && config.url.expose().contains('?') {
        let what = "`url` has settings behind a `?`; give all of them here, or there";
        return Err(Problem::new("sqlite", what));
    }
    Ok(())
}

#[cfg(feature = "postgres")]
fn postgres_itself(postgres: &super::PostgresConfig) -> Result<(), Problem> {
    let schema = &postgres.schema;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !(1..=63).contains(&schema.len())
        || !schema.chars().all(word)
        || schema.starts_with(|c: char| c.is_ascii_digit())
    {
        let what = format!(
            "it is {schema:?}; it has to be 1 to 63 ASCII letters, digits and underscores, no \
             digit first"
        );
        return Err(Problem::new("postgres.schema", what));
    }
    if postgres.listen_url.is_some() && !postgres.listen {
        let what = "there is an address to listen on, but `postgres.listen` is false";
        return Err(Problem::new("postgres.listen_url", what));
    }
    Ok(())
}

fn tls(config: &LockConfig) -> Result<(), Problem> {
    let Some(tls) = &config.tls else {
        return Ok(());
    };
    if !cfg!(feature = "tls") {
        return Err(Problem::new("tls", "it needs the feature `tls`"));
    }
    if !matches!(
        config.url.scheme().as_str(),
        "rediss" | "valkeys" | "postgres" | "postgresql" | "etcds"
    ) {
        let what = "the store of `url` is not reached by TLS: that begins with `rediss:`, \
                    `valkeys:`, `etcds:` or `postgres:`";
        return Err(Problem::new("tls", what));
    }
    match (&tls.certificate, &tls.key) {
        (Some(_), None) => Err(Problem::new(
            "tls.key",
            "it is missing, beside a certificate",
        )),
        (None, Some(_)) => Err(Problem::new(
            "tls.certificate",
            "it is missing, beside a key",
        )),
        _ => Ok(()),
    }
}

/// The section of the store that a scheme leads to; `None` for memory, and what nobody knows.
pub(super) fn section_of(scheme: &str) -> Option<&'static str> {
    match scheme {
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" => Some("redis"),
        "postgres" | "postgresql" => Some("postgres"),
        "etcd" | "etcds" => Some("etcd"),
        "sqlite" => Some("sqlite"),
        _ => None,
    }
}

/// As one would write it, and long ranges in days.
pub(super) fn shown(time: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match (time.as_secs(), time.subsec_nanos()) {
        (seconds, 0) if seconds > DAY && seconds % DAY == 0 => format!("{}days", seconds / DAY),
        _ => format_duration(time).to_string(),
    }
}
