//! A tokio mutex for each key.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::RwLock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::NOTHING;
use crate::{Contender, Features, Held, Locks, Result, Target, record::FLOOR};

pub(super) struct Floor;

#[async_trait]
impl Contender for Floor {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn features(&self) -> Features {
        Features {
            order: "first come, first served",
            connections: "none",
            waiting: "told",
            ..NOTHING
        }
    }

    async fn open(&self, _: &Target) -> Result<Arc<dyn Locks>> {
        Ok(Arc::new(Open::default()))
    }
}

#[derive(Default)]
struct Open(RwLock<HashMap<String, Arc<Mutex<()>>>>);

#[async_trait]
impl Locks for Open {
    async fn acquire(&self, key: &str) -> Result<Box<dyn Held>> {
        let known = self.0.read().get(key).cloned();
        let mutex =
            known.unwrap_or_else(|| self.0.write().entry(key.to_owned()).or_default().clone());
        Ok(Box::new(Guard(mutex.lock_owned().await)))
    }
}

struct Guard(OwnedMutexGuard<()>);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        drop(self.0);
        Ok(())
    }
}
