//! The same random history against the store in memory and against Redis.

use integration_tests::{
    model::{HandOver, compare},
    servers::redis::RedisServer,
};

use lock_core::DistributedLock;

use crate::support::store;

/// The reference model and Redis give the same answers, contract clauses 1 to 4, 7 and 8.
#[tokio::test]
async fn redis_answers_as_the_model_does() {
    let server = RedisServer::start();
    let redis = store(&server).await;
    let other = redis.dedicated().await.unwrap();
    compare(&*redis, &*other, HandOver::Grants, 60).await;
}
