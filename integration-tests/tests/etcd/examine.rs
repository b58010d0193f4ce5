//! What an examination finds, on clusters that are set up so.

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, Finding, Severity};
use lock_etcd::EtcdLock;

use crate::support::*;

/// The findings about a subject; one at least.
async fn about(store: &EtcdLock, subject: &str) -> Vec<Finding> {
    let mut findings = store.examine().await.expect("an answer");
    findings.retain(|finding| finding.subject == subject);
    assert!(!findings.is_empty(), "{subject}");
    findings
}

/// E22: the server's version is told, and whether its leases have known faults.
#[tokio::test]
async fn e22_a_sound_cluster_has_nothing_but_its_version_against_it() {
    let mut cluster = EtcdCluster::three();
    let store = store(&cluster).await;
    let version = cluster.admin().await.status().await.unwrap();
    let faults = store.capabilities().warnings;
    for finding in about(&store, "version").await {
        assert!(finding.what.contains(version.version()), "{finding}");
        let wanted = match faults.is_empty() {
            true => Severity::Ok,
            false => Severity::Warning,
        };
        assert_eq!(finding.severity, wanted, "{finding}");
    }
    for subject in ["members", "alarm", "ttl"] {
        let found = about(&store, subject).await;
        assert!(
            found.iter().all(|f| f.severity == Severity::Ok),
            "{found:?}"
        );
    }
    // Whichever member is asked, another one answers for it.
    cluster.kill(0);
    for _ in 0..3 {
        let found = about(&store, "members").await;
        assert!(found[0].what.contains("3 members vote; 1"), "{found:?}");
    }
}

/// E12: a cluster that takes nothing new says so, and one member is a note.
#[tokio::test]
async fn e12_an_alarm_is_found() {
    let cluster = EtcdCluster::with(1, &["--quota-backend-bytes", "400000"]);
    let store = store(&cluster).await;
    assert_eq!(about(&store, "members").await[0].severity, Severity::Note);
    let mut admin = cluster.admin().await;
    let block = "x".repeat(50_000);
    while admin.put("data", block.as_str(), None).await.is_ok() {}
    let found = about(&store, "alarm").await;
    assert_eq!(found[0].severity, Severity::Failure);
    assert!(found[0].what.contains("NOSPACE"), "{found:?}");
    assert!(found[0].meaning.contains("no lock can be taken"));
}
