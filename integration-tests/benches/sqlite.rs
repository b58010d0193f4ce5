//! What the SQLite store costs above the two statements that any such lock has to send.
//!
//! `cargo bench -p integration-tests --bench sqlite [rounds] [pairs]` measures an
//! uncontended acquire and release on one file each: by two bare statements on one sqlx
//! connection, by the verbs of the store, and by a client with automatic renewal, in turns. It
//! prints the median of each round and of all rounds, and fails when the store or the client
//! costs more than 1.3 times the bare statements.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lock_core::{Asker, Attempt, Claim, DistributedLock, HoldId, LockClient, OwnerId, Ttl};
use lock_sqlite::SqliteLock;
use sqlx::{ConnectOptions, Row, SqliteConnection, sqlite::SqliteConnectOptions};

type Failure = Box<dyn std::error::Error>;

const ACQUIRE: &str = "INSERT INTO locks (key, owner, token, expires)
    VALUES (?1, ?2, 1, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) + ?3)
    ON CONFLICT (key) DO UPDATE SET
      owner = excluded.owner, token = token + 1, expires = excluded.expires
    WHERE owner IS NULL OR expires <= CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
    RETURNING token";
const RELEASE: &str = "UPDATE locks SET owner = NULL WHERE key = ?1 AND owner = ?2 RETURNING token";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // Cargo adds a `--bench` of its own.
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let rounds: usize = arguments.next().map_or(Ok(9), |n| n.parse())?;
    let pairs: usize = arguments.next().map_or(Ok(2000), |n| n.parse())?;

    let folder = tempfile::tempdir()?;
    let mut bare = open_bare(&folder.path().join("bare.db")).await?;
    let store = SqliteLock::open(folder.path().join("store.db")).await?;
    let client = LockClient::new(Arc::new(
        SqliteLock::open(folder.path().join("client.db")).await?,
    ));
    let mut medians = [const { Vec::new() }; 3];
    println!("{:>10} {:>10} {:>10}", "bare", "store", "client");
    // The first round warms up and does not count.
    for round in 0..=rounds {
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..pairs {
            times[0].push(timed(bare_pair(&mut bare)).await?);
            times[1].push(timed(store_pair(&store)).await?);
            times[2].push(timed(client_pair(&client)).await?);
        }
        let times = times.map(middle);
        if round > 0 {
            println!(
                "{:>10.1?} {:>10.1?} {:>10.1?}",
                times[0], times[1], times[2]
            );
            medians
                .iter_mut()
                .zip(times)
                .for_each(|(all, one)| all.push(one));
        }
    }
    client.shutdown().await;
    let [bare, store, client] = medians.map(middle);
    let times_bare = |time: Duration| time.as_secs_f64() / bare.as_secs_f64();
    println!("{bare:>10.1?} {store:>10.1?} {client:>10.1?} median of the medians");
    println!(
        "{:>10} {:>10.2} {:>10.2} times bare",
        "",
        times_bare(store),
        times_bare(client)
    );
    if times_bare(store) > 1.3 || times_bare(client) > 1.3 {
        return Err("more than 1.3 times the bare statements".into());
    }
    Ok(())
}

async fn open_bare(path: &std::path::Path) -> Result<SqliteConnection, Failure> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal)
        .disable_statement_logging()
        .connect()
        .await?;
    sqlx::query(
        "CREATE TABLE locks (key TEXT NOT NULL PRIMARY KEY, owner TEXT, token INTEGER NOT NULL,
                             expires INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    )
    .execute(&mut connection)
    .await?;
    Ok(connection)
}

async fn bare_pair(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let owner = OwnerId::random().to_string();
    let row = sqlx::query(ACQUIRE)
        .bind("speed")
        .bind(&owner)
        .bind(30_000)
        .fetch_all(&mut *connection)
        .await?;
    let _token: i64 = row.first().ok_or("busy")?.try_get(0)?;
    let row = sqlx::query(RELEASE)
        .bind("speed")
        .bind(&owner)
        .fetch_all(connection)
        .await?;
    row.first().ok_or("not held")?;
    Ok(())
}

async fn store_pair(store: &SqliteLock) -> Result<(), Failure> {
    let claim = Claim {
        key: "speed".parse()?,
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::from_millis(30_000)?,
        queue: false,
        asker: Arc::new(Asker::new(None, "localhost".to_owned(), 1)?),
    };
    let Attempt::Granted(_) = store.try_acquire(&claim).await? else {
        return Err("busy".into());
    };
    store.release(&claim).await?;
    Ok(())
}

async fn client_pair(client: &LockClient) -> Result<(), Failure> {
    client.acquire("speed").await?.release().await?;
    Ok(())
}

async fn timed(pair: impl Future<Output = Result<(), Failure>>) -> Result<Duration, Failure> {
    let start = Instant::now();
    pair.await?;
    Ok(start.elapsed())
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
