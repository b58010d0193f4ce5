//! The Redis store against real servers.
//!
//! Every test starts servers of its own. They are `redis-server` from PATH, or the program that
//! the environment variable `DISTLOCK_TEST_REDIS_SERVER` names, such as `valkey-server`.
//!
//! Names like `row_b3_…` are rows of the tables in docs/failures.md, `b39_…` are cases
//! from the field; where such a case has the number of a row, a zero goes before it: `b010_…`.

#![allow(clippy::unwrap_used)] // in what the tests share, too

mod conformance_run;
mod errors;
mod examine;
mod life;
mod model;
mod queue;
mod scale;
mod server;
mod support;
mod tokens;
