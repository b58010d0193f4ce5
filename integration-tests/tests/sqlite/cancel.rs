//! Futures that are dropped.

use lock_core::DistributedLock;

use crate::support::*;

/// B65, B28: the answer to a request whose future was dropped goes to nobody; the next requests on
/// the connection get their own.
#[tokio::test]
async fn b65_a_dropped_request_answers_nobody() {
    let file = File::new();
    let store = file.store().await;
    let other = claim("other", 60_000);
    granted(&file.store().await, &other).await;
    for round in 0..200 {
        let dropped = claim("dropped", 60_000);
        for _ in 0..=round % 3 {
            let mut attempt = Box::pin(store.try_acquire(&dropped));
            let _ = futures_util::poll!(&mut attempt);
        }
        let rival = claim("other", 60_000);
        let seen = busy(&store, &rival).await.holder.unwrap();
        assert_eq!(
            seen.owner, other.owner,
            "not the grant of the dropped attempt"
        );
        let free = store.inspect(&"free".parse().unwrap()).await.unwrap();
        assert_eq!(free, None);
        assert_eq!(granted(&store, &dropped).await.holds, 1);
        store.release(&dropped).await.unwrap();
    }
}

/// A18: acquisitions that are dropped at any poll leave nothing behind, a second later.
#[tokio::test]
async fn a18_a_thousand_dropped_acquisitions_leave_nothing() {
    lock_core::conformance::cancel::drop_acquires(&File::new(), 1000).await;
}
