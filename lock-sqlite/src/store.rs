//! The verbs of the contract on the file.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use lock_core::{
    Attempt, Busy, Capabilities, Claim, DistributedLock, Durability, FencingToken, Finding, Grant,
    LockInfo, LockKey, LockPage, Page, Release, Renewal, StoreError, TokenSource, Ttl,
};
use sqlx::{
    Sqlite, query,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use crate::{
    SqliteLockBuilder,
    config::Settings,
    connection::{Connection, File},
    disk,
    error::foreign_value,
    health,
    queue::{HandleId, Waiters, waiters_of},
    rows::{self, Foreign, get},
    schema,
    statements::*,
};

/// Locks in one SQLite file, for the processes of one machine.
///
/// It needs a tokio runtime with time enabled where its futures are awaited. All handles of a
/// process on one file know each other's waiters, on whatever runtime they are.
///
/// It has one connection for what it changes and one for what it reads, whatever the number of
/// locks and waiters.
#[derive(Debug)]
pub struct SqliteLock {
    pub(crate) settings: Settings,
    pub(crate) writer: Connection,
    pub(crate) reader: Connection,
    pub(crate) waiters: Arc<Waiters>,
    handle: HandleId,
    file: File,
    capabilities: Capabilities,
    closed: AtomicBool,
}

impl Drop for SqliteLock {
    fn drop(&mut self) {
        self.waiters.forget(self.handle);
    }
}

/// How many grants there are on average between two parts of the sweep, and how long a part is.
const SWEEP_EVERY: u128 = 256;
const SWEEP_PART_LEN: i64 = 1024;
/// A waiter that has been silent for this long will not come back.
const FORGET_WAITER_MS: i64 = 60_000;
/// How often an attempt that finds its lock free after all begins again.
const ATTEMPTS: u32 = 4;

impl SqliteLock {
    /// Opens the store of a URL, see [`SqliteLockBuilder::from_url`].
    ///
    /// # Errors
    ///
    /// As [`SqliteLockBuilder::from_url`] and [`SqliteLockBuilder::open`].
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        SqliteLockBuilder::from_url(url)?.open().await
    }

    /// Opens the file at `path`, which is created when it is missing.
    ///
    /// # Errors
    ///
    /// As [`SqliteLockBuilder::open`].
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder(path).open().await
    }

    /// A store in the file at `path`, to change a setting before it is opened.
    pub fn builder(path: impl Into<PathBuf>) -> SqliteLockBuilder {
        SqliteLockBuilder::new(path)
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn claim_window(&self) -> i64 {
        self.settings.claim_window.as_millis() as i64
    }

    pub(crate) fn foreign(&self, why: Foreign) -> StoreError {
        foreign_value(&self.file.path, &why.0)
    }

    pub(crate) fn json(&self, list: &impl serde::Serialize) -> Result<String, StoreError> {
        serde_json::to_string(list)
            .map_err(|why| StoreError::permanent("cannot write JSON").with_source(why))
    }

    fn ttl(&self, claim: &Claim) -> Ttl {
        claim.ttl.max(self.capabilities.min_ttl)
    }

    async fn acquire(&self, claim: &Claim) -> Result<Option<Grant>, StoreError> {
        let ttl = self.ttl(claim);
        let answer = self
            .writer
            .row(with_asker(ACQUIRE, claim, ttl.as_millis() as i64))
            .await?;
        let Some(row) = answer else {
            return Ok(None);
        };
        if self.waiters.left(claim) {
            self.leave_queue(claim).await;
        }
        Ok(Some(Grant {
            token: rows::token(&row).map_err(|why| self.foreign(why))?,
            ttl,
            holds: get(&row, "holds").map_err(|why| self.foreign(why))?,
        }))
    }

    /// After the grant. Should it fail, the place is passed over as that of a dead waiter.
    async fn leave_queue(&self, claim: &Claim) {
        let statement = query(LEAVE_QUEUE)
            .bind(claim.key.as_str().to_owned())
            .bind(claim.hold.to_string());
        if let Err(error) = self.writer.rows(statement).await {
            tracing::warn!(%error, key = %claim.key, "a granted claim is still in the queue");
        }
    }

    async fn enqueue(&self, claim: &Claim) -> Result<(), StoreError> {
        self.waiters.joining(self.handle, claim);
        let answer = self
            .writer
            .row(with_asker(ENQUEUE, claim, self.claim_window()))
            .await?;
        if let Some(row) = answer {
            let seq = get(&row, "seq").map_err(|why| self.foreign(why))?;
            self.waiters.joined(self.handle, claim, seq);
        }
        Ok(())
    }

    async fn why_busy(&self, claim: &Claim) -> Result<Option<Busy>, StoreError> {
        let hold = claim.hold.to_string();
        let statement = query(WHY_BUSY)
            .bind(claim.key.as_str().to_owned())
            .bind(hold.clone());
        match self.reader.row(statement).await? {
            Some(row) => rows::busy(&row, claim.owner, &hold).map_err(|why| self.foreign(why)),
            None => Ok(None),
        }
    }

    /// Deletes locks that were not used for long, a part of the file at a time.
    ///
    /// Each step is safe by itself, and none has to happen.
    async fn sweep(&self) -> Result<(), StoreError> {
        let row = self
            .writer
            .row(query(SWEEP_PART).bind(SWEEP_PART_LEN))
            .await?;
        let Some(row) = row else {
            return Ok(());
        };
        let last: Option<String> = get(&row, "last").map_err(|why| self.foreign(why))?;
        let idle = self.settings.forget_after.as_millis() as i64;
        for statement in [SWEEP_TOKEN, SWEEP_LOCKS] {
            let statement = query(statement).bind(last.clone()).bind(idle);
            self.writer.rows(statement).await?;
        }
        self.writer.rows(query(SWEEP_ON).bind(last)).await?;
        let dead = query(SWEEP_WAITERS).bind(FORGET_WAITER_MS);
        self.writer.rows(dead).await?;
        Ok(())
    }

    /// Renews claims of different keys.
    async fn renew_distinct(&self, claims: &[&Claim]) -> Result<Vec<Renewal>, StoreError> {
        let asked: Vec<_> = claims
            .iter()
            .map(|claim| (&claim.key, claim.owner, claim.hold, self.ttl(claim)))
            .collect();
        let asked = self.json(&asked)?;
        let keys = |rows: Vec<SqliteRow>| -> Result<HashSet<String>, StoreError> {
            let keys = rows.iter().map(|row| get(row, "key"));
            keys.collect::<Result<_, _>>()
                .map_err(|why| self.foreign(why))
        };
        let renewed = keys(self.writer.rows(query(RENEW).bind(asked.clone())).await?)?;
        let taken_over = if renewed.len() == claims.len() {
            HashSet::new()
        } else {
            keys(self.reader.rows(query(TAKEN_OVER).bind(asked)).await?)?
        };
        Ok(claims
            .iter()
            .map(|claim| match claim.key.as_str() {
                key if renewed.contains(key) => Renewal::Renewed {
                    ttl: self.ttl(claim),
                },
                key => Renewal::Gone {
                    taken_over: taken_over.contains(key),
                },
            })
            .collect())
    }
}

