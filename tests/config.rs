//! Settings from files and the environment, and errors that say where to look.

#![allow(clippy::unwrap_used)]

use std::{fs, path::PathBuf, time::Duration};

use distlock::{Error, LockConfig, LockConfigLoader, Wait};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

/// Settings of one file and no variable.
fn load(name: &str, text: &str) -> Result<LockConfig, Error> {
    let folder = Folder::new();
    LockConfig::loader().file(folder.write(name, text)).load()
}

fn variables(list: &[(&'static str, &'static str)]) -> LockConfigLoader {
    LockConfig::loader().variables("DISTLOCK", list.iter().copied())
}

/// The message; every error here is about the configuration.
fn why(refused: Result<LockConfig, Error>) -> String {
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
    format!("{error}")
}

#[test]
fn three_formats_say_the_same() {
    let toml = load(
        "locks.toml",
        "url = 'memory:'\nttl = '20s'\nwait = 'forever'\nmax_holds = 7\nmetrics_by_key = true",
    );
    let yaml = load(
        "locks.yml",
        "url: 'memory:'\nttl: 20s\nwait: forever\nmax_holds: 7\nmetrics_by_key: true",
    );
    let json = load(
        "locks.json",
        r#"{"url": "memory:", "ttl": "20s", "wait": "forever", "max_holds": 7, "metrics_by_key": true}"#,
    );
    let from_variables = variables(&[
        ("DISTLOCK_URL", "memory:"),
        ("DISTLOCK_TTL", "20s"),
        ("DISTLOCK_WAIT", "forever"),
        ("DISTLOCK_MAX_HOLDS", "7"),
        ("DISTLOCK_METRICS_BY_KEY", "true"),
        ("DISTLOCK_LABEL", ""),
        ("OTHER", "x"),
    ]);
    let toml = toml.unwrap();
    assert_eq!(toml.ttl, Duration::from_secs(20));
    assert_eq!(toml.wait, Wait::Forever);
    assert_eq!((toml.max_holds, toml.metrics_by_key), (7, true));
    for same in [yaml, json, from_variables.load()] {
        assert_eq!(same.unwrap(), toml);
    }
}

#[test]
fn what_is_named_later_wins() {
    let folder = Folder::new();
    let base = folder.write(
        "base.toml",
        "url = 'memory:'\nttl = '20s'\nwait = '1s'\nlabel = 'a'",
    );
    let local = folder.write("local.yaml", "ttl: 10s\nwait: 2s");
    let config = LockConfig::loader()
        .file(base)
        .optional_file(local)
        .optional_file(folder.0.path().join("missing.toml"))
        .variables("SHOP", [("SHOP_WAIT", "none")])
        .load()
        .unwrap();
    assert_eq!(config.ttl, Duration::from_secs(10));
    assert_eq!(config.wait, Wait::No);
    assert_eq!(config.label.as_deref(), Some("a"));
}

