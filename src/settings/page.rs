//! docs/configuration.md and the settings say the same.

use std::{fmt::Write, fs, path::Path};

use serde_json::{Value, json};

use super::{
    LockConfig, StoreUrl,
    check::shown,
    keys::{KEYS, Key, Range, is_compiled_in},
};

const BEGIN: &str = "<!-- keys; written by a test -->\n";
const END: &str = "<!-- end of keys -->";

/// `UPDATE=1 cargo test -p distlock --all-features --lib` writes the tables of the page.
#[test]
fn the_page_lists_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(
        page == expected,
        "docs/configuration.md is behind; UPDATE=1 writes it"
    );
}

fn tables() -> String {
    let mut text = String::new();
    let mut last = Some("");
    for key in KEYS {
        if key.section() != last {
            last = key.section();
            if let Some(section) = last {
                write!(text, "\n### `{section}`\n").unwrap();
            }
            text += "\n| key | value | default | what it is |\n| --- | --- | --- | --- |\n";
        }
        let default = match key.default {
            "" => "–".to_owned(),
            default => format!("`{default}`"),
        };
        let (name, about) = (key.name, key.about);
        writeln!(text, "| `{name}` | {} | {default} | {about} |", range(key)).unwrap();
    }
    text + "\n"
}

fn range(key: &Key) -> String {
    let quoted = |words: &[&str]| {
        let words = words.iter().map(|word| format!("`{word}`"));
        words.collect::<Vec<_>>().join(", ")
    };
    match key.range {
        Range::Time(least, most, words) => {
            let words = if words.is_empty() {
                String::new()
            } else {
                format!(", or {}", quoted(words))
            };
            format!("duration, {} to {}{words}", shown(least), shown(most))
        }
        Range::Count(least, most) => format!("number, {least} to {most}"),
        Range::Words(words) => quoted(words),
        Range::Text(what) => what.to_owned(),
    }
}

/// Setting every key to its default changes nothing.
#[test]
fn the_defaults_are_the_defaults() {
    for key in KEYS
        .iter()
        .filter(|key| is_here(key) && !key.default.is_empty())
    {
        let mut expected = LockConfig::new(url_for(key).expose());
        let config = with(key, parsed(key.default));
        if key.name == "prefix" {
            // The stores' own default.
            expected.prefix = Some(key.default.to_owned());
        }
        #[cfg(feature = "redis")]
        (expected.redis = (key.section() == Some("redis")).then(Default::default));
        #[cfg(feature = "postgres")]
        (expected.postgres = (key.section() == Some("postgres")).then(Default::default));
        #[cfg(feature = "etcd")]
        (expected.etcd = (key.section() == Some("etcd")).then(Default::default));
        #[cfg(feature = "sqlite")]
        (expected.sqlite = (key.section() == Some("sqlite")).then(Default::default));
        assert_eq!(config.unwrap(), expected, "{}", key.name);
    }
}

/// A38: what is out of its range is named with what it may be; the ends of the range are not.
#[test]
fn every_range_is_checked() {
    for key in KEYS.iter().filter(|key| is_here(key)) {
        let (good, bad): (Vec<Value>, Vec<Value>) = match key.range {
            Range::Time(least, most, words) => {
                let text = |time| json!(shown(time));
                let mut bad = vec![json!("soon"), text(most * 2)];
                if let Some(half) = Some(least / 2).filter(|_| !least.is_zero()) {
                    bad.push(text(half));
                }
                let words = words.iter().map(|word| json!(word));
                (
                    [text(least), text(most)].into_iter().chain(words).collect(),
                    bad,
                )
            }
            Range::Count(least, most) => {
                let mut bad = vec![json!(most + 1), json!("many")];
                bad.extend(least.checked_sub(1).map(|less| json!(less)));
                (vec![json!(least), json!(most)], bad)
            }
            Range::Words(words) => (
                words.iter().map(|word| parsed(word)).collect(),
                vec![json!("maybe")],
            ),
            Range::Text(_) => continue,
        };
        for value in good {
            let config = with(key, value.clone()).unwrap();
            // A ttl has to leave room for the renewals.
            let checked = super::check::check(&roomy(config, key));
            assert!(
                checked.is_ok(),
                "{}: {value}: {}",
                key.name,
                checked.unwrap_err()
            );
        }
        for value in bad {
            let refused = match with(key, value.clone()) {
                Err(_) => continue, // by its form; the loader's test looks at what is said
                Ok(config) => super::check::check(&roomy(config, key)),
            };
            let why = refused.expect_err(&format!("{} {value}", key.name));
            assert_eq!(why.key, key.name, "{why}");
            assert!(why.to_string().contains("from"), "{why}");
        }
    }
}

fn roomy(mut config: LockConfig, key: &Key) -> LockConfig {
    if key.name == "renewal" {
        config.ttl = std::time::Duration::from_secs(366 * 24 * 60 * 60);
        // As long as the longest ttl, which is no renewal.
        config.renewal = config.renewal.map(|every| match every == config.ttl {
            true => every / 2,
            false => every,
        });
    }
    config
}

fn is_here(key: &Key) -> bool {
    key.section().is_none_or(is_compiled_in)
}

fn url_for(key: &Key) -> StoreUrl {
    StoreUrl::new(match (key.section(), key.name) {
        (Some("postgres"), _) => "postgres://h/d",
        (Some("etcd"), _) => "etcd://h",
        (Some("sqlite"), _) => "sqlite:x",
        (Some("tls"), _) => "rediss://h",
        (Some("redis"), _) | (_, "prefix") => "redis://h",
        _ => "memory:",
    })
}

/// Text as one would write it in JSON.
fn parsed(text: &str) -> Value {
    match text {
        "true" | "false" => json!(text == "true"),
        _ => text
            .parse::<u64>()
            .map_or_else(|_| json!(text), |number| json!(number)),
    }
}

fn with(key: &Key, value: Value) -> serde_json::Result<LockConfig> {
    let mut tree = json!({"url": url_for(key).expose()});
    match key.name.split_once('.') {
        Some((section, name)) => tree[section] = json!({name: value}),
        None => tree[key.name] = value,
    }
    serde_json::from_value(tree)
}

#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "etcd",
    feature = "sqlite"
))]
mod fields {
    use std::collections::BTreeSet;

    use super::{KEYS, Key, LockConfig, json};

    /// The fields that serde knows are the keys, no more and no fewer.
    #[test]
    fn the_keys_are_the_fields() {
        let sections: BTreeSet<_> = KEYS.iter().filter_map(Key::section).collect();
        let mut fields = fields_of("")
            .into_iter()
            .filter(|field| !sections.contains(field.as_str()))
            .collect::<BTreeSet<_>>();
        for section in sections {
            fields.extend(
                fields_of(section)
                    .into_iter()
                    .map(|field| format!("{section}.{field}")),
            );
        }
        assert_eq!(fields, KEYS.iter().map(|key| key.name.to_owned()).collect());
    }

    /// What serde lists when it meets a field that it does not know.
    fn fields_of(section: &str) -> BTreeSet<String> {
        let wrong = match section {
            "" => json!({"?": 1}),
            section => json!({section: {"?": 1}}),
        };
        let why = serde_json::from_value::<LockConfig>(wrong)
            .unwrap_err()
            .to_string();
        let (_, list) = why.split_once("expected").unwrap();
        list.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }
}
