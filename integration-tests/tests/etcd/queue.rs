//! Waiting: order, watches, and waiters that die, hang or give up.

use std::sync::Arc;

use etcd_client::{CompactionOptions, GetOptions};
use futures_util::future::join_all;
use integration_tests::{servers::etcd::EtcdCluster, taker::Taker};
use lock_core::{Attempt, DistributedLock, Error, LockClient, LockGuard, Release};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::support::*;

type Waiting = JoinHandle<lock_core::Result<LockGuard>>;

/// Acquires `l` in a task of its own, and waits until it queues.
async fn waiting(client: &LockClient, looking: &LockClient, place: usize) -> Waiting {
    let client = client.clone();
    let waiting = tokio::spawn(async move { client.lock("l").wait(ms(60_000)).acquire().await });
    queued(&**looking.store(), "l", place).await;
    waiting
}

async fn got(waiting: Waiting) -> LockGuard {
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap()
}

/// Watchers in the server.
fn watchers(cluster: &EtcdCluster) -> u64 {
    cluster.metric(0, "etcd_debugging_mvcc_watcher_total", &[]) as u64
}

/// B05, E8: a release between the first try and the confirmed watch wakes the waiter all the same.
#[tokio::test]
async fn e8_b05_a_slow_watch_misses_no_release() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let (holder, waiter) = (client(&cluster).await, client_at(&through(&proxy)).await);
    waiter
        .acquire("warm")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    proxy.faults().delay_requests(ms(300)); // the creation of the watch among them
    let waiting = waiting(&waiter, &holder, 1).await;
    guard.release().await.unwrap();
    let begin = Instant::now();
    drop(got(waiting).await);
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
}

/// B06: when nobody waits any more there is no watch; a waiter whose connection broke is served.
#[tokio::test]
async fn b06_watches_end_with_their_waiters() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let (holder, waiter) = (client(&cluster).await, client_at(&through(&proxy)).await);
    for round in 0..2 {
        let guard = holder.acquire("l").await.unwrap();
        let waiting = waiting(&waiter, &holder, 1).await;
        if round == 0 {
            proxy.reset_all();
        }
        guard.release().await.unwrap();
        got(waiting).await.release().await.unwrap();
    }
    eventually("no watcher is left", async || watchers(&cluster) == 0).await;
}

/// E3, E8, B39: waiters survive the end of their watch, by a reset and in order, whenever the
/// release comes; watches do not pile up.
#[tokio::test]
async fn e8_b39_waiters_survive_the_loss_of_the_watch() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let (holder, waiter) = (client(&cluster).await, client_at(&through(&proxy)).await);
    for in_the_gap in [true, false] {
        let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
        let waiting = waiting(&waiter, &holder, 1).await;
        for round in 0..4 {
            eventually("it watches", async || watchers(&cluster) > 0).await;
            let opened = proxy.opened();
            match round % 2 {
                0 => proxy.reset_all(),
                _ => proxy.close_all(),
            }
            eventually("it connects again", async || proxy.opened() > opened).await;
        }
        if !in_the_gap {
            eventually("it watches again", async || watchers(&cluster) > 0).await;
            sleep(ms(200)).await;
        }
        let begin = Instant::now();
        guard.release().await.unwrap();
        let guard = got(waiting).await;
        assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
        assert!(watchers(&cluster) <= 4, "{}", watchers(&cluster));
        guard.release().await.unwrap();
    }
}

/// E8: a watch that says nothing more, without an end: the waiter looks for itself.
#[tokio::test]
async fn e8_a_silent_watch_costs_a_look() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let (holder, waiter) = (client(&cluster).await, client_at(&through(&proxy)).await);
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let waiting = waiting(&waiter, &holder, 1).await;
    proxy.faults().blackhole(true);
    guard.release().await.unwrap();
    sleep(ms(1000)).await;
    assert!(!waiting.is_finished());
    // What was on its way is lost for good.
    proxy.reset_all();
    proxy.faults().heal();
    let begin = Instant::now();
    drop(got(waiting).await);
    assert!(begin.elapsed() < ms(8000), "{:?}", begin.elapsed());
}

/// E7, B74: the history is compacted all the time, in the midst of waits and of watches that are
/// made again; every waiter is served soon, and none leaves a key behind.
#[tokio::test]
async fn e7_b74_compaction_loses_no_waiter() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let (holder, waiter) = (client(&cluster).await, client_at(&through(&proxy)).await);
    let mut admin = cluster.admin().await;
    let mut compactions = 0;
    for round in 0..6 {
        let guard = holder.acquire("l").await.unwrap();
        let waiting = waiting(&waiter, &holder, 1).await;
        proxy.faults().delay_requests(ms(50));
        proxy.reset_all();
        for n in 0..20 {
            let put = admin.put(format!("data {n}"), "x", None).await.unwrap();
            let revision = put.header().unwrap().revision();
            let physical = CompactionOptions::new().with_physical();
            admin.compact(revision, Some(physical)).await.unwrap();
            compactions += 1;
        }
        proxy.faults().heal();
        if round % 2 == 0 {
            sleep(ms(300)).await; // it watches again, from a revision that is gone
        }
        let begin = Instant::now();
        guard.release().await.unwrap();
        got(waiting).await.release().await.unwrap();
        assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
    }
    assert_eq!(compactions, 120);
    free(&**holder.store(), "l").await;
    drop(holder.try_acquire("l").await.unwrap());
}

