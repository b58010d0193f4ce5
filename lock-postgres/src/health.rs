//! How the server is set up, and what that weakens.

use std::time::{Duration, SystemTime};

use lock_core::{Capabilities, Durability, Finding, Severity, StoreError};
use sqlx::{AssertSqlSafe, Row};

use crate::{
    connection::{Connector, ServerFacts, Session},
    error::store_error,
};

/// What a program is told.
pub(crate) fn capabilities(
    mut basic: Capabilities,
    facts: &ServerFacts,
    polls: bool,
) -> Capabilities {
    if facts.waits_for_standbys() {
        basic.durability = Durability::Replicated;
    }
    if !facts.fsync || facts.synchronous_commit == "off" {
        basic.durability = Durability::Volatile;
    }
    let findings = [waiters(polls)].into_iter().chain(durability(facts));
    let warnings = findings.filter(|finding| finding.severity >= Severity::Warning);
    basic.warnings = warnings.map(|finding| finding.to_string()).collect();
    basic
}

/// Everything there is to say to an operator, with a connection of its own.
///
/// # Errors
///
/// When the server cannot be reached, or lacks the tables.
pub(crate) async fn findings(
    connector: &Connector,
    polls: bool,
) -> Result<Vec<Finding>, StoreError> {
    let mut session = connector.connect().await?;
    let mut findings = vec![version(&mut session).await?];
    findings.extend(durability(&session.facts));
    if findings
        .iter()
        .all(|finding| finding.subject != "persistence")
    {
        let what = "what is granted is on disk before it is answered";
        findings.push(Finding::ok("persistence", what));
    }
    findings.extend(standbys(&mut session).await?);
    findings.push(clock(&mut session).await?);
    findings.push(rights(connector, &mut session).await?);
    findings.push(match connector.is_pooled() {
        true => Finding::note(
            "pooler",
            "a pooler in transaction mode is in between",
            "each request is a transaction of its own, which costs some time and no guarantee",
        ),
        false => Finding::ok("pooler", "no pooler in transaction mode is in between"),
    });
    findings.push(waiters(polls));
    Ok(findings)
}

impl ServerFacts {
    fn waits_for_standbys(&self) -> bool {
        self.synchronous_standbys
            && matches!(self.synchronous_commit.as_str(), "on" | "remote_apply")
    }
}

/// What weakens the guarantees after a crash or a fail-over.
fn durability(facts: &ServerFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut warn = |subject, what, meaning| findings.push(Finding::warning(subject, what, meaning));
    if !facts.fsync {
        warn(
            "persistence",
            "fsync is off",
            "a crash of the server's machine may lose locks and damage the tables",
        );
    }
    if !facts.full_page_writes {
        warn(
            "persistence",
            "full_page_writes is off",
            "a crash of the server's machine may damage the tables",
        );
    }
    if facts.synchronous_commit == "off" {
        warn(
            "persistence",
            "synchronous_commit is off",
            "a crash of the server may lose the locks of its last moments",
        );
    } else if facts.synchronous_standbys && !facts.waits_for_standbys() {
        warn(
            "replication",
            "synchronous_commit does not wait for the standbys",
            "a fail-over may lose locks",
        );
    }
    findings
}

fn waiters(polls: bool) -> Finding {
    match polls {
        true => Finding::warning(
            "waiters",
            "waiters poll, since notifications do not come through",
            "they start up to one poll_interval later; set listen_url",
        ),
        false => Finding::ok("waiters", "waiters are told when it is their turn"),
    }
}

async fn version(session: &mut Session) -> Result<Finding, StoreError> {
    let row = one(session, "SELECT current_setting('server_version')").await?;
    let number = one(
        session,
        "SELECT current_setting('server_version_num')::integer",
    )
    .await?;
    let version: String = row.try_get(0).map_err(store_error)?;
    let number: i32 = number.try_get(0).map_err(store_error)?;
    let what = format!("the server is Postgres {version}");
    Ok(match number {
        140_000..140_004 => Finding::note(
            "version",
            what,
            "before 14.4 an index that was made or rebuilt CONCURRENTLY may miss rows; do not \
             rebuild those of the lock tables so, and update",
        ),
        _ => Finding::ok("version", what),
    })
}

/// Who follows this server, as far as the role may see it.
async fn standbys(session: &mut Session) -> Result<Option<Finding>, StoreError> {
    let row = one(
        session,
        "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))
         FROM pg_stat_replication",
    )
    .await?;
    let all: i64 = row.try_get(0).map_err(store_error)?;
    let synchronous: i64 = row.try_get(1).map_err(store_error)?;
    Ok(match (all, synchronous) {
        (0, _) => None,
        (_, 0) => Some(Finding::warning(
            "replication",
            format!("replication is asynchronous, to {all}"),
            "a fail-over may lose the locks of the last moments: two holders until the older \
             one's next renewal",
        )),
        _ if session.facts.waits_for_standbys() => Some(Finding::ok(
            "replication",
            format!(
                "{synchronous} of {all} standbys are synchronous; a fail-over to one keeps every lock"
            ),
        )),
        _ => None, // `durability` has said that nobody waits for them
    })
}

async fn clock(session: &mut Session) -> Result<Finding, StoreError> {
    let sent = SystemTime::now();
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let row = one(session, sql).await?;
    let answered = SystemTime::now();
    let micros: i64 = row.try_get(0).map_err(store_error)?;
    let since = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
    Ok(Finding::clock(
        SystemTime::UNIX_EPOCH + since,
        sent,
        answered,
    ))
}

/// Whether the role may do what the functions do, which run with its rights.
async fn rights(connector: &Connector, session: &mut Session) -> Result<Finding, StoreError> {
    let sql = connector.names.sql(
        "SELECT current_user::text, coalesce(string_agg(\"right\" || ' on ' || \"table\", ', ')
            FILTER (WHERE NOT has_table_privilege(\"table\", \"right\")), '')
         FROM (SELECT t.name AS \"table\", r.name AS \"right\"
               FROM unnest(ARRAY['public.distlock_lock', 'public.distlock_queue',
                    'public.distlock_process']) AS t (name),
                    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r (name)
               UNION ALL SELECT 'public.distlock_floor', 'SELECT') AS needed",
    );
    let row = one(session, &sql).await?;
    let role: String = row.try_get(0).map_err(store_error)?;
    let missing: String = row.try_get(1).map_err(store_error)?;
    if missing.is_empty() {
        let what = format!("the role {role} may read and write the tables");
        return Ok(Finding::ok("rights", what));
    }
    Ok(Finding::failure(
        "rights",
        format!("the role {role} lacks {missing}"),
        "locks can be looked at, if at all, but not taken",
    ))
}

async fn one(session: &mut Session, sql: &str) -> Result<sqlx::postgres::PgRow, StoreError> {
    let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    let row = session.rows(query).await.map_err(store_error)?.pop();
    row.ok_or_else(|| StoreError::permanent("the server gave no row"))
}
