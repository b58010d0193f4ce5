//! What is done with the locks, and what is noted.

mod contend;
mod death;
mod pairs;
mod reentry;
mod rest;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hdrhistogram::Histogram;

pub(crate) use contend::contend;
pub(crate) use rest::{AtRest, Size};

use crate::{
    Contender, Distribution, Gap, Locks, Metric, Plan, Record, Result, Scenario, Target, median,
    percentile, probe::Probe, record::FLOOR, statistics::histogram,
};

/// A store, and everybody who is measured on it.
pub(crate) struct Ring<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) target: Target,
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    pub(crate) probe: Probe,
    pub(crate) sheet: Sheet,
}

impl Ring<'_> {
    pub(crate) async fn run(&mut self, scenario: Scenario) -> Result<()> {
        match scenario {
            Scenario::Pairs => pairs::run(self).await,
            Scenario::Reentry => reentry::run(self).await,
            Scenario::Handover => contend::in_one_process(self).await,
            Scenario::HandoverProcesses => contend::in_processes(self).await,
            Scenario::Death => death::run(self).await,
            Scenario::Held => rest::held(self).await,
            Scenario::Waiting => rest::waiting(self).await,
            Scenario::Growth => rest::growth(self).await,
        }
    }

    /// Those who can have `size` locks and waiters at once, opened.
    async fn open(&mut self, scenario: Scenario, size: usize, ttl: Duration) -> Result<Vec<Entry>> {
        let target = self.target(size, ttl);
        let mut entries = Vec::new();
        for index in self.able(scenario, size) {
            let contender = &self.contenders[index];
            match contender.open(&target).await {
                Ok(locks) => entries.push(Entry { index, locks }),
                Err(why) => self.sheet.fail(contender.name(), scenario, size, why)?,
            }
        }
        Ok(entries)
    }

    fn target(&self, size: usize, ttl: Duration) -> Target {
        Target {
            size,
            ttl,
            ..self.target.clone()
        }
    }

    /// Those who can have `size` locks and waiters at once; of the others it is noted.
    fn able(&mut self, scenario: Scenario, size: usize) -> Vec<usize> {
        let mut able = Vec::new();
        for (index, contender) in self.contenders.iter().enumerate() {
            match contender.most() {
                Some(most) if most < size => {
                    let why = format!("a connection each, so at most {most}");
                    self.sheet.gap(contender.name(), scenario, size, &why);
                }
                _ => able.push(index),
            }
        }
        able
    }

    fn name(&self, index: usize) -> &'static str {
        self.contenders[index].name()
    }

    /// The requests that the store has answered to a contender.
    async fn requests(&mut self, index: usize) -> Option<f64> {
        self.probe.requests(self.contenders[index].commands()).await
    }
}

/// Somebody who takes part.
struct Entry {
    index: usize,
    locks: Arc<dyn Locks>,
}

async fn close(entries: Vec<Entry>) {
    for entry in entries {
        entry.locks.close().await;
    }
}

/// The figures of one store, as they come.
pub(crate) struct Sheet {
    store: crate::Kind,
    series: BTreeMap<Cell, Series>,
    gaps: Vec<Gap>,
}

type Cell = (Scenario, usize, Metric, &'static str);

/// The rounds of one figure.
#[derive(Default)]
struct Series {
    middles: Vec<f64>,
    tails: Vec<f64>,
    times: Option<Histogram<u64>>,
}

impl Sheet {
    pub(crate) fn new(store: crate::Kind) -> Self {
        Self {
            store,
            series: BTreeMap::new(),
            gaps: Vec::new(),
        }
    }

    /// A number of one round.
    fn number(
        &mut self,
        name: &'static str,
        scenario: Scenario,
        tasks: usize,
        metric: Metric,
        value: f64,
    ) {
        let series = self.series.entry((scenario, tasks, metric, name));
        series.or_default().middles.push(value);
    }

    /// The times of one round, in nanoseconds, each in the unit of `metric` afterwards.
    fn times(
        &mut self,
        name: &'static str,
        scenario: Scenario,
        tasks: usize,
        metric: Metric,
        times: &Histogram<u64>,
    ) {
        let unit = unit(metric);
        let (Some(middle), Some(tail)) = (percentile(times, 0.5), percentile(times, 0.99)) else {
            return;
        };
        let series = self.series.entry((scenario, tasks, metric, name));
        let series = series.or_default();
        series.middles.push(middle / unit);
        series.tails.push(tail / unit);
        // Those of all rounds fit into what one round's fit into.
        let _ = series.times.get_or_insert_with(histogram).add(times);
    }

    /// There is no figure, and why.
    fn gap(&mut self, name: &str, scenario: Scenario, tasks: usize, why: &str) {
        let gap = Gap {
            store: self.store,
            contender: name.to_owned(),
            scenario,
            tasks,
            why: why.to_owned(),
        };
        if !self.gaps.contains(&gap) {
            self.gaps.push(gap);
        }
    }

    /// Somebody failed; the run goes on, unless it is one of ours.
    fn fail(
        &mut self,
        name: &str,
        scenario: Scenario,
        tasks: usize,
        why: crate::Error,
    ) -> Result<()> {
        if name == FLOOR || name == "distlock" {
            let what = format!("{name} on {}, {} of {tasks}", self.store, scenario.name());
            return Err(crate::Error::failed(what, why));
        }
        self.gap(name, scenario, tasks, &why.to_string());
        Ok(())
    }

    pub(crate) fn finish(self) -> (Vec<Record>, Vec<Distribution>, Vec<Gap>) {
        let (mut records, mut distributions) = (Vec::new(), Vec::new());
        for ((scenario, tasks, metric, name), series) in self.series {
            let Some(middle) = median(&series.middles) else {
                continue;
            };
            let bound = |of: fn(f64, f64) -> f64| series.middles.iter().copied().reduce(of);
            records.push(Record {
                store: self.store,
                contender: name.to_owned(),
                scenario,
                tasks,
                metric,
                unit: metric.unit().to_owned(),
                median: middle,
                p99: median(&series.tails),
                rounds: series.middles.len(),
                ratio: None,
                low: bound(f64::min).unwrap_or(middle),
                high: bound(f64::max).unwrap_or(middle),
            });
            if let Some(times) = &series.times {
                let points = SHARES.iter().filter_map(|share| {
                    percentile(times, *share).map(|time| (*share, time / unit(metric)))
                });
                distributions.push(Distribution {
                    store: self.store,
                    contender: name.to_owned(),
                    scenario,
                    tasks,
                    metric,
                    points: points.collect(),
                });
            }
        }
        (records, distributions, self.gaps)
    }
}

/// Of a distribution.
const SHARES: [f64; 11] = [
    0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999,
];

/// Nanoseconds.
fn unit(metric: Metric) -> f64 {
    match metric.unit() {
        "ms" => 1e6,
        _ => 1e3,
    }
}
