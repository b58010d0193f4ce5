//! What an examination finds, on servers that are set up so.

use integration_tests::{clock::ShiftedClock, servers::redis::RedisServer};
use lock_core::{DistributedLock, Finding, Severity};

use crate::support::*;

async fn findings(server: &RedisServer) -> Vec<Finding> {
    store(server).await.examine().await.expect("an answer")
}

/// The one finding about a subject.
fn about<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let mut found = findings.iter().filter(|finding| finding.subject == subject);
    let (first, more) = (found.next(), found.next());
    match (first, more) {
        (Some(finding), None) => finding,
        _ => panic!("{subject}: {findings:?}"),
    }
}

#[tokio::test]
async fn a_server_that_keeps_everything_has_no_warning() {
    let server = RedisServer::durable();
    let findings = findings(&server).await;
    let worst = findings.iter().map(|f| f.severity).max();
    assert!(worst <= Some(Severity::Note), "{findings:?}");
    for subject in ["persistence", "eviction", "clock", "rights"] {
        assert_eq!(
            about(&findings, subject).severity,
            Severity::Ok,
            "{findings:?}"
        );
    }
    let version = server.info("redis_version");
    assert!(about(&findings, "version").what.contains(&version));
}

/// Row B5, B53: the setup is looked at anew, not as it was at connect.
#[tokio::test]
async fn row_b5_b53_what_weakens_a_guarantee_is_found() {
    let server = RedisServer::durable();
    let store = store(&server).await;
    let found = async |subject: &str| about(&store.examine().await.unwrap(), subject).clone();

    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let eviction = found("eviction").await;
    assert_eq!(eviction.severity, Severity::Warning);
    assert!(eviction.what.contains("allkeys-lru"), "{eviction}");
    assert!(eviction.meaning.contains("granted again"), "{eviction}");

    server.command(&["CONFIG", "SET", "appendonly", "no"]);
    server.command(&["CONFIG", "SET", "save", ""]);
    let persistence = found("persistence").await;
    assert_eq!(persistence.severity, Severity::Warning);
    assert!(
        persistence.what.contains("nothing on disk"),
        "{persistence}"
    );

    let port = server.port().to_string();
    let _replica = RedisServer::with(&["--replicaof", "127.0.0.1", &port]);
    eventually("it is replicated", async || {
        server.info("connected_slaves") == "1"
    })
    .await;
    assert!(found("replication").await.what.contains("asynchronous"));
}

/// A server whose clock is wrong is found, whichever way.
#[tokio::test]
async fn a_wrong_clock_is_found() {
    let mut server = RedisServer::durable();
    let clock = ShiftedClock::new();
    server.move_to(&clock);
    for (shift, direction) in [(3_600_000, "ahead"), (-7_200_000, "behind")] {
        clock.advance(shift);
        let findings = findings(&server).await;
        let found = about(&findings, "clock");
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.what.contains(direction), "{found}");
        assert!(found.meaning.contains("tokens"), "{found}");
    }
}

/// A user with few rights: what cannot be known is said, and what it may not do.
#[tokio::test]
async fn missing_rights_are_found() {
    let server = RedisServer::start();
    server.command(&[
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config", "-info", "-publish",
    ]);
    let store = open(&format!("redis://app:pw@{}", server.address())).await;
    let findings = store.examine().await.unwrap();
    let rights = about(&findings, "rights");
    assert_eq!(rights.severity, Severity::Note);
    assert!(rights.meaning.contains("twice a second"), "{rights}");
    for subject in ["version", "persistence", "eviction"] {
        assert!(
            about(&findings, subject).what.contains("unknown"),
            "{findings:?}"
        );
    }
    let text = format!("{findings:?}");
    assert!(!text.contains("pw@"), "{text}");
}
