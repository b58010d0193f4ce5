//! The command, its process group and its lock, through loss, signals and death.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    os::unix::process::CommandExt,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use support::{Place, Running, code, is_alive, output, read, stamps, stderr, stubborn, until};

const SECOND: Duration = Duration::from_secs(1);

/// Keeps every writer out of the store while `work` is done: what a partition is to a server.
fn cut_off<T>(place: &Place, work: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let options = SqliteConnectOptions::new().filename(place.path("locks.db"));
    let mut connection = runtime
        .block_on(SqliteConnection::connect_with(&options))
        .unwrap();
    let mut run = |sql: &'static str| runtime.block_on(sqlx::raw_sql(sql).execute(&mut connection));
    until("the store's write lock", || run("BEGIN IMMEDIATE").is_ok());
    let done = work();
    run("ROLLBACK").unwrap();
    done
}

/// B32: a lost lock ends the whole group, also what ignores SIGTERM, within the grace.
#[test]
fn b32_a_lost_lock_ends_the_whole_group() {
    let place = Place::new();
    let script = "trap '' TERM; sleep 600 & echo $! >> pids; echo $$ >> pids; wait; sleep 600";
    let mut run = Running::start(&mut place.run_script("k --ttl 3s --grace 300ms", script));
    let pids = place.pids("pids", 2);
    assert_eq!(code(&mut place.distlock("release k --force")), 0);
    let forced = Instant::now();
    assert_eq!(run.code(), 202);
    // One renewal interval until it is known, and the grace; the rest is for a slow machine.
    assert!(forced.elapsed() < 10 * SECOND, "{:?}", forced.elapsed());
    for pid in pids {
        assert!(!is_alive(pid), "{pid} is left");
    }
}

/// B32: SIGTERM reaches the group; the lock is released after the last of it has ended.
#[test]
fn b32_sigterm_ends_the_group_and_then_the_lock() {
    let place = Place::new();
    let script = "sleep 600 & echo $! >> pids; echo $$ >> pids; wait";
    let mut run = Running::start(&mut place.run_script("k", script));
    let pids = place.pids("pids", 2);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    for pid in pids {
        assert!(!is_alive(pid), "{pid} is left");
    }
    assert!(place.is_free("k"));
}

/// B33: with the store out of reach the command is gone before the lease ends, even one that
/// ignores SIGTERM: the next holder's command never runs beside it.
#[test]
fn b33_the_command_is_gone_before_the_lease_ends() {
    let place = Place::new();
    let mut first = Running::start(&mut place.run_script("k --ttl 3s", &stubborn("first")));
    place.text("first");
    let mut second = Running::start(&mut place.run_script("k --wait 60s", "date +%s%N > second"));
    until("a waiter", || place.waiters("k") == 1);
    let told = cut_off(&place, || first.code());
    assert_eq!(told, 202);
    assert_eq!(second.code(), 0);
    let last = *stamps(&place.text("first")).last().unwrap();
    let next = stamps(&place.text("second"))[0];
    assert!(last < next, "overlap of {} ms", (last - next) / 1_000_000);
}

/// B33: a command that heeds SIGTERM has the grace to clean up.
#[test]
fn b33_sigterm_comes_a_grace_before_sigkill() {
    let place = Place::new();
    let script = "trap 'date +%s%N > asked; sleep 0.3; echo clean > cleaned; exit 0' TERM; echo > started; while :; do sleep 0.01; done";
    let mut run = Running::start(&mut place.run_script("k --ttl 6s --grace 2s", script));
    until("the start", || place.path("started").exists());
    assert_eq!(cut_off(&place, || run.code()), 202);
    assert_eq!(place.text("cleaned"), "clean\n");
    // The lease was not over then, and it was given back.
    assert!(place.is_free("k"));
}

/// B33, A11: when `distlock` itself stands still past the lease, its keeper ends the group in
/// time, and it says so when it goes on.
#[test]
fn b33_a_stopped_distlock_does_not_leave_its_command_running() {
    let place = Place::new();
    let mut first = Running::start(&mut place.run_script("k --ttl 2s", &stubborn("first")));
    place.text("first");
    let mut second = Running::start(&mut place.run_script("k --wait 60s", "date +%s%N > second"));
    until("a waiter", || place.waiters("k") == 1);
    first.signal(Signal::STOP);
    assert_eq!(second.code(), 0);
    let last = *stamps(&place.text("first")).last().unwrap();
    let next = stamps(&place.text("second"))[0];
    assert!(last < next, "overlap of {} ms", (last - next) / 1_000_000);
    first.signal(Signal::CONT);
    assert_eq!(first.code(), 202);
}

/// B34: each of these signals reaches the command once and leaves `distlock` and the lock alone.
#[test]
fn b34_signals_are_forwarded() {
    let place = Place::new();
    let signals = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ];
    let mut script: String = signals
        .map(|(name, _)| format!("trap 'echo {name} >> log' {name}; "))
        .concat();
    script += "echo > log; while ! test -e stop; do sleep 0.01; done; exit 5";
    let mut command = place.distlock("run k -- bash -c");
    let mut run = Running::start(command.arg(&script));
    place.text("log");
    let mut expected = String::from("\n");
    for (name, signal) in signals {
        run.signal(signal);
        expected += &format!("{name}\n");
        until(name, || read(&place.path("log")).len() >= expected.len());
    }
    run.signal(Signal::CONT);
    assert_eq!(place.text("log"), expected);
    assert!(!place.is_free("k"));
    fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.code(), 5);
    assert!(place.is_free("k"));
}

