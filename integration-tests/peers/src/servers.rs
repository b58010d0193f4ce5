//! A private server of each kind.

use integration_tests::servers::{etcd::EtcdCluster, postgres::PostgresServer, redis::RedisServer};

/// Set up as one would for locks: what is committed is on disk, in Postgres and etcd.
pub(crate) struct Servers {
    redis: RedisServer,
    postgres: PostgresServer,
    etcd: EtcdCluster,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let postgres = PostgresServer::with(&[
            "fsync=on",
            "max_connections=700",
            "shared_preload_libraries=pg_stat_statements",
            "pg_stat_statements.track=top",
        ]);
        count_statements(&postgres);
        Self {
            redis: RedisServer::start(),
            postgres,
            etcd: EtcdCluster::durable(1),
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        vec![self.redis.url(), self.postgres.url(), self.etcd.url()]
    }
}

fn count_statements(server: &PostgresServer) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(server.sql("CREATE EXTENSION pg_stat_statements"));
}
