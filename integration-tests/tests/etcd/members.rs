//! Three members: what stops, dies, is cut off or replaced, and what a lock makes of it.

use std::{sync::Arc, time::Duration};

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{
    Attempt, DistributedLock, Error, LockClient, LockGuard, LostReason, Release, Renewal,
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// Locks with a ttl of 9 s whose renewals are due at different times.
async fn staggered(client: &LockClient) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..24 {
        let lock = client.lock(format!("l {n}")).ttl(ms(9000));
        guards.push(lock.acquire().await.unwrap());
        sleep(ms(125)).await;
    }
    guards
}

/// The least that any of the leases has left, over some time.
async fn least_validity(guards: &[LockGuard], time: Duration) -> Duration {
    let end = Instant::now() + time;
    let mut least = Duration::MAX;
    while Instant::now() < end {
        least = least.min(guards.iter().map(LockGuard::valid_for).min().unwrap());
        sleep(ms(10)).await;
    }
    least
}

/// Half the ttl, less what the local deadline stays behind the server's.
const HALF: Duration = ms(4300);

/// E3: each of three members stands still in turn: no lock is lost, and no renewal comes later
/// than half the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_any_member_may_stand_still() {
    let cluster = EtcdCluster::three();
    let client = client(&cluster).await;
    let guards = staggered(&client).await;
    for member in 0..3 {
        cluster.pause(member);
        let least = least_validity(&guards, ms(4000)).await;
        assert!(least > HALF, "member {member}: {least:?}");
        cluster.resume(member);
        let least = least_validity(&guards, ms(1500)).await;
        assert!(least > HALF, "member {member}, afterwards: {least:?}");
    }
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(client.shutdown().await.is_clean());
}

/// E9, E3: each of three members is killed in turn, and started again: no lock is lost, and no
/// renewal comes later than half the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e9_any_member_may_be_killed() {
    let mut cluster = EtcdCluster::three();
    let client = client(&cluster).await;
    let guards = staggered(&client).await;
    for member in 0..3 {
        cluster.kill(member);
        let least = least_validity(&guards, ms(4000)).await;
        assert!(least > HALF, "member {member}: {least:?}");
        cluster.restart_without_waiting(member);
        let least = least_validity(&guards, ms(1500)).await;
        assert!(least > HALF, "member {member}, afterwards: {least:?}");
        cluster.wait_until_ready();
    }
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(client.shutdown().await.is_clean());
}

/// E3, B107: acquires, releases and hand-overs go on while any one member stands still or is
/// killed, the one that leads included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b107_e3_locks_change_hands_without_any_one_member() {
    let mut cluster = EtcdCluster::three();
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    for round in 0..4 {
        let member = match round {
            0 => cluster.leader(),
            _ => round - 1,
        };
        let kills = round % 2 == 1;
        let guard = one.lock("l").wait(PATIENCE).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let two = two.clone();
            async move { two.lock("l").wait(ms(60_000)).acquire().await }
        });
        queued(&**one.store(), "l", 1).await;
        match kills {
            true => cluster.kill(member),
            false => cluster.pause(member),
        }
        let begin = Instant::now();
        eventually("it is released", async || {
            !guard.is_held() || one.force_release("l", guard.token().into()).await.is_ok()
        })
        .await;
        let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        assert!(next.token() > guard.token());
        assert!(begin.elapsed() < ms(15_000), "{:?}", begin.elapsed());
        eventually("it can be released", async || {
            two.inspect("l").await.is_ok_and(|info| info.is_some())
        })
        .await;
        drop(next);
        free(&**one.store(), "l").await;
        match kills {
            true => cluster.restart(member),
            false => cluster.resume(member),
        }
        cluster.wait_until_ready();
    }
}

/// E10, B30, B03: without a majority the holder learns that the lock is lost, before its deadline
/// is over and before anybody else can have it; requests end in time; afterwards all is well.
#[tokio::test]
async fn e10_without_a_majority_the_holder_knows_in_time() {
    let cluster = EtcdCluster::three();
    let client = hasty(&cluster.url()).await;
    let guard = client.lock("l").ttl(ms(4000)).acquire().await.unwrap();
    let token = guard.token();
    let leader = cluster.leader();
    let stopped = [leader, (leader + 1) % 3];
    for member in stopped {
        cluster.pause(member);
    }
    let begin = Instant::now();
    let why = client.lock("m").wait(ms(500)).acquire().await.unwrap_err();
    assert!(
        matches!(&why, Error::Store { .. }) && why.is_retryable(),
        "{why}"
    );
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
    let deadline = Instant::now() + guard.valid_for();
    assert_eq!(
        timeout(PATIENCE, guard.lost()).await.unwrap(),
        LostReason::Unreachable
    );
    assert!(Instant::now() < deadline + ms(500));
    for member in stopped {
        cluster.resume(member);
    }
    let next = client.lock("l").wait(PATIENCE).acquire().await.unwrap();
    assert!(next.token() > token);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    next.release().await.unwrap();
    free(&**client.store(), "m").await;
}

