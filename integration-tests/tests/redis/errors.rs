//! What goes wrong, and as which kind of error it comes out.

use integration_tests::{proxy::Proxy, servers::redis::RedisServer};
use lock_core::{
    Attempt, DistributedLock, Error, Page, Release, Renewal, StoreError, StoreErrorKind,
};
use lock_redis::RedisLock;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

fn kind_and_text<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> (StoreErrorKind, String) {
    let why = answer.unwrap_err();
    (why.kind(), why.to_string())
}

/// Row B1, B64: a forgotten script is sent again inside the same call.
#[tokio::test]
async fn row_b1_b64_scripts_are_flushed_between_all_calls() {
    let server = RedisServer::start();
    let store = store(&server).await;
    for _ in 0..5 {
        let claim = claim("l");
        let flush = || server.command(&["SCRIPT", "FLUSH"]);
        flush();
        granted(&*store, &claim).await;
        flush();
        busy(&*store, &queuing("l")).await;
        flush();
        assert!(matches!(
            store.renew(&claim).await,
            Ok(Renewal::Renewed { .. })
        ));
        flush();
        assert!(store.inspect(&claim.key).await.unwrap().is_some());
        flush();
        assert!(store.force_release(&claim.key, None).await.unwrap());
        flush();
        assert_eq!(store.release(&claim).await.unwrap(), Release::NotHeld);
        server.command(&["FLUSHALL"]);
    }
    assert_eq!(server.calls("script|load"), 0);
}

/// Row B2, B96, B108: no key of ours is ever without an end, whatever happens to the client.
#[tokio::test]
async fn row_b2_b96_no_key_lives_for_ever() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = open(&format!("redis://{}", proxy.address())).await;
    for bytes in (1..1500).step_by(25) {
        proxy.faults().cut_requests_after(bytes);
        let claim = queuing("l");
        let _ = store.try_acquire(&claim).await;
        let _ = store.try_acquire(&queuing("l")).await;
        let _ = store.release(&claim).await;
        proxy.faults().heal();
        for key in server.keys("*") {
            let left: i64 = server.command(&["PTTL", &key]).parse().unwrap();
            assert!(left > 0 || left == -2, "{key}: {left}");
        }
    }
    assert!(proxy.faults().cuts() > 20);
}

/// Row B6, B103: out of memory is transient and named; a release works all the same, with waiters
/// too.
#[tokio::test]
async fn row_b6_b103_out_of_memory() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let (held, waiting) = (claim("l"), queuing("l"));
    granted(&*store, &held).await;
    busy(&*store, &waiting).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let (kind, text) = kind_and_text(store.try_acquire(&claim("m")).await);
    assert_eq!(kind, StoreErrorKind::Transient);
    assert!(text.contains("OOM"), "{text}");
    assert_eq!(
        store.release(&held).await.unwrap(),
        Release::Released { holds: 0 }
    );
    // Handed over, or free; in no case held by who gave it up.
    assert_ne!(holder(&*store, "l").await, Some(held.owner));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    granted(&*store, &waiting).await;
}

/// Row B9, B103: refusals of the server keep their kinds and names, for acquire and release.
#[tokio::test]
async fn row_b9_b103_refusals_keep_their_kinds() {
    use StoreErrorKind::{Permanent, Transient};
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = open(&format!("redis://{}", proxy.address())).await;
    let replies = [
        ("LOADING Redis is loading the dataset in memory", Transient),
        (
            "READONLY You can't write against a read only replica.",
            Transient,
        ),
        ("MASTERDOWN Link with MASTER is down", Transient),
        ("BUSY Redis is busy running a script.", Transient),
        ("CLUSTERDOWN The cluster is down", Transient),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            Transient,
        ),
        (
            "MISCONF Redis is configured to save RDB snapshots",
            Transient,
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            Transient,
        ),
        ("NOREPLICAS Not enough good replicas to write.", Transient),
        ("NOAUTH Authentication required.", Permanent),
        (
            "NOPERM this user has no permissions to run the 'evalsha' command",
            Permanent,
        ),
        ("WRONGTYPE Operation against a key", Permanent),
        ("ERR something else", Permanent),
    ];
    let mut texts = std::collections::BTreeSet::new();
    for (reply, expected) in replies {
        let code = reply.split(' ').next().unwrap();
        let claim = claim("l");
        granted(&store, &claim).await;
        for acquire in [true, false] {
            // On a connection that is open already: the last refusal may have ended it.
            store.inspect(&claim.key).await.unwrap();
            let before = proxy.faults().replaced();
            proxy.faults().replace_replies(format!("-{reply}\r\n"), 1);
            let (kind, text) = match acquire {
                true => kind_and_text(store.try_acquire(&again(&claim)).await),
                false => kind_and_text(store.renew(&claim).await),
            };
            assert_eq!(proxy.faults().replaced(), before + 1);
            assert_eq!(kind, expected, "{text}");
            assert!(text.contains(code), "{text}");
            texts.insert(text.split(':').next().unwrap().to_owned());
        }
        // It was applied; the store works on as if nothing had been.
        proxy.faults().heal();
        assert!(store.force_release(&claim.key, None).await.unwrap());
    }
    assert_eq!(texts.len(), replies.len(), "{texts:?}");
}

