//! Which versions take part: what Cargo.lock says.

const LOCK: &str = include_str!("../../../Cargo.lock");

const PEERS: [&str; 9] = [
    "redis",
    "sqlx",
    "etcd-client",
    "rslock",
    "rds_lock",
    "distributed-lock-redis",
    "distributed-lock-postgres",
    "tokio-etcd-lock",
    "tokio",
];

/// The client libraries and the peers; the newest of what is there in several versions.
pub(crate) fn of_peers() -> Vec<String> {
    let version = |name: &str| {
        let after = LOCK
            .split(&format!("\nname = \"{name}\"\nversion = \""))
            .last()?;
        after.split('"').next()
    };
    let found = PEERS
        .iter()
        .filter_map(|name| Some(format!("{name} {}", version(name)?)));
    found.collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_peer_has_a_version() {
        let versions = super::of_peers();
        assert_eq!(versions.len(), super::PEERS.len());
        for version in versions {
            let (name, number) = version.split_once(' ').expect("a name and a version");
            assert!(
                number.contains('.') && number.len() < 20,
                "{name}: {number}"
            );
        }
    }
}
