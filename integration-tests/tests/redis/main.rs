//! The Redis store against real servers.
//!
//! Every test starts servers of its own. They are `redis-server` from PATH, or the program that
//! the environment variable `DISTLOCK_TEST_REDIS_SERVER` names, such as `valkey-server`.
//!
//! Names like `row_b3_…` are rows of the failure catalogue, `b39_…` are field cases.

#![allow(clippy::unwrap_used)] // in what the tests share, too

mod conformance_run;
mod errors;
mod life;
mod model;
mod queue;
mod scale;
mod server;
mod support;
mod tokens;
