//! Waiting: order, wake-ups, and waiters that die, hang or give up.

use std::sync::Arc;

use futures_util::future::join_all;
use integration_tests::{proxy::Proxy, servers::redis::RedisServer, taker::Taker};
use lock_core::{DistributedLock, Error, Release};
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

fn taker(server: &RedisServer) -> Taker {
    Taker::start(env!("CARGO_BIN_EXE_lock-taker"), server.url())
}

/// Subscribers to channels of ours.
fn channels(server: &RedisServer) -> usize {
    let reply = server.command(&["PUBSUB", "CHANNELS", "distlock:wake:*"]);
    reply.lines().count()
}

/// B05, row B12: a release between the first try and the confirmed subscription wakes the waiter
/// all the same.
#[tokio::test]
async fn b05_a_slow_subscription_misses_no_release() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let holder = client(&server).await;
    let waiter = client_at(&format!("redis://{}", proxy.address()))
        .await
        .build()
        .unwrap();
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let opened = proxy.opened();
    proxy.faults().delay_requests(ms(300)); // SUBSCRIBE among them
    let begin = Instant::now();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(PATIENCE).acquire().await });
    eventually("the subscription is under way", async || {
        proxy.opened() > opened
    })
    .await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(begin.elapsed() < ms(10_000), "{:?}", begin.elapsed());
}

/// B06: a subscription that cannot be made poisons nothing, and none is left behind.
#[tokio::test]
async fn b06_a_failed_subscription_is_made_again_and_none_leaks() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let holder = client(&server).await;
    let waiter = client_at(&format!("redis://{}", proxy.address()))
        .await
        .build()
        .unwrap();
    waiter
        .acquire("warm")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for round in 0..2 {
        let guard = holder.acquire("l").await.unwrap();
        proxy.faults().refuse(round == 0); // the first subscription fails
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.acquire("l").await }
        });
        queued(&**holder.store(), "l", 1).await;
        guard.release().await.unwrap();
        let begin = Instant::now();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(begin.elapsed() < ms(10_000));
        proxy.faults().heal();
    }
    // Nobody waits any more: the subscription is closed soon after.
    eventually("no channel is left", async || channels(&server) == 0).await;
}

/// B39, row B13: waiters survive the loss of their subscription, whenever the release comes; the
/// number of subscriptions does not grow.
#[tokio::test]
async fn b39_waiters_survive_the_loss_of_the_subscription() {
    let server = RedisServer::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    for in_the_gap in [true, false] {
        let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.lock("l").wait(PATIENCE).acquire().await }
        });
        queued(&**holder.store(), "l", 1).await;
        for _ in 0..3 {
            eventually("it listens", async || channels(&server) == 1).await;
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        if !in_the_gap {
            eventually("it listens again", async || channels(&server) == 1).await;
            queued(&**holder.store(), "l", 1).await;
        }
        let begin = Instant::now();
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
        assert!(channels(&server) <= 1);
        guard.release().await.unwrap();
    }
}

/// B39 (variant), B107: the server is away for some seconds with a holder and a waiter.
#[tokio::test]
async fn b39_b107_a_restart_with_the_data_kept_loses_nothing() {
    let mut server = RedisServer::durable();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = holder.lock("l").ttl(ms(20_000)).acquire().await.unwrap();
    let token = guard.token();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(60_000)).acquire().await });
    queued(&**holder.store(), "l", 1).await;
    server.kill();
    sleep(ms(2000)).await;
    server.launch();
    eventually("it is renewed", async || {
        guard.renew(ms(20_000)).await.is_ok()
    })
    .await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > token);
}

/// Row B3, B67: a server that was restarted empty: the holder learns it, the waiter goes on by
/// itself, and tokens grow.
#[tokio::test]
async fn row_b3_an_empty_restart_is_noticed_and_waiters_go_on() {
    let mut server = RedisServer::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = holder.lock("l").ttl(ms(3000)).acquire().await.unwrap();
    let token = guard.token();
    let waiting = tokio::spawn(async move { waiter.lock("l").wait(ms(60_000)).acquire().await });
    queued(&**holder.store(), "l", 1).await;
    server.restart_empty();
    // Either the waiter has taken the lock, or the renewal finds that it is gone.
    timeout(PATIENCE, guard.lost()).await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_held());
}

