//! Clause 12: any future may be dropped at any await point.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    PATIENCE, Subject,
    actor::{Actor, LONG, client, key, poll_times, until},
    queue::stops_listening,
};
use crate::Attempt;

/// Within so long a late grant is undone; the contract says a second, a slow machine more.
const SOON: Duration = Duration::from_secs(20);

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

/// An acquire that is dropped at any poll point leaves nothing behind, though its ttl is long.
/// Clause 12; A18, B04, B28. [`drop_acquires`] does it more often.
pub async fn an_acquire_dropped_at_any_poll_leaves_nothing(subject: &dyn Subject) {
    drop_acquires(subject, 120).await;
}

/// Drops `drops` acquires after 0, 1, 2, … polls, on free and on busy locks, and checks that each
/// lock is free soon afterwards; the longest that it took.
pub async fn drop_acquires(subject: &dyn Subject, drops: usize) -> Duration {
    const AT_ONCE: usize = 10;
    let client = client(subject).await;
    let others = subject.open().await;
    let mut longest = Duration::ZERO;
    for round in (0..drops).step_by(AT_ONCE) {
        let took = join_all((round..drops.min(round + AT_ONCE)).map(async |drop| {
            let key = key("dropped-acquire");
            let holder = Actor::on(&others, &key, "holder");
            let (is_busy, polls) = (drop % 2 == 1, drop / 2 % 12);
            if is_busy {
                holder.enters().await;
            }
            let acquire = client.lock(&key).ttl(LONG).wait(PATIENCE).acquire();
            let polled = async { poll_times(acquire, polls).await };
            if is_busy {
                let (acquired, _) = tokio::join!(polled, async {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    holder.leaves().await
                });
                acquired.map(std::mem::drop)
            } else {
                polled.await.map(std::mem::drop)
            };
            let start = std::time::Instant::now();
            let next = Actor::on(&others, &key, "next");
            while let Attempt::Busy(busy) = next.tries().await {
                assert!(
                    start.elapsed() < SOON,
                    "an orphan after {polls} polls: {busy:?}"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            until("its place is given up", || async {
                next.sees().await.waiters.is_empty()
            })
            .await;
            let took = start.elapsed();
            next.leaves().await;
            took
        }))
        .await;
        longest = took.into_iter().fold(longest, Duration::max);
    }
    // What was late has had its time: nothing came back.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.held(), 0);
    let left = client.shutdown().await;
    assert!(left.failed.is_empty() && left.released == 0, "{left:?}");
    longest
}

/// A waiter that is cancelled just when the lock comes to it passes it on. Clauses 8 and 12; A29,
/// B04.
pub async fn a_cancelled_waiter_passes_the_lock_on(subject: &dyn Subject) {
    let clients = [client(subject).await, client(subject).await];
    let holders = subject.open().await;
    join_all((0..12_u64).map(async |round| {
        let key = key("cancelled");
        let holder = Actor::on(&holders, &key, "holder");
        holder.enters().await;
        let mut waiting = Vec::new();
        for (place, client) in clients.iter().enumerate() {
            let acquire = client.lock(&key).ttl(LONG).wait(PATIENCE);
            waiting.push(tokio::spawn(acquire.acquire()));
            until("it queues", || async {
                holder.sees().await.waiters.len() > place
            })
            .await;
        }
        let [first, second] = <[_; 2]>::try_from(waiting).expect("two waiters");
        let cancel = async {
            tokio::time::sleep(Duration::from_micros(200 * round)).await;
            first.abort();
            // Too late, when it got the lock: then it goes with its guard.
            first.await.ok();
        };
        tokio::join!(cancel, holder.leaves());
        let guard = second
            .await
            .expect("no panic")
            .expect("the lock is passed on");
        guard.release().await.expect("it was held");
        until("nothing is left", || async {
            holder.looks().await.is_none()
        })
        .await;
    }))
    .await;
}

/// A time-out around the whole of acquire, work and release leaves the lock free long before its
/// ttl. Clause 12; B79, B125.
pub async fn an_outer_time_out_leaves_nothing(subject: &dyn Subject) {
    let client = client(subject).await;
    let others = subject.open().await;
    for busy in [false, true] {
        let key = key("outer");
        let holder = Actor::on(&others, &key, "holder");
        if busy {
            holder.enters().await;
        }
        let all = client.lock(&key).ttl(LONG).wait(PATIENCE).run(async |_| {
            std::future::pending::<()>().await;
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(200), all)
                .await
                .is_err()
        );
        if busy {
            until("its place is given up", || async {
                holder.sees().await.waiters.is_empty()
            })
            .await;
            holder.leaves().await;
        }
        holder.rival("next").keeps_trying().await;
    }
}
