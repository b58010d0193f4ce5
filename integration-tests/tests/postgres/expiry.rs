//! The end of a lease: by the server's clock, read after the row is locked.

use std::time::Duration;

use lock_core::{Attempt, DistributedLock, LockClient, Renewal, Wait};
use sqlx::{Connection, Executor};

use crate::support::{Place, claim, granted, key, millis, secs, until};

/// Locks the row of `k` as any client of the database may, for three seconds.
async fn block_row(place: &Place, seconds: f64) -> tokio::task::JoinHandle<()> {
    let mut other = place.server.admin().await;
    let sql = format!(
        "BEGIN; SELECT 1 FROM {} WHERE key = 'k' FOR UPDATE",
        place.table("lock")
    );
    other.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        other.execute("COMMIT").await.unwrap();
        other.close().await.unwrap();
    })
}

/// How much of the lease is left by the row and the server's clock, in seconds.
async fn left(place: &Place) -> f64 {
    let sql = format!(
        "SELECT extract(epoch FROM expires - clock_timestamp())::float8 FROM {} WHERE key = 'k'",
        place.table("lock")
    );
    place.server.value(&sql).await
}

/// B81, D1: an acquire that waits for the row longer than its ttl is not born dead.
#[tokio::test]
async fn a_lease_that_waited_for_its_row_is_whole_b81_d1() {
    let place = Place::shared();
    let store = place.store().await;
    for wait in [0.4, 3.0] {
        let before = claim("k", 50);
        granted(store.try_acquire(&before).await.unwrap());
        tokio::time::sleep(millis(100)).await;
        let end = block_row(&place, wait).await;
        let a = claim("k", 1_000);
        let grant = loop {
            match store.try_acquire(&a).await {
                Ok(attempt) => break granted(attempt),
                // It gave up waiting for a foreign transaction; nothing is stored.
                Err(why) => assert!(why.is_transient(), "{why}"),
            }
        };
        let left = left(&place).await;
        assert!(left > 0.5, "{left}");
        assert_eq!(grant.ttl, a.ttl);
        end.await.unwrap();
        store.release(&a).await.unwrap();
    }
}

/// B81, D1: a renewal that waits for the row until after the end of the lease is `Gone`; it does
/// not pass its test before the wait.
#[tokio::test]
async fn a_renewal_that_waited_past_the_end_is_gone_b81_d1() {
    let place = Place::shared();
    let store = place.store().await;
    let a = claim("k", 400);
    granted(store.try_acquire(&a).await.unwrap());
    let end = block_row(&place, 0.8).await;
    let answer = store.renew(&a).await.unwrap();
    assert_eq!(answer, Renewal::Gone { taken_over: false });
    end.await.unwrap();
    assert!(left(&place).await < 0.0);
}

/// B81: a client whose renewals are blocked past the deadline loses its lock by its own clock.
#[tokio::test]
async fn a_client_with_blocked_renewals_knows_that_it_lost_b81() {
    let place = Place::shared();
    let client = place.client().await;
    let guard = client.lock("k").ttl(millis(900)).acquire().await.unwrap();
    let end = block_row(&place, 4.0).await;
    let begin = std::time::Instant::now();
    guard.lost().await;
    assert!(begin.elapsed() < secs(4), "{:?}", begin.elapsed());
    assert!(!guard.is_held());
    end.await.unwrap();
    assert!(guard.release().await.is_err());
}

/// D1: inside a long transaction of the application nothing stands still for the lock.
#[tokio::test]
async fn a_lease_does_not_start_with_the_applications_transaction_d1() {
    let place = Place::shared();
    let store = place.store().await;
    let mut connection = place.server.admin().await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("SELECT now()").await.unwrap();
    tokio::time::sleep(secs(2)).await;
    granted(store.try_acquire(&claim("k", 1_500)).await.unwrap());
    assert!(left(&place).await > 0.5);
    transaction.commit().await.unwrap();
}

