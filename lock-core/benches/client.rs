//! What the client costs on top of a store, on the memory store.

#![allow(clippy::unwrap_used)]

use std::{hint::black_box, sync::Arc, time::Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use lock_core::{LockClient, LockKey, MemoryLock};

fn benches(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = LockClient::new(Arc::new(MemoryLock::new()));
    let key = LockKey::new("orders/42").unwrap();

    c.bench_function("memory/acquire+release", |b| {
        b.iter_custom(|rounds| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..rounds {
                    let guard = client.acquire(black_box(&key)).await.unwrap();
                    guard.release().await.unwrap();
                }
                start.elapsed()
            })
        });
    });

    let owner = client.owner();
    let outer = runtime.block_on(owner.lock(&key).acquire()).unwrap();
    c.bench_function("memory/re-entry", |b| {
        b.iter_custom(|rounds| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..rounds {
                    let guard = owner.lock(black_box(&key)).acquire().await.unwrap();
                    guard.release().await.unwrap();
                }
                start.elapsed()
            })
        });
    });
    drop(outer);
}

criterion_group!(client, benches);
criterion_main!(client);
