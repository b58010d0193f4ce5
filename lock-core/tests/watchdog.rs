//! Renewal and local deadlines: what the watchdog keeps alive, and what ends by itself.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Fault, Faulty, MS, eventually, is_free};
use lock_core::{Error, LockClient, LockGuard, LostReason, ManualClock, MemoryLock, Wait};
use parking_lot::Mutex;

fn client(store: &MemoryLock) -> LockClient {
    LockClient::new(Arc::new(store.handle()))
}

/// A23, B77: every thread of the application's runtime is blocked for three ttls, fifty times;
/// no lock is lost.
#[test]
fn a23_a_blocked_runtime_loses_no_lock() {
    const TTL: Duration = Duration::from_millis(300);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = MemoryLock::new();
    let client = client(&store);
    let stalls = Stalls::watch();
    let mut blocks = 0;
    for _ in 0..200 {
        let locks: Vec<LockGuard> = runtime.block_on(async {
            let mut locks = Vec::new();
            for n in 0..10 {
                let lock = client.lock(format!("k{n}")).ttl(TTL).wait(Wait::Forever);
                locks.push(lock.acquire().await.unwrap());
            }
            locks
        });
        stalls.longest();
        // The two workers, and this thread, which is the third.
        let workers: Vec<_> = (0..2)
            .map(|_| runtime.spawn(async { thread::sleep(3 * TTL) }))
            .collect();
        thread::sleep(3 * TTL);
        for worker in workers {
            runtime.block_on(worker).unwrap();
        }
        let held = locks.iter().all(LockGuard::is_held);
        // A machine that runs no thread of this process for so long cannot renew anything.
        if stalls.longest() < TTL / 3 {
            assert!(held);
            blocks += 1;
        }
        if blocks == 50 {
            return;
        }
    }
    panic!("the machine stood still in most of the rounds");
}

/// Notices when the machine gives this process no time.
struct Stalls(Arc<Mutex<Duration>>);

impl Stalls {
    fn watch() -> Self {
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let watched = Arc::downgrade(&longest);
        thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest) = watched.upgrade() {
                thread::sleep(5 * MS);
                let gap = last.elapsed();
                last = Instant::now();
                let mut longest = longest.lock();
                *longest = gap.max(*longest);
            }
        });
        Self(longest)
    }

    /// The longest since the last call.
    fn longest(&self) -> Duration {
        std::mem::take(&mut self.0.lock())
    }
}

/// A20, A23: the application's runtime is gone; the lock lives on until its guard is dropped,
/// which needs no runtime either.
#[test]
fn a20_a_runtime_that_is_gone_loses_no_lock() {
    let store = MemoryLock::new();
    let client = client(&store);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime
        .block_on(client.lock("k").ttl(200 * MS).acquire())
        .unwrap();
    runtime.shutdown_background();
    thread::sleep(800 * MS);
    assert!(guard.is_held());
    drop(guard);
    let other = tokio::runtime::Runtime::new().unwrap();
    other.block_on(eventually("released", async || is_free(&store, "k").await));
}

/// A25, B31, B77: a guard that was leaked cannot be renewed past its max_hold.
#[tokio::test]
async fn a25_a_leaked_guard_ends_with_max_hold() {
    let store = MemoryLock::new();
    let client = client(&store);
    let start = std::time::Instant::now();
    let guard = client
        .lock("k")
        .ttl(200 * MS)
        .max_hold(700 * MS)
        .acquire()
        .await
        .unwrap();
    let token = guard.token();
    std::mem::forget(guard);
    let next = client
        .lock("k")
        .wait(Wait::Forever)
        .acquire()
        .await
        .unwrap();
    assert!(start.elapsed() >= 600 * MS, "it was renewed until then");
    assert!(next.token() > token);
}

/// Renewals of max_hold stop at its end, and the holder is warned before.
#[tokio::test]
async fn max_hold_warns_and_ends() {
    let store = MemoryLock::new();
    let client = client(&store);
    let guard = client
        .lock("k")
        .ttl(300 * MS)
        .max_hold(900 * MS)
        .acquire()
        .await
        .unwrap();
    guard.expiring().await;
    assert!(guard.is_held());
    let error = guard.ensure(10_000 * MS).await.unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(matches!(
        guard.release().await,
        Err(Error::Lost {
            reason: LostReason::MaxHold,
            ..
        })
    ));
    eventually("given back all the same", async || {
        is_free(&store, "k").await
    })
    .await;
}

