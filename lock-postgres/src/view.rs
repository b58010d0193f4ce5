//! What an operator sees, read without changing anything.

use std::time::Duration;

use lock_core::{Holder, LockInfo, LockKey, OwnerId, Waiter};
use sqlx::{AssertSqlSafe, Row, postgres::PgRow};
use uuid::Uuid;

use crate::{
    connection::Session,
    request::{asker, micros, token},
    schema::Names,
};

/// Which locks to look at.
#[derive(Clone, Debug)]
pub(crate) enum View {
    Key(LockKey),
    /// Keys with this prefix, after `after`, at most `limit`.
    Prefix {
        prefix: String,
        after: String,
        limit: usize,
    },
}

/// The waiters that a look would show are those that an attempt would leave in the queue: not the
/// dead, and not those that let their time to claim pass.
const LOOK: &str = "
    SELECT l.key, l.token, cardinality(l.holds), l.owner, l.label, l.host, l.pid,
        (extract(epoch FROM c.t - l.since) * 1000000)::bigint,
        (extract(epoch FROM l.expires - c.t) * 1000000)::bigint,
        l.owner IS NOT NULL AND l.expires > c.t AS live,
        w.owners, w.labels, w.hosts, w.pids, w.waited
    FROM public.distlock_lock l
    CROSS JOIN (SELECT clock_timestamp() AS t OFFSET 0) c
    CROSS JOIN LATERAL (
        SELECT array_agg(q.owner ORDER BY q.place) AS owners,
            array_agg(q.label ORDER BY q.place) AS labels,
            array_agg(q.host ORDER BY q.place) AS hosts,
            array_agg(q.pid ORDER BY q.place) AS pids,
            array_agg((extract(epoch FROM c.t - q.since) * 1000000)::bigint ORDER BY q.place)
                AS waited
        FROM (
            SELECT q.* FROM public.distlock_queue q
            LEFT JOIN public.distlock_process p ON p.id = q.process
            WHERE l.waiters > 0 AND q.key = l.key
                AND (p.alive > c.t - interval '2 s'
                    OR pg_postmaster_start_time() > c.t - interval '4 s')
            ORDER BY q.place
            OFFSET CASE WHEN l.owner IS NOT NULL AND l.expires > c.t THEN 0
                ELSE greatest(0, 1 + floor(extract(epoch FROM c.t - coalesce(l.turn_until,
                    greatest(l.expires, pg_postmaster_start_time()) + interval '2 s')) / 2))
                END::bigint
        ) q
    ) w
    WHERE (l.owner IS NOT NULL AND l.expires > c.t OR w.owners IS NOT NULL)";

impl View {
    pub(crate) async fn find(
        &self,
        session: &mut Session,
        names: &Names,
    ) -> Result<Vec<LockInfo>, sqlx::Error> {
        let rows = match self {
            Self::Key(key) => {
                let sql = names.sql(&format!("{LOOK} AND l.key = $1"));
                let query = sqlx::query(AssertSqlSafe(sql)).bind(key.as_str());
                session.rows(query).await?
            }
            Self::Prefix {
                prefix,
                after,
                limit,
            } => {
                let sql = names.sql(&format!(
                    "{LOOK} AND l.key >= $1 AND l.key > $2 AND ($3 IS NULL OR l.key < $3)
                     ORDER BY l.key LIMIT $4"
                ));
                let query = sqlx::query(AssertSqlSafe(sql))
                    .bind(prefix)
                    .bind(after)
                    .bind(end_of(prefix))
                    .bind(i64::try_from(*limit).unwrap_or(i64::MAX));
                session.rows(query).await?
            }
        };
        rows.iter().map(info).collect()
    }
}

/// The first text after all those that start with `prefix`, in the order of the bytes.
fn end_of(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // Surrogates are no characters.
        let next = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

fn info(row: &PgRow) -> Result<LockInfo, sqlx::Error> {
    let key: String = row.try_get(0)?;
    let key = LockKey::new(key).map_err(|why| sqlx::Error::Decode(why.into()))?;
    let holder = match (row.try_get(9)?, row.try_get::<Option<Uuid>, _>(3)?) {
        (true, Some(owner)) => Some(Holder {
            owner: OwnerId::from_u128(owner.as_u128()),
            asker: asker(row.try_get(4)?, row.try_get(5)?, row.try_get(6)?)?,
            token: token(row.try_get(1)?)?,
            holds: row.try_get::<Option<i32>, _>(2)?.unwrap_or(0) as u32,
            held_for: micros(row.try_get(7)?),
            remaining: micros(row.try_get(8)?),
        }),
        _ => None,
    };
    let owners: Option<Vec<Uuid>> = row.try_get(10)?;
    let mut waiters = Vec::new();
    if let Some(owners) = owners {
        let labels: Vec<Option<String>> = row.try_get(11)?;
        let hosts: Vec<String> = row.try_get(12)?;
        let pids: Vec<i64> = row.try_get(13)?;
        let waited: Vec<i64> = row.try_get(14)?;
        let rest = labels.into_iter().zip(hosts).zip(pids).zip(waited);
        for (owner, (((label, host), pid), waited)) in owners.into_iter().zip(rest) {
            waiters.push(Waiter {
                owner: OwnerId::from_u128(owner.as_u128()),
                asker: asker(label, Some(host), Some(pid))?,
                waiting_for: Duration::from_micros(waited.max(0) as u64),
            });
        }
    }
    Ok(LockInfo {
        key,
        holder,
        waiters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(end_of(""), None);
        assert_eq!(end_of("a/"), Some("a0".to_owned()));
        assert_eq!(end_of("a\u{d7ff}"), Some("a\u{e000}".to_owned()));
        assert_eq!(end_of("a\u{10ffff}"), Some("b".to_owned()));
        assert_eq!(end_of("\u{10ffff}"), None);
    }
}
