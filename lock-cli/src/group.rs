//! The command's process group: its keeper, its signals, its end.

use std::{
    env,
    io::{self, Read, Write},
    mem,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use distlock::Moment;
#[cfg(target_os = "linux")]
use rustix::process::{getpid, set_child_subreaper};
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, kill_process_group, test_kill_process_group, wait,
    },
};

use crate::keeper;

/// A process group that is led by a [keeper]; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Group {
    keeper: Child,
    id: Pid,
    /// Whether there is a keeper that has not ended.
    is_kept: bool,
    /// Whether the group has ended, so that its id may be somebody else's.
    is_over: bool,
}

/// What a process of ours did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended, with this exit code as a shell tells it.
    Ended(i32),
    /// It was stopped by this signal.
    Stopped(i32),
}

impl Group {
    /// Starts the keeper, and with it the group.
    pub(crate) fn start() -> io::Result<Self> {
        // Orphans of the group come to us and are collected, whatever process 1 does: a zombie
        // that nobody collects would look like a member that lives on.
        #[cfg(target_os = "linux")]
        set_child_subreaper(Some(getpid()))?;
        let keeper = Command::new(this_program()?)
            .arg0("distlock-keeper")
            .arg(keeper::NAME)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let id = Pid::from_child(&keeper);
        if let Some(lifeline) = &keeper.stdin {
            // A keeper that does not read, since somebody stopped it, must not hold us up.
            rustix::io::ioctl_fionbio(lifeline, true)?;
        }
        Ok(Self {
            keeper,
            id,
            is_kept: true,
            is_over: false,
        })
    }

    /// Returns once signals to the group do not disturb the keeper.
    pub(crate) fn ready(&mut self) -> io::Result<()> {
        match self.keeper.stdout.take() {
            Some(mut stdout) => stdout.read_exact(&mut [0; keeper::READY.len()]),
            None => Ok(()),
        }
    }

    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Starts a process in the group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        let child = command.process_group(self.id.as_raw_nonzero().get());
        child.spawn().map(|child| Pid::from_child(&child))
    }

    /// Sends `signal` to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
    }

    /// The group may live until `end`; the keeper sees to it.
    pub(crate) fn keep_until(&self, end: Moment) {
        if let Some(mut lifeline) = self.keeper.stdin.as_ref() {
            let _ = lifeline.write_all(&keeper::message(end));
        }
    }

    /// Collects what happened to the processes under us, and says what happened to `command`.
    ///
    /// As process 1 of a container these are also orphans of others, which would stay zombies.
    pub(crate) fn collect(&mut self, command: Pid) -> Option<Change> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let mut last = None;
        while let Ok(Some((pid, status))) = wait(options) {
            let change = change(status);
            if pid == command {
                last = change.or(last);
            } else if pid == self.id && matches!(change, Some(Change::Ended(_))) {
                self.is_kept = false;
            }
        }
        last
    }

    /// Ends the keeper: what is left of the group then is the command's.
    pub(crate) fn dismiss_keeper(&mut self) {
        if mem::take(&mut self.is_kept) {
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }

    /// Whether every process of the group has ended; to be asked without a keeper.
    pub(crate) fn is_over(&mut self) -> bool {
        self.is_over = self.is_over || test_kill_process_group(self.id) == Err(Errno::SRCH);
        self.is_over
    }
}

/// The program that runs now, also when its file was replaced meanwhile.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok("/proc/self/exe".into())
    } else {
        env::current_exe()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
            self.dismiss_keeper();
        }
    }
}

fn change(status: WaitStatus) -> Option<Change> {
    let ended = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    let stopped = || status.stopping_signal().map(Change::Stopped);
    ended.map(Change::Ended).or_else(stopped)
}
