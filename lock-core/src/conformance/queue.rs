//! Clauses 8, 9 and 11: first come, first served; wake-ups are advice; no connection per lock or
//! per waiter.
//!
//! A store whose capabilities promise no order has to serve every waiter all the same; only the
//! assertions about order are then left out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::timeout};

use super::{
    PATIENCE, Subject,
    actor::{Actor, SHORT, assert_not_early, key, poll_times, until},
};
use crate::{Attempt, DistributedLock, Fairness, LockKey, Release};

fn is_fifo(actor: &Actor) -> bool {
    actor.capabilities().fairness == Fairness::Fifo
}

/// `count` waiters that queued one after the other behind the holder, spread over `handles`.
async fn line_up(handles: &[Arc<dyn DistributedLock>], key: &LockKey, count: usize) -> Vec<Actor> {
    let mut line = Vec::new();
    for place in 0..count {
        let waiter = Actor::on(&handles[place % handles.len()], key, "waiter").queueing();
        waiter.queues_at(place as u32 + 1).await;
        line.push(waiter);
    }
    line
}

/// Everybody in the line waits, enters, notes who it is and leaves; the order they entered in.
async fn order_of_grants(line: Vec<Actor>, holder: &Actor, retry: Duration) -> Vec<usize> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for (place, waiter) in line.into_iter().enumerate() {
        let order = order.clone();
        waiting.spawn(async move {
            waiter.waits_with(retry).await;
            order.lock().push(place);
            waiter.leaves().await;
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(*order.lock(), [0; 0], "the lock is still held");
    holder.leaves().await;
    waiting.join_all().await;
    Arc::into_inner(order).expect("all are done").into_inner()
}

/// Refused claims that queue learn their place, and everybody sees who waits, in order. Clause 8;
/// B72.
pub async fn waiters_see_their_place(subject: &dyn Subject) {
    let key = key("places");
    let handles = [subject.open().await, subject.open().await];
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles, &key, 5).await;
    for (place, waiter) in line.iter().enumerate() {
        let busy = waiter.is_refused().await;
        assert_eq!(busy.position, Some(place as u32 + 1));
        assert_eq!(busy.queued, 5);
    }
    let passer_by = holder.rival("passer-by").is_refused().await;
    assert_eq!((passer_by.position, passer_by.queued), (None, 5));
    let seen: Vec<_> = holder
        .sees()
        .await
        .waiters
        .iter()
        .map(|w| w.owner)
        .collect();
    let expected: Vec<_> = line.iter().map(|waiter| waiter.claim.owner).collect();
    assert_eq!(seen, expected);
}

/// The order of grants is the order of arrival, over all handles. Clause 8; A31, B72.
pub async fn waiters_are_served_in_the_order_of_arrival(subject: &dyn Subject) {
    let key = key("fifo");
    let handles = join_all((0..4).map(|_| subject.open())).await;
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles, &key, 12).await;
    let mut order = order_of_grants(line, &holder, Duration::from_secs(1)).await;
    if !is_fifo(&holder) {
        order.sort_unstable();
    }
    assert_eq!(order, (0..12).collect::<Vec<_>>());
    assert_eq!(holder.looks().await, None);
}

/// Attempts that do not queue never get in before those that wait, nor do later ones that queue.
/// Clause 8; A31.
pub async fn nobody_overtakes_a_waiter(subject: &dyn Subject) {
    let key = key("overtake");
    let handles = join_all((0..4).map(|_| subject.open())).await;
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles[..2], &key, 4).await;
    let served = Arc::new(AtomicBool::new(false));
    let mut pushers = JoinSet::new();
    for handle in &handles[2..] {
        for queue in [false, true] {
            let (handle, key, served) = (handle.clone(), key.clone(), served.clone());
            pushers.spawn(async move {
                let mut overtook = 0;
                while !served.load(Ordering::SeqCst) {
                    let mut pusher = Actor::on(&handle, &key, "pusher");
                    pusher.claim.queue = queue;
                    let attempt = pusher.tries().await;
                    // Asked after the answer: who is served by then was served before.
                    if matches!(attempt, Attempt::Granted(_)) && !served.load(Ordering::SeqCst) {
                        overtook += 1;
                    }
                    pusher.release().await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                overtook
            });
        }
    }
    let last = Arc::new(AtomicU32::new(0));
    let mut waiting = JoinSet::new();
    for waiter in line {
        let (last, served) = (last.clone(), served.clone());
        waiting.spawn(async move {
            waiter.waits().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            if last.fetch_add(1, Ordering::SeqCst) == 3 {
                served.store(true, Ordering::SeqCst);
            }
            waiter.leaves().await;
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    holder.leaves().await;
    waiting.join_all().await;
    let overtook: u32 = pushers.join_all().await.into_iter().sum();
    if is_fifo(&holder) {
        assert_eq!(overtook, 0, "somebody got in before those that waited");
    }
}

/// Waiters that try again all the time, as after garbage or doubled notices, neither get in
/// early nor change their order. Clauses 8 and 9; A30.
pub async fn waiters_that_wake_up_for_nothing_keep_their_order(subject: &dyn Subject) {
    let key = key("restless");
    let handles = join_all((0..4).map(|_| subject.open())).await;
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles, &key, 8).await;
    let mut order = order_of_grants(line, &holder, Duration::from_millis(10)).await;
    if !is_fifo(&holder) {
        order.sort_unstable();
    }
    assert_eq!(order, (0..8).collect::<Vec<_>>());
}

/// Who waits learns of a release without asking again. Clause 9; A33, B05, B15.
pub async fn a_release_wakes_the_first_waiter(subject: &dyn Subject) {
    let key = key("wake-up");
    let holder = Actor::open(subject, &key, "holder").await;
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    for round in 0..5 {
        holder.enters().await;
        waiter.queues_at(1).await;
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            // Longer than the patience of the test: only the store can wake it.
            async move { waiter.waits_with(PATIENCE * 10).await }
        });
        // Sometimes the release comes before the waiter listens.
        tokio::time::sleep(Duration::from_millis(100 * round)).await;
        holder.leaves().await;
        let woken = timeout(PATIENCE, waiting).await;
        woken.expect("the store wakes the waiter").expect("a grant");
        waiter.leaves().await;
    }
}

