//! At a terminal, under a real shell with job control (B118).

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Command;

use rexpect::session::{PtySession, spawn_command};
use support::{Place, Running, code, read, until};

/// An interactive shell on a pseudo-terminal, with `distlock` on its path.
struct Terminal {
    session: PtySession,
    commands: u32,
}

impl Terminal {
    fn new(place: &Place) -> Self {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_distlock"));
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "-i"]);
        shell
            .current_dir(place.path(""))
            .env("DISTLOCK_URL", place.url());
        shell.env(
            "PATH",
            format!("{}:{path}", program.parent().unwrap().display()),
        );
        shell
            .env("PS1", "")
            .env("TERM", "dumb")
            .env_remove("PROMPT_COMMAND");
        let mut session = spawn_command(shell, Some(60_000)).unwrap();
        // An interactive shell ignores SIGTERM; SIGKILL comes then.
        session.process_mut().set_kill_timeout(Some(100));
        // What is typed is not shown again, so that only output is matched.
        session.send_line("stty -echo; echo rea''dy").unwrap();
        session.exp_string("ready").unwrap();
        Self {
            session,
            commands: 0,
        }
    }

    fn line(&mut self, line: &str) {
        self.session.send_line(line).unwrap();
    }

    fn key(&mut self, key: char) {
        self.session.send_control(key).unwrap();
    }

    /// The output up to `text`.
    fn expect(&mut self, text: &str) -> String {
        match self.session.exp_string(text) {
            Ok(before) => before,
            Err(why) => panic!("no {text:?} at the terminal: {why:?}"),
        }
    }

    /// What came before, once the shell has the terminal again, and the last exit code.
    fn back_at_the_shell(&mut self) -> (String, i32) {
        self.commands += 1;
        let mark = self.commands;
        // The shell reads this only when it has the foreground.
        self.line(&format!("echo \"<${{?}}>back{mark}\""));
        let before = self.expect(&format!(">back{mark}"));
        let (output, code) = before.rsplit_once('<').unwrap();
        (output.to_owned(), code.parse().unwrap())
    }
}

#[test]
fn b118_a_command_reads_the_terminal() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    terminal.line("distlock run k -- cat");
    terminal.line("hello there");
    terminal.expect("hello there");
    terminal.key('d');
    assert_eq!(terminal.back_at_the_shell().1, 0);

    terminal.line("distlock run k -- sh -c 'echo ask; read x; echo got $x; tty; exit 3'");
    terminal.expect("ask");
    terminal.line("words");
    terminal.expect("got words");
    terminal.expect("/dev/");
    assert_eq!(terminal.back_at_the_shell().1, 3);
    assert!(place.is_free("k"));
}

/// In a pipeline the terminal is left to the others, and given when the command asks for it.
#[test]
fn b118_a_command_in_a_pipeline_reads_the_terminal() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    terminal.line("distlock run k -- sh -c 'echo ask; read x; echo got $x' | cat");
    terminal.expect("ask");
    terminal.line("words");
    terminal.expect("got words");
    assert_eq!(terminal.back_at_the_shell().1, 0);
    // Stdin is a pipe, and the command opens the terminal itself, as ssh and sudo do.
    terminal.line("echo x | distlock run k -- sh -c 'echo ask; read x < /dev/tty; echo got $x'");
    terminal.expect("ask");
    terminal.line("secret");
    terminal.expect("got secret");
    assert_eq!(terminal.back_at_the_shell().1, 0);
}

