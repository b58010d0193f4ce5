//! Acquires that are dropped after any number of polls.

use lock_core::conformance::cancel::drop_acquires;

use crate::place::{Place, times};

/// A18, B04, B28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_nothing_in_redis() {
    drop_many(Place::redis()).await;
}

/// A18, B04, B28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_nothing_in_postgres() {
    drop_many(Place::postgres()).await;
}

/// A18, B04, B28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_nothing_in_etcd() {
    drop_many(Place::etcd()).await;
}

/// A18, B04, B28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_nothing_in_sqlite() {
    drop_many(Place::sqlite()).await;
}

async fn drop_many(place: Place) {
    let longest = drop_acquires(&place, times(200, 10_000)).await;
    println!("{place:?}: free and without a queue after {longest:?} at most");
}
