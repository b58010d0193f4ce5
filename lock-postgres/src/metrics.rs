//! What the store counts, with the `metrics` crate. No label names a lock.

use metrics::counter;

/// A connection was made, for `requests` or to `listen`; more than one each is the number of times
/// that one had to be replaced.
pub(crate) fn connected(purpose: &'static str) {
    counter!("distlock_connections_total", "store" => "postgres", "for" => purpose).increment(1);
}

/// A statement was sent again after a deadlock or a serialization failure.
pub(crate) fn repeated() {
    counter!("distlock_conflicts_total", "store" => "postgres").increment(1);
}

/// The sweeper has deleted `rows` rows of locks that nobody has used for a while.
pub(crate) fn swept(rows: u64) {
    counter!("distlock_swept_rows_total", "store" => "postgres").increment(rows);
}
