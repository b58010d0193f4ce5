//! What the cluster is like: its smallest lease, how many members, which version.

use std::time::Duration;

use etcd_client::{Client, StatusResponse};
use lock_core::{Capabilities, Durability, Finding, StoreError, TokenSource, Ttl};
use tokio::time::timeout;

use crate::{
    connection::Connection,
    handle::{grant, revoke},
};

pub(crate) async fn examine(connection: &Connection) -> Result<Capabilities, StoreError> {
    // etcd grants no lease that an election could outlast; the default makes it two seconds.
    const USUAL: u64 = 2;
    let least = match grant(connection, 1).await {
        Ok(lease) => {
            revoke(connection, lease.id).await.ok();
            lease.seconds.max(1)
        }
        // What is held can be looked at and released all the same.
        Err(why) if why.to_string().contains("NOSPACE") => USUAL,
        Err(why) => return Err(why),
    };
    let mut capabilities = Capabilities::new("etcd", TokenSource::Revision, Durability::Disk);
    capabilities.min_ttl = Ttl::new(Duration::from_secs(least))
        .map_err(|why| StoreError::permanent(why.to_string()))?;
    // A user may lack the right to ask.
    let limit = connection.cluster().operation_timeout();
    if let Ok(Some(voters)) = timeout(limit, voters(connection)).await
        && voters >= 3
    {
        capabilities.durability = Durability::Replicated;
    }
    if let Ok(Some(version)) = timeout(limit, version(connection)).await {
        capabilities.warnings.extend(known_bugs(&version));
    }
    Ok(capabilities)
}

/// Everything there is to say to an operator.
///
/// # Errors
///
/// When no member can be reached.
pub(crate) async fn findings(
    connection: &Connection,
    least: Ttl,
) -> Result<Vec<Finding>, StoreError> {
    let status = match connection.call(status_of).await {
        Ok(status) => Some(status),
        Err(why) if why.error.is_transient() => return Err(why.error),
        // A user may lack the right to ask.
        Err(_) => None,
    };
    let mut findings = versions(status.as_ref().map(StatusResponse::version));
    findings.push(members(voters(connection).await));
    findings.extend(alarms(status.as_ref().map_or(&[], StatusResponse::errors)));
    findings.push(Finding::ok(
        "ttl",
        format!("no lease is shorter than {:?}", least.as_duration()),
    ));
    Ok(findings)
}

fn versions(version: Option<&str>) -> Vec<Finding> {
    let Some(version) = version else {
        let what = "the server's version is unknown";
        let meaning = "the user may not ask; old versions have faults in their leases";
        return vec![Finding::note("version", what, meaning)];
    };
    let bugs = known_bugs(version);
    if bugs.is_empty() {
        let what = format!("the server is etcd {version}, without known faults of leases");
        return vec![Finding::ok("version", what)];
    }
    let warning = |bug| Finding::warning("version", bug, "a lock may be lost, or granted twice");
    bugs.into_iter().map(warning).collect()
}

fn members(voters: Option<usize>) -> Finding {
    match voters {
        None => Finding::note(
            "members",
            "it is unknown how many members vote",
            "the user may not ask",
        ),
        Some(1) => Finding::note(
            "members",
            "the cluster has one member",
            "locks survive its restart, but wait for it, and do not survive its disk",
        ),
        Some(voters) if voters % 2 == 0 => Finding::note(
            "members",
            format!("{voters} members vote"),
            "an even number survives no more failures than one member less",
        ),
        Some(voters) => Finding::ok(
            "members",
            format!("{voters} members vote; {} of them may fail", voters / 2),
        ),
    }
}

/// What the member complains about: no leader, no room, damage.
fn alarms(errors: &[String]) -> Vec<Finding> {
    let failure = |error: &String| {
        let meaning = match error {
            e if e.contains("NOSPACE") => {
                "no lock can be taken; compact and defragment, raise the quota, disarm the alarm"
            }
            e if e.contains("CORRUPT") => "nothing is guaranteed; replace the damaged member",
            _ => "locks cannot be taken until it is over",
        };
        Finding::failure("alarm", format!("the server reports {error}"), meaning)
    };
    match errors {
        [] => vec![Finding::ok("alarm", "no alarm is raised")],
        errors => errors.iter().map(failure).collect(),
    }
}

async fn voters(connection: &Connection) -> Option<usize> {
    let list = connection.call(|client| {
        let mut cluster = client.cluster_client();
        async move { cluster.member_list().await }
    });
    let list = list.await.ok()?;
    Some(list.members().iter().filter(|m| !m.is_learner()).count())
}

async fn version(connection: &Connection) -> Option<String> {
    let status = connection.call(status_of).await.ok()?;
    Some(status.version().to_owned())
}

fn status_of(
    client: &Client,
) -> impl Future<Output = Result<StatusResponse, etcd_client::Error>> + use<> {
    let mut maintenance = client.maintenance_client();
    async move { maintenance.status().await }
}

/// What is known to be wrong with leases in this version of the server.
fn known_bugs(version: &str) -> Vec<String> {
    let mut parts = version
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let [major, minor, patch] = [(); 3].map(|()| parts.next().unwrap_or(0));
    let since = |fixes: &[(u32, u32)]| match fixes.iter().find(|(line, _)| *line == minor) {
        Some((_, fixed)) => patch < *fixed,
        None => minor < 4,
    };
    let mut bugs = Vec::new();
    let mut bug = |what: &str| bugs.push(format!("etcd {version} {what}; use a later one"));
    if major == 3 && since(&[(5, 3)]) {
        bug("is not tested, or may corrupt its data when it is killed");
    }
    if major == 3 && since(&[(4, 31), (5, 13)]) {
        bug("may end leases too early when its leader was slow and was replaced (issue 15247)");
    }
    if major == 3 && since(&[(4, 38), (5, 23)]) {
        bug("may renew a lease on a former leader that the cluster has ended already");
    }
    bugs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_told() {
        for (version, bugs) in [
            ("3.3.27", 3),
            ("3.4.23", 2),
            ("3.4.30", 2),
            ("3.4.31", 1),
            ("3.4.37", 1),
            ("3.4.38", 0),
            ("3.5.0-rc.1", 3),
            ("3.5.2", 3),
            ("3.5.12", 2),
            ("3.5.13", 1),
            ("3.5.23", 0),
            ("3.6.1", 0),
            ("4.0.0", 0),
        ] {
            let found = known_bugs(version);
            assert_eq!(found.len(), bugs, "{found:?}");
            assert!(found.iter().all(|bug| bug.contains(version)));
        }
    }
}
