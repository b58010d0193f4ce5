//! What `distlock` ends with, and what it says.

#![allow(clippy::unwrap_used)]

mod support;

use std::{fs, os::unix::process::ExitStatusExt, process::Stdio};

use serde_json::Value;
use support::{Place, Running, code, output, stderr, until};

/// B35: the command's own code, 128 + n for a signal, 126 and 127 as a shell; the lock is free
/// afterwards every time.
#[test]
fn b35_the_code_of_the_command_is_passed_on() {
    let place = Place::new();
    for expected in [0, 1, 2, 77, 125, 126, 127, 200, 255] {
        let script = format!("exit {expected}");
        assert_eq!(code(&mut place.run_script("k", &script)), expected);
        assert!(place.is_free("k"), "after {script}");
    }
    for (signal, expected) in [
        ("TERM", 143),
        ("KILL", 137),
        ("INT", 130),
        ("RTMIN", 128 + 34),
    ] {
        let script = format!("kill -s {signal} $$; sleep 60");
        let mut command = place.distlock("run k -- bash -c");
        assert_eq!(code(command.arg(&script)), expected, "{signal}");
        assert!(place.is_free("k"), "after {signal}");
    }
    assert_eq!(code(&mut place.distlock("run k -- /no/such/command")), 127);
    assert_eq!(code(&mut place.distlock("run k -- no-such-command")), 127);
    assert_eq!(code(&mut place.distlock("run k -- /etc/passwd")), 126);
    assert_eq!(code(&mut place.distlock("run k -- /etc")), 126);
    assert!(place.is_free("k"));
}

/// B112, B14: every outcome has a code and a text of its own, and stdout stays clean.
#[test]
fn b112_outcomes_can_be_told_apart() {
    let place = Place::new();
    let mut holder = Running::start(&mut place.run_script("k --label painter", "sleep 600"));
    until("a holder", || !place.is_free("k"));

    let busy = output(&mut place.distlock("run k --no-wait -- echo hello"));
    assert_eq!(busy.status.code(), Some(200));
    assert!(
        stderr(&busy).contains("busy, held by painter ("),
        "{busy:?}"
    );
    let late = output(&mut place.distlock("run k --wait 100ms -- echo hello"));
    assert_eq!(late.status.code(), Some(201));
    assert!(stderr(&late).contains("held by painter ("), "{late:?}");
    let tried = output(&mut place.distlock("try k"));
    assert_eq!(tried.status.code(), Some(200));
    for refused in [&busy, &late, &tried] {
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.code(), 143);

    fs::write(
        place.path("text.db"),
        "this is no database, but a text of some length".repeat(99),
    )
    .unwrap();
    for (args, expected, text) in [
        ("--store sqlite:text.db run k -- echo", 204, "text.db"),
        (
            "--store sqlite:/no/such/folder/x.db run k -- echo",
            204,
            "/no/such/folder",
        ),
        (
            "--store sqlite:///proc/x.db run k -- echo",
            204,
            "/proc/x.db",
        ),
        ("--store mysql://h run k -- echo", 205, "`sqlite:`"),
        (
            "--store sqlite://host/x run k -- echo",
            205,
            "three slashes",
        ),
        ("run k --ttl 0s -- echo", 205, "ttl"),
        ("run k --ttl soon -- echo", 205, "--ttl"),
        ("run k --bogus -- echo", 205, "--bogus"),
        ("run k", 205, "COMMAND"),
        ("run", 205, "KEY"),
        ("nonsense", 205, "nonsense"),
    ] {
        let refused = output(&mut place.distlock(args));
        assert_eq!(refused.status.code(), Some(expected), "{args}: {refused:?}");
        assert!(stderr(&refused).contains(text), "{args}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{args}: {refused:?}");
    }
    let long = "x".repeat(256);
    assert_eq!(
        code(&mut place.distlock(&format!("run {long} -- echo"))),
        205
    );
}

