-- One row per lock that was used lately. Times are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS locks (
    key     TEXT    NOT NULL PRIMARY KEY,
    token   INTEGER NOT NULL,                            -- of the last grant
    owner   TEXT    CHECK (length(owner) = 32),          -- NULL: free
    holds   TEXT    NOT NULL CHECK (length(holds) % 33 = 0), -- each id followed by a space
    label   TEXT,                                        -- who asked: name, host, process
    host    TEXT    NOT NULL,
    pid     INTEGER NOT NULL,
    since   INTEGER NOT NULL,                            -- begin of the last grant
    expires INTEGER NOT NULL                             -- end of the lease, or since when free
) STRICT, WITHOUT ROWID;

-- The queue of each lock, in the order of seq.
CREATE TABLE IF NOT EXISTS waiters (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    key         TEXT    NOT NULL,
    owner       TEXT    NOT NULL CHECK (length(owner) = 32),
    hold        TEXT    NOT NULL CHECK (length(hold) = 32),
    label       TEXT,
    host        TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    alive_until INTEGER NOT NULL,                        -- a waiter that is silent is passed over
    UNIQUE (key, hold)
) STRICT;

CREATE INDEX IF NOT EXISTS waiters_in_order ON waiters (key, seq);

-- The time. SQLite takes it once in a statement, after it has the write lock.
CREATE VIEW IF NOT EXISTS clock AS
SELECT CAST(unixepoch('now', 'subsec') * 1000 + 0.5 AS INTEGER) AS now;

-- No sign of life lasts for more than ten seconds: after the clock was set back, what it says about
-- the dead is in the far future.
CREATE VIEW IF NOT EXISTS live_waiters AS
SELECT * FROM waiters WHERE alive_until - (SELECT now FROM clock) BETWEEN 1 AND 10000;

-- One row: how far the sweep of idle locks is, and a token that none of those it deleted exceeds.
CREATE TABLE IF NOT EXISTS swept (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    token  INTEGER NOT NULL,
    cursor TEXT    NOT NULL
) STRICT;

INSERT OR IGNORE INTO swept VALUES (1, 0, '');
