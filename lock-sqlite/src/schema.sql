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

-- One row: how far the sweep of idle locks is, and a token that none of those it deleted exceeds.
CREATE TABLE IF NOT EXISTS swept (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    token  INTEGER NOT NULL,
    cursor TEXT    NOT NULL
) STRICT;

INSERT OR IGNORE INTO swept VALUES (1, 0, '');
