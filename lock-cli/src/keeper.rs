//! The keeper: a small process that leads the command's group and kills the group when `distlock
//! run` cannot.
//!
//! It reads moments from its stdin, the lifeline. Until the last one it does nothing; when that is
//! past, or when the lifeline ends because `distlock run` is dead, it kills its own group, itself
//! included. So neither a SIGKILL nor a SIGSTOP of `distlock run` leaves the command running
//! without the lock. As the group's leader it also keeps the group's id from being used again.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use distlock::{Clock, Moment, SystemClock};
use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, getpgrp, getpid, kill_current_process_group},
};

/// The argument that makes this program the keeper.
pub(crate) const NAME: &str = "__keeper";

/// Returns an exit code when it cannot do its work.
pub(crate) fn main() -> i32 {
    if getpgrp() != getpid() {
        eprintln!("distlock: {NAME} is for `distlock run` only");
        return 1;
    }
    match keep() {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn keep() -> io::Result<()> {
    // What the group is sent is not meant for the keeper.
    SigSet::all().thread_block()?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;

    let mut lifeline = io::stdin().lock();
    let mut end = Moment::NEVER;
    loop {
        let left = end.since(SystemClock.now());
        if left.is_zero() {
            break;
        }
        // A timeout of `poll` does not count the time in suspend: look often enough.
        let timeout = Timespec::try_from(left.min(Duration::from_secs(1))).ok();
        let mut fds = [PollFd::new(&lifeline, PollFlags::IN)];
        if poll(&mut fds, timeout.as_ref())? == 0 {
            continue;
        }
        let mut moment = [0; size_of::<u64>()];
        if lifeline.read_exact(&mut moment).is_err() {
            break;
        }
        end = Moment::from_nanos(u64::from_ne_bytes(moment));
    }
    Ok(kill_current_process_group(Signal::KILL)?)
}

/// What the keeper writes once it cannot be disturbed.
pub(crate) const READY: &[u8] = b"r";

/// What the keeper is told: to stand by until `end`.
pub(crate) fn message(end: Moment) -> [u8; size_of::<u64>()] {
    end.as_nanos().to_ne_bytes()
}
