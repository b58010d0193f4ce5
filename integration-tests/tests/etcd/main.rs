//! The etcd store against private clusters, of one member and of three.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests as well")]

mod conformance_run;
mod counts;
mod errors;
mod examine;
mod leases;
mod life;
mod members;
mod model;
mod names;
mod queue;
mod reach;
mod support;
mod tokens;
