//! `distlock bench`: what it writes, and what it refuses before it measures.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::tempdir;

fn bench(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
    command.arg("bench").args(args).current_dir(folder);
    for inherited in ["DISTLOCK_BENCH_URL", "DISTLOCK_EXIT_CODE_BASE"] {
        command.env_remove(inherited);
    }
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_scenario_has_figures() {
    let folder = tempdir().unwrap();
    let args = [
        "--smoke",
        "--json",
        "r.json",
        "--html",
        "r.html",
        "--markdown",
        "r.md",
    ];
    let output = bench(folder.path(), &args);
    assert!(output.status.success(), "{}", stderr(&output));

    let records = fs::read_to_string(folder.path().join("r.json")).unwrap();
    let records: Vec<Value> = serde_json::from_str(&records).unwrap();
    let has = |store: &str, contender: &str, scenario: &str| {
        records.iter().any(|record| {
            (record["store"] == store)
                && record["contender"] == contender
                && record["scenario"] == scenario
                && record["median"].as_f64().is_some_and(f64::is_finite)
        })
    };
    for scenario in ["pairs", "reentry", "handover", "held", "waiting", "growth"] {
        assert!(has("memory", "distlock", scenario), "memory: {scenario}");
        assert!(has("sqlite", "distlock", scenario), "sqlite: {scenario}");
    }
    // What needs several processes, and a store that they share.
    for scenario in ["handover_processes", "death"] {
        assert!(has("sqlite", "distlock", scenario), "sqlite: {scenario}");
    }
    for scenario in ["pairs", "handover", "held"] {
        assert!(has("sqlite", "floor", scenario), "the floor: {scenario}");
    }
    let ratio = |record: &&Value| record["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0);
    assert!(records.iter().filter(ratio).count() > 10);

    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("<table") && !page.contains("<script"));
    let tables = fs::read_to_string(folder.path().join("r.md")).unwrap();
    assert!(tables.contains("### pairs: pair_latency"), "{tables}");
}

#[test]
fn without_a_file_the_tables_are_printed() {
    let folder = tempdir().unwrap();
    let args = ["--smoke", "--store", "memory:", "--only", "reentry"];
    let output = bench(folder.path(), &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("### reentry: reentry_latency"), "{text}");
    assert!(!text.contains("### pairs"), "{text}");
}

#[test]
fn what_cannot_be_used_is_refused_first() {
    let folder = tempdir().unwrap();
    let refused = [
        (
            &["--store", "mysql://me:secret@host"][..],
            "has to begin with",
        ),
        (&["--seconds", "0"], "0 is not in 1..=3600"),
        (&["--only", "sprint"], "sprint"),
        (&["--json", "no/such/folder/r.json"], "cannot write"),
        (
            &["--store", "sqlite:///a.db", "--store", "sqlite:///b.db"],
            "two stores are of the kind sqlite",
        ),
        (&["--store", "memory:x"], "`memory:` and no more"),
    ];
    for (args, why) in refused {
        let output = bench(folder.path(), args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(205), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn options_of_other_commands_do_not_go_with_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_distlock"))
        .args(["--json", "bench"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(205));
    assert!(stderr(&output).contains("distlock bench --help"));
}