/// E9: a change of the leader makes leases longer in the server. The holder gains nothing from it
/// and knows its end; whoever waits gets the lock later, and gets it.
#[tokio::test]
async fn e9_a_new_leader_prolongs_no_hold() {
    let mut cluster = EtcdCluster::three();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let lock = holder.lock("l").ttl(ms(4000)).manual_renewal();
    let guard = lock.acquire().await.unwrap();
    let token = guard.token();
    let waiting = tokio::spawn(async move {
        let next = waiter.lock("l").wait(ms(60_000)).acquire().await.unwrap();
        (Instant::now(), next)
    });
    queued(&**holder.store(), "l", 1).await;
    sleep(ms(2000)).await;
    let end = Instant::now() + guard.valid_for();
    let leader = cluster.leader();
    cluster.kill(leader);
    let mut left = guard.valid_for();
    while guard.is_held() {
        assert!(guard.valid_for() <= left);
        left = guard.valid_for();
        sleep(ms(10)).await;
    }
    assert!(Instant::now() < end + ms(500));
    let (granted, next) = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    // The election, a whole ttl, the server's half second; and more for a slow machine.
    assert!(granted < end + ms(10_000), "{:?}", granted - end);
    assert!(granted >= end);
    assert!(next.token() > token);
}

/// E2, E22: a leader that is cut off from the others, and does not know it yet, answers
/// keep-alives as if the leases were its own (up to 3.4.37 and 3.5.22). Nobody else holds the lock
/// while a renewal is told that it succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_a_leader_that_is_cut_off_renews_nothing_for_long() {
    let cluster = EtcdCluster::divisible();
    let mut asked = 0;
    for _ in 0..3 {
        let leader = cluster.leader();
        let alone = hasty_store(&cluster.url_of(leader)).await;
        let others = store_of(&cluster, [(leader + 1) % 3, (leader + 2) % 3]).await;
        let held = with_ttl(claim("l"), 4000);
        granted(&alone, &held).await;
        let begin = Instant::now();
        cluster.isolate(leader);
        let taken = tokio::spawn({
            let (others, next) = (others.clone(), claim("l"));
            async move {
                while others.force_release(&next.key, None).await.is_err() {
                    assert!(begin.elapsed() < PATIENCE, "no other leader");
                }
                eventually_granted(&*others, &next).await;
                (Instant::now(), next)
            }
        });
        let mut renewed = begin;
        while !taken.is_finished() || begin.elapsed() < ms(4000) {
            let sent = Instant::now();
            let answer = alone.renew(&held).await;
            asked += 1;
            match answer {
                Ok(Renewal::Renewed { .. }) => renewed = sent,
                Ok(Renewal::Gone { .. }) => break,
                Err(why) => assert!(why.is_transient(), "{why}"),
            }
            sleep(ms(5)).await;
        }
        let (granted, next) = timeout(PATIENCE, taken).await.unwrap().unwrap();
        assert!(
            renewed <= granted,
            "renewed {:?} after another's grant",
            renewed - granted
        );
        cluster.heal();
        eventually("it is gone", async || {
            matches!(alone.renew(&held).await, Ok(Renewal::Gone { .. }))
        })
        .await;
        assert_eq!(holder(&*others, "l").await, Some(next.owner));
        others.release(&next).await.unwrap();
    }
    assert!(asked > 10);
}

async fn store_of(cluster: &EtcdCluster, members: [usize; 2]) -> Arc<lock_etcd::EtcdLock> {
    let addresses = members.map(|member| cluster.address(member)).join(",");
    Arc::new(hasty_store(&format!("etcd://{addresses}")).await)
}

