//! The suite of the stores, on the store in memory.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use async_trait::async_trait;
use lock_core::{
    DistributedLock, MemoryLock,
    conformance::{BEHAVIOURS, Subject},
};

struct Memory(MemoryLock);

#[async_trait]
impl Subject for Memory {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.0.handle())
    }
}

lock_core::conformance_tests!(Memory(MemoryLock::new()));

/// A behaviour that is written but not in the list would run nowhere.
#[test]
fn every_behaviour_is_in_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                written.insert(rest.split('(').next().unwrap().to_owned());
            }
        }
    }
    let listed: BTreeSet<_> = BEHAVIOURS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(listed.len(), BEHAVIOURS.len(), "a name is there twice");
    assert_eq!(written, listed);
}
