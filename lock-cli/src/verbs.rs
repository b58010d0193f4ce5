//! The commands that ask the store one question.

use std::io;

use clap::CommandFactory;
use distlock::{FencingToken, LockClient, LockInfo, LockKey, Page};

use crate::{
    args::{Args, Claim, Global},
    failure::{Failure, Kind},
    nested::Around,
    show,
};

/// The store when none is named: a file in this user's state folder.
#[cfg(feature = "sqlite")]
const DEFAULT_STORE: Option<&str> = Some("sqlite:");
#[cfg(not(feature = "sqlite"))]
const DEFAULT_STORE: Option<&str> = None;

/// A client on the store that the options or the environment name.
pub(crate) async fn connect(global: &Global) -> Result<LockClient, Failure> {
    let url = global.store.as_deref().filter(|url| !url.is_empty());
    let url = url.or(DEFAULT_STORE).ok_or_else(|| {
        Failure::new(
            Kind::Usage,
            "no store is named: set DISTLOCK_URL or give --store",
        )
    })?;
    Ok(distlock::connect(url).await?)
}

pub(crate) async fn try_once(claim: Claim, global: Global) -> Result<i32, Failure> {
    let around = Around::from_env()?;
    let owner = claim.owner.unwrap_or_else(|| around.owner_of(&claim.key));
    let client = connect(&global).await?;
    let mut acquire = client.lock(&claim.key).owner(owner).ttl(claim.ttl);
    if let Some(label) = &claim.label {
        acquire = acquire.label(label);
    }
    let guard = acquire.manual_renewal().try_acquire().await;
    let taken = guard.and_then(|guard| {
        let taken = show::Taken {
            key: guard.key().clone(),
            token: guard.token(),
            owner: guard.owner(),
            holds: guard.holds(),
            ttl_ms: guard.ttl().as_millis() as u64,
        };
        guard.detach().map(|_| taken)
    });
    client.shutdown().await;
    let taken = taken?;
    show::print(&if global.json {
        serde_json::json!(taken).to_string()
    } else {
        show::taken(&taken)
    });
    Ok(0)
}

pub(crate) async fn inspect(key: LockKey, global: Global) -> Result<i32, Failure> {
    let client = connect(&global).await?;
    let info = client.inspect(&key).await?.unwrap_or_else(|| LockInfo {
        key,
        holder: None,
        waiters: Vec::new(),
    });
    show::print(&if global.json {
        serde_json::json!(info).to_string()
    } else {
        show::lock(&info)
    });
    Ok(0)
}

pub(crate) async fn list(prefix: String, global: Global) -> Result<i32, Failure> {
    let client = connect(&global).await?;
    let mut locks = Vec::new();
    let mut page = Page::default();
    loop {
        let answer = client.list(&prefix, page.clone()).await?;
        locks.extend(answer.locks);
        match answer.next {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    locks.sort_by(|a, b| a.key.cmp(&b.key));
    show::print(&if global.json {
        serde_json::json!(locks).to_string()
    } else {
        show::locks(&locks)
    });
    Ok(0)
}

pub(crate) async fn release(
    key: LockKey,
    token: Option<FencingToken>,
    global: Global,
) -> Result<i32, Failure> {
    let client = connect(&global).await?;
    if client.force_release(&key, token).await? {
        show::print(&if global.json {
            serde_json::json!({ "released": key }).to_string()
        } else {
            format!("lock {key} is released")
        });
        return Ok(0);
    }
    let holder = client.inspect(&key).await?.and_then(|info| info.holder);
    let (kind, message) = match (&holder, token) {
        (Some(holder), Some(token)) if holder.token != token => (
            Kind::OtherToken,
            format!(
                "lock {key} is not released: it is held with token {}, not {token}, by {}",
                holder.token, holder.asker
            ),
        ),
        _ => (Kind::NotHeld, format!("lock {key} is not held")),
    };
    Err(Failure::new(kind, message).about(&key, holder))
}

/// The manual page of distlock, or of one of its commands.
pub(crate) fn man(command: Option<&str>) -> Result<i32, Failure> {
    let mut program = Args::command();
    program.build();
    let page = match command {
        None => program,
        Some(name) => program
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| Failure::new(Kind::Usage, format!("there is no command {name}")))?,
    };
    clap_mangen::Man::new(page)
        .render(&mut io::stdout())
        .map_err(|why| Failure::new(Kind::Internal, format!("cannot write: {why}")))?;
    Ok(0)
}
