//! What ten thousand held locks cost in memory; `benches/idle.rs` has what they cost in time.

#![allow(clippy::unwrap_used)]

use std::{alloc::System, sync::Arc};

use lock_core::{LockClient, MemoryLock};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// At most 1 KiB a guard, the memory store's own entry included, and no task each.
#[test]
fn ten_thousand_guards_are_cheap() {
    const GUARDS: usize = 10_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = LockClient::new(Arc::new(MemoryLock::new()));
    let before = ALLOCATOR.stats();
    let guards: Vec<_> = runtime.block_on(async {
        let mut guards = Vec::with_capacity(GUARDS);
        for n in 0..GUARDS {
            guards.push(client.acquire(format!("orders/{n}")).await.unwrap());
        }
        guards
    });
    let now = ALLOCATOR.stats();
    let held = |s: &stats_alloc::Stats| {
        s.bytes_allocated as i64 - s.bytes_deallocated as i64 + s.bytes_reallocated as i64
    };
    let each = (held(&now) - held(&before)) / GUARDS as i64;
    assert_eq!(runtime.metrics().num_alive_tasks(), 0);
    assert!(each <= 1024, "{each} bytes a guard");
    println!("{each} bytes a guard");
    drop(guards);
}
