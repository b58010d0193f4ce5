//! The suite of the stores, on the store in memory.

mod common;

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use async_trait::async_trait;
use common::{Fault, Faulty, MS};
use lock_core::{
    DistributedLock, MemoryLock,
    conformance::{BEHAVIOURS, Subject, cancel::drop_acquires, run},
};

struct Memory(MemoryLock);

#[async_trait]
impl Subject for Memory {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        Arc::new(self.0.handle())
    }
}

lock_core::conformance_tests!(Memory(MemoryLock::new()));

/// The store in memory behind a slow network: each attempt has more than one point to drop it at.
struct Slow(MemoryLock, Fault);

#[async_trait]
impl Subject for Slow {
    async fn open(&self) -> Arc<dyn DistributedLock> {
        let store = Faulty::new(&self.0);
        store.faults.acquire.set(self.1);
        store.store()
    }
}

/// A18, A1: a thousand acquires are dropped at every poll point; the attempt was applied and its
/// answer is on the way.
#[test]
fn a18_a_thousand_acquires_dropped_before_the_answer() {
    run(async {
        let slow = Slow(MemoryLock::new(), Fault::Late(3 * MS));
        drop_acquires(&slow, 1000).await;
    });
}

/// A18, A2: a thousand acquires are dropped at every poll point; the attempt is applied later.
#[test]
fn a18_a_thousand_acquires_dropped_before_the_attempt_arrives() {
    run(async {
        let slow = Slow(MemoryLock::new(), Fault::Delayed(3 * MS));
        drop_acquires(&slow, 1000).await;
    });
}

/// A behaviour that is written but not in the list would run nowhere.
#[test]
fn every_behaviour_is_in_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            // One with more arguments is a part that a test may call with others.
            let head = line.strip_suffix("(subject: &dyn Subject) {");
            if let Some(name) = head.and_then(|head| head.strip_prefix("pub async fn ")) {
                written.insert(name.to_owned());
            }
        }
    }
    let listed: BTreeSet<_> = BEHAVIOURS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(listed.len(), BEHAVIOURS.len(), "a name is there twice");
    assert_eq!(written, listed);
}
