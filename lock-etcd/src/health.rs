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
    let version = [(); 3].map(|()| parts.next().unwrap_or(0));
    let mut bugs = Vec::new();
    if version < [3, 4, 0] {
        bugs.push("etcd before 3.4 is not tested".to_owned());
    }
    if [3, 5, 0] <= version && version <= [3, 5, 2] {
        bugs.push(
            "etcd 3.5.0 to 3.5.2 may corrupt its data after a crash; use a later one".to_owned(),
        );
    }
    bugs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_told() {
        assert!(known_bugs("3.4.23").is_empty());
        assert_eq!(known_bugs("3.5.0-rc.1").len(), 1);
        assert_eq!(known_bugs("3.5.2").len(), 1);
        assert!(known_bugs("3.5.3").is_empty());
        assert_eq!(known_bugs("3.3.27").len(), 1);
        assert!(known_bugs("3.6.15").is_empty());
    }
}
