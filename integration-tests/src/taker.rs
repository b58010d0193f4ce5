//! Driving a `lock-taker` process.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use crate::process::Process;

/// A client in a process of its own; see `src/bin/lock-taker.rs` for what it understands.
#[derive(Debug)]
pub struct Taker {
    /// The process, to pause or kill it.
    pub process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Taker {
    /// Starts `program` on the store of a URL.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(program: &str, url: impl AsRef<OsStr>) -> Self {
        let mut process = Process::start(
            Command::new(program)
                .arg(url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let child = process.child();
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Self {
            input: input.expect("a pipe to the process"),
            output: BufReader::new(output.expect("a pipe from the process")),
            process,
        }
    }

    /// Sends a command; the process may be stopped and do it later.
    ///
    /// # Panics
    ///
    /// When the process has ended.
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the process reads");
    }

    /// The next answer.
    ///
    /// # Panics
    ///
    /// When the process has ended.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self
            .output
            .read_line(&mut line)
            .expect("the process writes");
        assert_ne!(read, 0, "the process has ended");
        line.trim_end().to_owned()
    }

    /// Sends a command and returns its answer.
    ///
    /// # Panics
    ///
    /// When the process has ended.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }
}
