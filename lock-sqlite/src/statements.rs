//! Every statement of the store; each is atomic and complete by itself, so that no transaction
//! is ever open while this process does something else.
//!
//! `clock` and `live_waiters` are views of `schema.sql`. A lease gets one millisecond more than
//! asked for, because the fraction that the clock cuts off would otherwise end it early.

/// `?1` key, `?2` owner, `?3` hold, `?4` ttl, `?5` label, `?6` host, `?7` pid. No row: busy.
///
/// Whoever holds the lock enters again; anybody else needs it free, with no live waiter ahead.
pub(crate) const ACQUIRE: &str = "
    INSERT INTO locks (key, token, owner, holds, label, host, pid, since, expires)
    VALUES (?1, max((SELECT now FROM clock) * 1000, (SELECT token + 1 FROM swept)),
            ?2, ?3 || ' ', ?5, ?6, ?7,
            (SELECT now FROM clock), (SELECT now FROM clock) + ?4 + 1)
    ON CONFLICT (key) DO UPDATE SET
      token = iif(owner = ?2 AND expires > excluded.since,
                  token, max(token + 1, excluded.token)),
      owner = ?2,
      holds = iif(owner = ?2 AND expires > excluded.since,
                  iif(instr(holds, ?3), holds, holds || excluded.holds), excluded.holds),
      label = iif(owner = ?2 AND expires > excluded.since, label, ?5),
      host = iif(owner = ?2 AND expires > excluded.since, host, ?6),
      pid = iif(owner = ?2 AND expires > excluded.since, pid, ?7),
      since = iif(owner = ?2 AND expires > excluded.since, since, excluded.since),
      expires = iif(owner = ?2 AND expires > excluded.since,
                    max(expires, excluded.expires), excluded.expires)
    WHERE owner = ?2 AND expires > excluded.since
       OR (owner IS NULL OR expires <= excluded.since)
      AND ifnull((SELECT hold FROM live_waiters WHERE key = ?1 ORDER BY seq LIMIT 1), ?3) = ?3
    RETURNING token, length(holds) / 33 AS holds";

/// `?1` key, `?2` owner, `?3` hold, `?4` claim window, `?5` label, `?6` host, `?7` pid.
///
/// A claim that is in the queue keeps its place. Without a row of the lock there is no queue.
pub(crate) const ENQUEUE: &str = "
    INSERT INTO waiters (key, owner, hold, label, host, pid, since, alive_until)
    SELECT ?1, ?2, ?3, ?5, ?6, ?7, now, now + ?4 FROM locks, clock WHERE key = ?1
    ON CONFLICT (key, hold) DO UPDATE SET alive_until = excluded.alive_until
    RETURNING seq";

/// `?1` key, `?2` hold.
pub(crate) const LEAVE_QUEUE: &str = "DELETE FROM waiters WHERE key = ?1 AND hold = ?2";

/// `?1` key, `?2` hold, `?3` owner. A row: it was in the queue.
pub(crate) const WITHDRAW: &str =
    "DELETE FROM waiters WHERE key = ?1 AND hold = ?2 AND owner = ?3 RETURNING seq";

/// `?1` key, `?2` hold. What stands between a claim and its lock.
pub(crate) const WHY_BUSY: &str = "
    SELECT now, l.token, l.owner, length(l.holds) / 33 AS holds, l.label, l.host, l.pid, l.since,
           l.expires, first.hold AS first_hold, first.alive_until AS first_until,
           (SELECT count(*) FROM live_waiters AS w WHERE w.key = ?1) AS queued,
           (SELECT count(*) FROM live_waiters AS w WHERE w.key = ?1 AND w.seq <= own.seq)
             AS position
    FROM clock CROSS JOIN locks AS l
    LEFT JOIN waiters AS own ON own.key = ?1 AND own.hold = ?2
    LEFT JOIN waiters AS first ON first.seq =
      (SELECT seq FROM live_waiters WHERE key = ?1 ORDER BY seq LIMIT 1)
    WHERE l.key = ?1";

/// `?1` is a JSON array of `[key, owner, hold, ttl]`, no key twice. A row for each that is live.
pub(crate) const RENEW: &str = "
    UPDATE locks SET expires = max(expires, (SELECT now FROM clock) + asked.ttl + 1)
    FROM (SELECT value ->> 0 AS key, value ->> 1 AS owner, value ->> 2 AS hold,
                 value ->> 3 AS ttl FROM json_each(?1)) AS asked
    WHERE locks.key = asked.key AND locks.owner = asked.owner
      AND instr(locks.holds, asked.hold) AND locks.expires > (SELECT now FROM clock)
    RETURNING key";

/// `?1` as for [`RENEW`]. A row for each key that another owner holds.
pub(crate) const TAKEN_OVER: &str = "
    SELECT locks.key FROM json_each(?1) AS asked
    CROSS JOIN locks ON locks.key = asked.value ->> 0
    WHERE locks.owner <> asked.value ->> 1 AND locks.expires > (SELECT now FROM clock)";

