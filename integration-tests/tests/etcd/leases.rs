//! Leases: what a keep-alive's answer means, and what becomes of them.

use std::sync::Arc;

use futures_util::future::join_all;
use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, Error, LockClient, LostReason, Release, Renewal};
use lock_etcd::EtcdLock;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// E1: the lease ends while a keep-alive is on its way: the holder has given up by then, and the
/// late answer changes nothing.
#[tokio::test]
async fn e1_a_lease_that_ends_while_its_renewal_is_on_the_way() {
    let cluster = EtcdCluster::one();
    let client = hasty(&cluster.url()).await;
    for pause in [2500, 3500, 4500] {
        let guard = client.lock("l").ttl(ms(3000)).acquire().await.unwrap();
        let end = Instant::now() + guard.valid_for();
        cluster.pause(0);
        sleep(ms(pause)).await;
        let held = guard.is_held();
        assert!(!held || Instant::now() < end + ms(500));
        cluster.resume(0);
        if held {
            // Renewed in time, or lost at the deadline: one of the two.
            let _ = timeout(ms(1500), guard.lost()).await;
        } else {
            sleep(ms(500)).await;
            assert!(!guard.is_held(), "it came back");
        }
        drop(guard);
        free(&**client.store(), "l").await;
    }
}

/// E1, A7: renewals around the end of the lease: each is renewed or gone, and what is gone stays
/// gone.
#[tokio::test]
async fn e1_a7_what_is_gone_stays_gone() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let race = |n: u64| {
        let (store, claim) = (store.clone(), with_ttl(claim(&format!("l {n}")), 1000));
        async move {
            granted(&*store, &claim).await;
            // The server revokes twice a second what has ended.
            sleep(ms(1000 + 25 * n)).await;
            let mut gone = false;
            for _ in 0..20 {
                match store.renew(&claim).await.unwrap() {
                    Renewal::Renewed { .. } => assert!(!gone, "it came back"),
                    Renewal::Gone { .. } => gone = true,
                }
            }
            let held = holder(&*store, claim.key.as_str()).await.is_some();
            assert_eq!(held, !gone);
            store.release(&claim).await.unwrap();
            gone
        }
    };
    let gone = join_all((0..40).map(race)).await;
    assert!(gone.contains(&true));
}

/// B38 (a), E1: a lease that was revoked from outside is lost within a renewal, for the keep-alive
/// of a dead lease is no success.
#[tokio::test]
async fn b38_a_revoked_lease_is_lost() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let guard = client.lock("l").ttl(ms(3000)).acquire().await.unwrap();
    let key = key_of(&cluster, guard.owner()).await;
    let mut admin = cluster.admin().await;
    admin.lease_revoke(key.lease()).await.unwrap();
    let begin = Instant::now();
    assert_eq!(
        timeout(PATIENCE, guard.lost()).await.unwrap(),
        LostReason::ForceReleased
    );
    assert!(begin.elapsed() < ms(2500), "{:?}", begin.elapsed());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(keys(&cluster).await.is_empty());
}

/// B38 (b), E3, A9, B47: the stream of keep-alives is ended all the time, in order and by resets:
/// it is opened again, and the lock is kept.
#[tokio::test]
async fn b38_b47_a_keep_alive_stream_that_ends_is_opened_again() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let client = client_at(&through(&proxy)).await;
    let guard = client.lock("l").ttl(ms(4000)).acquire().await.unwrap();
    let lease = key_of(&cluster, guard.owner()).await.lease();
    let before = keep_alives(&cluster);
    for round in 0..10 {
        sleep(ms(1000)).await;
        match round % 2 {
            0 => proxy.close_all(),
            _ => proxy.reset_all(),
        }
        assert!(guard.is_held());
    }
    assert!(keep_alives(&cluster) > before);
    assert_eq!(key_of(&cluster, guard.owner()).await.lease(), lease);
    guard.release().await.unwrap();
}

/// B38 (c): the server is killed and comes back with its data, within the ttl.
#[tokio::test]
async fn b38_a_restart_within_the_ttl_is_no_loss() {
    let mut cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let guard = client.lock("l").ttl(ms(6000)).acquire().await.unwrap();
    for _ in 0..3 {
        cluster.restart(0);
        sleep(ms(3000)).await;
        assert!(guard.is_held());
    }
    guard.release().await.unwrap();
}

/// B84, B09: the key of a lock is deleted while its lease lives on: keep-alives succeed, and the
/// lock is lost all the same.
#[tokio::test]
async fn b84_a_key_without_its_lock_is_lost_though_its_lease_lives() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let rival = self::client(&cluster).await;
    let guard = client.lock("l").ttl(ms(3000)).acquire().await.unwrap();
    let key = key_of(&cluster, guard.owner()).await;
    cluster.admin().await.delete(key.key(), None).await.unwrap();
    let begin = Instant::now();
    timeout(PATIENCE, guard.lost()).await.unwrap();
    assert!(begin.elapsed() < ms(2500), "{:?}", begin.elapsed());
    let next = rival.lock("l").wait(PATIENCE).acquire().await.unwrap();
    assert!(guard.release().await.is_err());
    assert!(next.is_held());
}

