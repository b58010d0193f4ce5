//! Servers that belong to one test run: a free port, loopback only, a temporary data folder,
//! stopped by whoever started them.

pub mod etcd;
pub mod pgbouncer;
pub mod postgres;
pub mod redis;

use std::net::TcpListener;

/// A port on loopback that was free a moment ago.
///
/// # Panics
///
/// When the machine has none.
pub fn free_port() -> u16 {
    free_ports(1)[0]
}

/// Ports on loopback that were free a moment ago, no two the same.
///
/// # Panics
///
/// When the machine has too few.
pub fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Result<Vec<_>, _> = (0..count)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect();
    let listeners = listeners.expect("free ports on loopback");
    let ports: Result<Vec<_>, _> = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port()))
        .collect();
    ports.expect("their numbers")
}
