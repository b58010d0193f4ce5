//! The life of a lock through the client: renewal, loss, release, cancellation, re-entry.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use integration_tests::{proxy::Proxy, servers::redis::RedisServer};
use lock_core::{Error, LockClient, LostReason, RunError, Wait};
use lock_redis::RedisLock;
use rand::RngExt;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// A client behind a proxy whose operations are given up after 500 ms.
async fn hasty(proxy: &Proxy) -> LockClient {
    let store = RedisLock::builder(&format!("redis://{}", proxy.address()))
        .unwrap()
        .operation_timeout(ms(500))
        .connect()
        .await
        .unwrap();
    LockClient::builder(Arc::new(store))
        .operation_timeout(ms(800))
        .build()
        .unwrap()
}

/// Commands about locks that a server got since the last reset of its statistics.
fn scripts(server: &RedisServer) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

/// B01, B111: whatever the order of acquire, release and drop, no renewal outlives its guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b01_no_renewal_outlives_its_guard() {
    let server = RedisServer::start();
    let client = client(&server).await;
    for round in 0..600 {
        let guard = client
            .lock("l")
            .ttl(ms(1000))
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap();
        match round % 3 {
            0 => guard.release().await.unwrap(),
            1 => drop(guard),
            _ => tokio::spawn(guard.release()).await.unwrap().unwrap(),
        }
    }
    free(&**client.store(), "l").await;
    sleep(ms(300)).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    sleep(ms(3000)).await;
    assert_eq!(scripts(&server), 0);
    drop(client.try_acquire("l").await.unwrap());
}

/// B02, A10: after an outage longer than the ttl the guard is lost in time, and the next one is
/// renewed as ever.
#[tokio::test]
async fn b02_renewal_works_again_after_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let (client, rival) = (hasty(&proxy).await, client(&server).await);
    let first = client.lock("l").ttl(ms(2000)).acquire().await.unwrap();
    proxy.faults().blackhole(true);
    let cut = Instant::now();
    assert_eq!(
        timeout(PATIENCE, first.lost()).await.unwrap(),
        LostReason::Unreachable
    );
    assert!(cut.elapsed() < ms(4000), "{:?}", cut.elapsed());
    sleep(ms(1000)).await;
    proxy.faults().heal();
    let second = client
        .lock("l")
        .ttl(ms(2000))
        .wait(PATIENCE)
        .acquire()
        .await
        .unwrap();
    let end = Instant::now() + ms(6000);
    while Instant::now() < end {
        assert!(matches!(
            rival.try_acquire("l").await,
            Err(Error::Busy { .. })
        ));
        sleep(ms(100)).await;
    }
    assert!(first.release().await.is_err());
    assert!(second.is_held());
}

/// B03, B30, A8: renewals that are never answered: the loss is known before anybody else can
/// have the lock.
#[tokio::test]
async fn b03_a_starved_renewal_is_a_loss_before_the_next_grant() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let (a, b) = (hasty(&proxy).await, client(&server).await);
    let held = Arc::new(a.lock("l").ttl(ms(2000)).acquire().await.unwrap());
    let rival = tokio::spawn(async move {
        let guard = b.lock("l").wait(PATIENCE).acquire().await.unwrap();
        (std::time::Instant::now(), guard)
    });
    let watched = held.clone();
    let lost = tokio::spawn(async move {
        watched.lost().await;
        std::time::Instant::now()
    });
    queued(&*store(&server).await, "l", 1).await;
    proxy.faults().hold_requests(true);
    let (granted, next) = rival.await.unwrap();
    assert!(!held.is_held());
    assert!(lost.await.unwrap() <= granted + ms(50));
    assert!(next.token() > held.token());
    proxy.faults().heal();
    let held = Arc::into_inner(held).unwrap();
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(next.is_held());
}

/// B04, A1: attempts that are cancelled with the answer on its way leave nothing behind, long
/// before their ttl.
#[tokio::test]
async fn b04_cancelled_attempts_are_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let client = client_at(&format!("redis://{}", proxy.address()))
        .await
        .build()
        .unwrap();
    let rival = self::client(&server).await;
    proxy.faults().delay_replies(ms(60));
    for _ in 0..30 {
        let patience = ms(rand::rng().random_range(0..120));
        let attempt = timeout(patience, client.lock("l").ttl(ms(60_000)).acquire()).await;
        drop(attempt);
        let begin = Instant::now();
        rival
            .lock("l")
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(begin.elapsed() < ms(8000), "{:?}", begin.elapsed());
    }
}

