//! The counts of a scripted scenario, exactly.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lock_core::{Error, LockClient, LockClientBuilder, MemoryLock};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

fn client(
    store: &Arc<MemoryLock>,
    options: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
) -> (LockClient, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let client = metrics::with_local_recorder(&recorder, || {
        options(LockClient::builder(store.clone()).label("shop"))
            .build()
            .unwrap()
    });
    (client, snapshotter)
}

/// `name{label=value,…}` of everything that is not zero, with its value; histograms count.
fn seen(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let all = snapshotter.snapshot().into_vec();
    let named = all.into_iter().map(|(key, _, _, value)| {
        let labels = key.key().labels().filter(|label| label.key() != "client");
        let labels: Vec<_> = labels
            .filter(|label| label.key() != "store")
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        (
            format!("{}{{{}}}", key.key().name(), labels.join(",")),
            value,
        )
    });
    named.filter(|(_, value)| *value != 0.0).collect()
}

fn expected(counts: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let counts = counts.iter();
    counts
        .map(|(name, value)| (format!("distlock_{name}"), *value))
        .collect()
}

#[tokio::test]
async fn a_scripted_scenario_is_counted_exactly() {
    let store = Arc::new(MemoryLock::new());
    let (other, _) = client(&store, |options| options);
    let (client, snapshotter) = client(&store, |options| options);

    // Granted, entered again, released twice.
    let owner = client.owner();
    let outer = owner.lock("a").acquire().await.unwrap();
    let inner = owner.lock("a").acquire().await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    // Busy, and waited for in vain: one attempt, and one more when the wait begins.
    let theirs = other.acquire("b").await.unwrap();
    assert!(matches!(
        client.try_acquire("b").await,
        Err(Error::Busy { .. })
    ));
    let waited = client.lock("b").wait(Duration::from_millis(30));
    assert!(matches!(waited.acquire().await, Err(Error::Timeout { .. })));
    // Renewed by hand, and lost.
    let lost = client.acquire("c").await.unwrap();
    lost.renew(Duration::from_secs(60)).await.unwrap();
    assert!(client.force_release("c", None).await.unwrap());
    assert!(lost.renew(Duration::from_secs(60)).await.is_err());
    assert!(lost.release().await.is_err());
    // Cancelled, and refused before anything is sent.
    let cancelled = tokio::time::timeout(Duration::from_millis(30), client.acquire("b")).await;
    assert!(cancelled.is_err());
    assert!(
        client
            .lock("d")
            .ttl(Duration::ZERO)
            .acquire()
            .await
            .is_err()
    );
    assert!(client.acquire("").await.is_err());
    // Held at the end.
    let held = client.acquire("e").await.unwrap();

    let counts = seen(&snapshotter);
    let exact = expected(&[
        ("acquires_total{outcome=granted}", 3.0),
        ("acquires_total{outcome=entered}", 1.0),
        ("acquires_total{outcome=busy}", 1.0),
        ("acquires_total{outcome=timeout}", 1.0),
        ("acquires_total{outcome=cancelled}", 1.0),
        ("attempts_total{}", 6.0),
        ("wait_seconds{}", 3.0),
        ("queue_length{}", 3.0),
        ("held{}", 1.0),
        ("hold_seconds{}", 2.0),
        ("renewals_total{outcome=renewed}", 1.0),
        ("renewals_total{outcome=gone}", 1.0),
        ("renewal_seconds{}", 2.0),
        ("lost_total{reason=force_released}", 1.0),
        ("releases_total{outcome=released}", 1.0),
    ]);
    assert_eq!(counts, exact);

    // The debugging recorder shows what has changed since.
    drop(held);
    client.shutdown().await;
    drop(theirs);
    let counts = seen(&snapshotter);
    let exact = expected(&[
        ("held{}", -1.0),
        ("hold_seconds{}", 1.0),
        ("releases_total{outcome=released}", 1.0),
    ]);
    assert_eq!(counts, exact);
}

#[tokio::test]
async fn keys_are_labels_only_where_asked_for() {
    let store = Arc::new(MemoryLock::new());
    for on in [false, true] {
        let recorder = DebuggingRecorder::new();
        let _installed = metrics::set_default_local_recorder(&recorder);
        let snapshotter = recorder.snapshotter();
        let client = LockClient::builder(store.clone()).label("shop");
        let client = client.metrics_by_key(on).build().unwrap();
        let guard = client.acquire("customer 7").await.unwrap();
        guard.release().await.unwrap();
        let all = snapshotter.snapshot().into_vec();
        let mut labels = all.iter().flat_map(|(key, ..)| key.key().labels());
        let named = labels.any(|label| label.value() == "customer 7");
        assert_eq!(named, on);
        let labels = |name| {
            let all = all.iter().flat_map(|(key, ..)| key.key().labels());
            all.filter(move |label| label.key() == name)
                .all(|label| ["memory", "shop"].contains(&label.value()))
        };
        assert!(labels("store") && labels("client"));
    }
}
