//! Locks are held, and nothing happens.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::Ring;
use crate::{
    Error, Held, Locks, Metric, Result, Scenario, Target, clock,
    contender::Contender,
    record::FLOOR,
    worker::{Job, Worker},
};

/// How many requests of one client are under way at once.
const AT_ONCE: usize = 64;

pub(super) async fn held(ring: &mut Ring<'_>) -> Result<()> {
    let (locks, ttl) = (ring.plan.at_rest, ring.plan.rest);
    for index in ring.able(Scenario::Held, locks) {
        let size = Size { locks, waiters: 0 };
        rest(ring, Scenario::Held, index, ttl, size, note_rest).await?;
    }
    Ok(())
}

pub(super) async fn waiting(ring: &mut Ring<'_>) -> Result<()> {
    let (waiters, ttl) = (ring.plan.at_rest, ring.plan.rest);
    for index in ring.able(Scenario::Waiting, waiters) {
        // The bare store does not wait.
        if ring.name(index) == FLOOR {
            continue;
        }
        let size = Size { locks: 1, waiters };
        rest(ring, Scenario::Waiting, index, ttl, size, note_rest).await?;
    }
    Ok(())
}

pub(super) async fn growth(ring: &mut Ring<'_>) -> Result<()> {
    let ttl = ring.plan.growing;
    for locks in ring.plan.growth.clone() {
        for index in 0..ring.contenders.len() {
            let name = ring.name(index);
            if name != "distlock" && (name != FLOOR || locks > FLOOR_GROWS_TO) {
                continue;
            }
            let size = Size { locks, waiters: 0 };
            rest(ring, Scenario::Growth, index, ttl, size, note_growth).await?;
        }
    }
    Ok(())
}

/// One request for each renewal takes too long with more.
const FLOOR_GROWS_TO: usize = 1_000;

/// How much there is at rest.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Size {
    locks: usize,
    waiters: usize,
}

type Note = fn(&mut Ring<'_>, &'static str, Scenario, usize, &Rest, Option<f64>);

/// In a process of its own, so that its memory and time are those of the locks alone.
async fn rest(
    ring: &mut Ring<'_>,
    scenario: Scenario,
    index: usize,
    ttl: Duration,
    size: Size,
    note: Note,
) -> Result<()> {
    let name = ring.name(index);
    let tasks = size.locks.max(size.waiters);
    let target = ring.target(size.locks + size.waiters, ttl);
    let measured = async {
        let mut worker = Worker::start(name, &target).await?;
        let time = match scenario {
            Scenario::Growth => ring.plan.watch_growing,
            _ => ring.plan.watch_rest,
        };
        let job = Job::Rest { size, time };
        worker.ask(&job).await?;
        // All are held, or wait.
        worker.answer::<()>().await?;
        let before = ring.requests(index).await;
        let rest: Rest = worker.answer().await?;
        let after = ring.requests(index).await;
        worker.end().await;
        Ok::<_, Error>((rest, before.zip(after)))
    };
    match measured.await {
        Ok((rest, counts)) => {
            let requests = counts.map(|(before, after)| (after - before) / rest.seconds);
            note(ring, name, scenario, tasks, &rest, requests);
            Ok(())
        }
        Err(why) => ring.sheet.fail(name, scenario, tasks, why),
    }
}

fn note_rest(
    ring: &mut Ring<'_>,
    name: &'static str,
    scenario: Scenario,
    tasks: usize,
    rest: &Rest,
    requests: Option<f64>,
) {
    let mut put = |metric, value: Option<f64>| {
        if let Some(value) = value {
            ring.sheet.number(name, scenario, tasks, metric, value);
        }
    };
    put(Metric::RequestsPerSecond, requests);
    put(Metric::Connections, rest.connections);
    put(Metric::ClientCpu, Some(rest.cpu * 1e3 / rest.seconds));
    put(
        Metric::ClientMemory,
        rest.memory.map(|bytes| bytes / 1024.0),
    );
}

fn note_growth(
    ring: &mut Ring<'_>,
    name: &'static str,
    scenario: Scenario,
    tasks: usize,
    rest: &Rest,
    requests: Option<f64>,
) {
    let each = |all: f64| all / tasks as f64;
    let mut put = |metric, value: Option<f64>| {
        if let Some(value) = value {
            ring.sheet.number(name, scenario, tasks, metric, value);
        }
    };
    put(Metric::CpuPerRenewal, Some(each(rest.cpu * 1e6)));
    put(Metric::MemoryPerLock, rest.memory.map(each));
    put(Metric::RequestsPerSecond, requests);
}