/// B07, B111: an attempt that was applied without an answer, and repeated, counts once.
#[tokio::test]
async fn b07_a_repeated_attempt_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let client = hasty(&proxy).await;
    client
        .acquire("warm")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    proxy.faults().swallow_next_reply();
    let guard = client.lock("l").wait(PATIENCE).acquire().await.unwrap();
    assert_eq!(proxy.faults().swallowed(), 1);
    assert_eq!((guard.holds(), guard.attempts()), (1, 2));
    guard.release().await.unwrap();
    free(&**client.store(), "l").await;
}

/// B08: each acquisition keeps its own ttl and cadence on a shared client.
#[tokio::test]
async fn b08_each_acquisition_has_its_own_ttl() {
    let server = RedisServer::start();
    let client = client(&server).await;
    for _ in 0..20 {
        let (short, long) = (
            client.lock("l").ttl(ms(2000)),
            client.lock("l").ttl(ms(120_000)),
        );
        let (short, long) = tokio::join!(short.try_acquire(), long.manual_renewal().try_acquire());
        let (guard, ttl) = match (short, long) {
            (Ok(guard), Err(_)) => (guard, 2000),
            (Err(_), Ok(guard)) => (guard, 120_000),
            other => panic!("{other:?}"),
        };
        let left: u64 = server
            .command(&["PTTL", "distlock:{l}:claim"])
            .parse()
            .unwrap();
        assert!(left <= ttl && left + 1500 > ttl, "{left} of {ttl}");
        guard.release().await.unwrap();
    }
}

/// B09, A43, B77: a lock that was deleted from outside is lost once, and nothing is made again.
#[tokio::test]
async fn b09_a_deleted_lock_is_lost_quietly() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("l").ttl(ms(1000)).acquire().await.unwrap();
    server.command(&["DEL", "distlock:{l}:claim"]);
    assert_eq!(
        timeout(PATIENCE, guard.lost()).await.unwrap(),
        LostReason::ForceReleased
    );
    sleep(ms(1500)).await;
    assert_eq!(server.command(&["EXISTS", "distlock:{l}:claim"]), "0");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

/// B010: work that outlives its lease is reported as lost at once, without a retry.
#[tokio::test]
async fn b010_lost_work_is_reported_at_once() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let begin = Instant::now();
    let work = client.lock("l").ttl(ms(200)).manual_renewal();
    let end = work.run(async |_| sleep(ms(20_000)).await).await;
    assert!(matches!(end, Err(RunError::Lost { .. })), "{end:?}");
    assert!(begin.elapsed() < ms(5000));
}

/// B011: renewing by hand updates the one guard.
#[tokio::test]
async fn b011_renewing_by_hand_keeps_the_lock() {
    let server = RedisServer::start();
    let (client, rival) = (client(&server).await, client(&server).await);
    let guard = client
        .lock("l")
        .ttl(ms(2000))
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    for _ in 0..5 {
        sleep(ms(1000)).await;
        guard.renew(ms(2000)).await.unwrap();
        assert!(guard.is_held() && guard.valid_for() > ms(500));
        assert!(matches!(
            rival.try_acquire("l").await,
            Err(Error::Busy { .. })
        ));
    }
}