/// B34, B37: SIGKILL of `distlock` ends its whole group at once, and the lock with its lease, by
/// the store's clock and without anybody's help.
#[test]
fn b34_b37_sigkill_of_distlock() {
    let place = Place::new();
    let script = "trap '' TERM; sleep 600 & echo $! >> pids; echo $$ >> pids; wait";
    let first = Running::start(&mut place.run_script("k --ttl 3s", script));
    let pids = place.pids("pids", 2);
    let mut second = Running::start(&mut place.run_script("k --wait 60s", "true"));
    until("a waiter", || place.waiters("k") == 1);
    first.signal(Signal::KILL);
    let killed = Instant::now();
    until("the end of the group", || {
        !pids.iter().any(|pid| is_alive(*pid))
    });
    assert!(!place.is_free("k") || second.has_ended());
    assert_eq!(second.code(), 0);
    // ttl + 1 s, and as much again for a slow machine.
    assert!(killed.elapsed() < 8 * SECOND, "{:?}", killed.elapsed());
}

/// B57: a command that takes long to end keeps its lock until it has ended.
#[test]
fn b57_renewals_go_on_until_the_command_has_ended() {
    let place = Place::new();
    let script = "trap 'sleep 3; exit 4' TERM; echo > started; while :; do sleep 0.01; done";
    let mut run = Running::start(&mut place.run_script("k --ttl 1s", script));
    until("the start", || place.path("started").exists());
    run.signal(Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_millis(2500) {
        assert_eq!(code(&mut place.distlock("run k --no-wait -- true")), 200);
    }
    let mut next = Running::start(&mut place.distlock("run k --wait 60s -- true"));
    assert_eq!(run.code(), 4);
    assert_eq!(next.code(), 0);
}

/// B107: a store that is away for a while costs nobody the lock or the place in the queue.
#[test]
fn b107_a_short_outage_is_survived() {
    let place = Place::new();
    let script = "echo > started; while ! test -e stop; do sleep 0.01; done";
    let mut first = Running::start(&mut place.run_script("k --ttl 6s", script));
    until("the start", || place.path("started").exists());
    let mut second = Running::start(&mut place.run_script("k --wait 60s", "true"));
    until("a waiter", || place.waiters("k") == 1);
    cut_off(&place, || sleep(2 * SECOND));
    sleep(3 * SECOND);
    assert!(!first.has_ended() && !second.has_ended());
    fs::write(place.path("stop"), "").unwrap();
    assert_eq!(first.code(), 0);
    assert_eq!(second.code(), 0);
}

/// A nested `distlock run` of the same lock enters it again, with the same token, also across a
/// lock of another name; a stranger does not.
#[test]
fn nested_runs_enter_again() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_distlock");
    let script = format!(
        "echo $DISTLOCK_TOKEN >> tokens
         {program} run a --no-wait -- sh -c 'echo $DISTLOCK_TOKEN >> tokens' &&
         {program} run b --no-wait -- {program} run a --no-wait -- {program} run b --no-wait -- sh -c 'echo $DISTLOCK_KEY >> tokens' &&
         {program} inspect a --json > inner &&
         DISTLOCK_OWNER= {program} run a --no-wait -- true; echo $? >> tokens"
    );
    assert_eq!(code(&mut place.run_script("a", &script)), 0);
    let text = place.text("tokens");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[2..], ["b", "200"]);
    assert!(place.text("inner").contains("\"holds\":1"));
    assert!(place.is_free("a") && place.is_free("b"));
}

/// Two commands under one lock still exclude each other under another.
#[test]
fn an_owner_is_not_carried_over_to_another_lock() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_distlock");
    let script = format!(
        "{program} run b -- sh -c 'echo > in; while ! test -e stop; do sleep 0.01; done' &
         while ! test -e in; do sleep 0.01; done
         {program} run b --no-wait -- true; echo $? > code; echo > stop; wait"
    );
    assert_eq!(code(&mut place.run_script("a", &script)), 0);
    assert_eq!(place.text("code"), "200\n");
}

/// An owner that is given by hand enters, and one that is none is refused.
#[test]
fn an_owner_can_be_given() {
    let place = Place::new();
    let id = "0123456789abcdef0123456789abcdef";
    let shown = output(&mut place.run_script(&format!("k --owner {id}"), "echo $DISTLOCK_OWNER"));
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), id);
    let mut by_variable = place.run_script("k", "echo $DISTLOCK_OWNER");
    let shown = output(by_variable.env("DISTLOCK_OWNER", id));
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), id);
    let mut wrong = place.run_script("k", "true");
    assert_eq!(code(wrong.env("DISTLOCK_OWNER", "me")), 205);
}

