//! The suite of every store, directly and through a pooler in transaction mode.

use std::sync::Arc;

use async_trait::async_trait;
use integration_tests::servers::pgbouncer::PgBouncer;
use lock_core::{DistributedLock, conformance::Subject};

use crate::support::Place;

struct Direct(Place);

#[async_trait]
impl Subject for Direct {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        self.0.store().await
    }
}

mod direct {
    use super::{Direct, Place};

    lock_core::conformance_tests!(Direct(Place::shared()));
}

/// D9: the whole suite through PgBouncer.
struct Pooled(Place, PgBouncer);

impl Pooled {
    fn new() -> Self {
        let place = Place::shared();
        let pooler = PgBouncer::start(&place.server);
        Self(place, pooler)
    }
}

#[async_trait]
impl Subject for Pooled {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        let builder = self.0.builder_at(&self.1.url());
        Arc::new(builder.connect().await.expect("the store"))
    }
}

mod pooled {
    use super::Pooled;

    lock_core::conformance_tests!(Pooled::new());
}
