//! Fencing tokens.

use integration_tests::servers::redis::RedisServer;
use lock_core::{DistributedLock, Release, StoreErrorKind};

use crate::support::{again, claim, granted, store};

/// B67: tokens are exact at and above 2^53, grow with every grant and not with re-entry.
#[tokio::test]
async fn b67_tokens_are_exact_beyond_doubles() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let seeds = [
        9_007_199_254_740_991_u64, // 2^53 - 1
        9_007_199_254_740_992,
        9_007_199_254_740_993,
        9_999_999_999_999_999,
        18_446_744_073_709_551_000,
    ];
    for last in seeds {
        server.command(&[
            "SET",
            "distlock:{seeded}:token",
            &last.to_string(),
            "PX",
            "60000",
        ]);
        for step in 1..=3 {
            let claim = claim("seeded");
            assert_eq!(granted(&*store, &claim).await.token.as_u64(), last + step);
            let entered = granted(&*store, &again(&claim)).await;
            assert_eq!(entered.token.as_u64(), last + step);
            assert_eq!(entered.holds, 2);
            store.force_release(&claim.key, None).await.unwrap();
        }
    }
    // There is no larger one: an error, and not a repeated token.
    server.command(&["SET", "distlock:{seeded}:token", &u64::MAX.to_string()]);
    let why = store.try_acquire(&claim("seeded")).await.unwrap_err();
    assert_eq!(why.kind(), StoreErrorKind::Permanent, "{why}");
    assert_eq!(server.command(&["GET", "distlock:{seeded}:claim"]), "(nil)");
}

/// B68, B67: a token key lives for its retention, is never permanent, and whatever happens to it
/// later tokens are larger: they follow the server's clock.
#[tokio::test]
async fn b68_tokens_grow_after_their_keys_are_gone() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut last = 0;
    for round in 0..20 {
        let claim = claim("orders");
        let token = granted(&*store, &claim).await.token.as_u64();
        assert!(token > last);
        last = token;
        let kept: u64 = server
            .command(&["PTTL", "distlock:{orders}:token"])
            .parse()
            .unwrap();
        assert!((7_100_000..=7_200_000).contains(&kept), "{kept}");
        assert_eq!(
            store.release(&claim).await.unwrap(),
            Release::Released { holds: 0 }
        );
        match round % 3 {
            0 => server.command(&["DEL", "distlock:{orders}:token"]),
            1 => server.command(&["FLUSHALL"]),
            _ => server.command(&["SCRIPT", "FLUSH"]),
        };
    }
}

/// Row B7: a clock that was set back repeats no token: the last one counts.
#[tokio::test]
async fn row_b7_tokens_grow_when_the_clock_is_set_back() {
    let server = RedisServer::start();
    let store = store(&server).await;
    // As if the clock had been an hour ahead at the last grant.
    let first = claim("orders");
    let ahead = granted(&*store, &first).await.token.as_u64() + 3_600_000_000;
    store.release(&first).await.unwrap();
    server.command(&[
        "SET",
        "distlock:{orders}:token",
        &ahead.to_string(),
        "PX",
        "7200000",
    ]);
    for step in 1..=3 {
        let claim = claim("orders");
        assert_eq!(granted(&*store, &claim).await.token.as_u64(), ahead + step);
        store.release(&claim).await.unwrap();
    }
}