/// Ctrl-C reaches the command once, wherever the terminal is; the lock is free and the shell has
/// the terminal again.
#[test]
fn b118_ctrl_c_comes_once() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    for pipe in ["", " | cat"] {
        let script = "trap \"echo INT >> log\" INT; echo started; while ! test -e stop; do sleep 0.05; done; exit 4";
        terminal.line(&format!(
            "set -o pipefail; distlock run k -- bash -c '{script}'{pipe}"
        ));
        terminal.expect("started");
        terminal.key('c');
        until("Ctrl-C", || read(&place.path("log")).contains("INT"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(place.path("stop"), "").unwrap();
        let (_, ended) = terminal.back_at_the_shell();
        assert_eq!(read(&place.path("log")), "INT\n", "with {pipe:?}");
        if pipe.is_empty() {
            assert_eq!(ended, 4);
        }
        assert!(place.is_free("k"));
        std::fs::remove_file(place.path("log")).unwrap();
        std::fs::remove_file(place.path("stop")).unwrap();
    }
    terminal.line("distlock run k -- sleep 600");
    until("the lock", || !place.is_free("k"));
    until("the command at the terminal", || !place.is_free("k"));
    terminal.key('c');
    assert_eq!(terminal.back_at_the_shell().1, 130);
    assert!(place.is_free("k"));
    // Ctrl-\ as well.
    terminal.line("distlock run k -- sh -c 'echo started; ulimit -c 0; exec sleep 600'");
    terminal.expect("started");
    terminal.key('\\');
    assert_eq!(terminal.back_at_the_shell().1, 131);
}

/// Ctrl-Z gives the shell back, `fg` goes on where it was.
#[test]
fn b118_ctrl_z_and_fg() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    for command in [
        "distlock run k -- bash -c 'echo started; read x; echo got $x; exit 5'",
        "distlock run k -- distlock run other -- bash -c 'echo started; read x; echo got $x; exit 5'",
    ] {
        terminal.line(command);
        terminal.expect("started");
        terminal.key('z');
        terminal.expect("Stopped");
        assert!(terminal.back_at_the_shell().1 > 128);
        assert!(!place.is_free("k"));
        terminal.line("fg");
        terminal.line("words");
        terminal.expect("got words");
        assert_eq!(terminal.back_at_the_shell().1, 5);
        assert!(place.is_free("k"));
    }
}

/// A job that is stopped past its lease does not go on: somebody else may have the lock.
#[test]
fn b118_a_job_that_is_stopped_past_its_lease_is_ended() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    let script = "echo $$ > pid; echo started; while :; do date +%s%N >> first; sleep 0.01; done";
    terminal.line(&format!("distlock run k --ttl 1s -- bash -c '{script}'"));
    terminal.expect("started");
    terminal.key('z');
    terminal.expect("Stopped");
    assert!(terminal.back_at_the_shell().1 > 128);
    assert_eq!(code(&mut place.distlock("run k --wait 60s -- true")), 0);
    let written = read(&place.path("first"));
    terminal.line("fg");
    terminal.expect("distlock: lock k is lost");
    assert_eq!(terminal.back_at_the_shell().1, 202);
    assert_eq!(read(&place.path("first")), written, "it did not go on");
    assert!(!support::is_alive(place.pids("pid", 1)[0]));
}

/// In the background it does not take the terminal; a command that reads stops the job, as any.
#[test]
fn b118_in_the_background() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    terminal.line("distlock run k -- bash -c 'echo started; read x; echo got $x; exit 6' &");
    terminal.expect("started");
    assert_eq!(
        terminal.back_at_the_shell().1,
        0,
        "the shell kept the terminal"
    );
    until("the stop", || {
        terminal.line("jobs");
        terminal.back_at_the_shell().0.contains("Stopped")
    });
    terminal.line("fg");
    terminal.line("words");
    terminal.expect("got words");
    assert_eq!(terminal.back_at_the_shell().1, 6);
    // A job that is continued in the background runs on without the terminal.
    terminal.line(
        "distlock run k -- bash -c 'echo started; while ! test -e stop; do sleep 0.05; done'",
    );
    terminal.expect("started");
    terminal.key('z');
    terminal.expect("Stopped");
    terminal.line("bg");
    assert_eq!(terminal.back_at_the_shell().1, 0);
    std::fs::write(place.path("stop"), "").unwrap();
    terminal.line("wait; echo \"waited $?\"");
    terminal.expect("waited 0");
    assert!(place.is_free("k"));
}

/// Whoever waits at a terminal sees for whom.
#[test]
fn waiting_shows_the_holder() {
    let place = Place::new();
    let mut holder = Running::start(&mut place.run_script("k --label painter", "sleep 600"));
    until("a holder", || !place.is_free("k"));
    let mut terminal = Terminal::new(&place);
    terminal.line("TERM=xterm distlock run k -- echo mine");
    terminal.expect("waiting for lock k, held by painter (");
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.code(), 143);
    terminal.expect("mine");
    assert_eq!(terminal.back_at_the_shell().1, 0);
    // Ctrl-C ends the wait and leaves nothing behind.
    assert_eq!(code(&mut place.distlock("try k --ttl 10m")), 0);
    terminal.line("TERM=xterm distlock run k -- echo mine");
    terminal.expect("waiting for lock k, held by");
    terminal.key('c');
    assert_eq!(terminal.back_at_the_shell().1, 130);
    assert_eq!(place.waiters("k"), 0);
}
