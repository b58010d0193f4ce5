//! A job that every instance of an application starts at the same tick, and that one of them does.
//!
//! The instances' clocks differ, and a fast job is over before the last instance has come. So the
//! one that did it does not release the lock, but leaves it to its lease: nobody does the job
//! again for `MIN_HOLD` at least. The next tick finds it free.
//!
//! `cargo run --features sqlite --example cron_once`

use std::{
    env,
    error::Error,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use distlock::LockClient;

const JOB: &str = "nightly-report";
/// Longer than the instances' clocks differ, shorter than from tick to tick.
const MIN_HOLD: Duration = Duration::from_secs(4);
const INSTANCES: u32 = 5;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo().await,
        ["tick", instance, store, report] => tick(instance, store, report.as_ref()).await,
        _ => Err("cron_once takes no arguments".into()),
    }
}

/// What an instance does at a tick.
async fn tick(instance: &str, store: &str, report: &Path) -> Result<()> {
    let locks = distlock::connect(store).await?;
    let guard = match locks.lock(JOB).ttl(MIN_HOLD).try_acquire().await {
        Ok(guard) => guard,
        Err(distlock::Error::Busy { .. }) => {
            println!("  instance {instance} leaves it to another");
            return Ok(());
        }
        Err(why) => return Err(why.into()),
    };
    println!("  instance {instance} does it");
    guard.run(write_report(instance, report)).await??;
    // Renewed no longer, and not released: the lease ends by itself.
    guard.detach()?;
    Ok(())
}

/// The job: fast, and not to be done twice.
async fn write_report(instance: &str, report: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(report)?;
    writeln!(file, "by instance {instance}")
}

async fn demo() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let report = folder.path().join("report");
    let locks = distlock::connect(&store).await?;

    for ticks in 1..=2 {
        println!("tick {ticks}: {INSTANCES} instances");
        let mut instances = Vec::new();
        for number in 1..=INSTANCES {
            instances.push(start(number, &store, &report)?);
        }
        for mut instance in instances {
            let status = instance.wait()?;
            if !status.success() {
                return Err(format!("an instance ended with {status}").into());
            }
        }
        let done = fs::read_to_string(&report)?.lines().count();
        if done != ticks {
            return Err(format!("after tick {ticks} the job was done {done} times").into());
        }
        println!("  done once");
        free(&locks).await?;
    }
    Ok(())
}

fn start(number: u32, store: &str, report: &Path) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["tick", &number.to_string(), store])
        .arg(report);
    Ok(command.spawn()?)
}

/// Returns when the next tick may come.
async fn free(locks: &LockClient) -> Result<()> {
    while locks.inspect(JOB).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
