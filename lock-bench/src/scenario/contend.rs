//! Many compete for one key.

use std::{sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{Ring, close};
use crate::{
    Error, Locks, Metric, Result, Scenario,
    clock::now,
    plan::LONG,
    record::FLOOR,
    statistics::histogram,
    worker::{Job, Worker},
};

const PROCESSES: usize = 4;

pub(super) async fn in_one_process(ring: &mut Ring<'_>) -> Result<()> {
    const SCENARIO: Scenario = Scenario::Handover;
    for tasks in ring.plan.waiters.clone() {
        let entries = ring.open(SCENARIO, tasks + 1, LONG).await?;
        for round in 0..ring.plan.rounds {
            ring.probe.tidy().await?;
            for entry in &entries {
                let name = ring.name(entry.index);
                let key = format!("handover/{tasks}/{round}");
                let before = ring.requests(entry.index).await;
                let turns = contend(&entry.locks, &key, tasks_of(name, tasks), ring.plan.round);
                match turns.await {
                    Ok(turns) => {
                        let after = ring.requests(entry.index).await;
                        let requests = before.zip(after).map(|(before, after)| after - before);
                        note(ring, name, SCENARIO, tasks, &turns, requests);
                    }
                    Err(why) => ring.sheet.fail(name, SCENARIO, tasks, why)?,
                }
            }
        }
        close(entries).await;
    }
    Ok(())
}

pub(super) async fn in_processes(ring: &mut Ring<'_>) -> Result<()> {
    const SCENARIO: Scenario = Scenario::HandoverProcesses;
    if !ring.target.kind.is_shared() {
        return Ok(());
    }
    let tasks = ring.plan.in_processes;
    for index in ring.able(SCENARIO, tasks) {
        let name = ring.name(index);
        let processes = if name == FLOOR { 1 } else { PROCESSES };
        let target = ring.target(tasks / PROCESSES + 1, LONG);
        let mut workers = Vec::new();
        for _ in 0..processes {
            match Worker::start(name, &target).await {
                Ok(worker) => workers.push(worker),
                Err(why) => ring.sheet.fail(name, SCENARIO, tasks, why)?,
            }
        }
        for round in 0..ring.plan.rounds {
            ring.probe.tidy().await?;
            let job = Job::Contend {
                key: format!("processes/{round}"),
                tasks: tasks_of(name, tasks / PROCESSES),
                time: ring.plan.round,
            };
            let before = ring.requests(index).await;
            match together(&mut workers, &job).await {
                Ok(turns) => {
                    let after = ring.requests(index).await;
                    let requests = before.zip(after).map(|(before, after)| after - before);
                    note(ring, name, SCENARIO, tasks, &turns, requests);
                }
                Err(why) => ring.sheet.fail(name, SCENARIO, tasks, why)?,
            }
        }
        for worker in workers {
            worker.end().await;
        }
    }
    Ok(())
}

/// The bare store has no waiters: what one task can do with it is the most that there is to get.
fn tasks_of(name: &str, tasks: usize) -> usize {
    if name == FLOOR { 1 } else { tasks }
}

async fn together(workers: &mut [Worker], job: &Job) -> Result<Vec<Turn>> {
    for worker in workers.iter_mut() {
        worker.ask(job).await?;
    }
    let mut all = Vec::new();
    for (process, worker) in workers.iter_mut().enumerate() {
        let mut turns: Vec<Turn> = worker.answer().await?;
        for turn in &mut turns {
            turn.task += process * 1_000_000;
        }
        all.extend(turns);
    }
    Ok(all)
}

/// Once that somebody held the lock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Turn {
    task: usize,
    /// On the machine's clock, in nanoseconds.
    granted: u64,
    /// Just before the release was asked for.
    released: u64,
}

/// Tasks take the lock of one key in turns, for a while.
pub(crate) async fn contend(
    locks: &Arc<dyn Locks>,
    key: &str,
    tasks: usize,
    time: Duration,
) -> Result<Vec<Turn>> {
    let end = now() + time.as_nanos() as u64;
    // However slow the store is, there is a hand-over.
    let least = if tasks == 1 { 2 } else { 1 };
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (locks, key) = (locks.clone(), key.to_owned());
        running.spawn(async move {
            let mut turns = Vec::new();
            while turns.len() < least || now() < end {
                let held = locks.acquire(&key).await?;
                let granted = now();
                let released = now();
                held.release().await?;
                turns.push(Turn {
                    task,
                    granted,
                    released,
                });
            }
            Ok::<_, Error>(turns)
        });
    }
    let mut all = Vec::new();
    while let Some(turns) = running.join_next().await {
        all.extend(turns.map_err(|why| Error::failed("a task", why))??);
    }
    Ok(all)
}

fn note(
    ring: &mut Ring<'_>,
    name: &'static str,
    scenario: Scenario,
    tasks: usize,
    turns: &[Turn],
    requests: Option<f64>,
) {
    let Some(seen) = seen(turns, name == FLOOR) else {
        return ring.sheet.gap(name, scenario, tasks, "nobody had a turn");
    };
    let mut put = |metric, value| ring.sheet.number(name, scenario, tasks, metric, value);
    put(
        Metric::HandoversPerSecond,
        seen.handovers as f64 / seen.seconds,
    );
    put(Metric::TurnsPerSecond, turns.len() as f64 / seen.seconds);
    if let Some(requests) = requests
        && seen.handovers > 0
    {
        put(
            Metric::RequestsPerHandover,
            requests / seen.handovers as f64,
        );
    }
    let metric = Metric::HandoverLatency;
    ring.sheet.times(name, scenario, tasks, metric, &seen.times);
}

/// What the turns of a round amount to.
struct Seen {
    handovers: usize,
    seconds: f64,
    times: Histogram<u64>,
}

/// A hand-over is a turn after one of somebody else; with `alone`, after any.
fn seen(turns: &[Turn], alone: bool) -> Option<Seen> {
    let mut turns = turns.to_vec();
    turns.sort_by_key(|turn| turn.granted);
    let (first, last) = (turns.first()?, turns.last()?);
    let seconds = (last.released - first.granted).max(1) as f64 / 1e9;
    let mut times = histogram();
    let mut handovers = 0;
    for two in turns.windows(2) {
        if alone || two[0].task != two[1].task {
            handovers += 1;
            times.saturating_record(two[1].granted.saturating_sub(two[0].released).max(1));
        }
    }
    Some(Seen {
        handovers,
        seconds,
        times,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentile;

    fn turn(task: usize, granted: u64, released: u64) -> Turn {
        Turn {
            task,
            granted,
            released,
        }
    }

    #[test]
    fn a_turn_after_ones_own_is_no_handover() {
        let turns = [
            turn(2, 1_500_000, 2_000_000_000),
            turn(1, 0, 100_000),
            turn(1, 200_000, 500_000),
        ];
        let two = seen(&turns, false).expect("turns");
        assert_eq!((two.handovers, two.seconds), (1, 2.0));
        let latency = percentile(&two.times, 0.5).expect("one time");
        assert!((latency / 1e6 - 1.0).abs() < 2e-3, "{latency}");
        assert_eq!(seen(&turns, true).expect("turns").handovers, 2);
        assert!(seen(&[], false).is_none());
    }
}
