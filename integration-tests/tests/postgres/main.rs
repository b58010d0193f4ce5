//! The Postgres store against a private server, directly and through PgBouncer.

mod conflicts;
mod connections;
mod expiry;
mod faults;
mod pooler;
mod schema;
mod support;
mod sweeping;
mod transactions;
mod verbs;