/// E5, B29: a waiter's own lease is revoked: it queues again, and is never granted what it has not.
#[tokio::test]
async fn e5_b29_a_waiter_without_a_key_queues_again() {
    let cluster = EtcdCluster::one();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.acquire("l").await.unwrap();
    let waiting = waiting(&waiter, &holder, 1).await;
    let info = holder.inspect("l").await.unwrap().unwrap();
    let key = key_of(&cluster, info.waiters[0].owner).await;
    let mut admin = cluster.admin().await;
    admin.lease_revoke(key.lease()).await.unwrap();
    let begin = Instant::now();
    queued(&**holder.store(), "l", 1).await;
    assert!(begin.elapsed() < ms(3000), "{:?}", begin.elapsed());
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let guard = got(waiting).await;
    assert_eq!(
        holder_of(&cluster).await,
        key_of(&cluster, guard.owner()).await.key()
    );
    assert!(guard.is_held());
}

/// The key that holds, past the library: the one with the lowest revision.
async fn holder_of(cluster: &EtcdCluster) -> Vec<u8> {
    let keys = keys(cluster).await;
    let first = keys.iter().min_by_key(|key| key.create_revision());
    first.unwrap().key().to_vec()
}

/// E4, E5: the lease of a waiter ends in the same moment as the lock becomes free: what it is
/// granted, if anything, is held in the server.
#[tokio::test]
async fn e4_no_grant_without_a_live_lease() {
    let cluster = EtcdCluster::one();
    let holder = client(&cluster).await;
    let mut admin = cluster.admin().await;
    for round in 0..40 {
        let waiter = store(&cluster).await;
        let guard = holder.acquire("l").await.unwrap();
        let claim = queuing("l");
        busy(&*waiter, &claim).await;
        let lease = key_of(&cluster, claim.owner).await.lease();
        let (revoked, released) = match round % 2 {
            0 => {
                let revoked = admin.lease_revoke(lease).await;
                (revoked, guard.release().await)
            }
            _ => tokio::join!(admin.lease_revoke(lease), guard.release()),
        };
        revoked.unwrap();
        released.unwrap();
        // Its key is gone: this is a new place in the queue, and a new key.
        let grant = granted(&*waiter, &claim).await;
        let key = key_of(&cluster, claim.owner).await;
        assert_eq!(key.create_revision() as u64, grant.token.as_u64());
        assert!(time_to_live(&cluster, key.lease()).await > 0);
        assert_ne!(key.lease(), lease);
        waiter.release(&claim).await.unwrap();
        waiter.close().await.unwrap();
    }
    // E4: the server's own locks grant to the dead (3.4); they are not used.
    assert_eq!(cluster.calls("Lock"), 0);
}

/// E6, A22, A32, B37, B72: twenty processes that wait are killed, and the one that holds: the next
/// live one has its turn when their leases have ended.
#[tokio::test]
async fn e6_a32_a_dead_holder_and_twenty_dead_waiters_end_with_their_leases() {
    let cluster = EtcdCluster::one();
    let watcher = store(&cluster).await;
    let mut holder = taker(&cluster);
    let ttl = 4000;
    let answer = holder.ask(&format!("acquire l {ttl} 1000"));
    assert!(answer.starts_with("granted"), "{answer}");
    let mut dead: Vec<Taker> = (0..20).map(|_| taker(&cluster)).collect();
    for (n, taker) in dead.iter_mut().enumerate() {
        taker.send(&format!("acquire l {ttl} 60000"));
        queued(&*watcher, "l", n + 1).await;
    }
    let live = client(&cluster).await;
    let live = waiting(&live, &live, 21).await;
    let begin = Instant::now();
    holder.process.kill();
    for taker in &mut dead {
        taker.process.kill();
    }
    let guard = got(live).await;
    let waited = begin.elapsed();
    // The longest of the leases, the server's half second, and some more for a slow machine.
    assert!(waited < ms(ttl + 500 + 2500), "{waited:?}");
    assert!(
        waited > ms(ttl / 3),
        "{waited:?}: before the lease was over"
    );
    assert!(guard.is_held());
    assert_eq!(keys(&cluster).await.len(), 1);
}