/// First come, first served over several processes (A31), with try_acquire refused meanwhile.
#[tokio::test]
async fn waiters_of_several_stores_are_served_in_order() {
    let server = RedisServer::start();
    let holder = store(&server).await;
    let mine = claim("l");
    granted(&*holder, &mine).await;
    let stores = join_all((0..4).map(|_| store(&server))).await;
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..20_usize {
        let (store, order) = (stores[n % 4].clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let claim = queuing("l");
            loop {
                match store.try_acquire(&claim).await.unwrap() {
                    lock_core::Attempt::Granted(_) => break,
                    lock_core::Attempt::Busy(busy) => store.wait(&claim, &busy).await,
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
    holder.release(&mine).await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    free(&*holder, "l").await;
}

/// B72, B82: killed, timed-out and cancelled waiters do not block those behind them, and a long
/// wait keeps its place.
#[tokio::test]
async fn b72_dead_waiters_cost_nothing() {
    let server = RedisServer::start();
    let holder = client(&server).await;
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let mut killed: Vec<_> = (0..5).map(|_| taker(&server)).collect();
    for (n, taker) in killed.iter_mut().enumerate() {
        taker.send("acquire l 60000 60000");
        queued(&**holder.store(), "l", n + 1).await;
    }
    let impatient = client(&server).await;
    let timed_out = join_all((0..3).map(|_| impatient.lock("l").wait(ms(300)).acquire())).await;
    assert!(
        timed_out
            .iter()
            .all(|end| matches!(end, Err(Error::Timeout { .. })))
    );
    let cancelled = tokio::spawn({
        let client = impatient.clone();
        async move { client.lock("l").wait(PATIENCE).acquire().await }
    });
    queued(&**holder.store(), "l", 6).await;
    let last = client(&server).await;
    let last = tokio::spawn(async move { last.lock("l").wait(PATIENCE).acquire().await });
    queued(&**holder.store(), "l", 7).await;
    cancelled.abort();
    queued(&**holder.store(), "l", 6).await;
    for taker in &mut killed {
        taker.process.kill();
    }
    eventually("only the last one listens", async || channels(&server) <= 2).await;
    let begin = Instant::now();
    guard.release().await.unwrap();
    drop(last.await.unwrap().unwrap());
    assert!(begin.elapsed() < ms(1500), "{:?}", begin.elapsed());
}

/// A22, A32, B37: a holder that is killed frees its lock at its ttl, and twenty dead waiters ahead
/// delay the next live one by 2.5 s at most.
#[tokio::test]
async fn a32_a_dead_holder_and_twenty_dead_waiters_cost_little() {
    let server = RedisServer::start();
    let watcher = store(&server).await;
    let mut holder = taker(&server);
    let ttl = 4000;
    assert!(
        holder
            .ask(&format!("acquire l {ttl} 1000"))
            .starts_with("granted")
    );
    let mut dead: Vec<_> = (0..20).map(|_| taker(&server)).collect();
    for (n, taker) in dead.iter_mut().enumerate() {
        taker.send("acquire l 60000 60000");
        queued(&*watcher, "l", n + 1).await;
    }
    let live = client(&server).await;
    let live = tokio::spawn(async move {
        let guard = live.lock("l").wait(ms(60_000)).acquire().await.unwrap();
        (Instant::now(), guard)
    });
    queued(&*watcher, "l", 21).await;
    // While it still renews: from now on its lease has at most the whole ttl.
    holder.process.kill();
    let begin = Instant::now();
    for taker in &mut dead {
        taker.process.kill();
    }
    let (granted, _guard) = live.await.unwrap();
    let waited = granted - begin;
    // The lease, 0.5 s, and 2.5 s for the dead; some more for a slow machine.
    assert!(waited < ms(ttl + 500 + 2500 + 1000), "{waited:?}");
    assert!(
        waited > ms(ttl / 3),
        "{waited:?}: before the lease was over"
    );
}

/// A waiter that hangs costs its claim window, and comes back at the end of the queue.
#[tokio::test]
async fn a_hung_waiter_costs_its_claim_window() {
    let server = RedisServer::start();
    let (holder, next) = (client(&server).await, client(&server).await);
    let guard = holder.lock("l").ttl(ms(60_000)).acquire().await.unwrap();
    let mut hung = taker(&server);
    hung.send("acquire l 60000 60000");
    queued(&**holder.store(), "l", 1).await;
    let waiting = tokio::spawn(async move { next.lock("l").wait(PATIENCE).acquire().await });
    queued(&**holder.store(), "l", 2).await;
    hung.process.pause();
    let begin = Instant::now();
    guard.release().await.unwrap();
    // It is the one that hangs whose lock it is, and for the claim window only.
    let refused = busy(&**holder.store(), &claim("l")).await;
    let its = refused.holder.unwrap();
    assert_eq!(
        its.asker.pid(),
        hung.process.pid().as_raw_nonzero().get().unsigned_abs()
    );
    assert_eq!(refused.queued, 1);
    assert!(refused.remaining <= ms(2000));
    let got = waiting.await.unwrap().unwrap();
    let waited = begin.elapsed();
    assert!((ms(1900)..ms(4000)).contains(&waited), "{waited:?}");
    hung.process.resume();
    queued(&**holder.store(), "l", 1).await;
    got.release().await.unwrap();
    assert!(hung.answer().starts_with("granted"));
}

/// Clause 9: garbage, doubled and early notices cost attempts, never the lock.
#[tokio::test]
async fn notices_are_advice() {
    let server = RedisServer::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = holder.acquire("l").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire("l").await });
    queued(&**holder.store(), "l", 1).await;
    let channel = server.command(&["PUBSUB", "CHANNELS", "distlock:wake:*"]);
    let hold = server.command(&["ZRANGE", "distlock:{l}:queue", "0", "0"]);
    for notice in [
        "",
        "garbage",
        "+",
        "\u{0}",
        &hold,
        &hold,
        &format!("{hold} +{hold}"),
    ] {
        server.command(&["PUBLISH", &channel, notice]);
    }
    sleep(ms(200)).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// Two claims of one owner in the queue: when one is granted, the other enters at once.
#[tokio::test]
async fn queued_claims_of_one_owner_enter_together() {
    let server = RedisServer::start();
    let (one, two) = (store(&server).await, store(&server).await);
    let held = claim("l");
    granted(&*one, &held).await;
    let first = queuing("l");
    let second = again(&first);
    busy(&*one, &first).await;
    let stranger = queuing("l");
    busy(&*one, &stranger).await;
    let refused = busy(&*two, &second).await;
    let told = tokio::spawn({
        let (two, second) = (two.clone(), second.clone());
        async move { two.wait(&second, &refused).await }
    });
    eventually("it waits", async || channels(&server) == 2).await;
    sleep(ms(50)).await;
    one.release(&held).await.unwrap();
    let grant = granted(&*one, &first).await;
    timeout(PATIENCE, told).await.unwrap().unwrap();
    let entered = granted(&*two, &second).await;
    assert_eq!((entered.token, entered.holds), (grant.token, 2));
}

/// A store whose user may not subscribe or publish still queues, by looking for itself; a release
/// does not fail (the design's "denied PUBLISH").
#[tokio::test]
async fn a_user_without_channels_waits_and_releases() {
    let server = RedisServer::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">pw",
        "~*",
        "+@all",
        "resetchannels",
    ]);
    let url = format!("redis://mute:pw@{}", server.address());
    let (holder, waiter) = (
        client_at(&url).await.build().unwrap(),
        client_at(&url).await.build().unwrap(),
    );
    let guard = holder.acquire("l").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire("l").await });
    queued(&**holder.store(), "l", 1).await;
    guard.release().await.unwrap();
    let begin = Instant::now();
    drop(waiting.await.unwrap().unwrap());
    assert!(begin.elapsed() < ms(5000));

    // A waiter that can be told, and a releaser that may not.
    let guard = holder.acquire("m").await.unwrap();
    let waiter = client(&server).await;
    let waiting = tokio::spawn(async move { waiter.acquire("m").await });
    queued(&**holder.store(), "m", 1).await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// A release grants the lock to the waiter, which starts without a request of its own; the lease