/// A release is news for the first waiter, not for all. Clause 9; A30, B128.
pub async fn a_release_does_not_wake_everybody(subject: &dyn Subject) {
    const WAITERS: usize = 16;
    let key = key("herd");
    let handles = join_all((0..4).map(|_| subject.open())).await;
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles, &key, WAITERS).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let mut waiting = JoinSet::new();
    for waiter in line {
        let attempts = attempts.clone();
        waiting.spawn(async move {
            loop {
                attempts.fetch_add(1, Ordering::SeqCst);
                let Attempt::Busy(busy) = waiter.tries().await else {
                    // Keeps the lock, so that nobody else has reason to wake up.
                    return;
                };
                let _ = timeout(PATIENCE, waiter.store.wait(&waiter.claim, &busy)).await;
            }
        });
    }
    until("all waiters have tried", || async {
        attempts.load(Ordering::SeqCst) >= WAITERS as u32
    })
    .await;
    let second = Duration::from_secs(1);
    // Until all listen; then what a store that has to poll does all the time.
    tokio::time::sleep(second).await;
    let before = attempts.load(Ordering::SeqCst);
    tokio::time::sleep(second).await;
    let idle = attempts.load(Ordering::SeqCst) - before;
    holder.leaves().await;
    let first = waiting.join_next().await;
    first.expect("a waiter").expect("no panic");
    tokio::time::sleep(second).await;
    let woken = attempts.load(Ordering::SeqCst) - before - idle;
    assert!(
        woken <= idle * 2 + WAITERS as u32 / 2,
        "one release caused {woken} attempts"
    );
    waiting.shutdown().await;
}

/// Claims that are given up are gone at once, and those behind move up. Clause 8; B72, B82.
pub async fn a_withdrawn_waiter_leaves_no_trace(subject: &dyn Subject) {
    let key = key("withdrawn");
    let handles = [subject.open().await, subject.open().await];
    let holder = Actor::on(&handles[0], &key, "holder");
    holder.enters().await;
    let line = line_up(&handles, &key, 5).await;
    for gone in [0, 2, 3] {
        assert_eq!(line[gone].release().await, Release::Withdrawn);
    }
    line[1].queues_at(1).await;
    line[4].queues_at(2).await;
    assert_eq!(holder.sees().await.waiters.len(), 2);
    let rest = [&line[1], &line[4]].map(Clone::clone).to_vec();
    let order = order_of_grants(rest, &holder, Duration::from_secs(1)).await;
    assert_eq!(order.len(), 2);
    if is_fifo(&holder) {
        assert_eq!(order, [0, 1]);
    }
    assert_eq!(holder.looks().await, None);
}