/// A process that has left the group does not hold up the end, though it has the pipes; one that
/// has not is ended.
#[test]
fn what_is_left_behind_does_not_hold_up_the_end() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$ >> pids; sleep 600' &
        sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.05; done' &
        while test \"$(wc -l < pids)\" != 2; do sleep 0.01; done; exit 3";
    let start = Instant::now();
    let mut command = place.run_script("k --grace 200ms", script);
    let ended = command
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    let took = start.elapsed();
    let pids = place.pids("pids", 2).into_iter();
    let alive: Vec<_> = pids.filter(|pid| is_alive(*pid)).collect();
    for pid in &alive {
        let pid = rustix::process::Pid::from_raw(*pid).unwrap();
        rustix::process::kill_process_group(pid, Signal::KILL).unwrap();
    }
    assert_eq!(
        alive.len(),
        1,
        "only the one in a session of its own is left"
    );
    assert_eq!(ended.code(), Some(3));
    assert!(took < 30 * SECOND, "{took:?}");
    assert!(place.is_free("k"));
}

/// A helper in the background that ends by itself, such as a `tee`, is waited for.
#[test]
fn the_lock_is_kept_until_the_group_has_ended() {
    let place = Place::new();
    let script = "(sleep 0.5; date +%s%N > helper) & exit 0";
    let mut run = Running::start(&mut place.run_script("k", script));
    let mut next = Running::start(&mut place.run_script("k --wait 60s", "date +%s%N > next"));
    assert_eq!(run.code(), 0);
    assert_eq!(next.code(), 0);
    // Whoever of the two came first: the helper is not beside the other command.
    if let [helper] = stamps(&read(&place.path("helper")))[..] {
        let next = stamps(&place.text("next"))[0];
        assert!(
            helper < next || next + 400_000_000 < helper,
            "{helper} {next}"
        );
    } else {
        panic!("the helper was not waited for");
    }
}

#[test]
fn max_hold_ends_the_command() {
    let place = Place::new();
    let run = output(&mut place.run_script("k --max-hold 1s", "sleep 600"));
    assert_eq!(run.status.code(), Some(202));
    assert!(stderr(&run).contains("longest allowed hold"), "{run:?}");
    assert!(place.is_free("k"));
}

#[test]
fn min_hold_outlasts_the_command() {
    let place = Place::new();
    let job = || output(&mut place.run_script("k --no-wait --min-hold 1h", "exit 3"));
    assert_eq!(job().status.code(), Some(3));
    assert_eq!(job().status.code(), Some(200), "another one's is busy");
    assert!(!place.is_free("k"));
    let impossible = output(&mut place.run_script("m --min-hold 2s --max-hold 1s", "exit 3"));
    assert_eq!(impossible.status.code(), Some(205), "{impossible:?}");
}

/// B112: with `--on-lost warn` the command goes on and its code counts.
#[test]
fn on_lost_warn_lets_the_command_go_on() {
    let place = Place::new();
    let script = format!(
        "{} release k --force; while ! test -e stop; do sleep 0.01; done; exit 6",
        env!("CARGO_BIN_EXE_distlock")
    );
    let mut command = place.run_script("k --ttl 1s --on-lost warn", &script);
    let mut run = Running::start(command.stderr(fs::File::create(place.path("err")).unwrap()));
    until("a warning", || {
        read(&place.path("err")).contains("the command goes on")
    });
    assert!(!run.has_ended());
    fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.code(), 6);
    let warnings = read(&place.path("err"));
    assert_eq!(warnings.matches("is lost").count(), 1, "{warnings}");
}

/// B118: a wait that is interrupted leaves nothing in the queue.
#[test]
fn an_interrupted_wait_leaves_the_queue() {
    let place = Place::new();
    assert_eq!(code(&mut place.distlock("try k --ttl 10m")), 0);
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut waiter = Running::start(&mut place.distlock("run k -- true"));
        until("a waiter", || place.waiters("k") == 1);
        waiter.signal(Signal::USR1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), expected);
        assert_eq!(place.waiters("k"), 0);
    }
}

/// B118: as process 1 of a container it collects what is orphaned, passes signals on, and ends.
#[test]
fn b118_as_process_1() {
    let place = Place::new();
    let inner = place.run_script(
        "k",
        "echo $PPID > parent; (setsid sleep 0.1 &); sleep 1
         ls -d /proc/[0-9]* | while read p; do grep -s '^State:.*Z' $p/status; done > zombies
         echo > started; trap 'exit 8' TERM; while :; do sleep 0.01; done",
    );
    let mut outer = std::process::Command::new("unshare");
    outer.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer
        .env("DISTLOCK_URL", place.url())
        .current_dir(place.path(""));
    // A group of its own, since `unshare` waits for its child and is not told.
    let mut run = Running::start(outer.process_group(0));
    place.text("started");
    assert_eq!(place.text("parent"), "1\n");
    assert_eq!(read(&place.path("zombies")), "");
    let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.0.id())).unwrap();
    let child = rustix::process::Pid::from_raw(child.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(child, Signal::TERM).unwrap();
    assert_eq!(run.code(), 8);
    assert!(place.is_free("k"));
}
