//! What an operator sees.

use std::ops::Range;

use etcd_client::{GetOptions, KeyValue};
use futures_util::future::try_join_all;
use lock_core::{LockInfo, LockKey, LockPage, Page, StoreError};

use crate::{error::foreign, handle::Handle, record::Entry};

pub(crate) async fn inspect(
    handle: &Handle,
    key: &LockKey,
) -> Result<Option<LockInfo>, StoreError> {
    let lock = handle.shared.names.lock(key);
    let end = end_of(&lock);
    let (kvs, _) = read(handle, lock..end, 0).await?;
    if kvs.is_empty() {
        return Ok(None);
    }
    info(handle, key.clone(), &kvs).await.map(Some)
}

pub(crate) async fn list(
    handle: &Handle,
    prefix: &str,
    page: Page,
) -> Result<LockPage, StoreError> {
    let names = &handle.shared.names;
    let start = names.locks(prefix);
    let end = end_of(&start);
    let limit = page.limit.clamp(1, 10_000);
    // Nothing outside of the prefix, whatever the cursor is.
    let from = page.cursor.unwrap_or_default().max(start);
    if from >= end {
        return Ok(LockPage::default());
    }
    let (mut kvs, more) = read(handle, from..end.clone(), limit.max(50) * 2).await?;
    let end_of_page = kvs.last().filter(|_| more).and_then(|kv| kv.key_str().ok());
    let end_of_page = end_of_page.map(|key| format!("{key}\0"));
    // What is not of a lock is none of ours.
    let is_ours = |kv: &KeyValue| names.read(kv.key()).is_some();
    kvs.retain(is_ours);
    let lock_of = |kv: &KeyValue| match names.read(kv.key()) {
        Some(lock) => Ok(lock),
        None => Err(foreign(kv.key())),
    };
    let mut rest = end_of_page;
    if more && let Some(last) = kvs.last() {
        let last = lock_of(last)?;
        let lock = names.lock(&last);
        kvs.retain(|kv| !kv.key().starts_with(lock.as_bytes()));
        if kvs.is_empty() {
            // One lock with more waiters than a page has keys.
            let end = end_of(&lock);
            kvs = read(handle, lock..end.clone(), 0).await?.0;
            kvs.retain(is_ours);
            rest = Some(end);
        } else {
            rest = Some(lock);
        }
    }
    let mut locks: Vec<(LockKey, Vec<KeyValue>)> = Vec::new();
    for kv in kvs {
        let lock = lock_of(&kv)?;
        match locks.last_mut() {
            Some((last, kvs)) if *last == lock => kvs.push(kv),
            _ => locks.push((lock, vec![kv])),
        }
    }
    if let Some((cut, _)) = locks.get(limit) {
        rest = Some(names.lock(cut));
        locks.truncate(limit);
    }
    let infos = locks
        .into_iter()
        .map(async |(lock, kvs)| info(handle, lock, &kvs).await);
    Ok(LockPage {
        locks: try_join_all(infos).await?,
        next: rest,
    })
}

async fn info(handle: &Handle, key: LockKey, kvs: &[KeyValue]) -> Result<LockInfo, StoreError> {
    let names = &handle.shared.names;
    let mut entries = kvs
        .iter()
        .map(|kv| names.entry(kv))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable_by_key(|entry| entry.created);
    let mut entries = entries.into_iter();
    let holder = match entries.next() {
        Some(first) => Some(first.holder(handle.remaining(first.lease).await)?),
        None => None,
    };
    let waiters = entries.as_slice().iter().map(Entry::waiter).collect();
    Ok(LockInfo {
        key,
        holder,
        waiters,
    })
}

/// Keys in their order, `limit` at most unless it is 0, and whether there are more.
async fn read(
    handle: &Handle,
    range: Range<String>,
    limit: usize,
) -> Result<(Vec<KeyValue>, bool), StoreError> {
    let response = handle.connection.call(|client| {
        let mut kv = client.kv_client();
        let Range { start, end } = range.clone();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        async move {
            let options = GetOptions::new().with_range(end).with_limit(limit);
            kv.get(start, Some(options)).await
        }
    });
    let mut response = response.await?;
    let more = response.more();
    Ok((response.take_kvs(), more))
}

/// The first text after all that begin with `start`. The bytes of our names leave room for it:
/// none ends with the largest character there is.
fn end_of(start: &str) -> String {
    let mut end = start.to_owned();
    while let Some(last) = end.pop() {
        let next = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            break;
        }
    }
    end
}
