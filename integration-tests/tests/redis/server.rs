//! The server: how it is set up, how it fails, how it is reached.

use std::sync::Arc;

use futures_util::future::join_all;
use integration_tests::{proxy::Proxy, servers::redis::RedisServer};
use lock_core::{
    DistributedLock, Durability, Error, LockClient, LostReason, Page, Release, Renewal,
};
use lock_redis::RedisLock;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// The warnings that a store on this server gives.
async fn warnings(server: &RedisServer) -> String {
    store(server).await.capabilities().warnings.join("\n")
}

/// Row B5, B53, and the issue of durability: what weakens the guarantees is said at connect.
#[tokio::test]
async fn row_b5_b53_weak_setups_are_reported() {
    let server = RedisServer::start();
    assert!(warnings(&server).await.contains("nothing on disk"));
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert!(warnings(&server).await.contains("allkeys-lru"));
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    assert!(warnings(&server).await.contains("snapshots"));

    let durable = RedisServer::durable();
    let found = store(&durable).await.capabilities();
    assert_eq!(
        (found.durability, found.warnings),
        (Durability::Disk, Vec::new())
    );
    durable.command(&["CONFIG", "SET", "appendfsync", "everysec"]);
    assert!(warnings(&durable).await.contains("once a second"));

    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &durable.port().to_string()]);
    eventually("it is replicated", async || {
        durable.info("connected_slaves") == "1"
    })
    .await;
    assert!(warnings(&durable).await.contains("asynchronous"));
    drop(replica);

    server.command(&[
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config", "-info",
    ]);
    let store = open(&format!("redis://app:pw@{}", server.address())).await;
    let warnings = store.capabilities().warnings.join("\n");
    assert_eq!(warnings.matches("unknown").count(), 2, "{warnings}");
}

/// Row B5, B53: an evicted lock is lost, and not made again.
#[tokio::test]
async fn row_b5_an_evicted_lock_is_lost() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("l").ttl(ms(1500)).acquire().await.unwrap();
    let used: u64 = server.info("used_memory").parse().unwrap();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    server.command(&["CONFIG", "SET", "maxmemory", &(used + 200_000).to_string()]);
    let block = "x".repeat(20_000);
    let mut filled = 0;
    while server.command(&["EXISTS", "distlock:{l}:claim"]) == "1" && filled < 200 {
        server.command(&["SET", &format!("data {filled}"), &block]);
        filled += 1;
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(filled < 200, "nothing was evicted");
    timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "distlock:{l}:claim"]), "0");
}

/// Row B4: the end of the append-only file is lost; the holder of what is lost learns it, tokens
/// grow.
#[tokio::test]
async fn row_b4_a_truncated_log_is_noticed() {
    let mut server = RedisServer::durable();
    let store = store(&server).await;
    granted(&*store, &claim("early")).await;
    let folder = server.folder().join("appendonlydir");
    let log = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .expect("the append-only file");
    let whole = std::fs::metadata(&log).unwrap().len();
    let late = claim("late");
    let token = granted(&*store, &late).await.token;
    server.kill();
    std::fs::File::options()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(whole)
        .unwrap();
    server.launch();
    assert_eq!(
        store.renew(&late).await.unwrap(),
        Renewal::Gone { taken_over: false }
    );
    assert!(granted(&*store, &claim("late")).await.token > token);
    busy(&*store, &claim("early")).await;
}

/// Row B3: FLUSHALL is noticed at the next renewal, and never undone silently.
#[tokio::test]
async fn row_b3_flushall_is_noticed() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("l").ttl(ms(1500)).acquire().await.unwrap();
    server.command(&["FLUSHALL"]);
    let reason = timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(reason, LostReason::ForceReleased);
    assert_eq!(server.command(&["EXISTS", "distlock:{l}:claim"]), "0");
    let next = client.acquire("l").await.unwrap();
    assert!(next.token() > guard.token());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_held());
}