/// A15, A16, B139: time in suspend counts, by whatever clock the client is given; the first look after
/// it says lost. The wall clock plays no part: there is no place to put it in.
#[tokio::test]
async fn b139_time_in_suspend_counts() {
    let clock = ManualClock::new();
    let store = MemoryLock::new();
    let client = LockClient::builder(Arc::new(store.handle()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let guard = client
        .lock("k")
        .ttl(5000 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    clock.advance(4000 * MS);
    assert!(guard.is_held());
    clock.advance(60_000 * MS);
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await, LostReason::Expired);
}

/// An interval of one's own takes the place of a third of the ttl.
#[tokio::test]
async fn renewals_come_when_the_client_was_told() {
    let clock = ManualClock::new();
    let store = MemoryLock::with_clock(Arc::new(clock.clone()));
    let client = |every| {
        LockClient::builder(Arc::new(store.handle()))
            .clock(Arc::new(clock.clone()))
            .ttl(30_000 * MS)
            .renew_every(every)
            .build()
    };
    for wrong in [Duration::ZERO, 30_000 * MS, Duration::MAX] {
        let why = client(wrong).unwrap_err();
        assert!(matches!(why, Error::InvalidConfig { .. }), "{why}");
        assert!(why.to_string().contains("renew_every"), "{why}");
    }
    let guard = client(20_000 * MS).unwrap().acquire("k").await.unwrap();
    clock.advance(20_000 * MS);
    let renewed = async || guard.valid_for() > 25_000 * MS;
    eventually("the lease is renewed", renewed).await;
}

/// A17: the deadline lies before the end of the lease by a margin for clocks of different speed:
/// 1 % of the ttl and 2 ms.
#[tokio::test]
async fn a17_the_deadline_has_a_margin() {
    let clock = ManualClock::new();
    let store = MemoryLock::with_clock(Arc::new(clock.clone()));
    let client = LockClient::builder(Arc::new(store.handle()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let guard = client
        .lock("k")
        .ttl(10_000 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.valid_for(), 9_898 * MS);
    clock.advance(9_898 * MS);
    assert!(!guard.is_held());
    assert!(
        !is_free(&store, "k").await,
        "the store still keeps others out"
    );
    clock.advance(102 * MS);
    assert!(is_free(&store, "k").await);
}

/// A43: with manual renewal the warning and the loss come by the clock, each once.
#[tokio::test]
async fn a43_the_warning_comes_before_the_loss() {
    let clock = ManualClock::new();
    let store = MemoryLock::new();
    let client = LockClient::builder(Arc::new(store.handle()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let guard = client
        .lock("k")
        .ttl(9000 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    clock.advance(5000 * MS);
    let early = tokio::time::timeout(50 * MS, guard.expiring()).await;
    assert!(
        early.is_err(),
        "with almost half of the ttl left there is no warning"
    );
    clock.advance(1500 * MS);
    guard.expiring().await;
    assert!(guard.is_held());
    let early = tokio::time::timeout(50 * MS, guard.lost()).await;
    assert!(early.is_err(), "it is not lost yet");
    clock.advance(3000 * MS);
    assert_eq!(guard.lost().await, LostReason::Expired);
}

/// B11, B76: a guard that is renewed by hand holds its own new deadline, and a failed renewal
/// leaves the old one.
#[tokio::test]
async fn b11_manual_renewals_move_the_same_guard() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let rival = client.clone();
    let guard = client
        .lock("k")
        .ttl(1500 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    for _ in 0..4 {
        tokio::time::sleep(700 * MS).await;
        guard.renew(1500 * MS).await.unwrap();
        assert!(guard.valid_for() > 700 * MS);
        assert!(matches!(
            rival.try_acquire("k").await,
            Err(Error::Busy { .. })
        ));
    }
    let before = guard.valid_for();
    faulty.faults.renew.set(Fault::Refuse);
    assert!(matches!(
        guard.renew(60_000 * MS).await,
        Err(Error::Store { .. })
    ));
    assert!(guard.valid_for() <= before);
    assert_eq!(guard.lost().await, LostReason::Expired);
    faulty.faults.renew.set(Fault::None);
    assert!(
        matches!(guard.renew(1500 * MS).await, Err(Error::Lost { .. })),
        "never revived"
    );
}

/// `ensure` asks for more only when it has to.
#[tokio::test]
async fn ensure_renews_when_too_little_is_left() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let guard = client
        .lock("k")
        .ttl(20_000 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    guard.ensure(1000 * MS).await.unwrap();
    assert_eq!(faulty.faults.renew.calls(), 0);
    guard.ensure(60_000 * MS).await.unwrap();
    assert_eq!(faulty.faults.renew.calls(), 1);
    assert!(guard.valid_for() >= 60_000 * MS);
}

/// A27: an owner that enters again after its lock was lost is told so.
#[tokio::test]
async fn a27_re_entry_of_a_lost_lock_is_refused() {
    let store = MemoryLock::new();
    let client = client(&store);
    let owner = client.owner();
    let outer = owner
        .lock("k")
        .ttl(100 * MS)
        .manual_renewal()
        .acquire()
        .await
        .unwrap();
    outer.lost().await;
    let again = owner.lock("k").acquire().await;
    assert!(
        matches!(
            again,
            Err(Error::Lost {
                reason: LostReason::Expired,
                ..
            })
        ),
        "{again:?}"
    );
    drop(outer);
    eventually("given back", async || is_free(&store, "k").await).await;
    let fresh = owner.lock("k").wait(Wait::Forever).acquire().await.unwrap();
    assert_eq!(fresh.holds(), 1);
}

/// A28: the limit of entries is an error, and the lock stays as it was.
#[tokio::test]
async fn a28_entries_are_limited() {
    let store = MemoryLock::new();
    let client = LockClient::builder(Arc::new(store.handle()))
        .max_holds(3)
        .build()
        .unwrap();
    let owner = client.owner();
    let mut entries = Vec::new();
    for n in 1..=3 {
        entries.push(owner.lock("k").acquire().await.unwrap());
        assert_eq!(entries[0].holds(), n);
    }
    let error = owner.lock("k").acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::TooManyHolds { limit: 3, .. }),
        "{error}"
    );

    // The limit counts the holds of other processes, too.
    let other = LockClient::builder(Arc::new(store.handle()))
        .max_holds(1)
        .build()
        .unwrap();
    let error = other
        .owner_from(owner.id())
        .lock("k")
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::TooManyHolds { limit: 1, .. }),
        "{error}"
    );
    for entry in entries {
        entry.release().await.unwrap();
    }
    eventually("free in the end", async || is_free(&store, "k").await).await;
}

/// A26, B44, B92: tasks of one owner that come at the same time share one hold in the store.
#[tokio::test]
async fn b44_tasks_of_one_owner_share_one_hold() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let owner = client.owner();
    faulty.faults.acquire.set(Fault::Late(50 * MS));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let owner = owner.clone();
            tokio::spawn(async move { owner.lock("k").acquire().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert_eq!(faulty.faults.acquire.calls(), 1);
    assert_eq!(guards[0].holds(), 20);
    assert!(
        guards
            .iter()
            .all(|guard| guard.token() == guards[0].token())
    );
    for guard in guards {
        assert!(!is_free(&store, "k").await);
        guard.release().await.unwrap();
    }
    assert!(is_free(&store, "k").await);
}

/// B44: the task that acquires for its owner is cancelled; another one of the owner takes over.
#[tokio::test]
async fn b44_a_cancelled_acquirer_leaves_its_place() {
    let store = MemoryLock::new();
    let (ours, theirs) = (client(&store), client(&store));
    let held = theirs.acquire("k").await.unwrap();
    let owner = ours.owner();
    let first = {
        let owner = owner.clone();
        tokio::spawn(async move { owner.lock("k").wait(Wait::Forever).acquire().await })
    };
    eventually("it queues", async || {
        ours.inspect("k")
            .await
            .unwrap()
            .is_some_and(|info| info.waiters.len() == 1)
    })
    .await;
    let busy = owner.lock("k").try_acquire().await.unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    let second = tokio::spawn(async move { owner.lock("k").wait(Wait::Forever).acquire().await });
    first.abort();
    held.release().await.unwrap();
    let guard = second.await.unwrap().unwrap();
    assert_eq!(guard.holds(), 1);
    guard.release().await.unwrap();
    eventually("free in the end", async || is_free(&store, "k").await).await;
}

/// B128: locks that were taken together are renewed in batches, and spread over the interval.
#[tokio::test]
async fn b128_renewals_are_batched_and_spread() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(
            client
                .lock(format!("k{n}"))
                .ttl(3000 * MS)
                .acquire()
                .await
                .unwrap(),
        );
    }
    eventually("each is renewed twice", async || {
        faulty.faults.renew.calls() >= 1000
    })
    .await;
    let batches = faulty.faults.batches.load(Ordering::SeqCst);
    assert!(
        (4..=200).contains(&batches),
        "{batches} batches for 1000 renewals"
    );
    assert!(guards.iter().all(LockGuard::is_held));
}

/// B95: a lock moves to another process: renewals go on there and stop here.
#[tokio::test]
async fn b95_a_lock_is_handed_over() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let (here, there) = (LockClient::new(faulty.store()), client(&store));
    let guard = here.lock("k").ttl(600 * MS).acquire().await.unwrap();
    let token = guard.token();
    let parcel = serde_json::to_string(&guard.detach().unwrap()).unwrap();
    assert_eq!(here.held(), 0);

    let handoff = serde_json::from_str(&parcel).unwrap();
    let guard = there.attach(&handoff, None).await.unwrap();
    assert_eq!(guard.token(), token);
    let calls = faulty.faults.renew.calls();
    tokio::time::sleep(1500 * MS).await;
    assert!(guard.is_held(), "renewed there");
    assert_eq!(faulty.faults.renew.calls(), calls, "and not here");

    let second = there.attach(&handoff, None).await.unwrap();
    guard.release().await.unwrap();
    assert!(
        matches!(second.release().await, Err(Error::Lost { .. })),
        "it is one hold"
    );
    assert!(matches!(
        there.attach(&handoff, None).await,
        Err(Error::Lost { .. })
    ));
    let forged = parcel.replace(&token.to_string(), &(token.as_u64() + 1).to_string());
    let _next = there.acquire("k").await.unwrap();
    let forged = serde_json::from_str(&forged).unwrap();
    assert!(matches!(
        here.attach(&forged, None).await,
        Err(Error::Lost { .. })
    ));
}

/// B41, A19: a guard is dropped where there is no runtime, and in a destructor of a thread.
#[test]
fn a19_a_guard_is_dropped_anywhere() {
    thread_local! {
        static SLOT: std::cell::RefCell<Option<LockGuard>> = const { std::cell::RefCell::new(None) };
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = MemoryLock::new();
    let client = client(&store);
    let plain = runtime.block_on(client.acquire("plain")).unwrap();
    let local = runtime.block_on(client.acquire("local")).unwrap();
    thread::spawn(move || {
        SLOT.set(Some(local));
        drop(plain);
    })
    .join()
    .unwrap();
    runtime.block_on(eventually("both are free", async || {
        is_free(&store, "plain").await && is_free(&store, "local").await
    }));
}

/// The watchdog's thread ends with its client, after what it owes.
#[tokio::test]
async fn a_dropped_client_pays_its_debts() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let client = LockClient::new(faulty.store());
    let guard = client.acquire("k").await.unwrap();
    faulty.faults.release.set_for(2, Fault::Refuse);
    drop(guard);
    drop(client);
    eventually("released", async || is_free(&store, "k").await).await;
    let handles = async || Arc::strong_count(&faulty.faults) == 1;
    eventually("its thread has let go of the store", handles).await;
}

/// A38, B76, B91: settings that cannot be are refused before anything is sent.
#[tokio::test]
async fn a38_impossible_settings_are_refused() {
    let store = MemoryLock::new();
    let faulty = Faulty::new(&store);
    let invalid = |result: Result<LockClient, Error>| {
        assert!(
            matches!(result, Err(Error::InvalidConfig { .. })),
            "{result:?}"
        );
    };
    let builder = || LockClient::builder(faulty.store());
    invalid(builder().ttl(Duration::ZERO).build());
    invalid(builder().ttl(Duration::MAX).build());
    invalid(builder().max_hold(Duration::ZERO).build());
    invalid(builder().operation_timeout(Duration::ZERO).build());
    invalid(builder().max_holds(0).build());
    invalid(builder().label("").build());
    invalid(builder().label("a\nb").build());

    let client = builder().build().unwrap();
    for acquire in [
        client.lock("k").ttl(Duration::ZERO),
        client.lock("k").ttl(Duration::MAX),
        client.lock("k").max_hold(Duration::ZERO),
        client.lock("k").label("x".repeat(256)),
    ] {
        let error = acquire.acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
    }
    for name in ["", "a\0b", &"x".repeat(256)] {
        let error = client.acquire(name).await.unwrap_err();
        assert!(matches!(error, Error::InvalidKey(_)), "{error}");
    }
    assert_eq!(faulty.faults.acquire.calls(), 0);

    // Extreme but possible.
    let guard = client
        .lock("k")
        .ttl(Duration::from_nanos(1))
        .wait(Duration::MAX)
        .max_hold(Duration::MAX)
        .acquire()
        .await
        .unwrap();
    assert!(guard.ttl() >= MS);
}

/// B08: each acquisition keeps its own ttl and renewal, whoever runs beside it.
#[tokio::test]
async fn b08_each_acquisition_has_its_own_ttl() {
    let store = MemoryLock::new();
    let client = client(&store);
    for _ in 0..50 {
        let short = client.lock("short").ttl(2000 * MS);
        let long = client.lock("long").ttl(120_000 * MS).manual_renewal();
        let (short, long) = tokio::join!(short.acquire(), long.acquire());
        let (short, long) = (short.unwrap(), long.unwrap());
        assert_eq!((short.ttl(), long.ttl()), (2000 * MS, 120_000 * MS));
        assert!(short.valid_for() <= 2000 * MS && long.valid_for() > 100_000 * MS);
        let (one, two) = tokio::join!(short.release(), long.release());
        one.unwrap();
        two.unwrap();
    }
}
