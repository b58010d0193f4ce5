-- The tables and functions of distlock on Postgres 14 or newer, version 1.
--
-- `ensure_schema()` runs this file as it is; those who migrate by hand can do the same. For another
-- schema or another prefix replace `public.distlock_`, and ` distlock_` in the names of the indexes.
-- An application's role needs USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on the tables
-- and EXECUTE on the functions, which everybody has by default.

-- One row per key that is held or was held not long ago. A release frees the row in place: no
-- index covers a column that changes and the pages keep room, so every update is a HOT update.
CREATE TABLE IF NOT EXISTS public.distlock_lock (
    -- Compared by bytes, whatever the database's collation.
    -- Without lists of duplicates, which a backward scan would return oldest first (see run_v1).
    key        text COLLATE "C" PRIMARY KEY WITH (deduplicate_items = off),
    -- The fencing token of the last grant.
    token      bigint NOT NULL,
    -- NULL: nobody holds it.
    owner      uuid,
    holds      uuid[] NOT NULL,
    since      timestamptz NOT NULL,
    -- The end of the lease, or when the lock was given back.
    expires    timestamptz NOT NULL,
    label      text,
    host       text,
    pid        bigint,
    -- Rows of the queue with this key.
    waiters    integer NOT NULL DEFAULT 0,
    -- While the lock is free and somebody waits: who may claim it, and until when.
    turn       uuid,
    turn_until timestamptz
) WITH (
    fillfactor = 30,
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- Who waits, in the order of `place`. A row comes and goes with its lock's row locked.
CREATE TABLE IF NOT EXISTS public.distlock_queue (
    key     text COLLATE "C" NOT NULL,
    hold    uuid NOT NULL,
    place   bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    owner   uuid NOT NULL,
    process uuid NOT NULL,
    since   timestamptz NOT NULL,
    label   text,
    host    text NOT NULL,
    pid     bigint NOT NULL,
    PRIMARY KEY (key, hold)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX IF NOT EXISTS distlock_queue_order ON public.distlock_queue (key, place);
CREATE INDEX IF NOT EXISTS distlock_queue_process ON public.distlock_queue (process);

-- The processes that have waiters; a waiter lives as long as its process says so.
CREATE TABLE IF NOT EXISTS public.distlock_process (
    id    uuid PRIMARY KEY,
    alive timestamptz NOT NULL
) WITH (fillfactor = 30);

-- No later grant has a token as small as this: the largest token of the rows that were swept.
CREATE TABLE IF NOT EXISTS public.distlock_floor (
    id    boolean PRIMARY KEY DEFAULT true CHECK (id),
    token bigint NOT NULL
);
INSERT INTO public.distlock_floor (token) VALUES (0) ON CONFLICT DO NOTHING;

-- Tells a process that a waiter's turn has come. It is advice: no lock fails because of it.
CREATE OR REPLACE FUNCTION public.distlock_tell_v1(process uuid, hold uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('distlock_' || replace(process::text, '-', ''), hold::text);
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'distlock cannot notify: %', SQLERRM;
END
$$;

-- A batch of requests: the arrays have one element for each, and so has the answer, in the same
-- order. `beat` says that the process lives and asks whose turn it is; it comes last. `force` ends
-- the grant with the token in `ttls`, or any when it is NULL. `alone` says that no other request of
-- the batch has the same key. The caller sorts them by key, so that batches make rows in one order
-- and cannot deadlock. A row that another session has locked is not waited for: its request is
-- answered `locked`, nothing is done about it, and the others of the batch are not kept.
--
-- Every decision is taken with the lock's row locked and on a clock read after that. It relies on
-- READ COMMITTED, where each statement inside sees what was committed before it.
--
-- While an old transaction is open anywhere, no version of a row that was updated since can go, and
-- `key = k` would visit them all, from the oldest to the one that counts. So a row is looked up
-- from the newest version backwards (a range and ORDER BY … DESC, since for `=` the planner drops
-- the order), and once it is locked it is found by its place, the ctid.
CREATE OR REPLACE FUNCTION public.distlock_run_v1(
    me uuid, may_notify boolean,
    verbs text[], keys text[], owners uuid[], hold_ids uuid[], ttls bigint[],
    labels text[], hosts text[], pids bigint[], alone boolean[]
) RETURNS TABLE (
    answer text, r_token bigint, r_holds integer,
    r_owner uuid, r_label text, r_host text, r_pid bigint, held_us bigint, remaining_us bigint,
    place integer, queued integer, wake uuid[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- How long the first waiter has to claim a lock that became free, and how long a process may
    -- be silent before its waiters count as dead.
    span     CONSTANT interval := '2 s';
    floor    bigint;
    i        integer;
    verb     text;
    k        text COLLATE "C";
    o        uuid;
    h        uuid;
    l        record;
    spots    tid[];
    t        timestamptz;
    lease    timestamptz;
    live     boolean;
    mine     boolean;
    ends     boolean;
    dirty    boolean;
    locked   boolean;
    next     record;
    -- The tokens of the requests that were simple.
    simple   bigint[];
BEGIN
    SELECT token INTO floor FROM public.distlock_floor WHERE id;
    IF cardinality(keys) > 1 AND true = ANY (alone) THEN
        -- Most requests are simple: nobody waits and nobody else holds. They are done in three
        -- statements for all of them; first make the rows that are missing, ...
        INSERT INTO public.distlock_lock (key, token, holds, since, expires)
            SELECT r.key, 0, '{}', clock_timestamp(), clock_timestamp()
            FROM unnest(verbs, keys) r (verb, key)
            WHERE r.verb IN ('try', 'queue')
                AND (SELECT true FROM public.distlock_lock l
                    WHERE l.key >= r.key AND l.key <= r.key ORDER BY l.key DESC LIMIT 1) IS NULL
            ORDER BY r.key COLLATE "C"
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            SELECT token INTO floor FROM public.distlock_floor WHERE id;
        END IF;
        -- ... then lock those that nobody else has locked, ...
        SELECT array_agg(l.spot ORDER BY r.n) INTO spots
            FROM unnest(keys) WITH ORDINALITY r (key, n)
            LEFT JOIN LATERAL (
                SELECT l.ctid AS spot FROM public.distlock_lock l
                WHERE l.key >= r.key AND l.key <= r.key ORDER BY l.key DESC LIMIT 1
                FOR UPDATE SKIP LOCKED
            ) l ON true;
        t := clock_timestamp();
        -- ... then decide.
        FOR next IN
            UPDATE public.distlock_lock l SET
                token = CASE WHEN r.verb IN ('try', 'queue')
                    THEN greatest(l.token + 1, floor + 1, (extract(epoch FROM t) * 1000000)::bigint)
                    ELSE l.token END,
                owner = CASE r.verb WHEN 'release' THEN NULL ELSE r.owner END,
                holds = CASE r.verb WHEN 'release' THEN '{}' WHEN 'renew' THEN l.holds
                    ELSE ARRAY[r.hold] END,
                since = CASE WHEN r.verb IN ('try', 'queue') THEN t ELSE l.since END,
                expires = CASE r.verb WHEN 'release' THEN t
                    WHEN 'renew' THEN greatest(l.expires, t + r.ttl * interval '1 ms')
                    ELSE t + r.ttl * interval '1 ms' END,
                label = CASE r.verb WHEN 'release' THEN NULL WHEN 'renew' THEN l.label
                    ELSE r.label END,
                host = CASE r.verb WHEN 'release' THEN NULL WHEN 'renew' THEN l.host
                    ELSE r.host END,
                pid = CASE r.verb WHEN 'release' THEN NULL WHEN 'renew' THEN l.pid
                    ELSE r.pid END
            FROM unnest(spots, verbs, keys, owners, hold_ids, ttls, labels, hosts, pids, alone)
                WITH ORDINALITY r (spot, verb, key, owner, hold, ttl, label, host, pid, alone, n)
            WHERE l.ctid = r.spot AND l.key = r.key AND r.alone AND CASE r.verb
                WHEN 'renew' THEN
                    l.owner = r.owner AND l.expires > t AND r.hold = ANY (l.holds)
                WHEN 'release' THEN
                    l.owner = r.owner AND l.expires > t AND l.holds = ARRAY[r.hold]
                        AND l.waiters = 0
                ELSE CASE WHEN r.verb IN ('try', 'queue') AND l.waiters = 0
                        AND (l.owner IS NULL OR l.expires <= t)
                    THEN pg_try_advisory_xact_lock(
                        hashtextextended(l.key, 'public.distlock_lock'::regclass::oid::bigint))
                    ELSE false END
                END
            RETURNING r.n, l.token
        LOOP
            simple[next.n] := next.token;
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(keys) LOOP
        verb := verbs[i];
        IF simple[i] IS NOT NULL THEN
            answer := CASE verb WHEN 'release' THEN 'released' WHEN 'renew' THEN 'renewed'
                ELSE 'granted' END;
            r_token := simple[i];
            r_holds := CASE verb WHEN 'release' THEN 0 ELSE 1 END;
            wake := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;
        k := keys[i];
        o := owners[i];
        h := hold_ids[i];
        ends := false;
        dirty := false;
        r_token := NULL; r_holds := NULL; r_owner := NULL; r_label := NULL; r_host := NULL;
        r_pid := NULL; held_us := NULL; remaining_us := NULL; place := NULL; queued := NULL;
        wake := NULL;

        IF verb = 'beat' THEN
            -- The process lives. Which of its waiters should look: the first at each lock that
            -- is free, or all when the process was silent for so long that it may count as dead.
            SELECT alive > clock_timestamp() - span INTO live
                FROM public.distlock_process WHERE id = me FOR UPDATE;
            t := clock_timestamp();
            INSERT INTO public.distlock_process (id, alive) VALUES (me, t)
                ON CONFLICT (id) DO UPDATE SET alive = t;
            SELECT count(*), array_agg(hold) FILTER (WHERE NOT coalesce(live, false) OR looks)
                INTO queued, wake
                FROM (
                    SELECT q.hold,
                           (k.owner IS NULL OR k.expires <= t)
                               AND (k.turn IS NULL OR k.turn_until <= t OR k.turn = q.hold)
                               AND (k.turn = q.hold
                                    OR row_number() OVER (PARTITION BY q.key ORDER BY q.place) = 1)
                               AS looks
                        FROM public.distlock_queue q
                        JOIN public.distlock_lock k ON k.key = q.key
                        WHERE q.process = me
                ) own;
            answer := 'alive';
            RETURN NEXT;
            CONTINUE;
        END IF;

        -- Lock the row; an attempt makes it when it is missing.
        LOOP
            SELECT *, ctid AS spot INTO l FROM public.distlock_lock
                WHERE key >= k AND key <= k ORDER BY key DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
            EXIT WHEN FOUND;
            locked := EXISTS (SELECT FROM public.distlock_lock WHERE key = k);
            EXIT WHEN locked OR verb NOT IN ('try', 'queue');
            INSERT INTO public.distlock_lock (key, token, holds, since, expires)
                VALUES (k, 0, '{}', clock_timestamp(), clock_timestamp()) ON CONFLICT DO NOTHING;
            -- The sweeper may have raised it while it deleted this row.
            SELECT token INTO floor FROM public.distlock_floor WHERE id;
        END LOOP;
        IF l.key IS NULL AND locked THEN
            answer := 'locked';
            RETURN NEXT;
            CONTINUE;
        END IF;
        t := clock_timestamp();
        live := l.owner IS NOT NULL AND l.expires > t;
        mine := live AND l.owner = o;

        IF verb = 'release' THEN
            IF mine AND h = ANY (l.holds) THEN
                l.holds := array_remove(l.holds, h);
                r_holds := cardinality(l.holds);
                ends := r_holds = 0;
                dirty := true;
                answer := 'released';
            ELSE
                answer := 'not held';
                IF l.waiters > 0 THEN
                    DELETE FROM public.distlock_queue WHERE key = k AND hold = h AND owner = o;
                    IF FOUND THEN
                        answer := 'withdrawn';
                        l.waiters := l.waiters - 1;
                        dirty := true;
                        IF l.turn = h THEN
                            l.turn := NULL;
                            l.turn_until := NULL;
                            l.expires := t;
                        END IF;
                    END IF;
                END IF;
            END IF;
        ELSIF verb = 'renew' THEN
            IF mine AND h = ANY (l.holds) THEN
                l.expires := greatest(l.expires, t + ttls[i] * interval '1 ms');
                dirty := true;
                answer := 'renewed';
            ELSE
                answer := CASE WHEN live AND NOT mine THEN 'taken over' ELSE 'gone' END;
            END IF;
        ELSIF verb = 'force' THEN
            ends := live AND coalesce(l.token = ttls[i], true);
            answer := CASE WHEN ends THEN 'released' ELSE 'not held' END;
        END IF;
        IF ends THEN
            live := false;
            l.owner := NULL;
            l.holds := '{}';
            l.label := NULL;
            l.host := NULL;
            l.pid := NULL;
            l.expires := t;
            dirty := true;
        END IF;

        -- The lock is free and somebody waits: see to it that it is a live waiter's turn.
        IF NOT live AND l.waiters > 0 THEN
            IF l.turn IS NULL THEN
                l.turn_until := greatest(l.expires, pg_postmaster_start_time()) + span;
            END IF;
            LOOP
                SELECT q.hold, q.process,
                       coalesce(p.alive > t - span, false)
                           OR pg_postmaster_start_time() > t - 2 * span AS alive
                    INTO next
                    FROM public.distlock_queue q
                    LEFT JOIN public.distlock_process p ON p.id = q.process
                    WHERE q.key = k ORDER BY q.place LIMIT 1;
                IF NOT FOUND THEN
                    l.waiters := 0;
                    l.turn := NULL;
                    l.turn_until := NULL;
                    dirty := true;
                    EXIT;
                END IF;
                EXIT WHEN next.alive AND l.turn_until > t;
                DELETE FROM public.distlock_queue WHERE key = k AND hold = next.hold;
                l.waiters := l.waiters - 1;
                l.turn_until := CASE WHEN next.alive THEN l.turn_until ELSE t END + span;
                dirty := true;
            END LOOP;
            IF l.waiters > 0 AND next.hold IS DISTINCT FROM l.turn THEN
                l.turn := next.hold;
                dirty := true;
                IF next.process = me THEN
                    wake := array_append(wake, next.hold);
                ELSIF may_notify THEN
                    PERFORM public.distlock_tell_v1(next.process, next.hold);
                END IF;
            END IF;
        END IF;

        IF verb IN ('try', 'queue') THEN
            -- A transaction that relies on this lock has its advisory lock (see verify_in and
            -- lock_in_transaction); then it cannot change hands.
            IF mine OR NOT live AND (l.waiters = 0 OR l.turn = h) AND pg_try_advisory_xact_lock(
                hashtextextended(k, 'public.distlock_lock'::regclass::oid::bigint))
            THEN
                lease := t + ttls[i] * interval '1 ms';
                IF mine THEN
                    IF NOT h = ANY (l.holds) THEN
                        l.holds := array_append(l.holds, h);
                    END IF;
                    l.expires := greatest(l.expires, lease);
                ELSE
                    l.token := greatest(
                        l.token + 1, floor + 1, (extract(epoch FROM t) * 1000000)::bigint);
                    l.owner := o;
                    l.holds := ARRAY[h];
                    l.since := t;
                    l.expires := lease;
                    l.label := labels[i];
                    l.host := hosts[i];
                    l.pid := pids[i];
                    l.turn := NULL;
                    l.turn_until := NULL;
                END IF;
                dirty := true;
                IF l.waiters > 0 THEN
                    DELETE FROM public.distlock_queue WHERE key = k AND hold = h;
                    IF FOUND THEN
                        l.waiters := l.waiters - 1;
                        -- The owner's other claims in the queue may enter at once.
                        FOR next IN
                            SELECT hold, process FROM public.distlock_queue
                                WHERE key = k AND owner = o
                        LOOP
                            IF next.process = me THEN
                                wake := array_append(wake, next.hold);
                            ELSIF may_notify THEN
                                PERFORM public.distlock_tell_v1(next.process, next.hold);
                            END IF;
                        END LOOP;
                    END IF;
                END IF;
                answer := 'granted';
                r_token := l.token;
                r_holds := cardinality(l.holds);
            ELSE
                answer := 'busy';
                IF verb = 'queue' THEN
                    INSERT INTO public.distlock_queue
                            (key, hold, owner, process, since, label, host, pid)
                        VALUES (k, h, o, me, t, labels[i], hosts[i], pids[i])
                        ON CONFLICT DO NOTHING;
                    IF FOUND THEN
                        l.waiters := l.waiters + 1;
                        place := l.waiters;
                        dirty := true;
                        INSERT INTO public.distlock_process AS p (id, alive) VALUES (me, t)
                            ON CONFLICT (id) DO UPDATE SET alive = excluded.alive
                            WHERE p.alive < excluded.alive - interval '500 ms';
                    END IF;
                END IF;
                IF place IS NULL AND l.waiters > 0 THEN
                    SELECT count(*) INTO place FROM public.distlock_queue q
                        JOIN public.distlock_queue own ON own.key = q.key AND q.place <= own.place
                        WHERE own.key = k AND own.hold = h;
                    place := nullif(place, 0);
                END IF;
                queued := l.waiters;
                IF live THEN
                    r_token := l.token;
                    r_holds := cardinality(l.holds);
                    r_owner := l.owner;
                    r_label := l.label;
                    r_host := l.host;
                    r_pid := l.pid;
                    held_us := (extract(epoch FROM t - l.since) * 1000000)::bigint;
                    remaining_us := (extract(epoch FROM l.expires - t) * 1000000)::bigint;
                ELSIF l.waiters = 0 OR l.turn IS NULL OR l.turn = h THEN
                    -- It is free but for a transaction, whose end nobody announces.
                    remaining_us := 100000;
                    IF l.waiters > 0 AND place = 1 THEN
                        l.turn := h;
                        l.turn_until := t + span;
                        dirty := true;
                    END IF;
                ELSE
                    remaining_us := (extract(epoch FROM l.turn_until - t) * 1000000)::bigint;
                END IF;
            END IF;
        END IF;

        IF dirty THEN
            UPDATE public.distlock_lock SET
                token = l.token, owner = l.owner, holds = l.holds, since = l.since,
                expires = l.expires, label = l.label, host = l.host, pid = l.pid,
                waiters = l.waiters, turn = l.turn, turn_until = l.turn_until
                WHERE ctid = l.spot;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
