//! The suite that every store passes. Each behaviour gets a server of its own.

use std::sync::Arc;

use async_trait::async_trait;
use integration_tests::servers::redis::RedisServer;
use lock_core::{DistributedLock, conformance::Subject};

use crate::support::open;

struct Redis(RedisServer);

#[async_trait]
impl Subject for Redis {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(open(&self.0.url()).await)
    }
}

lock_core::conformance_tests!(Redis(RedisServer::start()));
