//! Clocks and counters of this process and machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on a clock that all processes of this machine share and that only goes forward.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The processor time that this process has used.
pub(crate) fn cpu() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ProcessCPUTime))
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The memory of this process that is in use, in bytes; `None` where /proc does not tell.
pub(crate) fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The sockets that this process has open; `None` where /proc does not tell.
pub(crate) fn sockets() -> Option<usize> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Some(
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count(),
    )
}
