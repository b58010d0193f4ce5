//! `watch`, at a pseudo-terminal; what it draws is tested where it is drawn.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Command;

use rexpect::session::spawn_command;
use support::{Place, output, stderr};

#[test]
fn a_new_holder_is_shown_and_q_ends_it() {
    let place = Place::new();
    // A new pseudo-terminal has no size.
    let mut watch = Command::new("sh");
    let script = "stty rows 24 columns 100; exec \"$0\" watch";
    watch.args(["-c", script, env!("CARGO_BIN_EXE_distlock")]);
    watch.env("DISTLOCK_URL", place.url()).env("TERM", "xterm");
    let mut terminal = spawn_command(watch, Some(60_000)).unwrap();
    terminal.exp_string("0 held").unwrap();
    let taken = output(&mut place.distlock("try --label alice nightly"));
    assert!(taken.status.success(), "{taken:?}");
    terminal.exp_string("nightly").unwrap();
    terminal.exp_string("alice").unwrap();
    terminal.send("q").unwrap();
    terminal.flush().unwrap();
    terminal.exp_eof().unwrap();
    let status = terminal.process().wait().unwrap();
    assert!(format!("{status:?}").contains("Exited"), "{status:?}");
}

#[test]
fn without_a_terminal_it_says_so() {
    let place = Place::new();
    let refused = output(&mut place.distlock("watch"));
    assert_eq!(refused.status.code(), Some(205));
    assert!(stderr(&refused).contains("needs a terminal"));
}