/// Row B14: an operator renames, shortens or makes permanent what is ours.
#[tokio::test]
async fn row_b14_tampering_is_noticed() {
    let server = RedisServer::start();
    let client = client(&server).await;
    for tampering in [
        ["RENAME", "distlock:{l}:claim", "elsewhere"],
        ["PEXPIRE", "distlock:{l}:claim", "1"],
    ] {
        let guard = client.lock("l").ttl(ms(1500)).acquire().await.unwrap();
        server.command(&tampering);
        timeout(PATIENCE, guard.lost()).await.unwrap();
    }
    // A claim without an end gets one at the next renewal; nobody was let in meanwhile.
    let guard = client.lock("l").ttl(ms(1500)).acquire().await.unwrap();
    server.command(&["PERSIST", "distlock:{l}:claim"]);
    assert!(client.try_acquire("l").await.is_err());
    eventually("it has an end again", async || {
        server.command(&["PTTL", "distlock:{l}:claim"]) != "-1"
    })
    .await;
    assert!(guard.is_held());
}

/// Row B13, A9: connections are killed all the time; nothing is lost.
#[tokio::test]
async fn row_b13_killed_connections_are_replaced() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let held = client.lock("held").ttl(ms(4000)).acquire().await.unwrap();
    let end = Instant::now() + ms(2500);
    let mut kills = 0;
    while Instant::now() < end {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        kills += 1;
        let guard = client.lock("l").wait(PATIENCE).acquire().await.unwrap();
        guard.release().await.unwrap();
        sleep(ms(50)).await;
    }
    assert!(kills > 5 && held.is_held());
    held.release().await.unwrap();
}

/// Row B11: a connection that breaks with a thousand requests under way: each is decided by its
/// own hold.
#[tokio::test]
async fn row_b11_a_reset_with_a_thousand_requests_under_way() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = open(&format!("redis://{}", proxy.address())).await;
    proxy.faults().delay_replies(ms(100));
    let claims: Vec<_> = (0..1000).map(|n| claim(&format!("l {n}"))).collect();
    let attempts = join_all(claims.iter().map(|claim| store.try_acquire(claim)));
    let reset = async {
        sleep(ms(50)).await;
        proxy.reset_all();
        proxy.faults().heal();
    };
    let (answers, ()) = tokio::join!(attempts, reset);
    for (claim, answer) in claims.iter().zip(answers) {
        match answer {
            Ok(lock_core::Attempt::Granted(grant)) => assert_eq!(grant.holds, 1),
            Ok(busy) => panic!("{busy:?}"),
            Err(why) => assert!(why.is_transient(), "{why}"),
        }
        // Unknown or not, once more is once.
        assert_eq!(granted(&store, claim).await.holds, 1);
        assert_eq!(
            store.release(claim).await.unwrap(),
            Release::Released { holds: 0 }
        );
    }
    assert_eq!(server.keys("distlock:*:claim").len(), 0);
}

/// A36: a half-open connection, without a reset: replaced within the operation time-out, and
/// renewals get through before the deadline.
#[tokio::test]
async fn a36_half_open_connections_are_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = RedisLock::builder(&format!("redis://{}", proxy.address()))
        .unwrap()
        .operation_timeout(ms(500))
        .connect()
        .await
        .unwrap();
    let client = LockClient::new(Arc::new(store));
    let guard = client.lock("l").ttl(ms(6000)).acquire().await.unwrap();
    for _ in 0..2 {
        proxy.faults().blackhole(true);
        sleep(ms(2500)).await;
        proxy.faults().heal();
        eventually("it answers", async || client.inspect("l").await.is_ok()).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// B63, C3, C9: a demoted master is left for the new one; a replica is never asked.
#[tokio::test]
async fn b63_a_demoted_master_is_left() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.address()).await.unwrap();
    let url = format!("redis://{}", proxy.address());
    let port = |server: &RedisServer| server.port().to_string();
    new.command(&["REPLICAOF", "127.0.0.1", &port(&old)]);
    eventually("it follows", async || {
        new.info("master_link_status") == "up"
    })
    .await;
    let client = client_at(&url).await.build().unwrap();
    let guard = client.lock("l").ttl(ms(6000)).acquire().await.unwrap();
    eventually("it is replicated", async || {
        new.command(&["EXISTS", "distlock:{l}:claim"]) == "1"
    })
    .await;
    let token = guard.token();
    new.command(&["REPLICAOF", "NO", "ONE"]);
    old.command(&["REPLICAOF", "127.0.0.1", &port(&new)]);
    // While nothing else is reachable the error says why.
    let why = client.try_acquire("m").await.unwrap_err();
    assert!(
        why.is_retryable() && why.to_string().contains("READONLY"),
        "{why}"
    );
    assert!(
        RedisLock::connect(&url)
            .await
            .unwrap_err()
            .to_string()
            .contains("READONLY")
    );
    proxy.retarget(new.address()); // for new connections only
    eventually("it has moved", async || guard.renew(ms(6000)).await.is_ok()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(client.acquire("l").await.unwrap().token() > token);
    assert_eq!(new.command(&["EXISTS", "distlock:{l}:claim"]), "1");
}

