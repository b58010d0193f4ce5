//! Every scenario has every figure of everybody who can take part; how large they are is not
//! looked at.
#![allow(clippy::unwrap_used)]

use std::{fs, process::Command};

use serde_json::Value;

const STORES: [(&str, &[&str]); 5] = [
    ("memory", &[]),
    ("sqlite", &[]),
    ("redis", &["rslock", "rds_lock", "distributed-lock-redis"]),
    ("postgres", &["sqlx-advisory", "distributed-lock-postgres"]),
    ("etcd", &["etcd-lock-rpc", "tokio-etcd-lock"]),
];

#[test]
fn every_scenario_has_every_figure_of_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_peers"))
        .arg("--smoke")
        .arg("--json")
        .arg(file("r.json"))
        .arg("--html")
        .arg(file("r.html"))
        .arg("--markdown")
        .arg(file("r.md"))
        .env_remove("DISTLOCK_BENCH_URL")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let tables = fs::read_to_string(file("r.md")).unwrap();
    let records: Vec<Value> = serde_json::from_str(&fs::read_to_string(file("r.json")).unwrap())
        .expect("an array of records");
    for (store, others) in STORES {
        for contender in ["distlock", "floor"].iter().chain(others) {
            for (scenario, metric) in figures(store, contender) {
                let record = records.iter().find(|record| {
                    record["store"] == store
                        && record["contender"] == *contender
                        && record["scenario"] == scenario
                        && record["metric"] == metric
                });
                let what = format!("{store}, {contender}, {scenario}, {metric}");
                let record = record.unwrap_or_else(|| panic!("{what} is missing:\n{tables}"));
                let value = record["median"].as_f64().unwrap();
                let may_be_none = MAY_BE_NONE.contains(&metric);
                assert!(value.is_finite(), "{what}: {value}");
                assert!(
                    value > 0.0 || (may_be_none && value == 0.0),
                    "{what}: {value}"
                );
            }
        }
    }
    let page = fs::read_to_string(file("r.html")).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>"));
}

/// In a moment there may be no renewal, in a few locks no page of memory, and a file is no socket.
const MAY_BE_NONE: [&str; 4] = [
    "requests_per_second",
    "connections",
    "client_memory",
    "memory_per_lock",
];

/// What there has to be of a contender.
fn figures(store: &str, contender: &str) -> Vec<(&'static str, &'static str)> {
    let (is_ours, is_floor) = (contender == "distlock", contender == "floor");
    let is_shared = store != "memory";
    let is_counted = !["memory", "sqlite"].contains(&store);

    let mut figures = vec![("pairs", "pair_latency"), ("pairs", "pairs_per_second")];
    let mut contended = vec!["handover"];
    let mut at_rest = vec!["held"];
    if is_shared {
        contended.push("handover_processes");
    }
    if !is_floor {
        at_rest.push("waiting");
    }
    if is_ours {
        figures.push(("reentry", "reentry_latency"));
    }
    if is_ours || is_floor {
        figures.extend([("growth", "cpu_per_renewal"), ("growth", "memory_per_lock")]);
    }
    if is_shared && !is_floor {
        figures.push(("death", "death_to_grant"));
    }
    for scenario in contended {
        figures.extend([
            (scenario, "handover_latency"),
            (scenario, "handovers_per_second"),
            (scenario, "turns_per_second"),
        ]);
        if is_counted {
            figures.push((scenario, "requests_per_handover"));
        }
    }
    for scenario in at_rest {
        figures.extend([
            (scenario, "connections"),
            (scenario, "client_cpu"),
            (scenario, "client_memory"),
        ]);
        if is_counted {
            figures.push((scenario, "requests_per_second"));
        }
    }
    figures
}
