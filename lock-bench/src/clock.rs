//! Clocks and counters of this process and machine.

use std::{collections::HashSet, time::Duration};

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

/// The TCP connections that this process has open; `None` where /proc does not tell.
pub(crate) fn connections() -> Option<usize> {
    let mut known = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let inodes = table.lines().skip(1);
        known.extend(inodes.filter_map(|line| {
            let inode = line.split_whitespace().nth(9)?;
            Some(format!("socket:[{inode}]"))
        }));
    }
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Some(
        links
            .filter(|link| known.contains(&*link.to_string_lossy()))
            .count(),
    )
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let before = connections();
        let _connection = TcpStream::connect(address).expect("a connection");
        if let Some(before) = before {
            assert_eq!(connections(), Some(before + 1));
        }
    }
}
