//! What the cluster is like: its smallest lease, how many members, which version.

use std::time::Duration;

use lock_core::{Capabilities, Durability, StoreError, TokenSource, Ttl};
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

async fn voters(connection: &Connection) -> Option<usize> {
    let open = connection.current().await.ok()?;
    let mut cluster = open.client.cluster_client();
    let list = cluster.member_list().await.ok()?;
    Some(list.members().iter().filter(|m| !m.is_learner()).count())
}

async fn version(connection: &Connection) -> Option<String> {
    let open = connection.current().await.ok()?;
    let mut maintenance = open.client.maintenance_client();
    Some(maintenance.status().await.ok()?.version().to_owned())
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
