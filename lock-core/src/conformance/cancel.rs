//! Clause 12, at the level of the store: any future may be dropped at any await point.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    PATIENCE, Subject,
    actor::{Actor, key, poll_times},
    queue::stops_listening,
};
use crate::Attempt;

/// An attempt that is dropped at any poll can be undone by releases, queued or not, though its
/// lease is long. Clauses 2 and 12; A1, A2, A18, B04, B28.
pub async fn a_dropped_attempt_can_be_withdrawn(subject: &dyn Subject) {
    let handle = subject.open().await;
    let others = subject.open().await;
    join_all((0..100).map(async |round| {
        let key = key("dropped");
        let busy = round % 2 == 1;
        let holder = Actor::on(&others, &key, "holder");
        let dropped = Actor::on(&handle, &key, "dropped").queueing();
        if busy {
            holder.enters().await;
        }
        poll_times(dropped.store.try_acquire(&dropped.claim), round / 2 % 10).await;
        let next = Actor::on(&others, &key, "next");
        let start = std::time::Instant::now();
        dropped.release().await;
        if busy {
            holder.leaves().await;
        }
        while let Attempt::Busy(busy) = next.tries().await {
            assert!(start.elapsed() < PATIENCE, "an orphan is left: {busy:?}");
            // The request may have been behind the release.
            tokio::time::sleep(Duration::from_millis(20)).await;
            dropped.release().await;
        }
        assert_eq!(next.sees().await.waiters, []);
        next.leaves().await;
    }))
    .await;
}

/// A wait that is dropped at any poll costs nothing: the claim keeps its place and is woken in its
/// turn. Clauses 9 and 12; A18, A29.
pub async fn a_dropped_wait_keeps_the_place(subject: &dyn Subject) {
    let key = key("dropped-wait");
    let holder = Actor::open(subject, &key, "holder").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    let later = Actor::open(subject, &key, "later").await.queueing();
    holder.enters().await;
    waiter.queues_at(1).await;
    later.queues_at(2).await;
    for polls in 0..10 {
        tokio::time::timeout(Duration::from_millis(20), stops_listening(&waiter, polls))
            .await
            .ok();
        waiter.queues_at(1).await;
    }
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.waits_with(PATIENCE * 10).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    holder.leaves().await;
    let woken = tokio::time::timeout(PATIENCE, waiting).await;
    woken.expect("the waiter is woken").expect("a grant");
    later.queues_at(1).await;
}