pub(crate) async fn open(path: PathBuf, settings: Settings) -> Result<SqliteLock, StoreError> {
    let file = File::new(path, &settings);
    let connection = file.within_limit(schema::open(&file)).await?;
    let mut capabilities = Capabilities::new("sqlite", TokenSource::ServerClock, Durability::Disk);
    capabilities.warnings.extend(disk::warning(&file.path));
    Ok(SqliteLock {
        capabilities,
        settings,
        writer: Connection::open(file.clone(), connection),
        reader: Connection::unopened(file.clone()),
        waiters: waiters_of(&file.path, settings.claim_window),
        handle: HandleId::new(),
        file,
        closed: AtomicBool::new(false),
    })
}

fn with_asker(
    statement: &'static str,
    claim: &Claim,
    millis: i64,
) -> Query<'static, Sqlite, SqliteArguments> {
    query(statement)
        .bind(claim.key.as_str().to_owned())
        .bind(claim.owner.to_string())
        .bind(claim.hold.to_string())
        .bind(millis)
        .bind(claim.asker.label().map(str::to_owned))
        .bind(claim.asker.host().to_owned())
        .bind(claim.asker.pid())
}

#[async_trait]
impl DistributedLock for SqliteLock {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let mut busy = None;
        for _ in 0..ATTEMPTS {
            if let Some(grant) = self.acquire(claim).await? {
                return Ok(Attempt::Granted(grant));
            }
            if claim.queue {
                self.enqueue(claim).await?;
            }
            busy = self.why_busy(claim).await?;
            if busy.is_some() {
                break;
            }
        }
        Ok(Attempt::Busy(busy.unwrap_or_default()))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let answers = self.renew_distinct(&[claim]).await?;
        Ok(answers[0])
    }

    async fn release(&self, claim: &Claim) -> Result<Release, StoreError> {
        let key = || claim.key.as_str().to_owned();
        let queued = self.waiters.left(claim);
        let statement = query(RELEASE)
            .bind(key())
            .bind(claim.owner.to_string())
            .bind(claim.hold.to_string());
        let mut answer = Release::NotHeld;
        if let Some(row) = self.writer.row(statement).await? {
            let holds = get(&row, "holds").map_err(|why| self.foreign(why))?;
            let next: Option<i64> = get(&row, "next").map_err(|why| self.foreign(why))?;
            if let (0, Some(next)) = (holds, next) {
                self.waiters.tell(&claim.key, next);
            }
            answer = Release::Released { holds };
        }
        if queued || answer == Release::NotHeld {
            let statement = query(WITHDRAW)
                .bind(key())
                .bind(claim.hold.to_string())
                .bind(claim.owner.to_string());
            let withdrawn = self.writer.row(statement).await?.is_some();
            if withdrawn && answer == Release::NotHeld {
                self.waiters.look();
                answer = Release::Withdrawn;
            }
        }
        if claim.hold.as_u128().is_multiple_of(SWEEP_EVERY)
            && let Err(error) = self.sweep().await
        {
            tracing::debug!(%error, "cannot delete idle locks now");
        }
        Ok(answer)
    }

    async fn wait(&self, claim: &Claim, _busy: &Busy) {
        self.wait_for_turn(claim).await;
    }

    async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, StoreError>> {
        let mut answers: Vec<Option<Result<Renewal, StoreError>>> = Vec::new();
        answers.resize_with(claims.len(), || None);
        let mut left: Vec<usize> = (0..claims.len()).collect();
        while !left.is_empty() {
            let mut keys = HashSet::new();
            let (now, later): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|&&at| keys.insert(&claims[at].key));
            let batch: Vec<&Claim> = now.iter().map(|&at| &claims[at]).collect();
            match self.renew_distinct(&batch).await {
                Ok(renewals) => {
                    for (&at, renewal) in now.iter().zip(renewals) {
                        answers[at] = Some(Ok(renewal));
                    }
                }
                Err(why) => {
                    for &at in &now {
                        let copy = StoreError::new(why.kind(), why.to_string());
                        answers[at] = Some(Err(copy));
                    }
                }
            }
            left = later;
        }
        answers.into_iter().flatten().collect()
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>, StoreError> {
        let statement = query(INSPECT).bind(key.as_str().to_owned()).bind(1_i64);
        let rows = self.reader.rows(statement).await?;
        let infos = rows::infos(&rows).map_err(|why| self.foreign(why))?;
        Ok(infos.into_iter().next())
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<LockPage, StoreError> {
        let limit = page.limit.clamp(1, 100_000);
        let statement = query(LIST)
            .bind(prefix.to_owned())
            .bind(limit as i64 + 1)
            .bind(page.cursor.unwrap_or_default());
        let rows = self.reader.rows(statement).await?;
        let mut locks = rows::infos(&rows).map_err(|why| self.foreign(why))?;
        let mut next = None;
        if locks.len() > limit {
            locks.truncate(limit);
            next = locks.last().map(|last| last.key.as_str().to_owned());
        }
        Ok(LockPage { locks, next })
    }

    async fn force_release(
        &self,
        key: &LockKey,
        token: Option<FencingToken>,
    ) -> Result<bool, StoreError> {
        // A token that SQLite's integers cannot hold was never given.
        let token = token.map(|token| i64::try_from(token.as_u64()).unwrap_or(-1));
        let statement = query(FORCE_RELEASE)
            .bind(key.as_str().to_owned())
            .bind(token);
        let Some(row) = self.writer.row(statement).await? else {
            return Ok(false);
        };
        let next: Option<i64> = get(&row, "next").map_err(|why| self.foreign(why))?;
        if let Some(next) = next {
            self.waiters.tell(key, next);
        }
        Ok(true)
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        if self.is_closed() {
            return Err(StoreError::closed());
        }
        health::findings(&self.file, &self.reader).await
    }

    async fn dedicated(&self) -> Result<Arc<dyn DistributedLock>, StoreError> {
        if self.is_closed() {
            return Err(StoreError::closed());
        }
        Ok(Arc::new(
            open(self.file.path.to_path_buf(), self.settings).await?,
        ))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        self.waiters.forget(self.handle);
        let (writer, reader) = tokio::join!(self.writer.close(), self.reader.close());
        writer.and(reader)
    }
}
