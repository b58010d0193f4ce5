//! Clause 1: at most one owner holds a key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    Subject,
    actor::{Actor, SHORT, key},
};
use crate::{Attempt, FencingToken, Renewal};

/// A held lock is refused, with the truth about its holder. Clause 1; B14, B59, B96.
pub async fn a_held_lock_is_refused_to_others(subject: &dyn Subject) {
    let key = key("held");
    let holder = Actor::open(subject, &key, "holder").await;
    let rival = Actor::open(subject, &key, "rival").await;
    let grant = holder.enters().await;
    for actor in [&rival, &holder.rival("neighbour")] {
        let busy = actor.is_refused().await;
        let told = busy.holder.expect("the holder is known");
        assert_eq!(told.owner, holder.claim.owner);
        assert_eq!(told.asker.label(), Some("holder"));
        assert_eq!((told.token, told.holds), (grant.token, 1));
        assert!(!busy.remaining.is_zero() && busy.remaining <= grant.ttl.as_duration());
        assert_eq!((busy.position, busy.queued), (None, 0));
    }
}

/// After a release anybody gets the lock at the first attempt. Clause 1.
pub async fn a_released_lock_is_free_at_once(subject: &dyn Subject) {
    let key = key("released");
    let holder = Actor::open(subject, &key, "holder").await;
    let rival = Actor::open(subject, &key, "rival").await;
    for _ in 0..10 {
        holder.enters().await;
        rival.is_refused().await;
        assert_eq!(holder.leaves().await, 0);
        rival.enters().await;
        holder.is_refused().await;
        assert_eq!(rival.leaves().await, 0);
    }
}

/// Of many that try at the same time exactly one gets the lock. Clause 1; B62.
pub async fn of_many_rivals_one_wins(subject: &dyn Subject) {
    let handles = join_all((0..4).map(|_| subject.open())).await;
    for _ in 0..20 {
        let key = key("rivals");
        let mut rivals = JoinSet::new();
        for place in 0..16 {
            let rival = Actor::on(&handles[place % handles.len()], &key, "rival");
            rivals.spawn(async move { (rival.claim.owner, rival.tries().await) });
        }
        let attempts = rivals.join_all().await;
        let winners: Vec<_> = attempts
            .iter()
            .filter(|(_, attempt)| matches!(attempt, Attempt::Granted(_)))
            .collect();
        assert_eq!(winners.len(), 1, "{attempts:?}");
        let seen = Actor::on(&handles[0], &key, "witness").sees().await;
        assert_eq!(seen.holder.expect("a holder").owner, winners[0].0);
    }
}

/// A non-atomic increment under the lock loses nothing, and tokens grow in the order of the
/// grants. Clauses 1 and 4; A13, B67.
pub async fn a_counter_under_the_lock_is_exact(subject: &dyn Subject) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 8;
    let key = key("counter");
    let handles = join_all((0..4).map(|_| subject.open())).await;
    let counter = Arc::new(AtomicU64::new(0));
    let tokens = Arc::new(Mutex::new(Vec::<FencingToken>::new()));
    let mut tasks = JoinSet::new();
    for place in 0..TASKS {
        let (handle, key) = (handles[place % handles.len()].clone(), key.clone());
        let (counter, tokens) = (counter.clone(), tokens.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let actor = Actor::on(&handle, &key, "worker").queueing();
                let grant = actor.waits().await;
                let read = counter.load(Ordering::SeqCst);
                tokens.lock().push(grant.token);
                tokio::time::sleep(Duration::from_millis(1)).await;
                counter.store(read + 1, Ordering::SeqCst);
                assert_eq!(actor.leaves().await, 0);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(counter.load(Ordering::SeqCst), (TASKS * ROUNDS) as u64);
    let tokens = tokens.lock();
    assert!(
        tokens.is_sorted_by(|a, b| a < b),
        "in the order of the grants: {tokens:?}"
    );
}

/// While the holder renews without pause nobody else gets in, over several ttls. Clauses 1 and 5;
/// B108, A7.
pub async fn renewing_never_lets_a_rival_in(subject: &dyn Subject) {
    let key = key("renewing");
    let holder = Actor::open(subject, &key, "holder")
        .await
        .with_ttl(Duration::from_secs(1));
    let ttl = holder.enters().await.ttl.as_duration();
    let over = Arc::new(AtomicBool::new(false));
    let mut rivals = JoinSet::new();
    for _ in 0..2 {
        let handle = subject.open().await;
        let (key, over) = (key.clone(), over.clone());
        rivals.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let rival = Actor::on(&handle, &key, "rival").with_ttl(SHORT);
                if let Attempt::Granted(grant) = rival.tries().await {
                    return Some((Instant::now(), grant));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            None
        });
    }
    let start = Instant::now();
    let mut last = start;
    let mut held_until = start + ttl;
    while start.elapsed() < ttl * 5 / 2 {
        let sent = Instant::now();
        match holder.renew().await {
            Renewal::Renewed { ttl } => held_until = sent + ttl.as_duration(),
            Renewal::Gone { .. } => break,
        }
        last = sent;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    over.store(true, Ordering::SeqCst);
    for (at, grant) in rivals.join_all().await.into_iter().flatten() {
        // Only a machine that stood still for a whole ttl gives a rival its chance.
        assert!(
            at >= held_until && last.elapsed() >= ttl,
            "a rival got in while the holder renewed: {grant:?}"
        );
    }
}

/// An attempt that does not queue is forgotten as soon as it is refused. Clauses 1 and 8; B79.
pub async fn an_attempt_that_does_not_queue_leaves_nothing_behind(subject: &dyn Subject) {
    let key = key("no-queue");
    let holder = Actor::open(subject, &key, "holder").await;
    let rival = Actor::open(subject, &key, "rival").await;
    holder.enters().await;
    for _ in 0..3 {
        rival.is_refused().await;
    }
    assert_eq!(holder.sees().await.waiters, []);
    holder.leaves().await;
    assert_eq!(rival.looks().await, None);
    Actor::open(subject, &key, "third").await.enters().await;
}
