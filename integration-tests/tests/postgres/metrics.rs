//! What the store counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lock_core::{DistributedLock, LockClient};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

use crate::support::{Place, claim, granted, millis, queued, secs, until};

/// Counters by `name label=value …`, and the names of all instruments with their labels.
#[derive(Default)]
struct Counters {
    counters: parking_lot::Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    exported: parking_lot::Mutex<BTreeSet<Series>>,
}

/// A name as Prometheus has it, and a label.
type Series = (String, String);

impl Counters {
    fn count(&self, name: &str) -> u64 {
        let counters = self.counters.lock();
        counters
            .get(name)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    fn export(&self, key: &Key, suffix: &str) {
        let mut exported = self.exported.lock();
        for label in key.labels() {
            exported.insert((key.name().to_owned() + suffix, label.key().to_owned()));
        }
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
        self.export(key, "");
        Counter::from_arc(self.counters.lock().entry(name).or_default().clone())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.export(key, "");
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.export(key, "_bucket");
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
    for name in counters.counters.lock().keys() {
        assert!(!name.contains("secret"), "{name} names a lock");
    }
    the_dashboard_shows(&counters.exported.lock());
}

/// docs/grafana.json asks for every metric there is, by labels that it has, and for no other.
fn the_dashboard_shows(exported: &BTreeSet<Series>) {
    let dashboard = include_str!("../../../docs/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            for (name, label) in asked(target["expr"].as_str().unwrap()) {
                let is_exported = exported.contains(&(name.clone(), label.clone()));
                assert!(is_exported, "{name} has no label {label}");
                shown.insert(name);
            }
        }
    }
    let exported: BTreeSet<_> = exported.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(shown, exported);
    assert_eq!(shown.len(), 13, "{shown:?}");
}

/// The metrics of an expression, each with the labels that it selects and groups by.
fn asked(expression: &str) -> BTreeSet<Series> {
    let mut asked = BTreeSet::new();
    let groups = expression.split(" by (").skip(1);
    let groups = groups.flat_map(|rest| rest.split(')').next().unwrap().split(", "));
    // Prometheus makes `le` of the buckets itself.
    let groups: Vec<_> = groups.filter(|label| *label != "le").collect();
    for rest in expression.split("distlock_").skip(1) {
        let (name, rest) = rest.split_once('{').expect("a selection of labels");
        let (labels, _) = rest.split_once('}').unwrap();
        let labels = labels
            .split(',')
            .map(|label| label.split(['=', '!']).next().unwrap());
        for label in labels.chain(groups.iter().copied()) {
            asked.insert((format!("distlock_{name}"), label.to_owned()));
        }
    }
    asked
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
    let store: Arc<dyn DistributedLock> = Arc::new(store);
    let _client = LockClient::new(store.clone());
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
