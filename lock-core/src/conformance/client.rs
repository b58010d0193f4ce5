//! Waiting through a client: clauses 1, 8, 9 and 13 with the policy of the core on top of the
//! store's verbs.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

use super::{
    PATIENCE, Subject,
    actor::{Actor, LONG, SHORT, Stalls, assert_not_early, client, key, until},
    spy::{Hearing, Spy},
};
use crate::{
    DistributedLock, Error, Fairness, FencingToken, LockClient, LockKey, LostReason, OwnerId, Wait,
};

/// Who does not wait makes one attempt, is told who holds the lock, and does not queue. Clauses 8
/// and 13; A34, B14, B79.
pub async fn who_does_not_wait_is_told_who_holds_the_lock(subject: &dyn Subject) {
    let key = key("no-wait");
    let holder = LockClient::builder(subject.open().await)
        .label("the holder")
        .build();
    let guard = holder
        .expect("a client")
        .acquire(&key)
        .await
        .expect("the lock");
    let spy = Spy::on(subject.open().await);
    let rival = LockClient::new(spy.store());
    for (attempts, wait) in [(1, Wait::No), (2, Duration::ZERO.into())] {
        let refused = rival.lock(&key).wait(wait).acquire().await;
        let Err(Error::Busy { key: about, busy }) = refused else {
            panic!("the lock is busy: {refused:?}");
        };
        assert_eq!(about, key);
        let told = busy.holder.expect("the holder is known");
        assert_eq!(told.asker.label(), Some("the holder"));
        assert_eq!((told.owner, told.token), (guard.owner(), guard.token()));
        assert_eq!((busy.position, spy.seen.attempts()), (None, attempts));
    }
    let info = rival
        .inspect(&key)
        .await
        .expect("an answer")
        .expect("a holder");
    assert_eq!(info.waiters, []);
    guard.release().await.expect("it was held");
    drop(rival.try_acquire(&key).await.expect("the lock is free"));
}

/// A wait is over at its limit, whatever the ttl is, and leaves no place in the queue. Clauses 8
/// and 13; A34, B15, B79, B82.
pub async fn a_wait_ends_at_its_limit(subject: &dyn Subject) {
    let key = key("limit");
    let holder = client(subject).await;
    let guard = holder.acquire(&key).await.expect("the lock");
    let waiter = client(subject).await;
    // A ttl that is much longer than the wait, and one that is much shorter.
    for (ttl, wait) in [(LONG, 300), (SHORT, 1500)] {
        let wait = Duration::from_millis(wait);
        let start = Instant::now();
        let refused = waiter.lock(&key).ttl(ttl).wait(wait).acquire().await;
        let Err(Error::Timeout {
            key: about,
            waited,
            busy,
        }) = refused
        else {
            panic!("the lock is held for longer: {refused:?}");
        };
        assert_eq!(about, key);
        assert!(
            waited >= wait && start.elapsed() >= wait,
            "{waited:?} of {wait:?}"
        );
        assert!(waited < wait + PATIENCE / 2, "{waited:?} of {wait:?}");
        let told = busy.expect("an answer").holder.expect("a holder");
        assert_eq!(told.owner, guard.owner());
        let info = waiter
            .inspect(&key)
            .await
            .expect("an answer")
            .expect("a holder");
        assert_eq!(info.waiters, []);
    }
}

/// A wait without limit lasts as long as the holder, for many ttls of either. Clause 8; B15, B79.
pub async fn a_wait_without_limit_outlasts_every_ttl(subject: &dyn Subject) {
    let key = key("forever");
    let viewer = Actor::open(subject, &key, "viewer").await;
    let (holder, waiter) = (client(subject).await, client(subject).await);
    let stalls = Stalls::watch();
    let acquire = holder.lock(&key).ttl(Duration::from_secs(1));
    let guard = acquire.acquire().await.expect("the lock");
    let (token, held) = (guard.token(), guard.ttl() * 3);
    let acquire = waiter.lock(&key).ttl(SHORT).wait(Wait::Forever);
    let waiting = tokio::spawn(acquire.acquire());
    until("it queues", || async {
        viewer
            .looks()
            .await
            .is_some_and(|info| !info.waiters.is_empty())
    })
    .await;
    tokio::time::sleep(held).await;
    let was_held = guard.is_held();
    guard.release().await.ok();
    let next = timeout(PATIENCE, waiting).await.expect("it is its turn");
    let next = next.expect("no panic").expect("the lock");
    assert!(next.token() > token);
    if stalls.longest() < held / 6 {
        assert!(was_held && next.waited() >= held, "{:?}", next.waited());
    }
    next.release().await.ok();
}

/// Of many clients that wait, each is served in the order of its arrival, with one lock at a
/// time and growing tokens. Clauses 1, 4 and 8; A31, B72.
pub async fn clients_are_served_in_the_order_of_arrival(subject: &dyn Subject) {
    let stores = join_all((0..4).map(|_| subject.open())).await;
    served_in_order(subject, stores, Duration::ZERO).await;
}