/// B012, B17, B19, B96, B60: after its lease a holder can neither renew nor release, by release or
/// by drop, and whoever came next is not touched.
#[tokio::test]
async fn b012_b17_b96_a_late_holder_harms_nobody() {
    let server = RedisServer::start();
    let (a, b, c) = (
        client(&server).await,
        client(&server).await,
        client(&server).await,
    );
    for by_drop in [true, false] {
        let late = a
            .lock("l")
            .ttl(ms(300))
            .manual_renewal()
            .acquire()
            .await
            .unwrap();
        let next = b.lock("l").wait(PATIENCE).acquire().await.unwrap();
        assert!(next.token() > late.token());
        assert!(!late.is_held());
        assert!(matches!(
            late.renew(ms(5000)).await,
            Err(Error::Lost { .. })
        ));
        match by_drop {
            true => drop(late),
            false => assert!(matches!(late.release().await, Err(Error::Lost { .. }))),
        }
        sleep(ms(100)).await;
        assert!(matches!(c.try_acquire("l").await, Err(Error::Busy { .. })));
        assert_eq!(holder(&**c.store(), "l").await, Some(next.owner()));
        next.release().await.unwrap();
        // B19: nothing local is left of it.
        a.lock("l")
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// B15, B79: the wait is bounded by the wait, not by any ttl.
#[tokio::test]
async fn b15_b79_the_wait_is_its_own_limit() {
    let server = RedisServer::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = holder.lock("l").ttl(ms(1000)).acquire().await.unwrap();
    let patient = tokio::spawn({
        let waiter = waiter.clone();
        async move {
            waiter
                .lock("l")
                .ttl(ms(1000))
                .wait(Wait::Forever)
                .acquire()
                .await
        }
    });
    for (ttl, wait) in [(1000, 2500), (60_000, 300)] {
        let begin = Instant::now();
        let end = waiter.lock("l").ttl(ms(ttl)).wait(ms(wait)).acquire().await;
        assert!(matches!(end, Err(Error::Timeout { .. })), "{end:?}");
        let waited = begin.elapsed();
        assert!(waited >= ms(wait) && waited < ms(wait + 2000), "{waited:?}");
    }
    assert!(matches!(
        waiter.lock("l").wait(Duration::ZERO).acquire().await,
        Err(Error::Busy { .. })
    ));
    assert!(timeout(ms(500), waiter.acquire("l")).await.is_err());
    assert!(!patient.is_finished());
    guard.release().await.unwrap();
    let got = patient.await.unwrap().unwrap();
    assert_eq!(got.ttl(), ms(1000));
    got.release().await.unwrap();
    free(&**holder.store(), "l").await;
}

/// B16, B41, B125, A19, B31: guards are dropped and released anywhere; what is cancelled is
/// released long before its ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b16_b41_b125_guards_end_anywhere() {
    let server = RedisServer::start();
    let (client, rival) = (client(&server).await, client(&server).await);
    let take = || client.lock("l").ttl(ms(60_000)).wait(PATIENCE).acquire();
    let taken_again = async || {
        let begin = Instant::now();
        rival
            .lock("l")
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(begin.elapsed() < ms(8000), "{:?}", begin.elapsed());
    };
    drop(take().await.unwrap());
    taken_again().await;
    let guard = take().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    taken_again().await;
    let guard = take().await.unwrap();
    tokio::spawn(guard.release()).await.unwrap().unwrap();
    taken_again().await;
    let guard = take().await.unwrap();
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("the task fails");
    });
    assert!(panicked.await.is_err());
    taken_again().await;
    let aborted = tokio::spawn({
        let lock = take();
        async move {
            let _guard = lock.await.unwrap();
            sleep(PATIENCE).await;
        }
    });
    eventually("it is held", async || {
        holder(&**rival.store(), "l").await.is_some()
    })
    .await;
    aborted.abort();
    taken_again().await;
    let work = async {
        let guard = take().await.unwrap();
        sleep(PATIENCE).await;
        guard.release().await
    };
    assert!(timeout(ms(500), work).await.is_err());
    taken_again().await;
}

/// A20, B41 (c): a runtime that ends with a lock held: no panic, and the lock is free by its ttl.
#[test]
fn a20_a_runtime_that_ends_leaves_nothing_for_long() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let client = first.block_on(client(&server));
    let guard = first
        .block_on(client.lock("l").ttl(ms(2000)).acquire())
        .unwrap();
    first.shutdown_background();
    drop(guard);
    let second = runtime();
    second.block_on(async {
        // The same client goes on, on another runtime.
        let guard = client.lock("l").wait(PATIENCE).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.lock("l").wait(PATIENCE).acquire().await }
        });
        queued(&**client.store(), "l", 1).await;
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    });
}

/// B18: a release that could not be sent can be sent again by the watchdog; until then the lock
/// stays, and it is not renewed for ever.
#[tokio::test]
async fn b18_a_failed_release_is_not_forgotten() {
    let mut server = RedisServer::durable();
    let client = client(&server).await;
    let guard = client.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    server.kill();
    let why = guard.release().await.unwrap_err();
    assert!(
        matches!(&why, Error::Store { .. }) && why.is_retryable(),
        "{why}"
    );
    server.launch();
    let begin = Instant::now();
    free(&**client.store(), "l").await;
    assert!(begin.elapsed() < ms(25_000));
}

/// B44, B07: re-entry is tied to the owner: across handles and processes, in any order.
#[tokio::test]
async fn b44_re_entry_follows_the_owner() {
    let server = RedisServer::start();
    let (one, two) = (client(&server).await, client(&server).await);
    let owner = one.owner();
    let first = owner.lock("l").acquire().await.unwrap();
    let same = two.owner_from(owner.id());
    let second = same.lock("l").wait(ms(5000)).acquire().await.unwrap();
    assert_eq!((second.token(), second.holds()), (first.token(), 2));
    let stranger = two.owner().lock("l").wait(ms(300)).acquire().await;
    assert!(matches!(stranger, Err(Error::Timeout { .. })));
    first.release().await.unwrap();
    assert!(second.is_held());
    assert!(two.try_acquire("l").await.is_err());
    second.release().await.unwrap();
    drop(one.try_acquire("l").await.unwrap());
}