/// B72, B82: waiters that time out or are cancelled leave nothing; killed ones cost their leases;
/// who is behind them is served.
#[tokio::test]
async fn b72_b82_waiters_that_give_up_leave_nothing() {
    let cluster = EtcdCluster::one();
    let holder = client(&cluster).await;
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let impatient = client(&cluster).await;
    let timed_out = (0..20).map(|_| impatient.lock("l").wait(ms(300)).acquire());
    for end in join_all(timed_out).await {
        assert!(matches!(end, Err(Error::Timeout { .. })), "{end:?}");
    }
    queued(&**holder.store(), "l", 0).await;
    let cancelled = waiting(&impatient, &holder, 1).await;
    let mut killed: Vec<_> = (0..3).map(|_| taker(&cluster)).collect();
    for (n, taker) in killed.iter_mut().enumerate() {
        taker.send("acquire l 2000 60000");
        queued(&**holder.store(), "l", n + 2).await;
    }
    let last = client(&cluster).await;
    let last = waiting(&last, &holder, 5).await;
    cancelled.abort();
    queued(&**holder.store(), "l", 4).await;
    for taker in &mut killed {
        taker.process.kill();
    }
    let begin = Instant::now();
    guard.release().await.unwrap();
    let guard = got(last).await;
    assert!(
        begin.elapsed() < ms(2000 + 500 + 2500),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(keys(&cluster).await.len(), 1);
    guard.release().await.unwrap();
    // Clients that end give their leases back, too.
    for client in [holder, impatient] {
        assert!(client.shutdown().await.is_clean());
    }
}

/// B29, B72: a waiter's lease is kept alive while it waits, for many of its ttls.
#[tokio::test]
async fn b29_a_waiter_outlives_its_ttl() {
    let cluster = EtcdCluster::one();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.acquire("l").await.unwrap();
    let patient = tokio::spawn(async move {
        waiter
            .lock("l")
            .ttl(ms(1000))
            .wait(ms(60_000))
            .acquire()
            .await
    });
    queued(&**holder.store(), "l", 1).await;
    let info = holder.inspect("l").await.unwrap().unwrap();
    let place = key_of(&cluster, info.waiters[0].owner).await;
    sleep(ms(8000)).await;
    let still = key_of(&cluster, info.waiters[0].owner).await;
    assert_eq!(still.create_revision(), place.create_revision());
    guard.release().await.unwrap();
    let guard = got(patient).await;
    assert_eq!(guard.token().as_u64(), place.create_revision() as u64);
    assert!(guard.is_held());
}

/// B107, B39: the only member is away for two seconds, with a holder and a waiter.
#[tokio::test]
async fn b107_a_restart_loses_nothing() {
    let mut cluster = EtcdCluster::one();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.lock("l").ttl(ms(20_000)).acquire().await.unwrap();
    let token = guard.token();
    let waiting = waiting(&waiter, &holder, 1).await;
    cluster.kill(0);
    sleep(ms(2000)).await;
    cluster.restart(0);
    eventually("it is renewed", async || {
        guard.renew(ms(20_000)).await.is_ok()
    })
    .await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(got(waiting).await.token() > token);
}

/// First come, first served over several processes (A31), with try_acquire refused meanwhile.
#[tokio::test]
async fn waiters_of_several_stores_are_served_in_order() {
    let cluster = EtcdCluster::one();
    let holder = store(&cluster).await;
    let mine = claim("l");
    granted(&*holder, &mine).await;
    let stores = join_all((0..4).map(|_| store(&cluster))).await;
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..20_usize {
        let (store, order) = (stores[n % 4].clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let claim = queuing("l");
            loop {
                match store.try_acquire(&claim).await.unwrap() {
                    Attempt::Granted(_) => break,
                    Attempt::Busy(busy) => store.wait(&claim, &busy).await,
                }
            }
            order.lock().push(n);
            assert_eq!(
                store.release(&claim).await.unwrap(),
                Release::Released { holds: 0 }
            );
        }));
        queued(&*holder, "l", n + 1).await;
    }
    busy(&*holder, &claim("l")).await;
    holder.release(&mine).await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    free(&*holder, "l").await;
}

/// Clause 9: what others do under the prefix of a lock is no wake-up and no waiter; keys that look
/// like ours and are not are left alone.
#[tokio::test]
async fn foreign_keys_beside_a_lock_wake_and_block_nobody() {
    let cluster = EtcdCluster::one();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.acquire("l").await.unwrap();
    let ours = key_of(&cluster, guard.owner()).await;
    let waiting = waiting(&waiter, &holder, 1).await;
    let mut admin = cluster.admin().await;
    let name = ours.key_str().unwrap();
    for foreign in [
        format!("{name}x"),
        format!("{name}/x"),
        "distlock:".into(),
        "distlock:lx".into(),
    ] {
        for value in ["", "garbage"] {
            admin.put(foreign.as_str(), value, None).await.unwrap();
        }
    }
    sleep(ms(200)).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    drop(got(waiting).await);
    let all = admin
        .get("distlock:", Some(GetOptions::new().with_prefix()))
        .await;
    assert!(
        all.unwrap()
            .kvs()
            .iter()
            .filter(|kv| kv.value() == b"garbage")
            .count()
            == 4
    );
}