/// is whole soon afterwards.
#[tokio::test]
async fn a_hand_over_needs_no_attempt() {
    let server = RedisServer::start();
    let (one, two) = (store(&server).await, store(&server).await);
    let (held, waiting) = (claim("l"), queuing("l"));
    let token = granted(&*one, &held).await.token;
    let refused = busy(&*two, &waiting).await;
    let told = tokio::spawn({
        let (two, waiting) = (two.clone(), waiting.clone());
        async move { two.wait(&waiting, &refused).await }
    });
    one.release(&held).await.unwrap();
    timeout(PATIENCE, told).await.unwrap().unwrap();
    let before = server.calls("evalsha");
    let grant = granted(&*two, &waiting).await;
    assert_eq!(server.calls("evalsha"), before);
    assert!(grant.token > token && grant.ttl.as_duration() <= ms(2000));
    // The same again, from the server: the whole lease.
    let again = granted(&*two, &waiting).await;
    assert_eq!((again.token, again.holds), (grant.token, 1));
    assert_eq!(again.ttl, waiting.ttl);
}

/// The watchdog makes a lease whole that was handed over; one that nobody renews is whole before
/// the guard is there.
#[tokio::test]
async fn a_lease_that_was_handed_over_is_made_whole() {
    let server = RedisServer::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    for manual in [false, true] {
        let guard = holder.acquire("l").await.unwrap();
        let waiting = tokio::spawn({
            let acquire = waiter.lock("l").ttl(ms(30_000)).wait(PATIENCE);
            async move {
                match manual {
                    true => acquire.manual_renewal().acquire().await,
                    false => acquire.acquire().await,
                }
            }
        });
        queued(&**holder.store(), "l", 1).await;
        guard.release().await.unwrap();
        let got = waiting.await.unwrap().unwrap();
        if manual {
            assert!(got.valid_for() > ms(10_000), "{:?}", got.valid_for());
        }
        eventually("the lease is whole", async || got.valid_for() > ms(20_000)).await;
        got.release().await.unwrap();
    }
}