/// Row B9, B112: wrong passwords and missing rights are permanent and come at once.
#[tokio::test]
async fn row_b9_missing_rights_are_permanent() {
    let server = RedisServer::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "other",
        "on",
        ">pw",
        "~elsewhere:*",
        "&*",
        "+@all",
    ]);
    server.command(&[
        "ACL", "SETUSER", "mute", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha",
    ]);
    for (user, needle) in [("other", "right"), ("mute", "right")] {
        let store = open(&format!("redis://{user}:pw@{}", server.address())).await;
        let (kind, text) = kind_and_text(store.try_acquire(&claim("l")).await);
        assert_eq!(kind, StoreErrorKind::Permanent, "{text}");
        assert!(text.contains(needle), "{text}");
        let client = lock_core::LockClient::new(std::sync::Arc::new(store));
        let begin = Instant::now();
        let why = client
            .lock("l")
            .wait(ms(20_000))
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(&why, Error::Store { .. }) && !why.is_retryable(),
            "{why}"
        );
        assert!(begin.elapsed() < ms(10_000));
    }
    server.command(&["CONFIG", "SET", "requirepass", "right"]);
    for url in [
        server.url(),
        format!("redis://:hunter2@{}", server.address()),
    ] {
        let why = RedisLock::connect(&url).await.unwrap_err();
        let source = why.store_error().unwrap();
        assert_eq!(source.kind(), StoreErrorKind::Permanent, "{why}");
        assert!(why.to_string().contains("password"), "{why}");
        assert!(!format!("{why} {why:?}").contains("hunter2"));
    }
}

/// Row B10, B014 (b), A41: a foreign value is an error of its own, and is left as it was.
#[tokio::test]
async fn row_b10_b014_foreign_values_are_left_alone() {
    let server = RedisServer::start();
    let store = store(&server).await;
    // Application data under the raw name is no business of ours.
    server.command(&["HSET", "l", "field", "value"]);
    let plain = claim("l");
    granted(&*store, &plain).await;
    store.release(&plain).await.unwrap();
    for part in ["claim", "token", "queue", "waiters"] {
        for text in [true, false] {
            let (key, name) = (
                format!("k {part} {text}"),
                format!("distlock:{{k {part} {text}}}:{part}"),
            );
            match text {
                true => server.command(&["SET", &name, "garbage"]),
                false => server.command(&["RPUSH", &name, "garbage"]),
            };
            let before = server.command(&["DUMP", &name]);
            let claim = queuing(&key);
            if part == "waiters" || part == "queue" {
                // Only who waits looks there.
                granted(&*store, &claim).await;
                let (kind, _) = kind_and_text(store.try_acquire(&queuing(&key)).await);
                assert_eq!(kind, StoreErrorKind::Permanent);
            } else {
                let (kind, text) = kind_and_text(store.try_acquire(&claim).await);
                assert_eq!(kind, StoreErrorKind::Permanent, "{name}: {text}");
                assert!(text.contains("left alone"), "{text}");
            }
            if part == "claim" {
                for (kind, text) in [
                    kind_and_text(store.renew(&claim).await),
                    kind_and_text(store.release(&claim).await),
                    kind_and_text(store.force_release(&claim.key, None).await),
                    kind_and_text(store.inspect(&claim.key).await),
                ] {
                    assert_eq!(kind, StoreErrorKind::Permanent, "{text}");
                    assert!(text.contains("left alone"), "{text}");
                }
            }
            assert_eq!(server.command(&["DUMP", &name]), before, "{name}");
            assert_eq!(server.command(&["PTTL", &name]), "-1");
        }
    }
}

