//! `doctor`, on the embedded store; integration-tests has the findings of the servers.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;

use serde_json::Value;
use support::{Place, output, stderr};

#[test]
fn a_sound_store_is_told_to_people_and_programs() {
    let place = Place::new();
    let told = output(&mut place.distlock("doctor"));
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    let text = String::from_utf8(told.stdout).unwrap();
    for part in [
        "version",
        "integrity",
        "round trip",
        "ok",
        "token",
        "sqlite: 0 failures",
    ] {
        assert!(text.contains(part), "{text}");
    }

    let json = output(&mut place.distlock("--json doctor --strict"));
    assert_eq!(json.status.code(), Some(0), "{json:?}");
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["store"], "sqlite");
    assert_eq!(report["result"], "note");
    let findings = report["findings"].as_array().unwrap();
    let subjects: Vec<_> = findings
        .iter()
        .map(|f| f["subject"].as_str().unwrap())
        .collect();
    for subject in [
        "version",
        "disk",
        "integrity",
        "persistence",
        "rights",
        "round trip",
        "lock",
    ] {
        assert!(subjects.contains(&subject), "{subjects:?}");
    }
    // What weakens nothing is a note, and says what it means.
    for finding in findings {
        assert_eq!(
            finding["severity"] == "ok",
            finding["meaning"] == "",
            "{finding}"
        );
    }
    // It has left nothing behind.
    let left = output(&mut place.distlock("--json list"));
    assert_eq!(String::from_utf8(left.stdout).unwrap().trim(), "[]");
}

#[test]
fn damage_is_a_failure_with_a_code_of_its_own() {
    let place = Place::new();
    // A file of more pages than the root needs, so that one can be damaged.
    for n in 0..40 {
        let taken = output(&mut place.distlock(&format!("try {n}-{}", "x".repeat(200))));
        assert!(taken.status.success(), "{taken:?}");
    }
    damage(&place);
    let found = output(&mut place.distlock("--json --exit-code-base 100 doctor"));
    // Either it is the doctor who finds it, or the store refuses to begin with.
    match found.status.code() {
        Some(109) => {
            let report: Value = serde_json::from_slice(&found.stdout).unwrap();
            assert_eq!(report["result"], "failure");
            let findings = report["findings"].as_array().unwrap();
            let failed = findings.iter().filter(|f| f["severity"] == "failure");
            assert!(
                failed.clone().any(|f| f["subject"] == "integrity"),
                "{report}"
            );
        }
        code => assert_eq!(code, Some(104), "{found:?}"),
    }
}

/// Overwrites the last page, which no statement about an unknown lock needs.
fn damage(place: &Place) {
    let path = place.path("locks.db");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 4096;
    bytes[last..].fill(0xff);
    for wal in ["locks.db-wal", "locks.db-shm"] {
        let _ = fs::remove_file(place.path(wal));
    }
    fs::write(&path, bytes).unwrap();
}

#[test]
fn a_store_that_cannot_be_opened_is_an_error_as_everywhere() {
    let place = Place::new();
    fs::write(
        place.path("locks.db"),
        "not a database, but long enough to be read as one",
    )
    .unwrap();
    let refused = output(&mut place.distlock("doctor"));
    assert_eq!(refused.status.code(), Some(204), "{refused:?}");
    assert!(stderr(&refused).starts_with("distlock: "), "{refused:?}");
}