/// A38: the key, the range and the file or the variable.
#[test]
fn errors_name_the_key_the_range_and_the_source() {
    let memory = |rest: &str| format!("url = 'memory:'\n{rest}");
    let cases = [
        (memory("tll = '1s'"), vec!["`tll`", "no such setting"]),
        (
            memory("max_holding = '1s'"),
            vec!["`max_holding`", "`max_hold`"],
        ),
        (memory("ttl = '0s'"), vec!["`ttl`", "0s", "1ms", "366days"]),
        (memory("ttl = '1ns'"), vec!["`ttl`", "1ns", "1ms"]),
        (memory("ttl = 5"), vec!["`ttl`"]),
        (memory("ttl = 'soon'"), vec!["`ttl`", "soon"]),
        (
            memory("wait = '0s'"),
            vec!["`wait`", "zero", "`none`", "`forever`"],
        ),
        (memory("wait = 'never'"), vec!["`wait`", "never", "`none`"]),
        (memory("max_hold = '0s'"), vec!["`max_hold`", "1ms"]),
        (memory("max_holds = 0"), vec!["`max_holds`", "from 1 to"]),
        (memory("max_holds = -1"), vec!["`max_holds`"]),
        (memory("max_holds = 'many'"), vec!["`max_holds`"]),
        (
            memory("metrics_by_key = 'perhaps'"),
            vec!["`metrics_by_key`"],
        ),
        (
            memory("renewal = '30s'"),
            vec!["`renewal`", "shorter than `ttl`", "30s"],
        ),
        (
            memory("operation_timeout = '2h'"),
            vec!["`operation_timeout`", "1h"],
        ),
        (memory("label = ''"), vec!["`label`", "255"]),
        (memory("prefix = 'shop'"), vec!["`prefix`", "memory"]),
        (memory("[tls]\nca = 'x'"), vec!["`tls`"]),
        (
            memory("[tls]\ncert = 'x'"),
            vec!["`tls.cert`", "`tls.certificate`"],
        ),
        (memory("[ttl]\nx = 1"), vec!["`ttl"]),
        ("ttl = '1s'".to_owned(), vec!["`url`", "set"]),
    ];
    for (text, parts) in cases {
        let why = why(load("locks.toml", &text));
        for part in parts {
            assert!(why.contains(part), "{text}: {why}");
        }
        if text.contains("url") {
            assert!(why.contains("locks.toml"), "{text}: {why}");
        }
    }
    for (variable, value, part) in [
        ("DISTLOCK_TLL", "1s", "no such"),
        ("DISTLOCK_TTL", "0s", "1ms"),
        ("DISTLOCK_MAX_HOLDS", "0", "from 1"),
        ("DISTLOCK_MAX_HOLDS", "many", "many"),
        ("DISTLOCK_TLS__CERT", "x", "no such"),
        ("DISTLOCK_RENEWAL", "40s", "shorter"),
    ] {
        let why = why(variables(&[("DISTLOCK_URL", "memory:"), (variable, value)]).load());
        assert!(why.contains(&format!("variable {variable}")), "{why}");
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = Folder::new();
    let missing = LockConfig::loader()
        .file(folder.0.path().join("locks.toml"))
        .load();
    assert!(why(missing).contains("locks.toml"));
    assert!(why(load("locks.ini", "")).contains(".toml"));
    for (name, text) in [
        ("locks.toml", "url = 'memory:"),
        ("locks.json", "{"),
        ("locks.json", "[1]"),
        ("locks.yaml", "url: ["),
    ] {
        let why = why(load(name, text));
        assert!(why.contains(name), "{why}");
    }
}

/// What `distlock run` tells its command does not stop that command from reading its settings.
#[test]
fn the_variables_of_a_run_are_no_settings() {
    let config = variables(&[
        ("DISTLOCK_URL", "memory:"),
        ("DISTLOCK_KEY", "k"),
        ("DISTLOCK_TOKEN", "7"),
        ("DISTLOCK_OWNER", "0"),
        ("DISTLOCK_OUTER", "{}"),
        ("DISTLOCK_EXIT_CODE_BASE", "100"),
    ]);
    assert_eq!(config.load().unwrap(), LockConfig::new("memory:"));
}

/// Passwords are in no error and no `Debug`.
#[tokio::test]
async fn secrets_stay_secret() {
    let url = "redis://me:hunter2@127.0.0.1:1/0";
    let loader = variables(&[("DISTLOCK_URL", url)]);
    assert!(!format!("{loader:?}").contains("hunter2"));
    let config = LockConfig::new(url);
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    assert_eq!(config.url.expose(), url);
    for text in [
        "url = 'redis://me:hunter2@h\nttl = 1",
        "url = \"redis://me:hunter2@h\"\nttl = '0s'",
        "url = ['redis://me:hunter2@h']",
        "url = 'redis://me:hunter2@h'\nurl = 'redis://me:hunter2@h'",
        "url = 'redis://me:hunter2@h'\nprefix = '{'",
        "url = 'postgres://me:hunter2@h/d'\n[postgres]\nlisten = false\nlisten_url = 'postgres://me:hunter2@h/d'\nx = 1",
    ] {
        let why = why(load("locks.toml", text));
        assert!(!why.contains("hunter2"), "{why}");
    }
    for wrong in [
        "redis://me:hunter2@h:x",
        "hunter2",
        "mysql://hunter2",
        "etcd://me:hunter2@",
    ] {
        let error = LockConfig::new(wrong).connect().await.unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_client_has_the_options() {
    let config = load(
        "locks.toml",
        "url = 'memory:'\nttl = '20s'\nwait = 'none'\nlabel = 'shop'\nrenewal = '5s'\nmax_hold = '1m'",
    );
    let locks = config.unwrap().connect().await.unwrap();
    let guard = locks.acquire("k").await.unwrap();
    assert_eq!(guard.ttl(), Duration::from_secs(20));
    let busy = locks.acquire("k").await.unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    assert!(busy.to_string().contains("shop"), "{busy}");
    guard.release().await.unwrap();
}

/// A38: a section whose store is not there names the feature that brings it.
#[test]
fn a_section_that_is_not_compiled_in_names_its_feature() {
    for (store, is_there) in [
        ("redis", cfg!(feature = "redis")),
        ("postgres", cfg!(feature = "postgres")),
        ("etcd", cfg!(feature = "etcd")),
        ("sqlite", cfg!(feature = "sqlite")),
    ] {
        let section = load("locks.toml", &format!("url = 'memory:'\n[{store}]"));
        let why = why(section);
        let part = match is_there {
            true => "another store".to_owned(),
            false => format!("feature `{store}`"),
        };
        assert!(why.contains(&part), "{why}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_section_of_the_store_is_used() {
    let folder = Folder::new();
    let url = format!("sqlite://{}", folder.0.path().join("locks.db").display());
    let mut config = LockConfig::new(url.as_str());
    config.sqlite = Some(Default::default());
    let locks = config.connect().await.unwrap();
    assert_eq!(locks.capabilities().store, "sqlite");
    locks
        .try_acquire("k")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    config.url = distlock::StoreUrl::new(format!("{url}?busy_timeout_ms=1"));
    let why = config.check().unwrap_err().to_string();
    assert!(why.contains("`sqlite`") && why.contains('?'), "{why}");
    config.url = "memory:".into();
    let why = config.check().unwrap_err().to_string();
    assert!(
        why.contains("`sqlite`") && why.contains("another store"),
        "{why}"
    );
}

/// What the settings allow, the stores take: with any end of any range the next error is that
/// nobody listens there, or none.
#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "etcd",
    feature = "sqlite",
    feature = "tls"
))]
#[tokio::test]
async fn the_stores_take_what_is_allowed() {
    let folder = Folder::new();
    let file = format!("sqlite://{}", folder.0.path().join("locks.db").display());
    let sections = [
        (
            "redis://127.0.0.1:1",
            "operation_timeout = '1ms'\nclaim_window = '1ms'\ntoken_retention = '1s'",
        ),
        (
            "redis://127.0.0.1:1",
            "claim_window = '366 days'\ntoken_retention = '366 days'",
        ),
        (
            "postgres://u@127.0.0.1:1/d",
            "request_timeout = '100ms'\nbatch_limit = 1\nsweep_interval = '1ms'\nkeep_idle = '0s'\npoll_interval = '10ms'",
        ),
        (
            "postgres://u@127.0.0.1:1/d",
            "batch_limit = 1000\nsweep_interval = 'never'\npoll_interval = '1s'\nlisten = false\nschema_mode = 'check'\npooler = 'transaction'\nsynchronous_commit = 'remote_apply'",
        ),
        (
            "etcd://127.0.0.1:1",
            "operation_timeout = '1ms'\nlease_pool = 0",
        ),
        (
            file.as_str(),
            "busy_timeout = '0s'\npoll_interval = '1ms'\nclaim_window = '100ms'\nforget_after = '0s'",
        ),
        (
            file.as_str(),
            "busy_timeout = '1m'\npoll_interval = '1s'\nclaim_window = '10s'\nforget_after = '3660 days'",
        ),
    ];
    for (url, section) in sections {
        let store = url.split(':').next().unwrap();
        let config = load(
            "locks.toml",
            &format!("url = '{url}'\n[{store}]\n{section}"),
        )
        .unwrap();
        match config.connect().await {
            Ok(locks) => assert_eq!(locks.capabilities().store, "sqlite"),
            Err(error) => assert!(matches!(error, Error::Store { .. }), "{url}: {error}"),
        }
    }
    // The ends of the prefix, and what is beyond.
    for (url, good, bad) in [
        (
            "redis://127.0.0.1:1",
            "x".repeat(100),
            vec!["{x}".to_owned(), String::new(), "x".repeat(101)],
        ),
        (
            "etcd://127.0.0.1:1",
            "x".repeat(100),
            vec!["a:b".to_owned(), String::new(), "x".repeat(101)],
        ),
        (
            "postgres://u@127.0.0.1:1/d",
            "x".repeat(40),
            vec!["A".to_owned(), "1a".to_owned(), "x".repeat(41)],
        ),
    ] {
        let mut config = LockConfig::new(url);
        config.prefix = Some(good);
        let error = config.connect().await.unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{url}: {error}");
        for bad in bad {
            config.prefix = Some(bad);
            let why = config.check().unwrap_err().to_string();
            assert!(why.contains("`prefix`"), "{why}");
        }
    }
    for bad in ["", "1a", "a\"b", &"x".repeat(64)] {
        let text = format!("url = 'postgres://h/d'\n[postgres]\nschema = '{bad}'");
        assert!(why(load("locks.toml", &text)).contains("`postgres.schema`"));
    }
    let why = load("locks.toml", "url = 'sqlite:x'\nprefix = 'a'");
    assert!(why.unwrap_err().to_string().contains("`prefix`"));
}

#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "etcd",
    feature = "tls"
))]
#[tokio::test]
async fn certificates_are_for_tls() {
    let folder = Folder::new();
    let tls = |url: &str, rest: &str| load("locks.toml", &format!("url = '{url}'\n[tls]\n{rest}"));
    for url in ["redis://h", "etcd://h", "memory:", "sqlite:x"] {
        assert!(why(tls(url, "ca = 'x'")).contains("`tls`"));
    }
    assert!(why(tls("rediss://h", "key = 'x'")).contains("`tls.certificate`"));
    assert!(why(tls("rediss://h", "certificate = 'x'")).contains("`tls.key`"));
    let missing = folder.0.path().join("ca.pem");
    for url in ["rediss://127.0.0.1:1", "etcds://127.0.0.1:1"] {
        let config = tls(url, &format!("ca = '{}'", missing.display())).unwrap();
        let error = config.connect().await.unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
        assert!(error.to_string().contains("`tls.ca`"), "{error}");
    }
}