/// The first waiter gives up when the lock was already on its way to it; the next one gets it.
/// Clauses 8 and 12; A29.
pub async fn a_waiter_that_gives_up_its_turn_passes_it_on(subject: &dyn Subject) {
    let handles = [subject.open().await, subject.open().await];
    for _ in 0..5 {
        let key = key("passed-on");
        let holder = Actor::on(&handles[0], &key, "holder");
        holder.enters().await;
        let line = line_up(&handles, &key, 2).await;
        let second = line[1].clone();
        let waiting = tokio::spawn(async move { second.waits_with(PATIENCE * 10).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        holder.leaves().await;
        assert_ne!(line[0].release().await, Release::NotHeld);
        let woken = timeout(PATIENCE, waiting).await;
        woken.expect("the turn is passed on").expect("a grant");
        assert_eq!(line[1].leaves().await, 0);
    }
}

/// Waiters whose process is gone are skipped, each after a short while. Clause 8; A32, B72.
pub async fn a_dead_waiter_does_not_block_the_queue(subject: &dyn Subject) {
    let key = key("dead");
    let holder = Actor::open(subject, &key, "holder").await;
    let dead = Actor::open(subject, &key, "dead")
        .await
        .queueing()
        .with_ttl(SHORT);
    let dead_too = dead.rival("dead too").queueing().with_ttl(SHORT);
    let alive = Actor::open(subject, &key, "alive").await.queueing();
    holder.enters().await;
    dead.queues_at(1).await;
    dead_too.queues_at(2).await;
    dead.store.close().await.expect("the handle closes");
    let waiting = tokio::spawn({
        let alive = alive.clone();
        async move { alive.waits().await }
    });
    until("the live waiter queues", || async {
        holder
            .sees()
            .await
            .waiters
            .iter()
            .any(|w| w.owner == alive.claim.owner)
    })
    .await;
    holder.leaves().await;
    waiting.await.expect("the live waiter gets the lock");
    assert_eq!(alive.sees().await.waiters, []);
    assert_eq!(alive.leaves().await, 0);
}

/// When a holder is gone the first waiter gets the lock after its ttl, and not before. Clauses 5
/// and 8; A22, B37.
pub async fn a_waiter_gets_a_lock_whose_lease_ends(subject: &dyn Subject) {
    let key = key("left-behind");
    let holder = Actor::open(subject, &key, "holder")
        .await
        .with_ttl(Duration::from_secs(1));
    let waiter = Actor::open(subject, &key, "waiter").await.queueing();
    let sent = Instant::now();
    let grant = holder.enters().await;
    let next = waiter.waits().await;
    assert_not_early(sent, grant.ttl);
    assert!(next.token > grant.token);
}

/// A waiter with a short ttl keeps its place for many ttls, and its lease starts with its grant.
/// Clauses 5 and 8; B15, B29.
pub async fn a_waiter_may_wait_longer_than_its_ttl(subject: &dyn Subject) {
    let key = key("patient");
    let holder = Actor::open(subject, &key, "holder").await;
    let patient = Actor::open(subject, &key, "patient")
        .await
        .queueing()
        .with_ttl(SHORT);
    let later = Actor::open(subject, &key, "later").await.queueing();
    holder.enters().await;
    let ttl = patient
        .capabilities()
        .min_ttl
        .max(patient.claim.ttl)
        .as_duration();
    let first = tokio::spawn({
        let patient = patient.clone();
        async move {
            let before = Instant::now();
            let grant = patient.waits().await;
            (before, grant)
        }
    });
    until("the patient one queues", || async {
        !holder.sees().await.waiters.is_empty()
    })
    .await;
    let second = tokio::spawn({
        let later = later.clone();
        async move { later.waits().await }
    });
    tokio::time::sleep(ttl * 5).await;
    let waiters = holder.sees().await.waiters;
    assert_eq!(waiters.len(), 2);
    if is_fifo(&holder) {
        assert_eq!(waiters[0].owner, patient.claim.owner);
    }
    let released = Instant::now();
    holder.leaves().await;
    let (began, grant) = first.await.expect("a grant");
    assert!(began.elapsed() >= ttl * 5);
    let next = second
        .await
        .expect("the later one gets it when that lease ends");
    if is_fifo(&holder) {
        assert!(next.token > grant.token);
        assert_not_early(released, grant.ttl);
    }
}

/// Hundreds of locks and of waiters go through one handle. Clause 11; A30.
pub async fn many_locks_and_waiters_share_one_handle(subject: &dyn Subject) {
    const LOCKS: usize = 200;
    let handle = subject.open().await;
    let holders: Vec<_> = (0..LOCKS)
        .map(|_| Actor::on(&handle, &key("many"), "holder"))
        .collect();
    join_all(holders.iter().map(Actor::enters)).await;
    let mut waiting = JoinSet::new();
    for holder in &holders {
        let waiter = holder.rival("waiter").queueing();
        waiting.spawn(async move {
            waiter.waits_with(PATIENCE).await;
            waiter.leaves().await
        });
    }
    let claims: Vec<_> = holders.iter().map(|holder| holder.claim.clone()).collect();
    for renewal in handle.renew_all(&claims).await {
        assert!(
            matches!(renewal, Ok(crate::Renewal::Renewed { .. })),
            "{renewal:?}"
        );
    }
    until("all waiters queue", || async {
        join_all(holders.iter().map(Actor::sees))
            .await
            .iter()
            .all(|info| info.waiters.len() == 1)
    })
    .await;
    // The handle has room for other calls while hundreds wait on it.
    let other = Actor::on(&handle, &key("other"), "other");
    other.enters().await;
    other.leaves().await;
    join_all(holders.iter().map(Actor::leaves)).await;
    let left = timeout(PATIENCE, waiting.join_all())
        .await
        .expect("all are served");
    assert_eq!(left, [0; LOCKS]);
}

/// Used by the behaviours about cancelling: a waiter stops listening after `polls` polls.
pub(super) async fn stops_listening(waiter: &Actor, polls: usize) {
    let busy = waiter.is_refused().await;
    poll_times(waiter.store.wait(&waiter.claim, &busy), polls).await;
}
