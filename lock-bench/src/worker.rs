//! The same in a process of its own: orders and answers are lines of JSON on its pipes.

use std::{
    io::{BufRead, Write},
    process::Stdio,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    Error, Result, Roster, Target,
    scenario::{AtRest, Size, contend},
};

/// The first argument that makes a program a worker; it then calls [`serve`].
pub const WORKER: &str = "__bench_worker";

/// What a worker is asked to do.
#[derive(Serialize, Deserialize)]
pub(crate) enum Job {
    /// Competes for a key; the answer is its turns.
    Contend {
        key: String,
        tasks: usize,
        time: Duration,
    },
    /// Holds a key until it is killed; it answers when it does.
    Hold { key: String },
    /// Lets locks rest; it answers when all are held, and once more with what it cost.
    Rest { size: Size, time: Duration },
}

/// A process of this program; it is killed when it is dropped.
pub(crate) struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) async fn start(contender: &str, target: &Target) -> Result<Self> {
        let failed = |why| Error::failed("a process of its own", why);
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .arg(WORKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("a process of its own", "it has no pipes"));
        };
        let mut worker = Self {
            child,
            stdin,
            stdout: BufReader::new(stdout).lines(),
        };
        // Not an argument: the URL may hold a password.
        worker.send(&(contender, target)).await?;
        Ok(worker)
    }

    pub(crate) async fn ask(&mut self, job: &Job) -> Result<()> {
        self.send(job).await
    }

    pub(crate) async fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.stdout.next_line().await;
        let line = line.map_err(|why| Error::failed("a process", why))?;
        let line = line.ok_or_else(|| Error::failed("a process", "it ended too early"))?;
        let answer: Result<T, String> =
            serde_json::from_str(&line).map_err(|why| Error::failed("its answer", why))?;
        answer.map_err(Error::Failed)
    }

    pub(crate) async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    /// Lets it close what it has open, and end.
    pub(crate) async fn end(self) {
        let Self {
            mut child, stdin, ..
        } = self;
        drop(stdin);
        let _ = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
    }

    async fn send(&mut self, what: &impl Serialize) -> Result<()> {
        let line = format!("{}\n", serde_json::json!(what));
        let sent = self.stdin.write_all(line.as_bytes()).await;
        sent.map_err(|why| Error::failed("a process", why))
    }
}

/// The whole life of a worker. Returns its exit code.
pub fn serve(roster: Roster) -> i32 {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(why) => {
            eprintln!("{why}");
            return 1;
        }
    };
    match runtime.block_on(work(roster)) {
        Ok(()) => 0,
        Err(why) => {
            // Nobody reads it when the other end has gone.
            let _ = tell(&Err::<(), _>(why.to_string()));
            1
        }
    }
}

/// As every contender has it, in every process.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|why| Error::failed("the runtime", why))
}

async fn work(roster: Roster) -> Result<()> {
    let Some((name, target)) = next::<(String, Target)>().await? else {
        return Ok(());
    };
    let contenders = roster(target.kind);
    let contender = contenders.iter().find(|known| known.name() == name);
    let contender = contender.ok_or_else(|| Error::failed(&name, "nobody knows it"))?;
    let mut open = None;
    while let Some(job) = next::<Job>().await? {
        match job {
            Job::Rest { size, time } => {
                let mut at_rest = AtRest::new(&**contender, &target, size).await?;
                tell(&Ok(()))?;
                tell(&Ok(at_rest.watch(time).await?))?;
                at_rest.end().await?;
            }
            Job::Contend { key, tasks, time } => {
                if open.is_none() {
                    open = Some(contender.open(&target).await?);
                }
                let Some(locks) = &open else { continue };
                tell(&Ok(contend(locks, &key, tasks, time).await?))?;
            }
            Job::Hold { key } => {
                let locks = contender.open(&target).await?;
                let held = locks.acquire(&key).await?;
                tell(&Ok(()))?;
                std::future::pending::<()>().await;
                held.release().await?;
            }
        }
    }
    if let Some(locks) = open {
        locks.close().await;
    }
    Ok(())
}

async fn next<T: DeserializeOwned + Send + 'static>() -> Result<Option<T>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = line.await.map_err(|why| Error::failed("stdin", why))?;
    let line = line.map_err(|why| Error::failed("stdin", why))?;
    if line.is_empty() {
        return Ok(None);
    }
    let order = serde_json::from_str(&line).map_err(|why| Error::failed("an order", why))?;
    Ok(Some(order))
}

fn tell<T: Serialize>(answer: &Result<T, String>) -> Result<()> {
    let line = serde_json::json!(answer).to_string();
    writeln!(std::io::stdout(), "{line}").map_err(|why| Error::failed("stdout", why))
}