/// `?1` key, `?2` owner, `?3` hold. The lock's row stays, free in place. No row: not held.
pub(crate) const RELEASE: &str = "
    UPDATE locks SET
      owner = iif(length(holds) = 33, NULL, owner),
      holds = replace(holds, ?3 || ' ', ''),
      expires = iif(length(holds) = 33, (SELECT now FROM clock), expires)
    WHERE key = ?1 AND owner = ?2 AND instr(holds, ?3) AND expires > (SELECT now FROM clock)
    RETURNING length(holds) / 33 AS holds,
      (SELECT seq FROM live_waiters WHERE key = ?1 ORDER BY seq LIMIT 1) AS next";

/// `?1` key, `?2` token or NULL. A row: a grant was ended.
pub(crate) const FORCE_RELEASE: &str = "
    UPDATE locks SET owner = NULL, holds = '', expires = (SELECT now FROM clock)
    WHERE key = ?1 AND owner IS NOT NULL AND expires > (SELECT now FROM clock)
      AND (?2 IS NULL OR token = ?2)
    RETURNING (SELECT seq FROM live_waiters WHERE key = ?1 ORDER BY seq LIMIT 1) AS next";

macro_rules! select_info {
    ($which:literal) => {
        concat!(
            "
    SELECT now, l.key, l.token, l.owner, length(l.holds) / 33 AS holds, l.label, l.host, l.pid,
           l.since, l.expires, w.owner AS waiter, w.label AS waiter_label, w.host AS waiter_host,
           w.pid AS waiter_pid, w.since AS waiter_since
    FROM clock CROSS JOIN
      (SELECT * FROM locks WHERE ",
            $which,
            "
         AND (owner IS NOT NULL AND expires > (SELECT now FROM clock)
              OR EXISTS (SELECT 1 FROM live_waiters WHERE live_waiters.key = locks.key))
       ORDER BY key LIMIT ?2) AS l
    LEFT JOIN live_waiters AS w ON w.key = l.key
    ORDER BY l.key, w.seq"
        )
    };
}

/// `?1` key, `?2` is 1. A row for each waiter, or one without.
pub(crate) const INSPECT: &str = select_info!("key = ?1");

/// `?1` prefix, `?2` limit, `?3` the key to go on after. Byte 255 is above every byte of UTF-8.
pub(crate) const LIST: &str =
    select_info!("key >= ?1 AND key < ?1 || CAST(x'ff' AS TEXT) AND key > ?3");

/// Changes when any other connection, of this process too, has committed.
pub(crate) const FILE_VERSION: &str = "PRAGMA data_version";

/// `?1` is a JSON array of keys. Whose turn it is, or when that may change.
pub(crate) const WHOSE_TURN: &str = "
    SELECT now, asked.value AS key, l.owner, l.expires, first.seq, first.alive_until
    FROM clock CROSS JOIN json_each(?1) AS asked
    LEFT JOIN locks AS l ON l.key = asked.value
    LEFT JOIN waiters AS first ON first.seq =
      (SELECT seq FROM live_waiters WHERE key = asked.value ORDER BY seq LIMIT 1)";

/// `?1` is a JSON array of places in the queue, `?2` the claim window. A row for each that is
/// still there.
pub(crate) const STAY_ALIVE: &str = "
    UPDATE waiters SET alive_until = (SELECT now FROM clock) + ?2
    WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING seq";

/// The next part of the locks, `?1` of them, to look for idle ones: its last key.
pub(crate) const SWEEP_PART: &str = "
    SELECT max(key) AS last FROM
      (SELECT key FROM locks WHERE key > (SELECT cursor FROM swept) ORDER BY key LIMIT ?1)";

/// `?1` last key of the part, `?2` how long idle. Later grants get tokens above what goes.
pub(crate) const SWEEP_TOKEN: &str = "
    UPDATE swept SET token = max(token, ifnull(
      (SELECT max(locks.token) FROM locks WHERE locks.key > cursor AND locks.key <= ?1
         AND locks.expires <= (SELECT now FROM clock) - ?2), 0))";

/// `?1` last key of the part, `?2` how long idle. Only what the step before has accounted for.
pub(crate) const SWEEP_LOCKS: &str = "
    DELETE FROM locks WHERE key > (SELECT cursor FROM swept) AND key <= ?1
      AND expires <= (SELECT now FROM clock) - ?2
      AND token <= (SELECT swept.token FROM swept)
      AND NOT EXISTS (SELECT 1 FROM waiters WHERE waiters.key = locks.key)";

/// `?1` last key of the part; NULL begins again.
pub(crate) const SWEEP_ON: &str = "UPDATE swept SET cursor = ifnull(?1, '')";

/// `?1` how long dead.
pub(crate) const SWEEP_WAITERS: &str =
    "DELETE FROM waiters WHERE alive_until <= (SELECT now FROM clock) - ?1";
