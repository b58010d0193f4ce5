//! Every statement of the store; each is atomic and complete by itself, so that no transaction
//! is ever open while this process does something else.
//!
//! Times are milliseconds since 1970 by SQLite's own clock. SQLite evaluates `now` once in a
//! statement, after it has the write lock. A lease gets one millisecond more than asked for,
//! because the fraction that the clock cuts off would otherwise end it early.

macro_rules! now {
    () => {
        "CAST(unixepoch('now', 'subsec') * 1000 + 0.5 AS INTEGER)"
    };
}

/// The first live waiter of lock `?1`.
macro_rules! first_waiter {
    () => {
        concat!(
            "(SELECT seq FROM waiters WHERE key = ?1 AND alive_until > ",
            now!(),
            " ORDER BY seq LIMIT 1)"
        )
    };
}

/// The claim holds the lock already; inside `ON CONFLICT`, where `excluded.since` is now.
macro_rules! mine {
    () => {
        "owner = excluded.owner AND expires > excluded.since"
    };
}

/// `?1` key, `?2` owner, `?3` hold, `?4` ttl, `?5` label, `?6` host, `?7` pid. No row: busy.
pub(crate) const ACQUIRE: &str = concat!(
    "INSERT INTO locks (key, token, owner, holds, label, host, pid, since, expires) VALUES
       (?1, max(",
    now!(),
    " * 1000, (SELECT token + 1 FROM swept)),
        ?2, ?3 || ' ', ?5, ?6, ?7, ",
    now!(),
    ", ",
    now!(),
    " + ?4 + 1)
     ON CONFLICT (key) DO UPDATE SET
       token = iif(",
    mine!(),
    ", token, max(token + 1, excluded.token)),
       owner = excluded.owner,
       holds = iif(",
    mine!(),
    ",
                   iif(instr(holds, ?3), holds, holds || excluded.holds), excluded.holds),
       label = iif(",
    mine!(),
    ", label, excluded.label),
       host = iif(",
    mine!(),
    ", host, excluded.host),
       pid = iif(",
    mine!(),
    ", pid, excluded.pid),
       since = iif(",
    mine!(),
    ", since, excluded.since),
       expires = iif(",
    mine!(),
    ", max(expires, excluded.expires), excluded.expires)
     WHERE ",
    mine!(),
    "
        OR (owner IS NULL OR expires <= excluded.since)
       AND NOT EXISTS (
         SELECT 1 FROM waiters AS ahead
         WHERE ahead.key = ?1 AND ahead.alive_until > ",
    now!(),
    " AND ahead.seq <
           ifnull((SELECT seq FROM waiters AS own WHERE own.key = ?1 AND own.hold = ?3),
                  9223372036854775807))
     RETURNING token, length(holds) / 33,
       EXISTS (SELECT 1 FROM waiters WHERE waiters.key = ?1 AND waiters.hold = ?3)"
);

/// `?1` key, `?2` owner, `?3` hold, `?4` claim window, `?5` label, `?6` host, `?7` pid.
///
/// A claim that is in the queue keeps its place. Without a row of the lock there is no queue.
pub(crate) const ENQUEUE: &str = concat!(
    "INSERT INTO waiters (key, owner, hold, label, host, pid, since, alive_until)
     SELECT ?1, ?2, ?3, ?5, ?6, ?7, ",
    now!(),
    ", ",
    now!(),
    " + ?4
     FROM locks WHERE key = ?1
     ON CONFLICT (key, hold) DO UPDATE SET alive_until = excluded.alive_until
     RETURNING seq"
);

/// `?1` key, `?2` hold.
pub(crate) const LEAVE_QUEUE: &str = "DELETE FROM waiters WHERE key = ?1 AND hold = ?2";

/// `?1` key, `?2` hold, `?3` owner. A row: it was in the queue.
pub(crate) const WITHDRAW: &str =
    "DELETE FROM waiters WHERE key = ?1 AND hold = ?2 AND owner = ?3 RETURNING seq";

/// `?1` key, `?2` hold, `?3` owner. What stands between a claim and its lock; no row: nothing.
pub(crate) const WHY_BUSY: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, l.token, l.owner, length(l.holds) / 33 AS holds, l.label, l.host,
            l.pid, l.since, l.expires,
            (SELECT count(*) FROM waiters AS w WHERE w.key = l.key AND w.alive_until > ",
    now!(),
    ")
              AS queued,
            (SELECT count(*) FROM waiters AS w WHERE w.key = l.key AND w.alive_until > ",
    now!(),
    "
               AND w.seq <= own.seq) AS position,
            first.hold AS first_hold, first.alive_until AS first_until
     FROM locks AS l
     LEFT JOIN waiters AS own ON own.key = l.key AND own.hold = ?2
     LEFT JOIN waiters AS first ON first.seq = ",
    first_waiter!(),
    "
     WHERE l.key = ?1"
);

/// `?1` is a JSON array of `[key, owner, hold, ttl]`, no key twice. A row for each that is live.
pub(crate) const RENEW: &str = concat!(
    "UPDATE locks SET expires = max(expires, ",
    now!(),
    " + asked.ttl + 1)
     FROM (SELECT value ->> 0 AS key, value ->> 1 AS owner, value ->> 2 AS hold,
                  value ->> 3 AS ttl FROM json_each(?1)) AS asked
     WHERE locks.key = asked.key AND locks.owner = asked.owner
       AND instr(locks.holds, asked.hold) AND locks.expires > ",
    now!(),
    "
     RETURNING key"
);

/// `?1` as for [`RENEW`]. A row for each key that another owner holds.
pub(crate) const TAKEN_OVER: &str = concat!(
    "SELECT locks.key FROM json_each(?1) AS asked
     CROSS JOIN locks ON locks.key = asked.value ->> 0
     WHERE locks.owner <> asked.value ->> 1 AND locks.expires > ",
    now!()
);

/// `?1` key, `?2` owner, `?3` hold. The lock's row stays, free in place. No row: not held.
pub(crate) const RELEASE: &str = concat!(
    "UPDATE locks SET
       owner = iif(length(holds) = 33, NULL, owner),
       holds = replace(holds, ?3 || ' ', ''),
       expires = iif(length(holds) = 33, ",
    now!(),
    ", expires)
     WHERE key = ?1 AND owner = ?2 AND instr(holds, ?3) AND expires > ",
    now!(),
    "
     RETURNING length(holds) / 33, ",
    first_waiter!()
);

/// `?1` key, `?2` token or NULL. A row: a grant was ended.
pub(crate) const FORCE_RELEASE: &str = concat!(
    "UPDATE locks SET owner = NULL, holds = '', expires = ",
    now!(),
    "
     WHERE key = ?1 AND owner IS NOT NULL AND expires > ",
    now!(),
    "
       AND (?2 IS NULL OR token = ?2)
     RETURNING ",
    first_waiter!()
);

macro_rules! select_info {
    ($which:expr) => {
        concat!(
            "SELECT ",
            now!(),
            " AS now, l.key, l.token, l.owner, length(l.holds) / 33 AS holds,
                    l.label, l.host, l.pid, l.since, l.expires, w.owner AS waiter,
                    w.label AS waiter_label, w.host AS waiter_host, w.pid AS waiter_pid,
                    w.since AS waiter_since
             FROM (SELECT * FROM locks WHERE ",
            $which,
            "
                   AND (owner IS NOT NULL AND expires > ",
            now!(),
            " OR EXISTS
                        (SELECT 1 FROM waiters
                         WHERE waiters.key = locks.key AND alive_until > ",
            now!(),
            "))
                   ORDER BY key LIMIT ?2) AS l
             LEFT JOIN waiters AS w ON w.key = l.key AND w.alive_until > ",
            now!(),
            "
             ORDER BY l.key, w.seq"
        )
    };
}

/// `?1` key, `?2` is 1.
pub(crate) const INSPECT: &str = select_info!("key = ?1");

/// `?1` prefix, `?2` limit, `?3` the key to go on after. Byte 255 is above every byte of UTF-8.
pub(crate) const LIST: &str =
    select_info!("key >= ?1 AND key < ?1 || CAST(x'ff' AS TEXT) AND key > ?3");

/// Changes when any other connection, of this process too, has committed.
pub(crate) const FILE_VERSION: &str = "PRAGMA data_version";

/// `?1` is a JSON array of keys. Whose turn it is, or when that may change.
pub(crate) const WHOSE_TURN: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, asked.value AS key, l.owner, l.expires, first.seq,
            first.alive_until
     FROM json_each(?1) AS asked
     LEFT JOIN locks AS l ON l.key = asked.value
     LEFT JOIN waiters AS first ON first.seq =
       (SELECT seq FROM waiters WHERE key = asked.value AND alive_until > ",
    now!(),
    "
        ORDER BY seq LIMIT 1)"
);

/// `?1` is a JSON array of places in the queue, `?2` the claim window. A row for each that is
/// still there.
pub(crate) const STAY_ALIVE: &str = concat!(
    "UPDATE waiters SET alive_until = ",
    now!(),
    " + ?2
     WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING seq"
);

/// The next part of the locks, `?1` of them, to look for idle ones: its last key.
pub(crate) const SWEEP_PART: &str = "SELECT max(key) FROM
     (SELECT key FROM locks WHERE key > (SELECT cursor FROM swept) ORDER BY key LIMIT ?1)";

/// `?1` last key of the part, `?2` how long idle. Later grants get tokens above what goes.
pub(crate) const SWEEP_TOKEN: &str = concat!(
    "UPDATE swept SET token = max(token, ifnull(
       (SELECT max(locks.token) FROM locks WHERE locks.key > cursor AND locks.key <= ?1
          AND locks.expires <= ",
    now!(),
    " - ?2), 0))"
);

/// `?1` last key of the part, `?2` how long idle. Only what the step before has accounted for.
pub(crate) const SWEEP_LOCKS: &str = concat!(
    "DELETE FROM locks WHERE key > (SELECT cursor FROM swept) AND key <= ?1
       AND expires <= ",
    now!(),
    " - ?2 AND token <= (SELECT swept.token FROM swept)
       AND NOT EXISTS (SELECT 1 FROM waiters WHERE waiters.key = locks.key)"
);

/// `?1` last key of the part; NULL begins again.
pub(crate) const SWEEP_ON: &str = "UPDATE swept SET cursor = ifnull(?1, '')";

/// `?1` how long dead.
pub(crate) const SWEEP_WAITERS: &str =
    concat!("DELETE FROM waiters WHERE alive_until <= ", now!(), " - ?1");
