//! The SQLite store on real files and with real processes.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::DistributedLock;

use crate::support::File;

mod cancel;
mod file;
mod life;
mod model;
mod names;
mod processes;
mod support;
mod tokens;
mod waiting;

#[async_trait]
impl lock_core::conformance::Subject for File {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.store().await)
    }
}

lock_core::conformance_tests!(File::new());
