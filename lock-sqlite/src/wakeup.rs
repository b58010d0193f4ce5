//! Waiting for a turn: one waiter of the process looks at the file for all of them.
//!
//! It asks for the file's version every few milliseconds, which reads no table. Only after a
//! change it asks whose turn it is, and wakes that waiter alone. All of it is done by the futures
//! that wait; there is no background task.

use std::time::{Duration, Instant};

use lock_core::{Claim, OwnerId, StoreError};
use sqlx::query;

use crate::{
    SqliteLock,
    queue::{Role, TAKE_OVER},
    rows::get,
    statements::{FILE_VERSION, STAY_ALIVE, WHOSE_TURN},
};

/// What the leader knows of the file.
#[derive(Default)]
struct Seen {
    version: Option<i64>,
    /// When the end of a lease or of a silent waiter changes whose turn it is.
    next_change: Option<Instant>,
}

impl SqliteLock {
    pub(crate) async fn wait_for_turn(&self, claim: &Claim) {
        let Some(watch) = self.waiters.watch(claim) else {
            return;
        };
        let mut seen = Seen::default();
        while !self.is_closed() {
            let pause = match watch.role() {
                Role::Done => return,
                Role::Follow => TAKE_OVER,
                Role::Lead => self.look_for_all(&mut seen).await,
            };
            let _ = tokio::time::timeout(pause, watch.turn.notified()).await;
        }
    }

    /// Returns how long to pause. A file that cannot be read now is looked at later: the callers
    /// have timers of their own.
    async fn look_for_all(&self, seen: &mut Seen) -> Duration {
        let began = Instant::now();
        let looked = match self.give_sign_of_life().await {
            Ok(()) => self.look(seen).await,
            Err(why) => Err(why),
        };
        if let Err(error) = looked {
            tracing::debug!(%error, "cannot look for the next waiter");
            *seen = Seen::default();
            return TAKE_OVER / 4;
        }
        let pause = self.settings.poll_interval;
        let pause = match seen.next_change {
            Some(at) => pause.min(at.saturating_duration_since(Instant::now())),
            None => pause,
        };
        // At most a fifth of the time, however many locks there are to look at.
        pause.max((began.elapsed() * 4).min(TAKE_OVER / 4))
    }

    async fn give_sign_of_life(&self) -> Result<(), StoreError> {
        let Some(places) = self.waiters.beat_if_due(Instant::now()) else {
            return Ok(());
        };
        if places.is_empty() {
            return Ok(());
        }
        let rows = self
            .writer
            .rows(
                query(STAY_ALIVE)
                    .bind(self.json(&places)?)
                    .bind(self.claim_window()),
            )
            .await?;
        let there = rows.iter().map(|row| get(row, "seq"));
        let there: Vec<i64> = there
            .collect::<Result<_, _>>()
            .map_err(|w| self.foreign(w))?;
        self.waiters.have_beaten(&places, &there);
        Ok(())
    }

    async fn look(&self, seen: &mut Seen) -> Result<(), StoreError> {
        let version = self.reader.row(query(FILE_VERSION)).await?;
        let version = match &version {
            Some(row) => Some(get(row, "data_version").map_err(|why| self.foreign(why))?),
            None => None,
        };
        let changed = version != seen.version;
        let due = seen.next_change.is_some_and(|at| at <= Instant::now());
        if !self.waiters.take_look() && !changed && !due {
            return Ok(());
        }
        seen.version = version;
        seen.next_change = None;
        let keys = self.waiters.keys();
        if keys.is_empty() {
            return Ok(());
        }
        let read_at = Instant::now();
        for row in self
            .reader
            .rows(query(WHOSE_TURN).bind(self.json(&keys)?))
            .await?
        {
            let change = self.tell(&row).map_err(|why| self.foreign(why))?;
            if let Some(change) = change {
                let at = read_at + change;
                seen.next_change = Some(seen.next_change.map_or(at, |other| other.min(at)));
            }
        }
        Ok(())
    }

    /// Wakes whose turn it is for the lock of a row, or returns in how long that may change.
    fn tell(
        &self,
        row: &sqlx::sqlite::SqliteRow,
    ) -> Result<Option<Duration>, crate::rows::Foreign> {
        let key: String = get(row, "key")?;
        let Ok(key) = key.parse() else {
            return Ok(None);
        };
        let now: i64 = get(row, "now")?;
        let in_millis = |at: i64| Duration::from_millis(u64::try_from(at - now).unwrap_or(0) + 1);
        let Some(expires) = get::<Option<i64>>(row, "expires")? else {
            self.waiters.tell_all(&key);
            return Ok(None);
        };
        let owner: Option<String> = get(row, "owner")?;
        if let Some(owner) = owner
            && expires > now
        {
            if let Ok(owner) = owner.parse::<OwnerId>() {
                self.waiters.tell_owner(&key, owner);
            }
            return Ok(Some(in_millis(expires)));
        }
        let (Some(seq), Some(alive_until)) = (get(row, "seq")?, get(row, "alive_until")?) else {
            return Ok(None);
        };
        if self.waiters.tell(&key, seq) {
            return Ok(None);
        }
        Ok(Some(in_millis(alive_until)))
    }
}
