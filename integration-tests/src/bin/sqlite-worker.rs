//! A process that works with a lock file, for tests that kill, stop or count such processes.

use std::{io::Write, sync::Arc, time::Duration};

use lock_core::{Attempt, Busy, DistributedLock, LockClient, StoreError, Wait};
use lock_sqlite::{SqliteLock, SqliteLockBuilder};

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["hold", path, key, ttl] => hold(path, key, ttl.parse()?).await,
        ["count", path, key, times, file] => count(path, key, times.parse()?, file).await,
        ["try", path, key] => tries(path, key).await,
        ["fill", path, filler] => fill(path, filler).await,
        _ => Err("usage: sqlite-worker hold|count|try|fill PATH ...".into()),
    }
}

/// A client on the file at `path`, or on the user's own when that is `-`.
async fn client(path: &str) -> Result<LockClient, StoreError> {
    let store = match path {
        "-" => SqliteLockBuilder::in_state_folder()?,
        path => SqliteLock::builder(path),
    };
    Ok(LockClient::new(Arc::new(store.open().await?)))
}

/// Says `held TOKEN`, and holds the lock until its input ends.
async fn hold(path: &str, key: &str, ttl: u64) -> Result<(), Failure> {
    let client = client(path).await?;
    let ttl = Duration::from_millis(ttl);
    let guard = client
        .lock(key)
        .ttl(ttl)
        .wait(Wait::Forever)
        .acquire()
        .await?;
    say(format!("held {}", guard.token()));
    std::io::read_to_string(std::io::stdin())?;
    guard.release().await?;
    say("released".to_owned());
    Ok(())
}

/// Adds 1 to the number in `file`, `times` times, not atomically; says each token.
async fn count(path: &str, key: &str, times: u32, file: &str) -> Result<(), Failure> {
    let client = client(path).await?;
    for _ in 0..times {
        let guard = client.lock(key).wait(Wait::Forever).acquire().await?;
        let number: u64 = std::fs::read_to_string(file)?.trim().parse()?;
        tokio::time::sleep(Duration::from_micros(500)).await;
        std::fs::write(file, (number + 1).to_string())?;
        say(format!("{number} {}", guard.token()));
        guard.release().await?;
    }
    Ok(())
}

/// Says `granted`, or the kind of the error and its text.
async fn tries(path: &str, key: &str) -> Result<(), Failure> {
    let attempt = async {
        client(path)
            .await?
            .try_acquire(key)
            .await
            .map_err(Failure::from)
    };
    match attempt.await {
        Ok(guard) => {
            guard.release().await?;
            say("granted".to_owned());
        }
        Err(why) => {
            let store = match why.downcast_ref::<lock_core::Error>() {
                Some(error) => error.store_error(),
                None => why.downcast_ref::<StoreError>(),
            };
            let kind = store.map(|error| format!("{:?}", error.kind()));
            say(format!("{} {why}", kind.unwrap_or_default()));
        }
    }
    Ok(())
}

/// Holds a lock, fills the disk with `filler`, takes locks until that fails, makes room again and
/// shows that nothing was lost.
async fn fill(path: &str, filler: &str) -> Result<(), Failure> {
    let store = SqliteLock::open(path).await?;
    let held = claim("held")?;
    if !matches!(store.try_acquire(&held).await?, Attempt::Granted(_)) {
        return Err("the file is new".into());
    }
    let mut file = std::fs::File::create(filler)?;
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut taken = Vec::new();
    let failure = loop {
        let next = claim(&format!("lock {}", taken.len()))?;
        match store.try_acquire(&next).await {
            Ok(Attempt::Granted(_)) => taken.push(next),
            Ok(Attempt::Busy(busy)) => return Err(format!("{busy:?}").into()),
            Err(why) => break why,
        }
    };
    say(format!("{:?} {failure}", failure.kind()));
    drop(file);
    std::fs::remove_file(filler)?;
    let mut claims = taken.clone();
    claims.push(held.clone());
    for renewal in store.renew_all(&claims).await {
        if !matches!(renewal?, lock_core::Renewal::Renewed { .. }) {
            return Err("a grant was lost".into());
        }
    }
    let rival = lock_core::Claim {
        owner: lock_core::OwnerId::random(),
        ..held
    };
    match store.try_acquire(&rival).await? {
        Attempt::Busy(Busy {
            holder: Some(_), ..
        }) => {}
        other => return Err(format!("{other:?}").into()),
    }
    say(format!("kept {}", claims.len()));
    Ok(())
}

fn claim(key: &str) -> Result<lock_core::Claim, Failure> {
    Ok(lock_core::Claim {
        key: key.parse()?,
        owner: lock_core::OwnerId::random(),
        hold: lock_core::HoldId::random(),
        ttl: lock_core::Ttl::from_millis(600_000)?,
        queue: false,
        asker: Arc::new(lock_core::Asker::this_process(None)?),
    })
}

fn say(line: String) {
    println!("{line}");
}