/// E11: a member that is cut off knows only the past. It is not believed: every look asks the
/// majority.
#[tokio::test]
async fn e11_a_member_that_is_cut_off_tells_no_old_news() {
    let cluster = EtcdCluster::divisible();
    let behind = (cluster.leader() + 1) % 3;
    let alone = hasty_store(&cluster.url_of(behind)).await;
    let others = store_of(&cluster, [(behind + 1) % 3, (behind + 2) % 3]).await;
    let held = claim("l");
    granted(&*others, &held).await;
    assert_eq!(holder(&alone, "l").await, Some(held.owner));
    cluster.isolate(behind);
    eventually("the majority goes on", async || {
        matches!(
            others.release(&held).await,
            Ok(Release::Released { .. } | Release::NotHeld)
        )
    })
    .await;
    let next = claim("l");
    eventually_granted(&*others, &next).await;
    for _ in 0..3 {
        let why = alone.inspect(&held.key).await.unwrap_err();
        assert!(why.is_transient(), "{why}");
        let why = alone
            .list("", lock_core::Page::default())
            .await
            .unwrap_err();
        assert!(why.is_transient(), "{why}");
        let why = alone.try_acquire(&claim("l")).await.unwrap_err();
        assert!(why.is_transient(), "{why}");
    }
    cluster.heal();
    eventually("it answers again", async || {
        alone.inspect(&held.key).await.is_ok()
    })
    .await;
    assert_eq!(holder(&alone, "l").await, Some(next.owner));
}

/// E17, A2: a request whose answer never came, because there was no majority, may be applied when
/// there is one again: it is the same hold, counted once, and its withdrawal leaves nothing.
#[tokio::test]
async fn e17_what_is_applied_late_counts_once() {
    let cluster = EtcdCluster::three();
    let store = hasty_store(&cluster.url()).await;
    let leader = cluster.leader();
    let followers = [(leader + 1) % 3, (leader + 2) % 3];
    granted(&store, &claim("warm")).await;
    for withdraws in [true, false, true, false] {
        let claim = claim("l");
        for member in followers {
            cluster.pause(member);
        }
        let answer = store.try_acquire(&claim).await;
        assert!(answer.is_err_and(|why| why.is_transient()));
        for member in followers {
            cluster.resume(member);
        }
        if !withdraws {
            let grant = eventually_granted(&store, &claim).await;
            assert_eq!(grant.holds, 1);
            assert_eq!(granted(&store, &claim).await, grant);
        }
        eventually("it is given up", async || {
            store.release(&claim).await.is_ok()
        })
        .await;
        eventually("nobody holds it", async || {
            matches!(store.inspect(&claim.key).await, Ok(None))
        })
        .await;
        // Nor does it come back.
        sleep(ms(500)).await;
        assert_eq!(store.inspect(&claim.key).await.unwrap(), None);
    }
}

async fn eventually_granted(
    store: &dyn DistributedLock,
    claim: &lock_core::Claim,
) -> lock_core::Grant {
    let end = Instant::now() + PATIENCE;
    loop {
        match store.try_acquire(claim).await {
            Ok(Attempt::Granted(grant)) => return grant,
            answer => assert!(Instant::now() < end, "{answer:?}"),
        }
    }
}

/// E20: every member is replaced by one at another address, one after the other: the lock is
/// kept, and the store goes on with addresses that it was never given.
#[tokio::test]
async fn e20_members_may_be_replaced_one_by_one() {
    let mut cluster = EtcdCluster::three();
    let (holder, waiter) = (client(&cluster).await, client(&cluster).await);
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(120_000)).acquire().await });
    queued(&**holder.store(), "l", 1).await;
    for member in 0..3 {
        cluster.replace(member).await;
        eventually("it is renewed", async || {
            guard.renew(ms(60_000)).await.is_ok() && holder.inspect("l").await.is_ok()
        })
        .await;
        // Time to learn who the members are now.
        sleep(ms(2000)).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.is_held());
}

/// E22: a server with known faults in its leases is named when a store connects.
#[tokio::test]
async fn e22_versions_with_known_faults_are_reported() {
    let cluster = EtcdCluster::one();
    let mut admin = cluster.admin().await;
    let version = admin.status().await.unwrap().version().to_owned();
    let capabilities = store(&cluster).await.capabilities();
    let warnings = capabilities.warnings.join("\n");
    // Of 3.4 and 3.5 the later versions are sound.
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap());
    let (major, minor, patch) = (parts.next(), parts.next().unwrap(), parts.next().unwrap());
    let faulty = match minor {
        4 => patch < 38,
        5 => patch < 23,
        _ => false,
    };
    assert_eq!(major, Some(3));
    assert_eq!(warnings.contains(&version), faulty, "{version}: {warnings}");
}
