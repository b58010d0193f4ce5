//! Names and numbers at their limits.

use std::time::{Duration, Instant};

use lock_core::{Attempt, DistributedLock, Page, Renewal, Ttl};
use lock_sqlite::SqliteLock;
use sqlx::Row;

use crate::support::*;

/// A39: names are bytes, whatever they mean elsewhere.
#[tokio::test]
async fn names_are_bytes() {
    let file = File::new();
    let store = file.store().await;
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a'",
        "a''",
        "a\"",
        "'; DROP TABLE locks; --",
        "%",
        "_",
        "*",
        "[a]",
        "\u{e9}",
        "e\u{301}",
        "\u{ff41}",
        "\u{1f512}",
        "null",
        "0",
        "00",
        "0.0",
        "x'00'",
        "?1",
        "$1",
    ];
    let mut tokens = Vec::new();
    for name in names {
        tokens.push(granted(&store, &claim(name, 600_000)).await.token);
    }
    for (name, token) in names.iter().zip(tokens) {
        let why = busy(&store, &claim(name, 1000)).await;
        assert_eq!(why.holder.unwrap().token, token);
        let listed = store.list(name, Page::default()).await.unwrap().locks;
        assert!(
            listed
                .iter()
                .all(|lock| lock.key.as_str().starts_with(name))
        );
        assert!(listed.iter().any(|lock| lock.key.as_str() == *name));
    }
    let longest = "\u{1f512}".repeat(63) + "abc";
    granted(&store, &claim(&longest, 600_000)).await;
    busy(&store, &claim(&longest, 600_000)).await;
}

/// A38, B108: the ttl goes out in whole milliseconds, rounded up, and none overflows.
#[tokio::test]
async fn every_ttl_is_granted_whole() {
    let file = File::new();
    let store = file.store().await;
    for millis in [1, 10, 999, 1500, Ttl::MAX.as_millis()] {
        let claim = claim(&format!("ttl {millis}"), millis);
        let start = Instant::now();
        let ttl = granted(&store, &claim).await.ttl;
        assert!(ttl >= claim.ttl);
        if millis > 1500 {
            let holder = store
                .inspect(&claim.key)
                .await
                .unwrap()
                .unwrap()
                .holder
                .unwrap();
            assert!(holder.remaining + PATIENCE > ttl.as_duration());
            continue;
        }
        let rival = self::claim(claim.key.as_str(), 1000);
        until("the lease ends", async || {
            matches!(
                store.try_acquire(&rival).await.unwrap(),
                Attempt::Granted(_)
            )
        })
        .await;
        assert!(
            start.elapsed() >= ttl.as_duration(),
            "{:?}",
            start.elapsed()
        );
    }
}

/// B20, B68: the file does not grow with the number of names, and a name that was forgotten gets
/// a larger token than ever before.
#[tokio::test]
async fn forgotten_names_leave_no_trace_but_their_tokens() {
    let file = File::new();
    let builder = SqliteLock::builder(file.path()).forget_after(Duration::ZERO);
    let store = builder.open().await.unwrap();
    let mut stranger = file.stranger().await;
    // Far above the clock, so that only the sweep's own account keeps it.
    let high: i64 = 1 << 55;
    sqlx::query("INSERT INTO locks SELECT 'aaa', ?1, NULL, '', NULL, 'h', 1, 0, 0")
        .bind(high)
        .execute(&mut stranger)
        .await
        .unwrap();
    let held = claim("held", 600_000);
    granted(&store, &held).await;
    let (mut most, mut names) = (0, 0);
    for round in 0..8 {
        for _ in 0..1000 {
            names += 1;
            let name = claim(&format!("name {names}"), 600_000);
            granted(&store, &name).await;
            store.release(&name).await.unwrap();
        }
        let rows: i64 = sqlx::query("SELECT count(*) FROM locks")
            .fetch_one(&mut stranger)
            .await
            .unwrap()
            .get(0);
        if round >= 4 {
            most = most.max(rows);
        }
    }
    // A part of the sweep every 256 releases on average: 12 times that never fails.
    assert!(most < 3200, "{most} rows of {names} names");
    let rows = |key: &'static str| sqlx::query("SELECT 1 FROM locks WHERE key = ?1").bind(key);
    assert!(
        rows("aaa")
            .fetch_optional(&mut stranger)
            .await
            .unwrap()
            .is_none()
    );
    assert!(granted(&store, &claim("aaa", 1000)).await.token.as_u64() > high as u64);
    assert!(matches!(
        store.renew(&held).await.unwrap(),
        Renewal::Renewed { .. }
    ));
}