/// B64, C8: on a cluster-enabled node every name works, all keys of a lock are in one slot, and
/// forgotten scripts are no matter.
#[tokio::test]
async fn b64_a_cluster_node_takes_every_name() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster is up", async || {
        server.info("cluster_enabled") == "1"
            && server
                .command(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok")
    })
    .await;
    let store = store(&server).await;
    let long = "x".repeat(255);
    let mut held = Vec::new();
    for name in [
        "L", "a{b}c", "}{", "{}x", "{}", "{", "}", "ключ", "a", "ab", "a/b", "A", &long,
    ] {
        let claim = queuing(name);
        granted(&*store, &claim).await;
        server.command(&["SCRIPT", "FLUSH"]);
        busy(&*store, &queuing(name)).await;
        assert!(matches!(
            store.renew(&claim).await,
            Ok(Renewal::Renewed { .. })
        ));
        server.command(&["SCRIPT", "FLUSH"]);
        held.push(claim);
    }
    let answers = store.renew_all(&held).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(Renewal::Renewed { .. })))
    );
    let mut slots = std::collections::BTreeMap::<_, std::collections::BTreeSet<_>>::new();
    for key in server.keys("*") {
        let lock = key.rsplit_once(':').unwrap().0.to_owned();
        slots
            .entry(lock)
            .or_default()
            .insert(server.command(&["CLUSTER", "KEYSLOT", &key]));
    }
    assert_eq!(slots.len(), held.len());
    assert!(slots.values().all(|slots| slots.len() == 1));
    for claim in held {
        assert_eq!(
            store.release(&claim).await.unwrap(),
            Release::Released { holds: 0 }
        );
    }
}

/// Clause 10, B116: names, prefixes and databases are exact; wake-ups do not cross them either.
#[tokio::test]
async fn b116_names_prefixes_and_databases_are_separate() {
    let server = RedisServer::start();
    let store_of = async |prefix: &str, database: u8| {
        let url = format!("{}/{database}", server.url());
        RedisLock::builder(&url)
            .unwrap()
            .prefix(prefix)
            .connect()
            .await
            .unwrap()
    };
    let stores = [
        store_of("a", 0).await,
        store_of("a", 1).await,
        store_of("a:b", 0).await,
        store_of("a*", 0).await,
    ];
    // Foreign keys beside ours are no locks and no waiters.
    server.command(&["SET", "a:a", "x"]);
    server.command(&["SET", "a:{a", "x"]);
    server.command(&["SET", "a:{a}:other", "x"]);
    let names = ["a", "ab", "a/b", "a/", "A", "}x{", "*", "a]", "ä"];
    for store in &stores {
        for name in names {
            granted(store, &claim(name)).await;
        }
    }
    for store in &stores {
        for name in names {
            busy(store, &claim(name)).await;
            let page = store.list(name, Page::default()).await.unwrap();
            let mut found: Vec<_> = page.locks.iter().map(|lock| lock.key.as_str()).collect();
            found.sort_unstable();
            let mut expected: Vec<_> = names.into_iter().filter(|n| n.starts_with(name)).collect();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }
    for store in &stores {
        busy(store, &queuing("a")).await;
    }
    let first = server.command(&["PUBSUB", "CHANNELS", "a:wake:0:*"]);
    assert_eq!(first.lines().count(), 1, "{first}");
    assert_eq!(
        server.command(&["PUBSUB", "CHANNELS", "*"]).lines().count(),
        4
    );
}

/// Every way to name a server: unix socket, user and password, database, an existing client.
#[tokio::test]
async fn servers_are_reached_in_every_way() {
    let server = RedisServer::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">p@ss/word",
        "~*",
        "&*",
        "+@all",
    ]);
    let socket = server.folder().join("redis.sock");
    let urls = [
        format!("unix://{}?db=3", socket.display()),
        format!(
            "redis+unix://{}?db=3&user=app&pass=p%40ss%2Fword",
            socket.display()
        ),
        format!("redis://app:p%40ss%2Fword@{}/3", server.address()),
        format!("valkey://{}/3", server.address()),
    ];
    let held = claim("l");
    granted(&open(&urls[0]).await, &held).await;
    for url in &urls {
        let store = open(url).await;
        assert_eq!(holder(&store, "l").await, Some(held.owner), "{url}");
        assert!(!format!("{store:?}").contains("p@ss"));
    }
    let client = lock_redis::redis::Client::open(urls[2].as_str()).unwrap();
    let store = RedisLock::builder_with(client).connect().await.unwrap();
    assert_eq!(holder(&store, "l").await, Some(held.owner));
    for url in [
        "http://localhost",
        "redis://",
        "redis://localhost/x",
        "nonsense",
    ] {
        let why = RedisLock::connect(url).await.unwrap_err();
        assert!(matches!(why, Error::InvalidConfig { .. }), "{url}: {why}");
    }
}