/// Wake-ups that are early, doubled or for nothing change neither the order nor the exclusion.
/// Clauses 8 and 9; A30, A33.
pub async fn garbage_wake_ups_are_harmless(subject: &dyn Subject) {
    let stores = join_all((0..3).map(|_| subject.open())).await;
    let restless = |store| Spy::on(store).hearing(Hearing::Restless).store();
    served_in_order(
        subject,
        stores.into_iter().map(restless).collect(),
        Duration::from_millis(50),
    )
    .await;
}

async fn served_in_order(
    subject: &dyn Subject,
    stores: Vec<Arc<dyn DistributedLock>>,
    work: Duration,
) {
    const WAITERS: usize = 12;
    let key = key("order");
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let clients: Vec<_> = stores.into_iter().map(LockClient::new).collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for place in 0..WAITERS {
        let (client, key, order) = (
            clients[place % clients.len()].clone(),
            key.clone(),
            order.clone(),
        );
        waiting.spawn(async move {
            let guard = client.lock(key).ttl(LONG).wait(PATIENCE).acquire().await;
            let guard = guard.expect("its turn comes");
            order.lock().push((place, guard.token()));
            tokio::time::sleep(work).await;
            guard.release().await.expect("it was held");
        });
        until("the waiter queues", || async {
            holder.sees().await.waiters.len() > place
        })
        .await;
    }
    holder.leaves().await;
    waiting.join_all().await;
    let order = Arc::into_inner(order).expect("all are done").into_inner();
    assert!(
        order.is_sorted_by(|a, b| a.1 < b.1),
        "tokens grow: {order:?}"
    );
    let mut places: Vec<_> = order.into_iter().map(|(place, _)| place).collect();
    if holder.capabilities().fairness != Fairness::Fifo {
        places.sort_unstable();
    }
    assert_eq!(places, (0..WAITERS).collect::<Vec<_>>());
    assert_eq!(holder.looks().await, None);
}

/// A waiter whose wake-ups are all lost gets the lock all the same. Clause 9; A33, B05, B39, B40.
pub async fn a_waiter_that_hears_nothing_gets_its_turn(subject: &dyn Subject) {
    let key = key("deaf");
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let deaf = LockClient::new(Spy::on(subject.open().await).hearing(Hearing::Deaf).store());
    let waiting = {
        let key = key.clone();
        tokio::spawn(async move { deaf.lock(key).wait(PATIENCE).acquire().await })
    };
    until("it queues", || async {
        !holder.sees().await.waiters.is_empty()
    })
    .await;
    holder.leaves().await;
    let guard = waiting.await.expect("no panic").expect("its turn comes");
    guard.release().await.expect("it was held");
}

/// A client that waits for a holder that is gone gets the lock when the lease ends, not before.
/// Clauses 5 and 8; A22, B37.
pub async fn a_client_takes_over_when_a_lease_ends(subject: &dyn Subject) {
    let key = key("take-over");
    let gone = Actor::open(subject, &key, "gone")
        .await
        .with_ttl(Duration::from_secs(1));
    let client = client(subject).await;
    let sent = Instant::now();
    let grant = gone.enters().await;
    let guard = client
        .lock(&key)
        .wait(PATIENCE)
        .acquire()
        .await
        .expect("the lease ends");
    assert_not_early(sent, grant.ttl);
    assert!(guard.token() > grant.token);
    guard.release().await.expect("it was held");
}

/// Twenty that wait and give up leave the queue at once, and the next one is not held up.
/// Clauses 8 and 12; B72, B82.
pub async fn clients_that_give_up_leave_no_trace(subject: &dyn Subject) {
    let key = key("given-up");
    let holder = Actor::open(subject, &key, "holder").await;
    holder.enters().await;
    let client = client(subject).await;
    let refusals = join_all((0..20).map(|_| {
        let wait = Duration::from_millis(300);
        client.lock(&key).ttl(LONG).wait(wait).acquire()
    }));
    for refused in refusals.await {
        assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    }
    assert_eq!(holder.sees().await.waiters, []);
    holder.leaves().await;
    holder.rival("next").enters().await;
}

/// An increment that is not atomic, by many tasks of several clients, loses nothing; tokens grow
/// in the order of the grants, and no owner is used twice. Clauses 1 and 4; A40, B08, B67.
pub async fn a_counter_over_clients_is_exact(subject: &dyn Subject) {
    const TASKS: usize = 9;
    const ROUNDS: usize = 6;
    let key = key("client-counter");
    let clients = [
        client(subject).await,
        client(subject).await,
        client(subject).await,
    ];
    let counter = Arc::new(AtomicU64::new(0));
    let grants = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, key) = (clients[task % clients.len()].clone(), key.clone());
        let (counter, grants) = (counter.clone(), grants.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let work = count_up(&client, &key, &counter, &grants);
                timeout(PATIENCE, work).await.expect("its turn comes");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(counter.load(Ordering::SeqCst), (TASKS * ROUNDS) as u64);
    let grants = grants.lock();
    assert!(
        grants.is_sorted_by(|(a, _), (b, _)| a < b),
        "in the order of the grants: {grants:?}"
    );
    let owners: BTreeSet<_> = grants.iter().map(|(_, owner)| owner).collect();
    assert_eq!(owners.len(), grants.len());
}

