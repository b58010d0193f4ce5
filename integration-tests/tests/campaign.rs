//! The campaign, in its shortest form.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use integration_tests::{
    campaign::{Kind, Report, StoreKind, Verdict},
    checker::Violation,
};

/// Runs the program and reads its report; checks that the exit code says the same.
fn campaign(store: &str, more: &[&str]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_campaign"))
        .args(["--store", store, "--seed", "7", "--clients", "3"])
        .args(["--tasks", "6", "--keys", "12"])
        .args(more)
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    let path = folder.path().join(format!("{store}-7.json"));
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{told}");
    let report: Report = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(
        output.status.code(),
        Some(report.verdict.exit_code().into())
    );
    report
}

/// What faults there is time for happen, and everything holds. How soon a lock is granted again,
/// and whether a pause met a write, is up to the machine: that is for the long campaign.
fn holds(store: &str, kind: StoreKind) {
    let report = campaign(store, &["--minutes", "0.5", "--least", "1"]);
    let bad = |violation: &&Violation| !matches!(violation, Violation::Stuck { .. });
    assert_eq!(report.violations.iter().find(bad), None, "{report}");
    assert!(
        report.faults.iter().all(|fault| fault.evidence > 0),
        "{report}"
    );
    assert!(report.faults.len() >= Kind::of(kind).len() / 4, "{report}");
    assert!(report.windows > 0 && report.tally.written > 0, "{report}");
}

/// A1, A2, A4, A8, A11, A12, A13, A15, A18, A22, A23, A36, A37, B1, B3, B7, B8, B13.
#[test]
fn redis_holds() {
    holds("redis", StoreKind::Redis);
}

/// A1, A2, A4, A8, A11, A12, A13, A15, A18, A22, A23, A36, A37, D2, D3.
#[test]
fn postgres_holds() {
    holds("postgres", StoreKind::Postgres);
}

/// A1, A2, A4, A8, A11, A12, A13, A15, A18, A22, A23, A36, E1, E3, E6, E7, E9, E17.
#[test]
fn etcd_holds() {
    holds("etcd", StoreKind::Etcd);
}

/// E2, E3, E9, E10, E11, E22.
#[test]
fn etcd_of_three_holds() {
    holds("etcd3", StoreKind::Etcd3);
}

/// A11, A12, A13, A18, A22, A23.
#[test]
fn sqlite_holds() {
    holds("sqlite", StoreKind::Sqlite);
}

/// Without enough to do, without a stale write, a run has shown nothing, and says so.
#[test]
fn a_run_without_power_is_void() {
    let report = campaign(
        "sqlite",
        &[
            "--minutes",
            "0.02",
            "--only",
            "drop-acquires",
            "--least",
            "100000",
        ],
    );
    let Verdict::Void(why) = &report.verdict else {
        panic!("{report}");
    };
    assert!(why[0].contains("less than 100000 a second"), "{why:?}");
}

/// A13: a resource that does not check lets late writers through, and the campaign sees it.
#[test]
fn a_resource_that_checks_nothing_is_found() {
    let report = campaign(
        "sqlite",
        &[
            "--minutes",
            "1",
            "--only",
            "pause-clients",
            "--leniency",
            "stale",
        ],
    );
    assert_eq!(report.verdict, Verdict::Bad, "{report}");
    assert!(report.found_after.is_some());
}
