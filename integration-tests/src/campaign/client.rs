//! What a client process does: take locks, work under them, and tell what happened.

use std::{
    io::{BufRead, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use clap::Args;
use lock_core::{DistributedLock, Error, LockClient, LockGuard, OwnerId, StoreError};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{TTLS, lock_name};
use crate::{
    fenced::Connection,
    history::{Event, now},
    sabotage::{Bug, Sabotaged},
};

/// The arguments of a client process.
#[derive(Args, Clone, Debug)]
pub struct ClientOptions {
    /// The store
    #[arg(long)]
    pub url: String,
    /// The fenced resource
    #[arg(long)]
    pub resource: SocketAddr,
    /// How many locks there are
    #[arg(long)]
    pub keys: u32,
    /// How many tasks take them
    #[arg(long)]
    pub tasks: u32,
    /// What its choices follow from
    #[arg(long)]
    pub seed: u64,
    /// A planted bug
    #[arg(long)]
    pub bug: Option<Bug>,
}

/// How long a call of the store may take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// What the driver wants, over standard input.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    /// Raised by `drop`: acquires under way are dropped.
    dropped: u32,
    /// `stop`, or the end of the input: what is held is released, and the process ends.
    stop: bool,
}

/// Runs until its input ends or says `stop`.
///
/// # Errors
///
/// When the store cannot be opened.
pub async fn run(options: ClientOptions) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (orders, listen) = watch::channel(Orders::default());
    std::thread::spawn(move || obey(&orders));
    // One as applications have it, and one that enters again from elsewhere.
    let clients = [client(&options).await?, client(&options).await?];
    let mut tasks = JoinSet::new();
    for task in 0..options.tasks {
        let worker = Worker {
            clients: clients.clone(),
            resource: Connection::open(options.resource).await?,
            orders: listen.clone(),
            keys: options.keys,
            random: StdRng::seed_from_u64(options.seed.wrapping_mul(1000) + u64::from(task)),
            next: u64::from(task) << 32,
        };
        tasks.spawn(worker.run());
    }
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    for client in clients {
        client.shutdown().await;
    }
    Ok(())
}

fn obey(orders: &watch::Sender<Orders>) {
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("drop") => orders.send_modify(|orders| orders.dropped += 1),
            Ok("block") => BLOCK.store(true, Ordering::SeqCst),
            Ok("hesitate") => HESITATE.store(true, Ordering::SeqCst),
            // Through the C library, as everybody else asks for the time.
            Ok("clock") => tell(&Event::Clock {
                millis: wall(SystemTime::now()),
            }),
            _ => break,
        }
    }
    orders.send_modify(|orders| orders.stop = true);
}

async fn client(options: &ClientOptions) -> Result<LockClient, Error> {
    let mut store = open(&options.url).await?;
    if let Some(bug) = options.bug {
        store = Arc::new(Sabotaged::new(store, bug, Arc::default()));
    }
    LockClient::builder(store)
        .operation_timeout(OPERATION_TIMEOUT)
        .build()
}