/// The notice for a waiter of the same store comes with the reply to the release. When that is
/// lost, or nobody waits for it, the waiter looks again at once.
#[tokio::test]
async fn a_notice_that_is_lost_with_its_reply_costs_no_turn() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = Arc::new(open(&format!("redis://{}", proxy.address())).await);
    // The server has to know the script.
    store.release(&claim("l")).await.unwrap();
    for way in ["dropped", "reset"] {
        let (held, waiting) = (claim("l"), queuing("l"));
        granted(&*store, &held).await;
        let refused = busy(&*store, &waiting).await;
        let told = tokio::spawn({
            let (store, waiting) = (store.clone(), waiting.clone());
            async move { store.wait(&waiting, &refused).await }
        });
        eventually("it waits", async || channels(&server) == 1).await;
        proxy.faults().hold_replies(true);
        let release = tokio::spawn({
            let (store, held) = (store.clone(), held.clone());
            async move { store.release(&held).await }
        });
        eventually("it is released", async || {
            server.command(&["ZCARD", "distlock:{l}:queue"]) == "0"
        })
        .await;
        match way {
            "dropped" => release.abort(),
            _ => proxy.reset_all(),
        }
        proxy.faults().hold_replies(false);
        timeout(PATIENCE, told).await.unwrap().unwrap();
        assert_eq!(granted(&*store, &waiting).await.holds, 1);
        store.release(&waiting).await.unwrap();
    }
}
