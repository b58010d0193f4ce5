//! Servers that belong to one test run: a free port, loopback only, a temporary data folder,
//! stopped by whoever started them.

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
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port on loopback")
        .port()
}
