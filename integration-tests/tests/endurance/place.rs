//! A store of one's own, of each kind.

use std::{any::Any, env, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use integration_tests::{
    servers::{etcd::EtcdCluster, postgres::PostgresServer, redis::RedisServer},
    taker::Taker,
};
use lock_core::{DistributedLock, LockClient, conformance::Subject};

pub(crate) struct Place {
    url: String,
    /// The shortest lease that the tests take: a server's own limit, or what a busy machine can
    /// renew.
    pub(crate) ttl: Duration,
    _server: Box<dyn Any + Send + Sync>,
}

impl Place {
    pub(crate) fn redis() -> Self {
        let server = RedisServer::start();
        Self::new(server.url(), 150, server)
    }

    pub(crate) fn postgres() -> Self {
        let server = PostgresServer::start();
        Self::new(server.url(), 150, server)
    }

    pub(crate) fn etcd() -> Self {
        let cluster = EtcdCluster::one();
        Self::new(cluster.url(), 1000, cluster)
    }

    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("locks.db").display());
        Self::new(url, 150, folder)
    }

    fn new(url: String, ttl_ms: u64, server: impl Any + Send + Sync) -> Self {
        Self {
            url,
            ttl: Duration::from_millis(ttl_ms),
            _server: Box::new(server),
        }
    }

    pub(crate) async fn client(&self) -> LockClient {
        LockClient::new(self.open().await)
    }

    pub(crate) fn taker(&self) -> Taker {
        Taker::start(env!("CARGO_BIN_EXE_lock-taker"), &self.url)
    }
}

#[async_trait]
impl Subject for Place {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        distlock::open(&self.url).await.unwrap()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// How often: a few times, unless the full size is asked for.
pub(crate) fn times(few: usize, full: usize) -> usize {
    match env::var_os("DISTLOCK_TEST_FULL") {
        Some(_) => full,
        None => few,
    }
}
