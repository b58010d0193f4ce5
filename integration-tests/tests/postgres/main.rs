//! The Postgres store against a private server, directly and through PgBouncer.

mod support;
mod verbs;