/// A batch of renewals answers each claim by itself.
#[tokio::test]
async fn one_bad_claim_does_not_fail_its_neighbours() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let claims: Vec<_> = (0..1203).map(|n| claim(&format!("l {n}"))).collect();
    for claim in &claims {
        granted(&*store, claim).await;
    }
    server.command(&["DEL", "distlock:{l 1}:claim"]);
    server.command(&["SET", "distlock:{l 2}:claim", "garbage"]);
    server.command(&["DEL", "distlock:{l 3}:claim"]);
    server.command(&["RPUSH", "distlock:{l 3}:claim", "garbage"]);
    server.command(&["DEL", "distlock:{l 4}:claim"]);
    granted(&*store, &claim("l 4")).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    let answers = store.renew_all(&claims).await;
    // Three batches, and once more each for a script that the server has not seen.
    assert!(server.calls("evalsha") + server.calls("eval") <= 6);
    assert_eq!(answers.len(), claims.len());
    for (n, answer) in answers.into_iter().enumerate() {
        match (n, answer) {
            (1, Ok(Renewal::Gone { taken_over: false })) => {}
            (2 | 3, Err(why)) => assert_eq!(why.kind(), StoreErrorKind::Permanent),
            (4, Ok(Renewal::Gone { taken_over: true })) => {}
            (0 | 5.., Ok(Renewal::Renewed { .. })) => {}
            (n, answer) => panic!("{n}: {answer:?}"),
        }
    }
}

/// B014, B126: busy, timed out and unreachable are different errors that name the lock.
#[tokio::test]
async fn b014_b126_busy_timeout_and_unreachable_are_told_apart() {
    let mut server = RedisServer::start();
    let (holder, other) = (client(&server).await, client(&server).await);
    let guard = holder.lock("l").label("first").acquire().await.unwrap();
    match other.try_acquire("l").await.unwrap_err() {
        Error::Busy { key, busy } => {
            assert_eq!(key.as_str(), "l");
            let held = busy.holder.unwrap();
            assert_eq!(
                (held.asker.label(), held.token),
                (Some("first"), guard.token())
            );
        }
        why => panic!("{why}"),
    }
    match other.lock("l").wait(ms(300)).acquire().await.unwrap_err() {
        Error::Timeout { waited, busy, .. } => {
            assert!(waited >= ms(300));
            assert_eq!(busy.unwrap().holder.unwrap().owner, guard.owner());
        }
        why => panic!("{why}"),
    }
    server.kill();
    let begin = Instant::now();
    let why = other.lock("m").wait(ms(500)).acquire().await.unwrap_err();
    assert!(
        matches!(&why, Error::Store { .. }) && why.is_retryable(),
        "{why}"
    );
    assert!(why.to_string().contains("cannot reach redis"), "{why}");
    assert!(begin.elapsed() < ms(10_000));
    let why = other.inspect("m").await.unwrap_err();
    assert!(
        why.to_string().starts_with("cannot inspect lock m"),
        "{why}"
    );
}

