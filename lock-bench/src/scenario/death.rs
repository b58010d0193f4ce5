//! A holder is killed while somebody waits.

use tokio::task::JoinSet;

use super::{Ring, close};
use crate::{
    Error, Metric, Result, Scenario,
    clock::now,
    record::FLOOR,
    statistics::histogram,
    worker::{Job, Worker},
};

const SCENARIO: Scenario = Scenario::Death;

pub(super) async fn run(ring: &mut Ring<'_>) -> Result<()> {
    if !ring.target.kind.is_shared() {
        return Ok(());
    }
    let (deaths, ttl) = (ring.plan.deaths, ring.plan.short);
    let entries = ring.open(SCENARIO, deaths, ttl).await?;
    // All of them at once: they wait for most of the time.
    let mut running = JoinSet::new();
    for entry in &entries {
        let name = ring.name(entry.index);
        // The bare store does not wait.
        if name == FLOOR {
            continue;
        }
        for death in 0..deaths {
            let (locks, target) = (entry.locks.clone(), ring.target(1, ttl));
            running.spawn(async move {
                let died = async {
                    let key = format!("death/{death}");
                    let mut holder = Worker::start(name, &target).await?;
                    holder.ask(&Job::Hold { key: key.clone() }).await?;
                    holder.answer::<()>().await?;
                    let waiting = tokio::spawn(async move {
                        let held = locks.acquire(&key).await?;
                        let granted = now();
                        held.release().await?;
                        Ok::<_, Error>(granted)
                    });
                    // It has to wait already, and the holder to have renewed.
                    tokio::time::sleep(target.ttl / 2).await;
                    let killed = now();
                    holder.kill().await;
                    let granted = waiting
                        .await
                        .map_err(|why| Error::failed("a task", why))??;
                    Ok::<_, Error>(granted.saturating_sub(killed))
                };
                (name, died.await)
            });
        }
    }
    while let Some(died) = running.join_next().await {
        match died.map_err(|why| Error::failed("a task", why))? {
            (name, Ok(time)) => {
                let mut times = histogram();
                times.saturating_record(time.max(1));
                let metric = Metric::DeathToGrant;
                ring.sheet.times(name, SCENARIO, 1, metric, &times);
            }
            (name, Err(why)) => ring.sheet.fail(name, SCENARIO, 1, why)?,
        }
    }
    close(entries).await;
    Ok(())
}
