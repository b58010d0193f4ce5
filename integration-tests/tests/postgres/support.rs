//! What these tests share.

use std::{future::Future, sync::Arc, time::Duration};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{Asker, Attempt, Busy, Claim, Grant, HoldId, LockClient, LockKey, OwnerId, Ttl};
use lock_postgres::{PostgresLock, PostgresLockBuilder};
use tokio::time::Instant;

/// A server and a schema of one's own.
pub(crate) struct Place {
    pub(crate) server: Arc<PostgresServer>,
    pub(crate) schema: String,
}

impl Place {
    /// On the server that most tests share.
    pub(crate) fn shared() -> Self {
        Self::on(PostgresServer::shared())
    }

    pub(crate) fn on(server: Arc<PostgresServer>) -> Self {
        Self {
            server,
            schema: format!("s{}", HoldId::random()),
        }
    }

    pub(crate) fn builder(&self) -> PostgresLockBuilder {
        self.builder_at(&self.server.url())
    }

    pub(crate) fn builder_at(&self, url: &str) -> PostgresLockBuilder {
        PostgresLock::builder(url)
            .unwrap()
            .schema(&self.schema)
            .sweep_interval(None)
    }

    pub(crate) async fn store(&self) -> Arc<PostgresLock> {
        Arc::new(self.builder().connect().await.unwrap())
    }

    pub(crate) async fn client(&self) -> LockClient {
        LockClient::new(self.store().await)
    }

    /// The name of a table, for statements past the library.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("\"{}\".distlock_{name}", self.schema)
    }
}

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}

/// A claim that does not queue, of an owner of its own.
pub(crate) fn claim(name: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key(name),
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        queue: false,
        asker: Arc::new(Asker::this_process(Some("test")).unwrap()),
    }
}

pub(crate) fn queued(name: &str, ttl_ms: u64) -> Claim {
    Claim {
        queue: true,
        ..claim(name, ttl_ms)
    }
}

#[track_caller]
pub(crate) fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

#[track_caller]
pub(crate) fn busy(attempt: Attempt) -> Busy {
    match attempt {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Asks until the answer is yes.
#[track_caller]
pub(crate) fn until(
    limit: Duration,
    mut done: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let end = Instant::now() + limit;
        while !done().await {
            assert!(Instant::now() < end, "not within {limit:?}, at {place}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
