//! A job on a cron schedule that every instance of an application starts, and that one of them
//! does.
//!
//! The instances' clocks differ, and a fast job is over before the last instance has come. So the
//! lock is held for `MIN_HOLD` at least, however fast the job is: nobody does it again at the same
//! tick. The next tick finds it free.
//!
//! `cargo run --features sqlite --example cron_once`

use std::{
    collections::HashSet,
    env,
    error::Error,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use chrono::{DateTime, Utc};
use cron::Schedule;
use distlock::{LockClient, Outcome};

const JOB: &str = "nightly-report";
/// Every five seconds, for once.
const SCHEDULE: &str = "*/5 * * * * *";
/// Longer than an instance may be late for a tick, shorter than from tick to tick.
const MIN_HOLD: Duration = Duration::from_secs(4);
/// Who is later than this leaves the tick to the others.
const LATEST: Duration = Duration::from_secs(1);

const INSTANCES: u32 = 4;
const TICKS: usize = 2;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo(),
        ["instance", number, store, report] => {
            let locks = distlock::connect(store).await?;
            instance(number.parse()?, &locks, report.as_ref()).await
        }
        _ => Err("cron_once takes no arguments".into()),
    }
}

/// What an instance does for as long as it runs.
async fn instance(number: u32, locks: &LockClient, report: &Path) -> Result<()> {
    let schedule: Schedule = SCHEDULE.parse()?;
    for tick in schedule.upcoming(Utc).take(TICKS) {
        // A clock that is late by a tenth of a second more than the one before.
        let skew = Duration::from_millis(100) * number;
        tokio::time::sleep(since(Utc::now(), tick) + skew).await;
        if since(tick, Utc::now()) > LATEST {
            println!("{}: instance {number} comes too late", tick.time());
            continue;
        }
        let job = locks.lock(JOB).min_hold(MIN_HOLD);
        match job.run_once(async |_| write(number, tick, report)).await? {
            Outcome::Done(written) => {
                written?;
                println!("{}: instance {number} does it", tick.time());
            }
            Outcome::Skipped(_) => println!("{}: instance {number} skips it", tick.time()),
        }
    }
    Ok(())
}

/// The job: fast, and not to be done twice.
fn write(number: u32, tick: DateTime<Utc>, report: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(report)?;
    writeln!(file, "{tick} by instance {number}")
}

/// How much time passes from one moment to another; none when it is the earlier one.
fn since(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

/// Starts some instances and looks at what they have done.
fn demo() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let report = folder.path().join("report");
    let instances: Vec<Child> = (0..INSTANCES)
        .map(|number| start(number, &store, &report))
        .collect::<Result<_>>()?;
    for mut instance in instances {
        let status = instance.wait()?;
        if !status.success() {
            return Err(format!("an instance ended with {status}").into());
        }
    }
    let report = fs::read_to_string(&report)?;
    let mut ticks = HashSet::new();
    for line in report.lines() {
        if !ticks.insert(line.split(" by ").next()) {
            return Err(format!("a tick was done twice:\n{report}").into());
        }
    }
    println!("{} ticks, each done once", ticks.len());
    match ticks.len() {
        0 => Err("nothing was done".into()),
        _ => Ok(()),
    }
}

fn start(number: u32, store: &str, report: &Path) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["instance", &number.to_string(), store])
        .arg(report);
    Ok(command.spawn()?)
}
