//! A store of its own for each test, the program, and looking at processes.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // every test program uses a part of it

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long a test waits for something that has to happen; generous, since machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a store in it.
pub struct Place(TempDir, &'static str);

impl Place {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With settings of the store, as they stand in a URL.
    pub fn with(settings: &'static str) -> Self {
        Self(tempfile::tempdir().unwrap(), settings)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}{}", self.path("locks.db").display(), self.1)
    }

    /// `distlock` with these arguments, split at white space, on the store of this place.
    pub fn distlock(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        command.args(args.split_whitespace());
        command.current_dir(self.0.path());
        command.env("DISTLOCK_URL", self.url());
        for inherited in ["KEY", "TOKEN", "OWNER", "OUTER", "EXIT_CODE_BASE"] {
            command.env_remove(format!("DISTLOCK_{inherited}"));
        }
        command
    }

    /// `distlock run ARGS -- sh -c SCRIPT`, in the folder.
    pub fn run_script(&self, args: &str, script: &str) -> Command {
        let mut command = self.distlock(&format!("run {args} --"));
        command.args(["sh", "-c", script]);
        command
    }

    pub fn inspect(&self, key: &str) -> Value {
        let output = output(self.distlock("--json inspect").arg(key));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn is_free(&self, key: &str) -> bool {
        self.inspect(key)["holder"].is_null()
    }

    pub fn waiters(&self, key: &str) -> usize {
        self.inspect(key)["waiters"].as_array().unwrap().len()
    }

    /// The content of a file, once there is some and it ends a line.
    pub fn text(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("something in {name}"), || {
            read(&path).ends_with('\n')
        });
        read(&path)
    }

    /// The process ids that a script has written to a file, once there are `count`.
    pub fn pids(&self, name: &str, count: usize) -> Vec<i32> {
        let path = self.path(name);
        until(&format!("{count} pids in {name}"), || {
            read(&path).lines().count() == count
        });
        read(&path)
            .lines()
            .map(|line| line.trim().parse().unwrap())
            .collect()
    }
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// The exit code of a command that is run to its end.
pub fn code(command: &mut Command) -> i32 {
    output(command).status.code().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A program that runs; killed when it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its exit status; fails when it does not end.
    pub fn ended(&mut self) -> ExitStatus {
        until("the end of a process", || self.has_ended());
        self.0.wait().unwrap()
    }

    pub fn code(&mut self) -> i32 {
        self.ended().code().unwrap()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process runs; a zombie does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = read(Path::new(&format!("/proc/{pid}/stat")));
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// The stamp of a line that [`STAMPS`] has written, in nanoseconds.
pub fn stamps(text: &str) -> Vec<u128> {
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A script that writes the time to a file again and again and does not mind SIGTERM.
pub fn stubborn(file: &str) -> String {
    format!("trap '' TERM; while :; do date +%s%N >> {file}; sleep 0.01; done")
}
