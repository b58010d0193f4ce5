//! The same thing over and over, on every store: acquires that are dropped, holders that stand
//! still, and whatever can be written as a name, a ttl and a wait.
//!
//! Each has a small size here; with `DISTLOCK_TEST_FULL=1` (`make endurance`) it is the one that
//! docs/proof.md tells of.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests as well")]

mod drops;
mod input;
mod pauses;
mod place;