/// B112: with `--json` an error is one JSON object on stderr.
#[test]
fn b112_errors_are_one_json_object() {
    let place = Place::new();
    assert_eq!(
        code(&mut place.distlock("try k --ttl 10m --label painter")),
        0
    );
    for (args, expected, error) in [
        ("--json run k --no-wait -- echo", 200, "busy"),
        ("--json run k --wait 10ms -- echo", 201, "timeout"),
        (
            "--json --store sqlite:/no/folder/x run k -- echo",
            204,
            "store_refused",
        ),
        ("--json --store mysql://h list", 205, "usage"),
        ("--json run k --bogus -- echo", 205, "usage"),
        ("--json release other --force", 206, "not_held"),
        ("--json release k --token 1", 207, "other_token"),
    ] {
        let refused = output(&mut place.distlock(args));
        assert_eq!(refused.status.code(), Some(expected), "{args}: {refused:?}");
        let object: Value = serde_json::from_slice(&refused.stderr).expect(args);
        assert_eq!(object["error"], error, "{args}");
        assert_eq!(object["exit_code"], expected, "{args}");
        assert!(
            object["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{args}"
        );
        if ["busy", "timeout", "other_token"].contains(&error) {
            assert_eq!(object["key"], "k");
            assert_eq!(object["holder"]["label"], "painter");
        }
    }
}

/// B112: distlock's own codes move away from the command's, also when the command line is wrong.
#[test]
fn b112_own_codes_can_be_moved() {
    let place = Place::new();
    assert_eq!(code(&mut place.distlock("try k --ttl 10m")), 0);
    assert_eq!(
        code(&mut place.distlock("--exit-code-base 90 run k --no-wait -- echo")),
        90
    );
    assert_eq!(
        code(&mut place.distlock("run k --exit-code-base=90 --wait 1ms -- echo")),
        91
    );
    assert_eq!(
        code(&mut place.distlock("run k --exit-code-base 90 --bogus -- echo")),
        95
    );
    let mut by_variable = place.distlock("run k --no-wait -- echo");
    assert_eq!(code(by_variable.env("DISTLOCK_EXIT_CODE_BASE", "30")), 30);
    assert_eq!(code(&mut place.distlock("--exit-code-base 250 list")), 205);
    // The command's own code is not moved.
    assert_eq!(
        code(&mut place.run_script("free --exit-code-base 90", "exit 200")),
        200
    );
}

/// A password in a store URL is never repeated.
#[test]
fn secrets_stay_out_of_errors() {
    let place = Place::new();
    for url in [
        "etcd://u:geheim@host/x",
        "mysql://u:geheim@host/x",
        "geheim",
        "u:geheim@host",
        "memory:geheim",
    ] {
        for option in ["", "--json"] {
            let mut command = place.distlock(&format!("{option} list"));
            let refused = output(command.env("DISTLOCK_URL", url));
            assert_eq!(refused.status.code(), Some(205), "{url}");
            assert!(!format!("{refused:?}").contains("geheim"), "{url}");
        }
    }
    let mut help = place.distlock("run --help");
    let help = output(help.env("DISTLOCK_URL", "redis://:geheim@host"));
    assert!(!format!("{help:?}").contains("geheim"));
}

/// B36: the caller's environment arrives whole, with three variables more.
#[test]
fn b36_the_environment_is_kept() {
    let place = Place::new();
    let mut command = place.distlock("run some/key -- env -0");
    command
        .env("DISTLOCK_X", "1")
        .env("FOO", "a b\nc")
        .env("EMPTY", "");
    let mut expected: Vec<String> = std::env::vars()
        .filter(|(name, _)| !name.starts_with("DISTLOCK_"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    expected.extend([
        format!("DISTLOCK_URL={}", place.url()),
        "DISTLOCK_X=1".into(),
        "FOO=a b\nc".into(),
        "EMPTY=".into(),
        "DISTLOCK_KEY=some/key".into(),
    ]);
    let printed = String::from_utf8(output(&mut command).stdout).unwrap();
    let (added, mut got): (Vec<String>, Vec<String>) = printed
        .split_terminator('\0')
        .map(str::to_owned)
        .partition(|var| var.starts_with("DISTLOCK_TOKEN=") || var.starts_with("DISTLOCK_OWNER="));
    expected.sort();
    got.sort();
    assert_eq!(got, expected);
    assert_eq!(added.len(), 2, "{added:?}");
}

/// B36: stdin and stdout are the caller's: 1 MB goes through unchanged.
#[test]
fn b36_pipes_go_through() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(place.path("in"), &bytes).unwrap();
    let mut feeder = std::process::Command::new("cat");
    let mut feeder = feeder
        .arg(place.path("in"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut command = place.distlock("run k -- cat");
    command.stdin(feeder.stdout.take().unwrap());
    let through = command.output().unwrap();
    assert!(through.status.success());
    assert!(through.stdout == bytes, "{} bytes", through.stdout.len());
    assert_eq!(feeder.wait().unwrap().into_raw(), 0);
}

/// Signals that the caller ignores, as `nohup` does, are ignored by the command too.
#[test]
fn b36_ignored_signals_stay_ignored() {
    let place = Place::new();
    let mut command = std::process::Command::new("sh");
    let program = env!("CARGO_BIN_EXE_distlock");
    command.env("DISTLOCK_URL", place.url());
    command.args(["-c", &format!("trap '' HUP; exec {program} run k -- sh -c 'kill -HUP $$; kill -HUP $PPID; sleep 0.1; echo alive'")]);
    let survived = output(&mut command);
    assert_eq!(String::from_utf8_lossy(&survived.stdout), "alive\n");
    assert_eq!(survived.status.code(), Some(0));
}
