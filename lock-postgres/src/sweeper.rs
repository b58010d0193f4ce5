//! The sweeper: forgets rows that nobody uses any more. Nothing depends on it but the table's size.

use std::time::Duration;

use lock_core::{Asker, Claim, HoldId, LockKey, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, Row};

use crate::{
    connection::Session,
    metrics,
    request::{Request, Verb},
    schema::Names,
};

/// How many rows one step looks at.
const STEP: i64 = 1000;

/// Walks over the table in the order of the keys, a small step at a time.
#[derive(Clone, Debug)]
pub(crate) struct Sweeper {
    interval: Duration,
    keep_idle: Duration,
    /// The last key it has looked at; `None` at the start of a round.
    after: Option<String>,
    swept: u64,
}

/// Steps over the rows after `$1`, deletes those that were free for `$2` seconds, and raises the
/// floor of the tokens in the same transaction. The DELETE repeats the test with the row locked;
/// a row that somebody has locked is in use and skipped.
const SWEEP: &str = "
    WITH page AS (
        SELECT key FROM public.distlock_lock WHERE key > $1 ORDER BY key LIMIT $3
    ), idle AS (
        SELECT l.key FROM public.distlock_lock l JOIN page USING (key)
        WHERE l.waiters = 0 AND l.expires < clock_timestamp() - $2 * interval '1 s'
        FOR UPDATE OF l SKIP LOCKED
    ), swept AS (
        DELETE FROM public.distlock_lock l USING idle
        WHERE l.key = idle.key AND l.waiters = 0
            AND l.expires < clock_timestamp() - $2 * interval '1 s'
        RETURNING l.token
    ), floor AS (
        UPDATE public.distlock_floor f SET token = greatest(f.token, swept.token)
        FROM (SELECT max(token) AS token FROM swept) swept WHERE swept.token IS NOT NULL
    ), silent AS (
        DELETE FROM public.distlock_process WHERE id IN (
            SELECT p.id FROM public.distlock_process p
            WHERE p.alive < clock_timestamp() - greatest($2, 60) * interval '1 s'
                AND NOT EXISTS (SELECT FROM public.distlock_queue q WHERE q.process = p.id)
            FOR UPDATE SKIP LOCKED)
    )
    SELECT (SELECT count(*) FROM swept), (SELECT count(*) FROM page), (SELECT max(key) FROM page),
        ARRAY(SELECT l.key FROM public.distlock_lock l JOIN page USING (key)
            WHERE l.waiters > 0 AND l.expires < clock_timestamp() - $2 * interval '1 s' LIMIT 100)";

impl Sweeper {
    pub(crate) fn new(interval: Duration, keep_idle: Duration) -> Self {
        Self {
            interval,
            keep_idle,
            after: None,
            swept: 0,
        }
    }

    /// The time to the next step: the interval, give or take a quarter, between rounds, and a
    /// moment within one.
    pub(crate) fn pause(&self) -> Duration {
        let pause = match self.after {
            None => self.interval,
            Some(_) => self.interval.min(Duration::from_millis(20)),
        };
        pause.mul_f64(rand::random_range(0.75..1.25))
    }

    /// One step. Returns requests that see to locks whose waiters have all died.
    pub(crate) async fn step(
        &mut self,
        session: &mut Session,
        names: &Names,
    ) -> Result<Vec<Request>, sqlx::Error> {
        let query = sqlx::query(AssertSqlSafe(names.sql(SWEEP)))
            .bind(self.after.clone().unwrap_or_default())
            .bind(self.keep_idle.as_secs_f64())
            .bind(STEP);
        let rows = session.rows(query).await?;
        let Some(row) = rows.first() else {
            return Ok(Vec::new());
        };
        let (swept, seen): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        self.swept += swept as u64;
        metrics::swept(swept as u64);
        self.after = if seen < STEP { None } else { row.try_get(2)? };
        if self.after.is_none() && self.swept > 0 {
            tracing::info!(rows = self.swept, "swept locks that were idle");
            self.swept = 0;
        }
        let stuck: Vec<String> = row.try_get(3)?;
        Ok(stuck.iter().filter_map(|key| nudge(key)).collect())
    }
}

/// A release of nothing: it changes nothing but passes on the turns of dead waiters.
fn nudge(key: &str) -> Option<Request> {
    let claim = Claim {
        key: LockKey::new(key).ok()?,
        owner: OwnerId::random(),
        hold: HoldId::random(),
        ttl: Ttl::MAX,
        queue: false,
        asker: Asker::this_process(None).ok()?.into(),
    };
    Some(Request::new(Verb::Release, claim))
}
