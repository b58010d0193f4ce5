//! A process that a test started, and what can happen to it.

use std::{
    io,
    process::{Child, Command, ExitStatus},
};

use rustix::process::{Pid, Signal, kill_process};

/// A child process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts `command`.
    ///
    /// # Panics
    ///
    /// When it cannot be started: a test that needs a program fails without it.
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(why) => panic!("cannot start {command:?}: {why}"),
        }
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Stops it where it is (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Whether it stands still (SIGSTOP, or a debugger), by what the kernel says.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        // After the name in brackets, which may hold anything.
        let state = stat
            .unwrap_or_default()
            .rsplit(") ")
            .next()
            .map(|rest| rest.starts_with(['T', 't']));
        state.unwrap_or_default()
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal; a process that has ended already does not mind.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Ends it at once (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// As [`Child::wait`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
