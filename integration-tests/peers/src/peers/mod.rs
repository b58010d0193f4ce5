//! The libraries one could use instead.

mod advisory;
mod distributed_lock_postgres;
mod distributed_lock_redis;
mod etcd_rpc;
mod rds_lock;
mod rslock;
mod tokio_etcd_lock;

use lock_bench::{Contender, Kind, ours};

/// The bare store, distlock, and its peers.
pub(crate) fn roster(kind: Kind) -> Vec<Box<dyn Contender>> {
    let mut all = ours(kind);
    match kind {
        Kind::Redis => {
            all.push(Box::new(rslock::Rslock));
            all.push(Box::new(rds_lock::RdsLock));
            all.push(Box::new(distributed_lock_redis::DistributedLockRedis));
        }
        Kind::Postgres => {
            all.push(Box::new(advisory::Advisory));
            all.push(Box::new(distributed_lock_postgres::DistributedLockPostgres));
        }
        Kind::Etcd => {
            all.push(Box::new(etcd_rpc::EtcdRpc));
            all.push(Box::new(tokio_etcd_lock::TokioEtcdLock));
        }
        Kind::Memory | Kind::Sqlite => {}
    }
    all
}
