//! The Postgres store against a private server, directly and through PgBouncer.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests as well")]

mod conflicts;
mod conformance;
mod connections;
mod counting;
mod examine;
mod expiry;
mod faults;
mod metrics;
mod model;
mod pooler;
mod replication;
mod schema;
mod support;
mod sweeping;
mod tls;
mod transactions;
mod verbs;
