//! What it costs to keep ten thousand locks alive: at most 1 % of a core.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lock_core::{LockClient, LockGuard, MemoryLock};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = LockClient::new(Arc::new(MemoryLock::new()));
    let guards: Vec<LockGuard> = runtime.block_on(async {
        let mut guards = Vec::new();
        for n in 0..10_000 {
            guards.push(client.acquire(format!("orders/{n}")).await.unwrap());
        }
        guards
    });
    // Two whole intervals of the renewal: the ttl is 30 s, its third 10 s.
    let (cpu, wall) = (cpu_time(), Instant::now());
    thread::sleep(Duration::from_secs(22));
    let used = (cpu_time() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64();
    println!("10,000 locks, ttl 30 s: {:.2} % of a core", used * 100.0);
    assert!(used <= 0.01, "more than 1 % of a core");
    assert!(
        guards
            .iter()
            .all(|guard| guard.valid_for() > Duration::from_secs(15))
    );
}

/// User and system time of this process; the clock ticks 100 times a second.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = &stat[stat.rfind(')').unwrap() + 2..];
    let ticks: u64 = after_name
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}