async fn count_up(
    client: &LockClient,
    key: &LockKey,
    counter: &AtomicU64,
    grants: &Mutex<Vec<(FencingToken, OwnerId)>>,
) {
    let acquire = client.lock(key).ttl(LONG).wait(Wait::Forever);
    let done = acquire.run(async |guard| {
        let read = counter.load(Ordering::SeqCst);
        grants.lock().push((guard.token(), guard.owner()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        counter.store(read + 1, Ordering::SeqCst);
    });
    done.await.expect("the lock is held to the end");
}

/// Tasks that take two locks in opposite orders end in time-outs, not in a deadlock. Clause 13;
/// A42, B100.
pub async fn opposite_orders_end_in_a_time_out(subject: &dyn Subject) {
    let keys = [key("left"), key("right")];
    let clients = [client(subject).await, client(subject).await];
    let met = Arc::new(Barrier::new(2));
    let mut tasks = JoinSet::new();
    for (task, client) in clients.into_iter().enumerate() {
        let (mine, other) = (keys[task].clone(), keys[1 - task].clone());
        let met = met.clone();
        tasks.spawn(async move {
            let guard = client.lock(mine).ttl(LONG).acquire().await;
            met.wait().await;
            let wait = Duration::from_millis(300);
            let second = client.lock(other).wait(wait).acquire().await;
            // Nobody lets go before both have their answer.
            met.wait().await;
            guard
                .expect("nobody else wants it")
                .release()
                .await
                .expect("it was held");
            second
        });
    }
    let seconds = timeout(PATIENCE, tasks.join_all()).await;
    for refused in seconds.expect("no deadlock") {
        assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    }
    for key in &keys {
        Actor::open(subject, key, "next").await.enters().await;
    }
}

/// A shutdown releases all locks and ends all waits, and says so. Clauses 12 and 13; B113.
pub async fn a_shutdown_releases_everything(subject: &dyn Subject) {
    let client = client(subject).await;
    let other = subject.open().await;
    let keys: Vec<_> = (0..20).map(|_| key("shutdown")).collect();
    let guards = join_all(keys.iter().map(|key| client.lock(key).ttl(LONG).acquire())).await;
    let guards: Vec<_> = guards
        .into_iter()
        .map(|guard| guard.expect("the lock"))
        .collect();
    let contended = Actor::on(&other, &key("contended"), "other");
    contended.enters().await;
    let waiting = {
        let acquire = client.lock(&contended.claim.key).wait(Wait::Forever);
        tokio::spawn(acquire.acquire())
    };
    until("it queues", || async {
        !contended.sees().await.waiters.is_empty()
    })
    .await;
    let report = client.clone().shutdown().await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.released, report.lost.len()), (keys.len(), 0));
    for key in &keys {
        Actor::on(&other, key, "next").enters().await;
    }
    for guard in guards {
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::Closed);
    }
    let ended = timeout(PATIENCE, waiting)
        .await
        .expect("the wait ends")
        .expect("no panic");
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    until("its place is given up", || async {
        contended.sees().await.waiters.is_empty()
    })
    .await;
    let refused = client.try_acquire(&keys[0]).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    for key in &keys {
        let info = other.inspect(key).await.expect("an answer");
        let held = info
            .expect("held by the next one")
            .holder
            .expect("a holder");
        assert_eq!(
            held.asker.label(),
            Some("next"),
            "late drops of guards touch nobody"
        );
    }
}

/// While a client drains, what it holds stays held, for longer than a ttl. Clause 12; B57.
pub async fn a_drain_lets_work_end_under_its_lock(subject: &dyn Subject) {
    let key = key("drain");
    let client = client(subject).await;
    let rival = Actor::open(subject, &key, "rival").await;
    let guard = client
        .lock(&key)
        .ttl(Duration::from_secs(2))
        .acquire()
        .await
        .expect("the lock");
    let draining = tokio::spawn(client.clone().drain(PATIENCE));
    tokio::time::sleep(guard.ttl() * 3 / 2).await;
    let still_held = guard.is_held();
    if still_held {
        rival.is_refused().await;
        assert!(!draining.is_finished());
    }
    assert!(still_held, "the lock was lost while the client drained");
    guard.release().await.expect("it was held");
    let report = timeout(PATIENCE, draining)
        .await
        .expect("the drain ends")
        .expect("no panic");
    assert!(report.is_clean(), "{report:?}");
    rival.enters().await;
}
