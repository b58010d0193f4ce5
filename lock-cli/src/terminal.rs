//! The terminal: whose processes may read it, and get Ctrl-C and Ctrl-Z.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{
    process::{Pid, getpgrp},
    termios::{tcgetpgrp, tcsetpgrp},
};

/// Lets this process change the terminal, and write to it, while the command's group has the
/// foreground; otherwise the terminal would stop it. To be called before there are threads.
pub(crate) fn allow_changes_from_the_background() {
    let _ = SigSet::from(Signal::SIGTTOU).thread_block();
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

/// Whether the command is alone at the terminal. In `distlock run … | less` it is not: there
/// `less` needs the foreground too, so the command gets it only when it asks for it.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
