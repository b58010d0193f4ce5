//! What a lock costs in etcd that was held very often, until the history is compacted.
//!
//! `cargo bench -p integration-tests --bench etcd` starts a private cluster of one member and
//! prints medians, next to those of two bare transactions on another key. What everything else
//! costs is in `make bench`.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Instant};

use etcd_client::{Client, CompactionOptions, Compare, CompareOp, PutOptions, Txn, TxnOp};
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::LockClient;
use lock_etcd::EtcdLock;

fn main() {
    let cluster = EtcdCluster::durable(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(growth(&cluster));
}

/// A lock that was held more and more often, without and with a compaction.
async fn growth(cluster: &EtcdCluster) {
    const STEP: usize = 2000;
    let mut floor = Floor::new(cluster).await;
    let store = EtcdLock::connect(&cluster.url()).await.unwrap();
    let client = LockClient::new(Arc::new(store));
    for held in 0..4 {
        if held == 3 {
            compact(cluster).await;
        }
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        for pair in 0..STEP {
            let begin = Instant::now();
            let guard = client.acquire("growing").await.unwrap();
            guard.release().await.unwrap();
            ours.push(begin.elapsed().as_secs_f64() * 1e6);
            if pair % 4 == 0 {
                let begin = Instant::now();
                floor.acquire("floor/growing").await;
                floor.release("floor/growing").await;
                bare.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!(
            "after {} pairs on one key{}: floor {:.0} µs, client {:.0} µs",
            held * STEP,
            if held == 3 { " and a compaction" } else { "" },
            median(&mut bare),
            median(&mut ours)
        );
    }
    client.shutdown().await;
}

/// Transactions of a bare client, on a lease of its own.
#[derive(Clone)]
struct Floor {
    client: Client,
    lease: i64,
}

impl Floor {
    async fn new(cluster: &EtcdCluster) -> Self {
        let mut client = cluster.admin_of(cluster.leader()).await;
        let lease = client.lease_grant(600, None).await.unwrap().id();
        Self { client, lease }
    }

    async fn acquire(&mut self, key: &str) {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let on_lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(key, "x".repeat(150), Some(on_lease));
        let txn = Txn::new().when([absent]).and_then([put]);
        assert!(self.client.txn(txn).await.unwrap().succeeded());
    }

    async fn release(&mut self, key: &str) {
        let present = Compare::create_revision(key, CompareOp::Greater, 0);
        let txn = Txn::new()
            .when([present])
            .and_then([TxnOp::delete(key, None)]);
        assert!(self.client.txn(txn).await.unwrap().succeeded());
    }
}

/// As a cluster does by itself every few minutes with `--auto-compaction-mode=periodic`.
async fn compact(cluster: &EtcdCluster) {
    let physical = CompactionOptions::new().with_physical();
    let revision = revision(cluster).await;
    let mut admin = cluster.admin().await;
    admin.compact(revision, Some(physical)).await.unwrap();
}

async fn revision(cluster: &EtcdCluster) -> i64 {
    let answer = cluster.admin().await.get("none", None).await.unwrap();
    answer.header().unwrap().revision()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