/// B96: no row has a lease without an end, whatever a client does.
/// D23: the longest lease is stored and read back, and nothing is longer.
#[tokio::test]
async fn every_lease_has_an_end_b96_d23() {
    let place = Place::shared();
    let store = place.store().await;
    for (name, ttl) in [("short", 1), ("long", lock_core::Ttl::MAX.as_millis())] {
        let a = claim(name, ttl);
        let grant = granted(store.try_acquire(&a).await.unwrap());
        assert!(grant.ttl >= a.ttl);
        let renewal = store.renew(&a).await.unwrap();
        if name == "long" {
            assert_eq!(renewal, Renewal::Renewed { ttl: grant.ttl });
            let info = store.inspect(&key(name)).await.unwrap().unwrap();
            let left = info.holder.unwrap().remaining;
            assert!(left > a.ttl.as_duration() - secs(60) && left <= a.ttl.as_duration());
        }
    }
    let sql = format!(
        "SELECT count(*) FROM {} WHERE expires IS NULL OR NOT isfinite(expires)",
        place.table("lock")
    );
    assert_eq!(place.server.value::<i64>(&sql).await, 0);
}

/// B37: nobody needs to notice that a holder has died: its waiters go on when its lease ends, and
/// no sweeper runs.
#[tokio::test]
async fn waiters_go_on_when_a_lease_ends_b37() {
    let place = Place::shared();
    let store = place.store().await;
    let dead = claim("k", 2_000);
    granted(store.try_acquire(&dead).await.unwrap());
    let client = LockClient::new(place.store().await);
    let begin = std::time::Instant::now();
    let guard = client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    let waited = begin.elapsed();
    assert!(waited > millis(1_500) && waited < secs(6), "{waited:?}");
    guard.release().await.unwrap();
}

/// B24, B56, D2: the lease is the server's business: what a client believes the time to be is
/// nowhere in its requests. A row written by hand with a lease by another clock is judged by the
/// server's clock alone.
#[tokio::test]
async fn only_the_servers_clock_counts_b24_b56_d2() {
    let place = Place::shared();
    let store = place.store().await;
    let a = claim("k", 30_000);
    granted(store.try_acquire(&a).await.unwrap());
    let lock = place.table("lock");
    // An hour behind: over for everybody, the holder included.
    place
        .server
        .sql(&format!(
            "UPDATE {lock} SET expires = expires - interval '1 hour'"
        ))
        .await;
    assert_eq!(
        store.renew(&a).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    let b = claim("k", 1_000);
    granted(store.try_acquire(&b).await.unwrap());
    assert_eq!(
        store.renew(&a).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
    // The sessions' time zones play no part.
    place
        .server
        .sql("ALTER DATABASE postgres SET TimeZone = 'Pacific/Kiritimati'")
        .await;
    let other = place.store().await;
    assert!(matches!(
        other.try_acquire(&claim("k", 1_000)).await.unwrap(),
        Attempt::Busy(_)
    ));
    place
        .server
        .sql("ALTER DATABASE postgres RESET TimeZone")
        .await;
    until(secs(10), async || {
        matches!(
            other.try_acquire(&claim("k", 1_000)).await.unwrap(),
            Attempt::Granted(_)
        )
    })
    .await;
}

/// D3: when the server's clock goes back, a lease lasts longer and tokens still grow.
#[tokio::test]
async fn a_clock_that_went_back_does_not_repeat_a_token_d3() {
    let place = Place::shared();
    let store = place.store().await;
    let a = claim("k", 1_000);
    let first = granted(store.try_acquire(&a).await.unwrap()).token;
    // What the row looks like after a clock that was a day ahead was put right.
    let lock = place.table("lock");
    place
        .server
        .sql(&format!(
            "UPDATE {lock} SET token = token + 86400000000, expires = clock_timestamp() + '300 ms'"
        ))
        .await;
    let b = claim("k", 1_000);
    let mut second = first;
    until(secs(10), async || {
        match store.try_acquire(&b).await.unwrap() {
            Attempt::Granted(grant) => {
                second = grant.token;
                true
            }
            Attempt::Busy(_) => false,
        }
    })
    .await;
    assert_eq!(second.as_u64(), first.as_u64() + 86_400_000_001);
    assert_eq!(
        store.renew(&a).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
}