/// E14, B76: what the server grants counts, and not what was asked for.
#[tokio::test]
async fn e14_the_granted_ttl_counts() {
    // 1.5 election time-outs, in whole seconds: 2 s; more than some of the ttls asked for.
    let slow = ["--heartbeat-interval", "100", "--election-timeout", "1000"];
    let cluster = EtcdCluster::with(1, &slow);
    let client = client(&cluster).await;
    for (asked, granted) in [(1, 2), (1000, 2), (1001, 2), (2500, 3), (30_000, 30)] {
        let lock = client.lock(format!("l {asked}")).ttl(ms(asked));
        let guard = lock.manual_renewal().acquire().await.unwrap();
        assert_eq!(guard.ttl(), ms(granted * 1000), "{asked} ms");
        assert!(guard.valid_for() > ms(granted * 1000 - 600));
        let key = key_of(&cluster, guard.owner()).await;
        let left = time_to_live(&cluster, key.lease()).await as u64;
        assert!(
            left + 1 >= granted && left <= granted,
            "{left} of {granted}"
        );
    }
}

/// E15: no two locks share a lease, also of one client, and of one owner: what ends one ends no
/// other.
#[tokio::test]
async fn e15_every_lock_has_a_lease_of_its_own() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let owner = client.owner();
    let locks = (0..40).map(|n| {
        let lock = match n % 2 {
            0 => client.lock(format!("l {n}")),
            _ => owner.lock(format!("l {n}")),
        };
        lock.ttl(ms(3000)).acquire()
    });
    let mut guards: Vec<_> = join_all(locks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let used: std::collections::BTreeSet<_> =
        keys(&cluster).await.iter().map(|kv| kv.lease()).collect();
    assert_eq!(used.len(), 40);
    assert!(!used.contains(&0));
    let first = key_of(&cluster, guards[0].owner()).await;
    cluster
        .admin()
        .await
        .lease_revoke(first.lease())
        .await
        .unwrap();
    timeout(PATIENCE, guards[0].lost()).await.unwrap();
    sleep(ms(3500)).await;
    assert!(guards.drain(1..).all(|guard| guard.is_held()));
}

/// E18, B18, A4: a release that is never answered: the watchdog sends it again, and in the worst
/// case the lease ends; nothing renews it.
#[tokio::test]
async fn e18_b18_a_lost_release_ends_with_its_lease() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let client = hasty(&through(&proxy)).await;
    for stays_cut in [false, true] {
        let guard = client.lock("l").ttl(ms(3000)).acquire().await.unwrap();
        match stays_cut {
            true => proxy.faults().blackhole(true),
            false => proxy.faults().hold_replies(true),
        }
        let why = guard.release().await.unwrap_err();
        assert!(
            matches!(&why, Error::Store { .. }) && why.is_retryable(),
            "{why}"
        );
        let begin = Instant::now();
        eventually("the key is gone", async || keys(&cluster).await.is_empty()).await;
        assert!(begin.elapsed() < ms(3000 + 3000), "{:?}", begin.elapsed());
        proxy.reset_all();
        proxy.faults().heal();
        eventually("it answers", async || client.inspect("l").await.is_ok()).await;
    }
    // A4: a release again meets somebody else's lock, and leaves it alone.
    let (first, next) = (claim("m"), claim("m"));
    let store = client.store();
    granted(&**store, &first).await;
    store.release(&first).await.unwrap();
    granted(&**store, &next).await;
    assert_eq!(store.release(&first).await.unwrap(), Release::NotHeld);
    assert_eq!(holder(&**store, "m").await, Some(next.owner));
}

/// E21, B68, B82: ten thousand cycles over many names and a shutdown leave neither a lease nor a
/// key, and in between there are few leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e21_b68_ten_thousand_cycles_leave_no_lease() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let tasks = (0..50).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for n in 0..200 {
                let guard = client.acquire(format!("l {task} {n}")).await.unwrap();
                match n % 10 {
                    0 => drop(guard),
                    _ => guard.release().await.unwrap(),
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let left = leases(&cluster).await.len();
    assert!(left <= 260, "{left}");
    // Once more than there are leases to reuse, with waits that time out.
    let held = client.acquire("held").await.unwrap();
    let timed_out = (0..200).map(|_| client.lock("held").wait(ms(200)).acquire());
    assert!(join_all(timed_out).await.iter().all(Result::is_err));
    held.release().await.unwrap();
    let report = client.shutdown().await;
    assert!(report.is_clean(), "{report:?}");
    assert!(keys(&cluster).await.is_empty());
    eventually("no lease is left", async || {
        leases(&cluster).await.is_empty()
    })
    .await;
}

