//! A primary with an asynchronous standby, and what a fail-over does.

use std::sync::Arc;

use integration_tests::{proxy::Proxy, servers::postgres::PostgresServer};
use lock_core::{DistributedLock, LockClient, LostReason};
use lock_postgres::PostgresLock;

use crate::support::{Place, busy, claim, granted, key, secs, until};

struct Pair {
    primary: Place,
    standby: Place,
    /// The name that leads to the primary of the time.
    proxy: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let primary = Place::on(Arc::new(PostgresServer::start()));
        primary.store().await.close().await.unwrap();
        let standby = Place {
            server: Arc::new(primary.server.standby()),
            schema: primary.schema.clone(),
        };
        let proxy = Proxy::start(primary.server.address()).await.unwrap();
        Self {
            primary,
            standby,
            proxy,
        }
    }

    async fn store(&self) -> Arc<PostgresLock> {
        let url = format!("postgres://postgres@{}/postgres", self.proxy.address());
        let builder = self.primary.builder_at(&url).request_timeout(secs(2));
        Arc::new(builder.connect().await.unwrap())
    }

    /// Waits until the standby has all that the primary has committed.
    async fn caught_up(&self) {
        let now: String = self
            .primary
            .server
            .value("SELECT pg_current_wal_lsn()::text")
            .await;
        let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{now}'::pg_lsn, false)");
        until(secs(20), async || {
            self.standby.server.value::<bool>(&sql).await
        })
        .await;
    }

    /// Nothing reaches the standby any more.
    async fn cut(&self) {
        let standby = &self.standby.server;
        standby.sql("ALTER SYSTEM SET primary_conninfo = ''").await;
        standby.sql("SELECT pg_reload_conf()").await;
        until(secs(20), async || {
            let sql = "SELECT count(*) FROM pg_stat_wal_receiver";
            standby.value::<i64>(sql).await == 0
        })
        .await;
    }

    /// The standby becomes the primary, and the name leads there.
    async fn promote(&self) {
        self.standby.server.sql("SELECT pg_promote()").await;
        self.proxy.retarget(self.standby.server.address());
        self.proxy.reset_all();
    }
}

/// D13: a standby that had lost touch takes over. What it knows of is kept; a lock that it does not
/// know of is granted to somebody else, with a larger token, and its holder learns it at the next
/// renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_takes_over_d13() {
    let pair = Pair::start().await;
    let client = LockClient::new(pair.store().await);
    let early = client.lock("early").ttl(secs(30)).acquire().await.unwrap();
    pair.caught_up().await;
    pair.cut().await;
    let late = client.lock("late").ttl(secs(6)).acquire().await.unwrap();
    let primary = &pair.primary;
    let known = primary.store().await.inspect(&key("late")).await.unwrap();
    assert!(known.is_some());
    primary.server.pause();
    pair.promote().await;

    let other = pair.standby.store().await;
    busy(other.try_acquire(&claim("early", 30_000)).await.unwrap());
    let rival = claim("late", 30_000);
    let grant = granted(other.try_acquire(&rival).await.unwrap());
    assert!(grant.token > late.token());
    let reason = tokio::time::timeout(secs(20), late.lost()).await.unwrap();
    assert!(
        matches!(reason, LostReason::TakenOver | LostReason::Expired),
        "{reason:?}"
    );
    let mut renewed = false;
    until(secs(20), async || {
        renewed = early.renew(secs(30)).await.is_ok();
        renewed
    })
    .await;
    assert!(early.is_held());
    early.release().await.unwrap();
    primary.server.resume();
}

/// D14: a name that leads to a standby: transient errors that say so, until the standby is promoted.
#[tokio::test]
async fn a_name_that_leads_to_a_standby_is_followed_d14() {
    let pair = Pair::start().await;
    let store = pair.store().await;
    let a = claim("k", 60_000);
    let first = granted(store.try_acquire(&a).await.unwrap());
    pair.caught_up().await;
    pair.proxy.retarget(pair.standby.server.address());
    pair.proxy.reset_all();
    let mut said = false;
    until(secs(20), async || {
        let why = store.renew(&a).await.unwrap_err();
        assert!(why.is_transient(), "{why}");
        said = why.to_string().contains("standby");
        said
    })
    .await;
    pair.promote().await;
    until(secs(20), async || store.renew(&a).await.is_ok()).await;
    let again = granted(store.try_acquire(&a).await.unwrap());
    assert_eq!((again.token, again.holds), (first.token, 1));
    store.release(&a).await.unwrap();
}

/// D15: the old primary is up as well, and its holder knows nothing. No lock can help that; but
/// whoever is granted the lock by the new primary has a larger token, so a resource that compares
/// refuses the old holder's writes from then on.
#[tokio::test]
async fn two_primaries_are_told_apart_by_their_tokens_d15() {
    let pair = Pair::start().await;
    let old = pair.primary.store().await;
    let holder = claim("k", 2_000);
    let before = granted(old.try_acquire(&holder).await.unwrap());
    pair.caught_up().await;
    pair.cut().await;
    pair.promote().await;
    let new = pair.standby.store().await;
    // The old primary renews for ever; the new one lets the lease that it knows of end.
    let rival = claim("k", 30_000);
    let mut after = None;
    until(secs(20), async || {
        old.renew(&holder).await.unwrap();
        if let lock_core::Attempt::Granted(grant) = new.try_acquire(&rival).await.unwrap() {
            after = Some(grant.token);
        }
        after.is_some()
    })
    .await;
    old.renew(&holder).await.unwrap();
    let after = after.unwrap();
    assert!(after > before.token);

    let resource = &pair.standby.server;
    resource
        .sql("CREATE TABLE stock (token bigint); INSERT INTO stock VALUES (0)")
        .await;
    let write = async |token: lock_core::FencingToken| {
        let sql =
            format!("UPDATE stock SET token = {token} WHERE token <= {token} RETURNING token");
        !resource.sql(&sql).await.is_empty()
    };
    assert!(write(before.token).await);
    assert!(write(after).await);
    assert!(!write(before.token).await);
}
