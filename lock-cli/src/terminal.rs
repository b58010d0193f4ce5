//! The terminal: whose processes may read it, and get Ctrl-C and Ctrl-Z.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    process::Command,
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{
    process::{Pid, getpgrp},
    termios::{tcgetpgrp, tcsetpgrp},
};

use crate::failure::not_executed;

/// Lets this process change the terminal, and write to it, while the command's group has the
/// foreground; otherwise the terminal would stop it. To be called before there are threads.
pub(crate) fn allow_changes_from_the_background() {
    let _ = SigSet::from(Signal::SIGTTOU).thread_block();
}

/// The first argument that makes this program take the foreground for its group, and then become
/// the command that follows.
///
/// Done by the command's own process, so that there is no moment in which Ctrl-C reaches neither
/// `distlock run` nor the command, and none in which the command is stopped for reading.
pub(crate) const TAKE: &str = "__take_terminal";

/// Returns an exit code when there is no such command.
pub(crate) fn take(mut command: impl Iterator<Item = OsString>) -> i32 {
    allow_changes_from_the_background();
    if let Some(terminal) = Terminal::open() {
        let _ = tcsetpgrp(&terminal.0, getpgrp());
    }
    let name = command.next().unwrap_or_default();
    // What is blocked here, and only here, is not blocked in the command.
    let why = Command::new(&name).args(command).exec();
    not_executed(&name, &why, false)
}

/// The terminal that this process belongs to.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty");
        tty.ok().map(Self)
    }

    /// Gives the foreground to `group`, if it is ours to give; says whether it was.
    pub(crate) fn hand_over(&self, group: Pid) -> bool {
        self.is_foreground(getpgrp()) && tcsetpgrp(&self.0, group).is_ok()
    }

    /// Takes the foreground back from `group`, unless somebody else has it.
    pub(crate) fn take_back(&self, group: Pid) {
        if self.is_foreground(group) {
            let _ = tcsetpgrp(&self.0, getpgrp());
        }
    }

    fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }
}

/// Whether the command gets the foreground from the start: when it is ours, and the command is
/// alone at the terminal. In `distlock run … | less` it is not: there `less` needs the foreground
/// too, so the command gets it only when it asks for it.
pub(crate) fn is_to_be_given() -> bool {
    let is_alone = io::stdin().is_terminal() && io::stdout().is_terminal();
    is_alone && Terminal::open().is_some_and(|terminal| terminal.is_foreground(getpgrp()))
}