/// What it cost to let locks rest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) seconds: f64,
    /// In seconds.
    cpu: f64,
    /// Bytes that came with the locks.
    memory: Option<f64>,
    /// Connections that came with the contender.
    connections: Option<f64>,
}

/// Locks that are held, and waiters that wait.
pub(crate) struct AtRest {
    open: Arc<dyn Locks>,
    held: Vec<Box<dyn Held>>,
    renewing: JoinHandle<()>,
    waiting: JoinSet<Result<()>>,
    memory: Option<u64>,
    connections: Option<usize>,
}

impl AtRest {
    /// Acquires the locks, and lets waiters queue for the first of them.
    pub(crate) async fn new(
        contender: &dyn Contender,
        target: &Target,
        size: Size,
    ) -> Result<Self> {
        let connections = clock::connections();
        let open = contender.open(target).await?;
        // The first one brings what all share.
        open.acquire("first").await?.release().await?;
        let memory = clock::memory();
        let keys: Vec<String> = (0..size.locks).map(|lock| format!("rest/{lock}")).collect();
        let held = acquire_all(&open, &keys).await?;
        let renewing = tokio::spawn(renew_all(open.clone(), keys, target.ttl / 3));
        let mut waiting = JoinSet::new();
        for _ in 0..size.waiters {
            let open = open.clone();
            waiting.spawn(async move { open.acquire("rest/0").await.map(drop) });
        }
        if size.waiters > 0 {
            // Not every contender can tell whether all of them are in the queue.
            tokio::time::sleep(target.ttl / 3).await;
        }
        Ok(Self {
            open,
            held,
            renewing,
            waiting,
            memory,
            connections,
        })
    }

    /// Watches them for a while.
    pub(crate) async fn watch(&mut self, time: Duration) -> Result<Rest> {
        let (begin, cpu) = (clock::now(), clock::cpu());
        tokio::time::sleep(time).await;
        let rest = Rest {
            seconds: (clock::now() - begin) as f64 / 1e9,
            cpu: (clock::cpu() - cpu).as_secs_f64(),
            memory: grown(self.memory, clock::memory()),
            connections: self
                .connections
                .zip(clock::connections())
                .map(|(before, after)| after.saturating_sub(before) as f64),
        };
        if let Some(ended) = self.waiting.try_join_next() {
            let why = match ended {
                Ok(Ok(())) => "it was granted a lock that is held".to_owned(),
                Ok(Err(why)) => why.to_string(),
                Err(why) => why.to_string(),
            };
            return Err(Error::failed("a waiter", why));
        }
        Ok(rest)
    }

    /// Gives everything back.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.renewing.abort();
        self.waiting.shutdown().await;
        let released = stream::iter(self.held).map(|held| held.release());
        let released = released.buffer_unordered(AT_ONCE);
        released.try_collect::<Vec<()>>().await?;
        self.open.close().await;
        Ok(())
    }
}

async fn acquire_all(open: &Arc<dyn Locks>, keys: &[String]) -> Result<Vec<Box<dyn Held>>> {
    let acquired = stream::iter(keys.to_owned()).map(|key| {
        let open = open.clone();
        async move { open.acquire(&key).await }
    });
    acquired.buffer_unordered(AT_ONCE).try_collect().await
}

/// Does what a user of a contender that does not renew by itself would have to do.
async fn renew_all(open: Arc<dyn Locks>, keys: Vec<String>, pause: Duration) {
    // In the middle between the beginning and the end of what is watched.
    let mut turns = tokio::time::interval_at(Instant::now() + pause / 2, pause);
    loop {
        turns.tick().await;
        let renewals = stream::iter(keys.clone()).map(|key| {
            let open = open.clone();
            async move { open.renew(&key).await }
        });
        let answers: Vec<_> = renewals.buffer_unordered(AT_ONCE).collect().await;
        if answers.iter().any(Option::is_none) {
            return;
        }
    }
}

fn grown(before: Option<u64>, after: Option<u64>) -> Option<f64> {
    let (before, after) = (before?, after?);
    Some(after.saturating_sub(before) as f64)
}
