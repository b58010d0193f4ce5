//! What an examination finds, on servers that are set up so.

use std::sync::Arc;

use integration_tests::{
    clock::ShiftedClock,
    servers::{pgbouncer::PgBouncer, postgres::PostgresServer},
};
use lock_core::{DistributedLock, Finding, Severity};
use lock_postgres::{PostgresLock, SchemaMode};

use crate::support::Place;

/// The findings about a subject; one at least.
async fn about(store: &PostgresLock, subject: &str) -> Vec<Finding> {
    let mut findings = store.examine().await.expect("an answer");
    findings.retain(|finding| finding.subject == subject);
    assert!(!findings.is_empty(), "{subject}");
    findings
}

async fn only(store: &PostgresLock, subject: &str) -> Finding {
    let mut findings = about(store, subject).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

#[tokio::test]
async fn a_server_that_keeps_everything_has_no_warning() {
    let place = Place::on(Arc::new(PostgresServer::with(&["fsync=on"])));
    let store = place.store().await;
    let findings = store.examine().await.unwrap();
    let is_ok = |finding: &Finding| finding.severity == Severity::Ok;
    assert!(findings.iter().all(is_ok), "{findings:?}");
    for subject in [
        "version",
        "persistence",
        "clock",
        "rights",
        "pooler",
        "waiters",
    ] {
        only(&store, subject).await;
    }
}

/// D13: what a crash or a fail-over may lose.
#[tokio::test]
async fn what_weakens_a_guarantee_is_found_d13() {
    let server = Arc::new(PostgresServer::with(&[
        "fsync=off",
        "full_page_writes=off",
        "synchronous_commit=off",
    ]));
    let store = Place::on(server.clone()).store().await;
    let found = about(&store, "persistence").await;
    assert_eq!(found.len(), 3, "{found:?}");
    for finding in &found {
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.meaning.contains("crash"), "{finding}");
    }
    let _standby = server.standby();
    let replication = only(&store, "replication").await;
    assert!(replication.what.contains("asynchronous"), "{replication}");
}

/// A server whose clock is wrong is found.
#[tokio::test]
async fn a_wrong_clock_is_found() {
    let mut server = PostgresServer::start();
    let clock = ShiftedClock::new();
    server.move_to(&clock);
    clock.advance(-3_600_000);
    let place = Place::on(Arc::new(server));
    let store = place.store().await;
    let found = only(&store, "clock").await;
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.what.contains("behind"), "{found}");
}

/// D9: a pooler in between, and what it does to waiters.
#[tokio::test]
async fn a_pooler_is_found_d9() {
    let place = Place::shared();
    let pooler = PgBouncer::start(&place.server);
    let store = place.builder_at(&pooler.url()).connect().await.unwrap();
    assert_eq!(only(&store, "pooler").await.severity, Severity::Note);
    assert_eq!(only(&store, "waiters").await.severity, Severity::Warning);

    let told = place
        .builder_at(&pooler.url())
        .listen_url(&place.server.url())
        .unwrap();
    let told = told.connect().await.unwrap();
    assert_eq!(only(&told, "waiters").await.severity, Severity::Ok);
}

/// D17: a role that may only read cannot lock, and is told which right it lacks.
#[tokio::test]
async fn a_read_only_role_is_found_d17() {
    let place = Place::shared();
    drop(place.builder().connect().await.unwrap());
    let (schema, role) = (&place.schema, format!("reader_{}", place.schema));
    let grants = format!(
        "CREATE ROLE \"{role}\" LOGIN;
         GRANT USAGE ON SCHEMA \"{schema}\" TO \"{role}\";
         GRANT SELECT ON ALL TABLES IN SCHEMA \"{schema}\" TO \"{role}\""
    );
    place.server.sql(&grants).await;
    let url = place.server.url_of(&role, "postgres");
    let store = place
        .builder_at(&url)
        .schema_mode(SchemaMode::Check)
        .connect()
        .await
        .unwrap();
    let rights = only(&store, "rights").await;
    assert_eq!(rights.severity, Severity::Failure);
    for part in [role.as_str(), "INSERT on", "UPDATE on", "distlock_lock"] {
        assert!(rights.what.contains(part), "{rights}");
    }
    assert!(!rights.what.contains("SELECT on"), "{rights}");
    store.close().await.unwrap();
    place
        .server
        .sql(&format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\""))
        .await;
}