/// TLS with an authority of one's own; without it the server is not trusted.
#[tokio::test]
async fn servers_are_reached_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (key, certificate) = (file("key.pem"), file("cert.pem"));
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-subj",
            "/CN=redis",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-days",
            "2",
        ])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    let port = integration_tests::servers::free_port().to_string();
    let server = RedisServer::with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &certificate,
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://127.0.0.1:{port}");
    let why = RedisLock::connect(&url).await.unwrap_err();
    assert!(why.to_string().contains("certificate"), "{why}");
    assert!(!why.is_retryable());
    let store = RedisLock::builder(&url)
        .unwrap()
        .tls(lock_redis::redis::TlsCertificates {
            client_tls: None,
            root_cert: Some(std::fs::read(&certificate).unwrap()),
        })
        .unwrap()
        .connect()
        .await
        .unwrap();
    let held = claim("l");
    granted(&store, &held).await;
    busy(&store, &queuing("l")).await; // the subscription goes over TLS, too
    assert_eq!(
        server.command(&["PUBSUB", "CHANNELS", "*"]).lines().count(),
        1
    );
    store.release(&held).await.unwrap();
}

/// B59: inspect and list change nothing: no key is made, no time to live is touched.
#[tokio::test]
async fn b59_looking_changes_nothing() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let held = claim("l");
    granted(&*store, &held).await;
    busy(&*store, &queuing("l")).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    let before = server.info("rdb_changes_since_last_save");
    let info = store.inspect(&held.key).await.unwrap().unwrap();
    let holder = info.holder.unwrap();
    assert_eq!(
        (holder.owner, holder.holds, info.waiters.len()),
        (held.owner, 1, 1)
    );
    assert!(holder.remaining <= ms(30_000) && holder.remaining > ms(20_000));
    assert!(store.inspect(&claim("never").key).await.unwrap().is_none());
    assert_eq!(
        store.list("", Page::default()).await.unwrap().locks.len(),
        1
    );
    assert_eq!(server.info("rdb_changes_since_last_save"), before);
    assert_eq!(server.keys("distlock:{never}*").len(), 0);
}

/// Pages of a list: every lock once, whatever else is in the database.
#[tokio::test]
async fn lists_come_in_pages() {
    let server = RedisServer::start();
    let store = store(&server).await;
    for n in 0..200 {
        granted(&*store, &claim(&format!("jobs/{n}"))).await;
        server.command(&["SET", &format!("data {n}"), "x"]);
        let gone = claim(&format!("gone/{n}")); // leaves its token key
        granted(&*store, &gone).await;
        store.release(&gone).await.unwrap();
    }
    let (mut cursor, mut found, mut pages) = (None, std::collections::BTreeSet::new(), 0);
    loop {
        let page = store
            .list("jobs/", Page { limit: 30, cursor })
            .await
            .unwrap();
        assert!(page.locks.len() < 100);
        for lock in page.locks {
            assert!(found.insert(lock.key));
        }
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 200);
    assert!(pages > 2);
}
