//! The suite that every store passes, on one member and on three. Each behaviour gets a cluster of
//! its own.

use std::sync::Arc;

use async_trait::async_trait;
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, conformance::Subject};

use crate::support::open;

struct Etcd(EtcdCluster);

#[async_trait]
impl Subject for Etcd {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(open(&self.0.url()).await)
    }
}

mod one {
    use super::{Etcd, EtcdCluster};

    lock_core::conformance_tests!(Etcd(EtcdCluster::one()));
}

mod three {
    use super::{Etcd, EtcdCluster};

    /// etcd's own timing: on a machine that does much else, members that are quick to elect do
    /// little else.
    const TIMING: [&str; 4] = ["--heartbeat-interval", "100", "--election-timeout", "1000"];

    lock_core::conformance_tests!(Etcd(EtcdCluster::with(3, &TIMING)));
}
