//! The same random history against the store in memory and against etcd.

use integration_tests::{
    model::{HandOver, compare},
    servers::etcd::EtcdCluster,
};
use lock_core::DistributedLock;

use crate::support::store;

/// The reference model and etcd give the same answers, contract clauses 1 to 4, 7 and 8.
#[tokio::test]
async fn etcd_answers_as_the_model_does() {
    let cluster = EtcdCluster::one();
    let etcd = store(&cluster).await;
    let other = etcd.dedicated().await.unwrap();
    compare(&*etcd, &*other, HandOver::Grants, 60).await;
}
