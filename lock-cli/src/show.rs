//! What is printed on stdout: tables for people, JSON for programs.

use std::{
    io::{self, Write},
    time::Duration,
};

use comfy_table::{Table, presets};
use distlock::{FencingToken, LockInfo, LockKey, OwnerId, Severity};
use serde::Serialize;

use crate::doctor::Report;

/// A lock that was just taken.
#[derive(Debug, Serialize)]
pub(crate) struct Taken {
    pub(crate) key: LockKey,
    pub(crate) token: FencingToken,
    pub(crate) owner: OwnerId,
    pub(crate) holds: u32,
    pub(crate) ttl_ms: u64,
}

pub(crate) fn taken(taken: &Taken) -> String {
    let mut table = columns();
    let ttl = Duration::from_millis(taken.ttl_ms);
    table.add_row(["lock", taken.key.as_str()]);
    table.add_row(["token", &taken.token.to_string()]);
    table.add_row(["owner", &taken.owner.to_string()]);
    table.add_row(["held for", &rounded(ttl)]);
    text(&table)
}

pub(crate) fn lock(info: &LockInfo) -> String {
    let mut table = columns();
    table.add_row(["lock", info.key.as_str()]);
    match &info.holder {
        Some(holder) => {
            table.add_row(["holder", &holder.asker.to_string()]);
            table.add_row(["owner", &holder.owner.to_string()]);
            table.add_row(["token", &holder.token.to_string()]);
            table.add_row(["holds", &holder.holds.to_string()]);
            table.add_row(["held for", &rounded(holder.held_for)]);
            table.add_row(["lease left", &rounded(holder.remaining)]);
        }
        None if info.waiters.is_empty() => drop(table.add_row(["holder", "nobody"])),
        None => drop(table.add_row(["holder", "on its way to the first waiter"])),
    }
    for (place, waiter) in (1..).zip(&info.waiters) {
        let waits = format!("{}, for {}", waiter.asker, rounded(waiter.waiting_for));
        table.add_row([format!("waiter {place}"), waits]);
    }
    text(&table)
}

pub(crate) fn locks(locks: &[LockInfo]) -> String {
    if locks.is_empty() {
        return "no locks".into();
    }
    let mut table = columns();
    table.set_header([
        "LOCK",
        "HOLDER",
        "TOKEN",
        "HELD FOR",
        "LEASE LEFT",
        "WAITERS",
    ]);
    for info in locks {
        let waiters = info.waiters.len().to_string();
        let key = info.key.to_string();
        match &info.holder {
            Some(holder) => table.add_row([
                key,
                holder.asker.to_string(),
                holder.token.to_string(),
                rounded(holder.held_for),
                rounded(holder.remaining),
                waiters,
            ]),
            None => table.add_row([key, "-".into(), "-".into(), "-".into(), "-".into(), waiters]),
        };
    }
    text(&table)
}

/// A line for each finding, and one below for what it means.
pub(crate) fn report(report: &Report) -> String {
    let mut table = columns();
    for finding in &report.findings {
        let severity = severity(finding.severity);
        table.add_row([severity, finding.subject, &finding.what]);
        if !finding.meaning.is_empty() {
            table.add_row(["", "", &format!("=> {}", finding.meaning)]);
        }
    }
    let count = |severity| {
        let findings = report.findings.iter();
        findings
            .filter(|finding| finding.severity == severity)
            .count()
    };
    format!(
        "{}\n\n{}: {} failures, {} warnings, {} notes",
        text(&table),
        report.store,
        count(Severity::Failure),
        count(Severity::Warning),
        count(Severity::Note)
    )
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Note => "note",
        Severity::Warning => "WARNING",
        _ => "FAILURE",
    }
}

/// A table without lines; long cells are not wrapped, so that it can be cut and searched.
fn columns() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// The table as text, without the margin that cells have on both sides.
fn text(table: &Table) -> String {
    let lines: Vec<_> = table.lines().collect();
    let trimmed = lines
        .iter()
        .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
    trimmed.collect::<Vec<_>>().join("\n")
}

/// For people: whole seconds, or milliseconds below one second.
pub(crate) fn rounded(duration: Duration) -> String {
    let millis = Duration::from_millis(duration.as_millis() as u64);
    let seconds = Duration::from_secs(duration.as_secs());
    let shown = if seconds.is_zero() { millis } else { seconds };
    humantime::format_duration(shown).to_string()
}

/// Writes a result to stdout; a reader that has gone does not matter.
pub(crate) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
