//! Names, prefixes, lists.

use std::collections::BTreeSet;

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, Page, StoreErrorKind};
use lock_etcd::EtcdLock;

use crate::support::*;

/// Clause 10, E16, B116, B73: names and prefixes are exact; wake-ups do not cross them either.
#[tokio::test]
async fn e16_b116_names_and_prefixes_are_separate() {
    let cluster = EtcdCluster::one();
    let store_of = async |prefix: &str| {
        let builder = EtcdLock::builder(&cluster.url()).unwrap();
        builder.prefix(prefix).connect().await.unwrap()
    };
    let stores = [
        store_of("a").await,
        store_of("ab").await,
        store_of("a/b").await,
        store_of("a%").await,
    ];
    // Foreign keys beside ours are no locks and no waiters.
    let mut admin = cluster.admin().await;
    for foreign in ["a", "a:", "a:a", "a/zzz", "a:a0", "a:a/zzz", "a:b/a/b/c"] {
        if !foreign.starts_with("a:a/") {
            admin.put(foreign, "x", None).await.unwrap();
        }
    }
    let long = "x".repeat(255);
    let names = [
        "a", "ab", "a/b", "a/b/", "a/", "/", "A", "}x{", "*", "a]", "ä", "%2F", "a%2Fb", "%", &long,
    ];
    for store in &stores {
        for name in names {
            granted(store, &claim(name)).await;
        }
    }
    for store in &stores {
        for name in names {
            busy(store, &claim(name)).await;
            let page = store.list(name, Page::default()).await.unwrap();
            let found: BTreeSet<_> = page.locks.iter().map(|lock| lock.key.as_str()).collect();
            let expected: BTreeSet<_> = names.into_iter().filter(|n| n.starts_with(name)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
    // E23: what cannot be a name is refused before anything is sent.
    for name in ["", "a\0b", &"x".repeat(256), &"x".repeat(2 << 20)] {
        assert!(lock_core::LockKey::new(name).is_err());
    }
}

/// A41, B014 (b): what somebody else keeps where a lock's keys are is an error of its own, and is
/// left as it was; other locks are not touched.
#[tokio::test]
async fn a41_b014_foreign_keys_are_left_alone() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let mut admin = cluster.admin().await;
    // Application data under the raw name is no business of ours.
    admin.put("l", "value", None).await.unwrap();
    let plain = claim("l");
    granted(&*store, &plain).await;
    let ours = key_of(&cluster, plain.owner).await;
    store.release(&plain).await.unwrap();
    let as_ours = ours.key_str().unwrap().replacen(":l/", ":k/", 1);
    for (name, foreign) in [("k", as_ours.as_str()), ("m", "distlock:m/garbage")] {
        let before = admin.put(foreign, "garbage", None).await.unwrap();
        let before = before.header().unwrap().revision();
        let claim = claim(name);
        for (what, answer) in [
            ("acquire", store.try_acquire(&claim).await.map(drop)),
            ("inspect", store.inspect(&claim.key).await.map(drop)),
            (
                "force",
                store.force_release(&claim.key, None).await.map(drop),
            ),
        ] {
            let why = answer.expect_err(what);
            assert_eq!(why.kind(), StoreErrorKind::Permanent, "{what}: {why}");
            assert!(why.to_string().contains("left alone"), "{what}: {why}");
        }
        let found = admin.get(foreign, None).await.unwrap();
        assert_eq!(found.kvs()[0].value(), b"garbage");
        assert_eq!(found.kvs()[0].mod_revision(), before);
    }
    granted(&*store, &claim("l")).await;
}

/// B59: inspect and list change nothing.
#[tokio::test]
async fn b59_looking_changes_nothing() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let held = claim("l");
    granted(&*store, &held).await;
    busy(&*store, &queuing("l")).await;
    let before = (revision(&cluster).await, leases(&cluster).await.len());
    let info = store.inspect(&held.key).await.unwrap().unwrap();
    let holder = info.holder.unwrap();
    assert_eq!(
        (holder.owner, holder.holds, info.waiters.len()),
        (held.owner, 1, 1)
    );
    assert!(holder.remaining <= ms(30_000) && holder.remaining > ms(20_000));
    assert!(store.inspect(&claim("never").key).await.unwrap().is_none());
    let page = store.list("", Page::default()).await.unwrap();
    assert_eq!(page.locks.len(), 1);
    let after = (revision(&cluster).await, leases(&cluster).await.len());
    assert_eq!(after, before);
}

/// Pages of a list: every lock once, whatever else is in the cluster.
#[tokio::test]
async fn lists_come_in_pages() {
    let cluster = EtcdCluster::one();
    let store = store(&cluster).await;
    let mut admin = cluster.admin().await;
    for n in 0..200 {
        let held = claim(&format!("jobs/{n}"));
        granted(&*store, &held).await;
        if n % 3 == 0 {
            busy(&*store, &queuing(&format!("jobs/{n}"))).await;
            granted(&*store, &again(&held)).await;
        }
        admin.put(format!("data {n}"), "x", None).await.unwrap();
        let gone = claim(&format!("gone/{n}"));
        granted(&*store, &gone).await;
        store.release(&gone).await.unwrap();
    }
    let (mut cursor, mut found, mut pages) = (None, BTreeSet::new(), 0);
    loop {
        let page = Page { limit: 30, cursor };
        let page = store.list("jobs/", page).await.unwrap();
        assert!(page.locks.len() <= 30);
        for lock in page.locks {
            assert!(lock.holder.is_some());
            assert!(found.insert(lock.key));
        }
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 200);
    assert!(pages > 5);
}