/// E21: a process that is killed leaves leases behind, which end by themselves, the unused ones
/// too.
#[tokio::test]
async fn e21_a_killed_process_leaves_no_lease_for_long() {
    let cluster = EtcdCluster::one();
    let mut taker = taker(&cluster);
    assert!(taker.ask("acquire l 3000 0").starts_with("granted"));
    assert!(!leases(&cluster).await.is_empty());
    taker.process.kill();
    let end = Instant::now() + ms(60_000);
    while !leases(&cluster).await.is_empty() {
        assert!(
            Instant::now() < end,
            "{} are left",
            leases(&cluster).await.len()
        );
        sleep(ms(200)).await;
    }
}

/// Without a pool every lock takes a lease and gives it back.
#[tokio::test]
async fn a_store_without_a_pool_works_and_leaves_nothing() {
    let cluster = EtcdCluster::one();
    let builder = EtcdLock::builder(&cluster.url()).unwrap().lease_pool(0);
    let client = LockClient::new(Arc::new(builder.connect().await.unwrap()));
    for n in 0..20 {
        let guard = client.acquire(format!("l {}", n % 2)).await.unwrap();
        guard.release().await.unwrap();
    }
    eventually("no lease is left", async || {
        leases(&cluster).await.is_empty()
    })
    .await;
    assert!(client.shutdown().await.is_clean());
}

/// B96: no key of ours is without a lease, wherever the connection breaks.
#[tokio::test]
async fn b96_no_key_lives_for_ever() {
    let cluster = EtcdCluster::one();
    let proxy = proxy(&cluster, 0).await;
    let store = hasty_store(&through(&proxy)).await;
    for bytes in (1..1200).step_by(60) {
        proxy.faults().cut_requests_after(bytes);
        let claim = with_ttl(queuing("l"), 2000);
        let _ = store.try_acquire(&claim).await;
        let _ = store.try_acquire(&with_ttl(queuing("l"), 2000)).await;
        let _ = store.release(&claim).await;
        proxy.faults().heal();
        let leases = leases(&cluster).await;
        for key in keys(&cluster).await {
            assert!(key.lease() != 0);
            let ends = time_to_live(&cluster, key.lease()).await <= 2;
            assert!(ends || !leases.contains(&key.lease()));
        }
    }
    assert!(proxy.faults().cuts() > 10);
    store.close().await.unwrap();
    eventually("everything has ended", async || {
        keys(&cluster).await.is_empty()
    })
    .await;
}

/// The server walks past every deleted key of a lock until its history is compacted, so the names
/// of keys are few: they come again with the leases.
#[tokio::test]
async fn a_hot_lock_leaves_few_names() {
    let cluster = EtcdCluster::one();
    let client = client(&cluster).await;
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let guard = client.acquire("l").await.unwrap();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.acquire("l").await.unwrap().release().await })
            })
            .collect();
        queued(&**client.store(), "l", 3).await;
        names.extend(keys(&cluster).await.iter().map(|kv| kv.key().to_vec()));
        guard.release().await.unwrap();
        for task in waiting {
            task.await.unwrap().unwrap();
        }
    }
    assert!(names.len() <= 20, "{} names", names.len());
}

/// A key that moves to a longer lease keeps its name, which so is nobody else's while it lasts.
#[tokio::test]
async fn a_key_on_a_longer_lease_keeps_its_name_to_itself() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let first = with_ttl(claim("l"), 5000);
    granted(&*store, &first).await;
    let key = key_of(&cluster, first.owner).await;
    let longer = with_ttl(claim("l"), 60_000);
    let longer = lock_core::Claim {
        owner: first.owner,
        ..longer
    };
    assert_eq!(granted(&*store, &longer).await.holds, 2);
    let moved = key_of(&cluster, first.owner).await;
    assert_eq!(moved.key(), key.key());
    assert_ne!(moved.lease(), key.lease());
    // Others come with leases as long as the first one, and queue under names of their own.
    let waiting: Vec<_> = (0..5).map(|_| with_ttl(queuing("l"), 5000)).collect();
    for (place, waiter) in waiting.iter().enumerate() {
        let busy = busy(&*store, waiter).await;
        assert_eq!(busy.position, Some(place as u32 + 1));
        assert_eq!(busy.holder.unwrap().owner, first.owner);
    }
    let names: std::collections::BTreeSet<_> = keys(&cluster)
        .await
        .iter()
        .map(|kv| kv.key().to_vec())
        .collect();
    assert_eq!(names.len(), 6);
    for (claim, left) in [(&first, 1), (&longer, 0)] {
        let released = store.release(claim).await.unwrap();
        assert_eq!(released, Release::Released { holds: left });
    }
    granted(&*store, &waiting[0]).await;
}
