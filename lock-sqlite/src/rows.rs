//! What the rows of an answer say.

use std::{sync::Arc, time::Duration};

use lock_core::{Asker, Busy, FencingToken, Holder, LockInfo, LockKey, OwnerId, Waiter};
use sqlx::{Decode, Row as _, Sqlite, Type, sqlite::SqliteRow};

/// A column whose value this crate did not write.
pub(crate) struct Foreign(pub(crate) String);

/// What stands between a claim and its lock; `None` when nothing does.
pub(crate) fn busy(row: &SqliteRow, asks: OwnerId, hold: &str) -> Result<Option<Busy>, Foreign> {
    let holder = holder(row)?;
    let first: Option<String> = get(row, "first_hold")?;
    let held_or_reserved = match &holder {
        Some(holder) => holder.owner != asks,
        None => first.as_deref().is_some_and(|first| first != hold),
    };
    if !held_or_reserved {
        return Ok(None);
    }
    let remaining = match &holder {
        Some(holder) => holder.remaining,
        None => until(row, "first_until")?,
    };
    let position: u32 = get(row, "position")?;
    Ok(Some(Busy {
        holder,
        remaining,
        position: (position > 0).then_some(position),
        queued: get(row, "queued")?,
    }))
}

/// The locks of rows that are ordered by key and place in the queue.
pub(crate) fn infos(rows: &[SqliteRow]) -> Result<Vec<LockInfo>, Foreign> {
    let mut infos: Vec<LockInfo> = Vec::new();
    for row in rows {
        let key: String = get(row, "key")?;
        if infos.last().is_none_or(|last| last.key.as_str() != key) {
            infos.push(LockInfo {
                key: LockKey::new(&key).map_err(|_| Foreign(format!("the key {key:?}")))?,
                holder: holder(row)?,
                waiters: Vec::new(),
            });
        }
        if let (Some(info), Some(waiter)) = (infos.last_mut(), waiter(row)?) {
            info.waiters.push(waiter);
        }
    }
    Ok(infos)
}

pub(crate) fn token(row: &SqliteRow) -> Result<FencingToken, Foreign> {
    let token: i64 = get(row, "token")?;
    u64::try_from(token)
        .ok()
        .and_then(FencingToken::new)
        .ok_or_else(|| Foreign(format!("the token {token}")))
}

/// A column of a type that its statement or its table makes sure of.
pub(crate) fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T, Foreign>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(column)
        .map_err(|why| Foreign(format!("column {column} ({why})")))
}

fn holder(row: &SqliteRow) -> Result<Option<Holder>, Foreign> {
    let left = until(row, "expires")?;
    let Some(owner) = get::<Option<String>>(row, "owner")? else {
        return Ok(None);
    };
    if left.is_zero() {
        return Ok(None);
    }
    Ok(Some(Holder {
        owner: id(&owner)?,
        asker: asker(row, "label", "host", "pid")?,
        token: token(row)?,
        holds: get(row, "holds")?,
        held_for: since(row, "since")?,
        // Without the millisecond that makes sure that it does not end early.
        remaining: left - Duration::from_millis(1),
    }))
}

fn waiter(row: &SqliteRow) -> Result<Option<Waiter>, Foreign> {
    let Some(owner) = get::<Option<String>>(row, "waiter")? else {
        return Ok(None);
    };
    Ok(Some(Waiter {
        owner: id(&owner)?,
        asker: asker(row, "waiter_label", "waiter_host", "waiter_pid")?,
        waiting_for: since(row, "waiter_since")?,
    }))
}

fn id(text: &str) -> Result<OwnerId, Foreign> {
    text.parse()
        .map_err(|_| Foreign(format!("the owner {text:?}")))
}

fn asker(row: &SqliteRow, label: &str, host: &str, pid: &str) -> Result<Arc<Asker>, Foreign> {
    let asker = Asker::new(get(row, label)?, get(row, host)?, get(row, pid)?);
    asker.map(Arc::new).map_err(|why| Foreign(why.to_string()))
}

fn until(row: &SqliteRow, column: &str) -> Result<Duration, Foreign> {
    Ok(millis(get::<i64>(row, column)? - get::<i64>(row, "now")?))
}

fn since(row: &SqliteRow, column: &str) -> Result<Duration, Foreign> {
    Ok(millis(get::<i64>(row, "now")? - get::<i64>(row, column)?))
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
