//! Tasks acquire and release, each its own key.

use std::{sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::{Ring, close};
use crate::{
    Error, Locks, Metric, Result, Scenario, clock::now, plan::LONG, statistics::histogram,
};

pub(super) async fn run(ring: &mut Ring<'_>) -> Result<()> {
    for tasks in ring.plan.tasks.clone() {
        let entries = ring.open(Scenario::Pairs, tasks, LONG).await?;
        for round in 0..=ring.plan.rounds {
            ring.probe.tidy().await?;
            for entry in &entries {
                let warms_up = round == 0;
                let time = ring.plan.round / if warms_up { 3 } else { 1 };
                let name = ring.name(entry.index);
                let done = pairs(&entry.locks, tasks, time).await;
                match done {
                    Ok(_) if warms_up => {}
                    Ok((times, rate)) => {
                        let sheet = &mut ring.sheet;
                        let scenario = Scenario::Pairs;
                        sheet.times(name, scenario, tasks, Metric::PairLatency, &times);
                        sheet.number(name, scenario, tasks, Metric::PairsPerSecond, rate);
                    }
                    Err(why) => ring.sheet.fail(name, Scenario::Pairs, tasks, why)?,
                }
            }
        }
        close(entries).await;
    }
    Ok(())
}

/// Each pair's time, and how many there were in a second.
async fn pairs(
    locks: &Arc<dyn Locks>,
    tasks: usize,
    time: Duration,
) -> Result<(Histogram<u64>, f64)> {
    let begin = now();
    let end = begin + time.as_nanos() as u64;
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let locks = locks.clone();
        running.spawn(async move {
            let key = format!("pairs/{task}");
            let mut times = histogram();
            let mut before = now();
            loop {
                locks.acquire(&key).await?.release().await?;
                let after = now();
                times.saturating_record(after - before);
                before = after;
                if after >= end {
                    return Ok::<_, Error>(times);
                }
            }
        });
    }
    let mut all = histogram();
    while let Some(times) = running.join_next().await {
        let times = times.map_err(|why| Error::failed("a task", why))??;
        let _ = all.add(times);
    }
    let rate = all.len() as f64 / ((now() - begin) as f64 / 1e9);
    Ok((all, rate))
}