/// B126: every verb in every state has one answer.
#[tokio::test]
async fn b126_every_verb_in_every_state() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let not_held = |answer| assert_eq!(answer, Release::NotHeld);
    // Free.
    let free = claim("free");
    assert_eq!(
        store.renew(&free).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    not_held(store.release(&free).await.unwrap());
    assert_eq!(store.inspect(&free.key).await.unwrap(), None);
    assert!(!store.force_release(&free.key, None).await.unwrap());
    // Mine, then expired.
    let mine = with_ttl(claim("mine"), 50);
    granted(&*store, &mine).await;
    eventually("it expires", async || {
        store.inspect(&mine.key).await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        store.renew(&mine).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    not_held(store.release(&mine).await.unwrap());
    assert!(!store.force_release(&mine.key, None).await.unwrap());
    // Somebody else's (B18).
    let theirs = claim("mine");
    let grant = granted(&*store, &theirs).await;
    assert_eq!(
        store.renew(&mine).await.unwrap(),
        Renewal::Gone { taken_over: true }
    );
    not_held(store.release(&mine).await.unwrap());
    let other_token = lock_core::FencingToken::new(grant.token.as_u64() - 1);
    assert!(!store.force_release(&mine.key, other_token).await.unwrap());
    assert_eq!(holder(&*store, "mine").await, Some(theirs.owner));
    // B51: the right token, and the same again.
    assert!(
        store
            .force_release(&mine.key, Some(grant.token))
            .await
            .unwrap()
    );
    assert!(
        !store
            .force_release(&mine.key, Some(grant.token))
            .await
            .unwrap()
    );
    assert!(granted(&*store, &claim("mine")).await.token > grant.token);
    // Closed.
    store.close().await.unwrap();
    for (kind, text) in [
        kind_and_text(store.try_acquire(&mine).await),
        kind_and_text(store.renew(&mine).await),
        kind_and_text(store.release(&mine).await),
        kind_and_text(store.inspect(&mine.key).await),
        kind_and_text(store.list("", Page::default()).await),
        kind_and_text(store.force_release(&mine.key, None).await),
        kind_and_text(store.dedicated().await),
    ] {
        assert_eq!(kind, StoreErrorKind::Closed, "{text}");
    }
}

/// B66, row B8, A36: a server that does not answer: no call hangs, and afterwards all is well.
#[tokio::test]
async fn b66_row_b8_no_call_hangs() {
    let server = RedisServer::start();
    let store = RedisLock::builder(&server.url())
        .unwrap()
        .operation_timeout(ms(700))
        .connect()
        .await
        .unwrap();
    let held = claim("l");
    granted(&store, &held).await;
    server.pause();
    let begin = Instant::now();
    for (kind, text) in [
        kind_and_text(store.try_acquire(&claim("m")).await),
        kind_and_text(store.renew(&held).await),
        kind_and_text(store.release(&held).await),
        kind_and_text(store.inspect(&held.key).await),
        kind_and_text(store.list("", Page::default()).await),
        kind_and_text(
            RedisLock::builder(&server.url())
                .unwrap()
                .operation_timeout(ms(700))
                .connect()
                .await
                .map_err(|why| {
                    let source = why.store_error().unwrap();
                    StoreError::new(source.kind(), source.to_string())
                }),
        ),
    ] {
        assert_eq!(kind, StoreErrorKind::Transient, "{text}");
        assert!(text.contains("did not answer"), "{text}");
    }
    assert!(begin.elapsed() < ms(15_000), "{:?}", begin.elapsed());
    server.resume();
    eventually("it answers again", async || {
        store.inspect(&held.key).await.is_ok()
    })
    .await;
    // What was sent to the paused server may have been applied since: all of it was asked for.
    granted(&store, &claim("n")).await;
}

/// Row B8: a script that keeps the server busy is transient, and frees nothing.
#[tokio::test]
async fn row_b8_a_busy_server_frees_nothing() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
    let store = store(&server).await;
    let held = claim("l");
    granted(&*store, &held).await;
    let address = server.address();
    let busy = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let script = "while true do end";
        let request = format!(
            "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
            script.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    eventually("the server is busy", async || {
        server.command(&["PING"]).contains("BUSY")
    })
    .await;
    let (kind, text) = kind_and_text(store.try_acquire(&claim("l")).await);
    assert_eq!(kind, StoreErrorKind::Transient);
    assert!(text.contains("BUSY"), "{text}");
    assert_eq!(
        kind_and_text(store.renew(&held).await).0,
        StoreErrorKind::Transient
    );
    server.command(&["SCRIPT", "KILL"]);
    busy.join().unwrap();
    assert!(matches!(
        store.renew(&held).await,
        Ok(Renewal::Renewed { .. })
    ));
    assert!(matches!(
        store.try_acquire(&claim("l")).await,
        Ok(Attempt::Busy(_))
    ));
}

/// B65, A37: the answer of a request that was given up is not read as that of another.
#[tokio::test]
async fn b65_late_answers_go_to_nobody() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = RedisLock::builder(&format!("redis://{}", proxy.address()))
        .unwrap()
        .operation_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    granted(&store, &claim("taken")).await;
    proxy.faults().hold_replies(true);
    let lost = claim("l1");
    assert!(store.try_acquire(&lost).await.unwrap_err().is_transient());
    proxy.faults().heal();
    // Neither this one nor the next gets the grant of the first.
    assert!(matches!(
        store.try_acquire(&claim("taken")).await,
        Ok(Attempt::Busy(_))
    ));
    assert_eq!(store.inspect(&claim("l3").key).await.unwrap(), None);
    assert_eq!(
        store.release(&lost).await.unwrap(),
        Release::Released { holds: 0 }
    );
}

/// A drop after the request was sent costs one withdrawal (B04 at the level of the store).
#[tokio::test]
async fn a_dropped_attempt_can_be_withdrawn() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = open(&format!("redis://{}", proxy.address())).await;
    proxy.faults().delay_replies(ms(100));
    for _ in 0..10 {
        let claim = claim("l");
        assert!(timeout(ms(30), store.try_acquire(&claim)).await.is_err());
        // An attempt that had not left this process yet is not sent any more.
        let taken_back = store.release(&claim).await.unwrap();
        assert!(matches!(
            taken_back,
            Release::Released { holds: 0 } | Release::NotHeld
        ));
    }
    sleep(ms(150)).await;
    assert_eq!(server.command(&["EXISTS", "distlock:{l}:claim"]), "0");
}