/// B47, A9: one failed renewal is retried in the time that is left; a definite answer ends it.
#[tokio::test]
async fn b47_a_failed_renewal_is_retried() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let client = hasty(&proxy).await;
    let guard = client.lock("l").ttl(ms(6000)).acquire().await.unwrap();
    for _ in 0..2 {
        proxy.reset_all();
        proxy.faults().swallow_replies(2);
        sleep(ms(3000)).await;
        proxy.faults().heal();
        assert!(guard.is_held());
    }
    // Replaced by somebody else: the next renewal ends it, and changes nothing.
    server.command(&["DEL", "distlock:{l}:claim"]);
    let store = store(&server).await;
    let other = claim("l");
    granted(&*store, &other).await;
    assert_eq!(
        timeout(PATIENCE, guard.lost()).await.unwrap(),
        LostReason::TakenOver
    );
    assert_eq!(holder(&*store, "l").await, Some(other.owner));
}

/// B77: max_hold ends a holder that never lets go.
#[tokio::test]
async fn b77_max_hold_ends_a_stuck_holder() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let lock = client.lock("l").ttl(ms(1500)).max_hold(ms(2500));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(
        timeout(PATIENCE, guard.lost()).await.unwrap(),
        LostReason::MaxHold
    );
    drop(client.lock("l").wait(PATIENCE).acquire().await.unwrap());
}

/// B91, A17: the local deadline is never later than the end of the lease in the server.
#[tokio::test]
async fn b91_the_local_deadline_is_the_earlier_one() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let client = client_at(&format!("redis://{}", proxy.address()))
        .await
        .build()
        .unwrap();
    proxy.faults().delay_requests(ms(20));
    proxy.faults().delay_replies(ms(20));
    for _ in 0..30 {
        let guard = client
            .lock("l")
            .ttl(ms(5000))
            .manual_renewal()
            .acquire()
            .await
            .unwrap();
        let here = guard.valid_for();
        let there: u64 = server
            .command(&["PTTL", "distlock:{l}:claim"])
            .parse()
            .unwrap();
        // `there` was read later, so it has shrunk already; give the command its time.
        assert!(
            here <= ms(there) + ms(50),
            "{here:?} here, {there} ms there"
        );
        guard.release().await.unwrap();
    }
    assert!(matches!(
        client.lock("l").ttl(Duration::ZERO).acquire().await,
        Err(Error::InvalidConfig { .. })
    ));
}

/// B95: a lock is handed to another process and back; stale handles harm nobody.
#[tokio::test]
async fn b95_a_lock_moves_between_clients() {
    let server = RedisServer::start();
    let (a, b, c) = (
        client(&server).await,
        client(&server).await,
        client(&server).await,
    );
    let guard = a.lock("l").ttl(ms(3000)).acquire().await.unwrap();
    let token = guard.token();
    let handle = guard.detach().unwrap();
    let moved = b.attach(&handle, None).await.unwrap();
    assert_eq!(moved.token(), token);
    sleep(ms(4000)).await; // renewed there
    assert!(moved.is_held());
    moved.release().await.unwrap();
    let next = c.acquire("l").await.unwrap();
    assert!(matches!(
        b.attach(&handle, None).await,
        Err(Error::Lost { .. })
    ));
    assert!(next.is_held());
}

/// B99: without renewal a guard is not held after its ttl, server or no server; with renewal it is
/// held for many.
#[tokio::test]
async fn b99_a_guard_knows_its_own_end() {
    let mut server = RedisServer::start();
    let client = client(&server).await;
    let renewed = client.lock("long").ttl(ms(1500)).acquire().await.unwrap();
    sleep(ms(6000)).await;
    assert!(renewed.is_held());
    drop(renewed);
    for server_is_up in [true, false] {
        let begin = Instant::now();
        let guard = client
            .lock(format!("l {server_is_up}"))
            .ttl(ms(1000))
            .manual_renewal()
            .acquire()
            .await
            .unwrap();
        if !server_is_up {
            server.kill();
        }
        while guard.is_held() {
            assert!(begin.elapsed() < ms(1000) + ms(500));
            sleep(ms(5)).await;
        }
    }
}

