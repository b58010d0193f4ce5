//! What the store counts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lock_core::DistributedLock;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

use crate::support::{Place, claim, granted, millis, queued, secs, until};

/// Counters by `name label=value …`.
#[derive(Default)]
struct Counters(parking_lot::Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn count(&self, name: &str) -> u64 {
        let counters = self.0.lock();
        counters
            .get(name)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut name = key.name().to_owned();
        for label in key.labels() {
            name += &format!(" {}={}", label.key(), label.value());
        }
        Counter::from_arc(self.0.lock().entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Rows that were swept, connections that were replaced, conflicts that were tried again.
#[test]
fn what_happens_is_counted() {
    let counters = Counters::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    with_local_recorder(&counters, || runtime.block_on(happen(&counters)));
    for name in counters.0.lock().keys() {
        assert!(!name.contains("secret"), "{name} names a lock");
    }
}

async fn happen(counters: &Counters) {
    const REQUESTS: &str = "distlock_connections_total store=postgres for=requests";
    const LISTEN: &str = "distlock_connections_total store=postgres for=listen";
    const SWEPT: &str = "distlock_swept_rows_total store=postgres";
    const CONFLICTS: &str = "distlock_conflicts_total store=postgres";

    let place = Place::on(Arc::new(
        integration_tests::servers::postgres::PostgresServer::start(),
    ));
    let builder = place.builder().sweep_interval(millis(50));
    let store = builder.keep_idle(millis(1)).connect().await.unwrap();
    let a = claim("secret", 30_000);
    granted(store.try_acquire(&a).await.unwrap());
    assert_eq!(counters.count(REQUESTS), 1);
    store.try_acquire(&queued("secret", 1_000)).await.unwrap();
    until(secs(20), async || counters.count(LISTEN) == 1).await;

    place
        .server
        .sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'distlock'",
        )
        .await;
    until(secs(20), async || store.renew(&a).await.is_ok()).await;
    until(secs(20), async || {
        counters.count(REQUESTS) >= 2 && counters.count(LISTEN) >= 2
    })
    .await;

    let (schema, lock) = (&place.schema, place.table("lock"));
    place
        .server
        .sql(&format!(
            "CREATE SEQUENCE \"{schema}\".times;
             CREATE FUNCTION \"{schema}\".fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                IF nextval('\"{schema}\".times') <= 2 THEN
                    RAISE EXCEPTION USING ERRCODE = '40001';
                END IF;
                RETURN NEW;
             END $$;
             CREATE TRIGGER fail BEFORE UPDATE ON {lock}
                FOR EACH ROW EXECUTE FUNCTION \"{schema}\".fail()"
        ))
        .await;
    store.release(&a).await.unwrap();
    assert_eq!(counters.count(CONFLICTS), 2);
    for n in 0..7 {
        let a = claim(&format!("secret {n}"), 1_000);
        granted(store.try_acquire(&a).await.unwrap());
        store.release(&a).await.unwrap();
    }
    until(secs(20), async || counters.count(SWEPT) >= 7).await;
    store.close().await.unwrap();
}