/// Opens the store; a fault may be on just now.
async fn open(url: &str) -> Result<Arc<dyn DistributedLock>, Error> {
    let mut tries = 0;
    loop {
        match distlock::open(url).await {
            Err(why) if tries < 100 && why.store_error().is_some_and(StoreError::is_transient) => {
                tries += 1;
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

struct Worker {
    clients: [LockClient; 2],
    resource: Connection,
    orders: watch::Receiver<Orders>,
    keys: u32,
    random: StdRng,
    next: u64,
}

impl Worker {
    async fn run(mut self) {
        while !self.orders.borrow_and_update().stop {
            block_if_told();
            let key = self.random.random_range(0..self.keys);
            let owner = OwnerId::random();
            let reentrant = self.random.random_bool(0.1);
            let Some((id, guard)) = self.enter(0, key, reentrant.then_some(owner)).await else {
                continue;
            };
            let again = match reentrant {
                true => self.enter(1, key, Some(owner)).await,
                false => None,
            };
            let (mut held_until, refused) = self.work(&guard).await;
            if let Some((id, guard)) = again {
                let until = held(&guard).unwrap_or(0);
                self.leave(id, guard, until, 0).await;
            }
            held_until = held(&guard).unwrap_or(held_until);
            self.leave(id, guard, held_until, refused).await;
        }
    }

    async fn enter(
        &mut self,
        client: usize,
        key: u32,
        owner: Option<OwnerId>,
    ) -> Option<(u64, LockGuard)> {
        self.next += 1;
        let id = self.next;
        let wait = match self.random.random_range(0..10) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(50),
            _ => Duration::from_secs(5),
        };
        let ttl = TTLS[self.random.random_range(0..TTLS.len())];
        let mut acquire = self.clients[client]
            .lock(lock_name(key))
            .ttl(ttl)
            .wait(wait);
        if let Some(owner) = owner {
            acquire = acquire.owner(owner);
        }
        tell(&Event::Asked { id, key, at: now() });
        let dropped = self.orders.borrow_and_update().dropped;
        let answer = tokio::select! {
            answer = acquire.acquire() => answer.map_err(kind),
            _ = self.orders.wait_for(|orders| orders.dropped > dropped) => Err("dropped".into()),
        };
        match answer {
            Ok(guard) => {
                tell(&Event::Granted {
                    id,
                    at: now(),
                    token: guard.token().as_u64(),
                    owner: guard.owner().to_string(),
                });
                Some((id, guard))
            }
            Err(why) => {
                tell(&Event::Refused { id, at: now(), why });
                None
            }
        }
    }

    /// Adds one to the counter; until when the lock was held for certain, and how many accesses
    /// were refused.
    async fn work(&mut self, guard: &LockGuard) -> (u64, u32) {
        let (key, token, owner) = (
            guard.key().to_string(),
            guard.token().as_u64(),
            guard.owner().to_string(),
        );
        let Some(held_until) = held(guard) else {
            return (0, 0);
        };
        let value = match self.resource.access(&key, token, &owner, None).await {
            Ok(Ok(value)) => value,
            Ok(Err(_)) => return (held_until, 1),
            Err(why) => panic!("the resource is gone: {why}"),
        };
        let ttl = guard.ttl();
        sleep(match self.random.random_range(0..100) {
            0 if self.random.random_bool(0.5) => ttl.mul_f64(self.random.random_range(1.0..2.5)),
            0..5 => Duration::from_millis(self.random.random_range(5..20)),
            _ => Duration::from_micros(self.random.random_range(0..2000)),
        })
        .await;
        let Some(held_until) = held(guard) else {
            return (held_until, 0);
        };
        // It has looked, and the write is under way: what happens now, only the token can help.
        if HESITATE.swap(false, Ordering::SeqCst) {
            tell(&Event::Hesitating);
            sleep(Duration::from_millis(100)).await;
        }
        match self.random.random_range(0..100) {
            0..3 => sleep(ttl.mul_f64(self.random.random_range(0.0..0.3))).await,
            3..50 => sleep(Duration::from_micros(self.random.random_range(0..1000))).await,
            _ => {}
        }
        match self
            .resource
            .access(&key, token, &owner, Some(value + 1))
            .await
        {
            Ok(answer) => (held_until, u32::from(answer.is_err())),
            Err(why) => panic!("the resource is gone: {why}"),
        }
    }

    async fn leave(&mut self, id: u64, guard: LockGuard, held_until: u64, refused: u32) {
        let how = if self.random.random_bool(0.1) {
            drop(guard);
            "dropped".to_owned()
        } else {
            match guard.release().await {
                Ok(()) => "released".to_owned(),
                Err(why) => kind(why),
            }
        };
        tell(&Event::Ended {
            id,
            held_until,
            at: now(),
            how,
            refused,
        });
    }
}

/// A moment at which the lock was held for certain.
fn held(guard: &LockGuard) -> Option<u64> {
    let before = now();
    guard.is_held().then_some(before)
}

/// The kind of an error, without its particulars.
fn kind(why: Error) -> String {
    match &why {
        Error::Lost { reason, .. } => format!("lost: {reason:?}"),
        Error::Store { source, .. } if source.is_transient() => "store: transient".into(),
        // There is no such fault: it is to be seen.
        Error::Store { source, .. } => format!("store: {source}"),
        why => {
            let name = format!("{why:?}");
            name.split([' ', '{', '('])
                .next()
                .unwrap_or_default()
                .to_owned()
        }
    }
}

fn tell(event: &Event) {
    let line = serde_json::to_string(event).unwrap_or_default();
    // The driver is gone: then there is nobody to tell.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn wall(now: SystemTime) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Whether the next task to write waits a little first, and says so: the moment to stop it.
static HESITATE: AtomicBool = AtomicBool::new(false);

/// Whether the next task to look blocks the only thread of the runtime.
static BLOCK: AtomicBool = AtomicBool::new(false);

fn block_if_told() {
    if BLOCK.swap(false, Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1000));
        tell(&Event::Blocked);
    }
}