/// B100, A42: locks taken in opposite orders end by their waits, and leave nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b100_opposite_orders_end_by_their_waits() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let sets = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "a"]];
    let tasks = (0..16).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                let [first, second] = sets[n % 4];
                let work = async {
                    let _first = client.lock(first).wait(ms(1000)).acquire().await?;
                    let _second = client.lock(second).wait(ms(100)).acquire().await?;
                    Ok::<_, Error>(())
                };
                match timeout(ms(1500), work).await {
                    Ok(Err(Error::Timeout { .. }) | Ok(())) | Err(_) => {}
                    Ok(Err(why)) => panic!("{why}"),
                }
            }
        })
    });
    for end in join_all(tasks).await {
        end.unwrap();
    }
    for key in ["a", "b", "c"] {
        free(&**client.store(), key).await;
    }
}

/// B113: a shutdown releases everything at once and says so; with the server down it ends all the
/// same.
#[tokio::test]
async fn b113_a_shutdown_releases_everything() {
    let mut server = RedisServer::start();
    let (client, other) = (client(&server).await, self::client(&server).await);
    let guards = join_all((0..50).map(|n| client.acquire(format!("l {n}")))).await;
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let other = other.clone();
            tokio::spawn(async move { other.acquire(format!("l {n}")).await })
        })
        .collect();
    for n in 0..50 {
        queued(&**other.store(), &format!("l {n}"), 1).await;
    }
    let report = client.shutdown().await;
    assert!(report.is_clean() && report.released == 50, "{report:?}");
    drop(guards);
    let got: Vec<_> = join_all(waiting)
        .await
        .into_iter()
        .map(|got| got.unwrap().unwrap())
        .collect();
    server.kill();
    let begin = Instant::now();
    let report = other.shutdown().await;
    assert_eq!(report.failed.len(), 50);
    assert!(begin.elapsed() < ms(25_000));
    drop(got);
}

/// The last line: the server is unreachable for less and for more than the ttl, with
/// holders and waiters present (A11, A37).
#[tokio::test]
async fn an_unreachable_server_for_less_and_for_more_than_the_ttl() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let (holder, waiter) = (hasty(&proxy).await, hasty(&proxy).await);
    let guard = holder.lock("l").ttl(ms(6000)).acquire().await.unwrap();
    let token = guard.token();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(90_000)).acquire().await });
    queued(&*store(&server).await, "l", 1).await;
    proxy.faults().blackhole(true);
    sleep(ms(2000)).await; // less than what is left
    proxy.faults().heal();
    eventually("it is renewed", async || {
        guard.renew(ms(6000)).await.is_ok()
    })
    .await;
    assert!(guard.is_held());
    proxy.faults().blackhole(true);
    let end = Instant::now() + guard.valid_for();
    timeout(PATIENCE, guard.lost()).await.unwrap();
    assert!(Instant::now() < end + ms(1000));
    sleep(ms(1000)).await;
    assert!(!waiting.is_finished());
    proxy.faults().heal();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token() > token);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

/// B76: impossible settings are refused before anything is sent.
#[tokio::test]
async fn b76_impossible_settings_are_refused() {
    let server = RedisServer::start();
    let client = client(&server).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    for ttl in [
        Duration::ZERO,
        Duration::MAX,
        Duration::from_secs(400 * 24 * 3600),
    ] {
        let refused = client.lock("l").ttl(ttl).acquire().await;
        assert!(
            matches!(refused, Err(Error::InvalidConfig { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(scripts(&server), 0);
    // A ttl below the store's smallest is rounded up, and said.
    let guard = client
        .lock("l")
        .ttl(Duration::from_micros(500))
        .manual_renewal()
        .acquire()
        .await;
    assert_eq!(guard.unwrap().ttl(), ms(10));
}

/// B111: a release that was applied without an answer, and sent again, is not told as a loss.
#[tokio::test]
async fn b111_a_repeated_release_is_no_loss() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let client = client_at(&format!("redis://{}", proxy.address())).await;
    let client = client.build().unwrap();
    let warm = client.acquire("warm").await.unwrap();
    warm.release().await.unwrap();
    let guard = client.acquire("l").await.unwrap();
    proxy.faults().hold_replies(true);
    let release = tokio::spawn(guard.release());
    eventually("it is applied", async || {
        server.keys("distlock:{l}:claim").is_empty()
    })
    .await;
    let before = proxy.opened();
    proxy.reset_all();
    // The reply is gone with its connection once there is another one.
    eventually("it connects again", async || proxy.opened() > before).await;
    proxy.faults().hold_replies(false);
    match release.await.unwrap() {
        Err(Error::Store { source, .. }) => assert!(source.is_transient(), "{source}"),
        other => panic!("{other:?}"),
    }
    free(&**client.store(), "l").await;
}
