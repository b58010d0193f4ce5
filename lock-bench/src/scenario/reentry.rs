//! A holder enters its lock again.

use hdrhistogram::Histogram;

use super::{Ring, close};
use crate::{Locks, Metric, Result, Scenario, clock::now, plan::LONG, statistics::histogram};

const SCENARIO: Scenario = Scenario::Reentry;

pub(super) async fn run(ring: &mut Ring<'_>) -> Result<()> {
    let entries = ring.open(SCENARIO, 1, LONG).await?;
    for _ in 0..ring.plan.rounds {
        for entry in &entries {
            let name = ring.name(entry.index);
            let end = now() + ring.plan.round.as_nanos() as u64 / 4;
            match reentry(&*entry.locks, end).await {
                // It cannot.
                None => {}
                Some(Ok(times)) => {
                    let metric = Metric::ReentryLatency;
                    ring.sheet.times(name, SCENARIO, 1, metric, &times);
                }
                Some(Err(why)) => ring.sheet.fail(name, SCENARIO, 1, why)?,
            }
        }
    }
    close(entries).await;
    Ok(())
}

async fn reentry(locks: &dyn Locks, end: u64) -> Option<Result<Histogram<u64>>> {
    let key = "reentry";
    let outer = match locks.enter(key).await? {
        Ok(outer) => outer,
        Err(why) => return Some(Err(why)),
    };
    let mut times = histogram();
    let mut before = now();
    while times.is_empty() || before < end {
        let inner = match locks.enter(key).await? {
            Ok(inner) => inner,
            Err(why) => return Some(Err(why)),
        };
        if let Err(why) = inner.release().await {
            return Some(Err(why));
        }
        let after = now();
        times.saturating_record(after - before);
        before = after;
    }
    Some(outer.release().await.map(|()| times))
}
