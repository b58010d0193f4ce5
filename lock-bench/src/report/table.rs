//! The figures as tables, the same for each format.

use std::collections::BTreeSet;

use super::summary;
use crate::{Kind, Metric, Record, Report, Scenario, record::FLOOR};

/// A title, a sentence, and rows of text.
pub(super) struct Table {
    pub(super) scenario: Option<Scenario>,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// The few figures that one asks for first, and who takes part; then one for each scenario and
/// metric; then what is missing.
pub(super) fn all(report: &Report) -> Vec<Table> {
    let mut tables = Vec::new();
    tables.extend(summary::others(report));
    tables.extend(summary::growth(report));
    tables.extend(features(report));
    let metrics: BTreeSet<(Scenario, Metric)> = report
        .records
        .iter()
        .map(|record| (record.scenario, record.metric))
        .collect();
    for (scenario, metric) in metrics {
        tables.push(figures(report, scenario, metric));
    }
    tables.extend(gaps(report));
    tables
}

fn features(report: &Report) -> Option<Table> {
    if report.features.is_empty() {
        return None;
    }
    let head = [
        "store",
        "contender",
        "a dead holder's lock ends",
        "order",
        "fencing token",
        "loss is told",
        "renewal",
        "connections",
        "waiting",
    ];
    let rows = report.features.iter().map(|row| {
        let features = row.features;
        let mut cells = vec![row.store.to_string(), row.contender.clone()];
        cells.extend(
            [
                features.expiry,
                features.order,
                features.token,
                features.loss,
                features.renewal,
                features.connections,
                features.waiting,
            ]
            .map(str::to_owned),
        );
        cells
    });
    Some(Table {
        scenario: None,
        title: "Who takes part".to_owned(),
        text: "What each gives besides speed; the floor is the bare store.".to_owned(),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    })
}

fn figures(report: &Report, scenario: Scenario, metric: Metric) -> Table {
    let records: Vec<&Record> = report
        .records
        .iter()
        .filter(|record| (record.scenario, record.metric) == (scenario, metric))
        .collect();
    let sizes: BTreeSet<usize> = records.iter().map(|record| record.tasks).collect();
    let who = who(records.iter().copied());
    let rows = who.iter().map(|(store, name)| {
        let mut row = vec![store.to_string(), (*name).to_owned()];
        row.extend(sizes.iter().map(|size| {
            let of = |record: &&&Record| {
                (record.store, record.contender.as_str(), record.tasks) == (*store, *name, *size)
            };
            records
                .iter()
                .find(of)
                .map_or_else(|| "–".to_owned(), |record| cell(record))
        }));
        row
    });
    let mut head = vec!["store".to_owned(), "contender".to_owned()];
    head.extend(
        sizes
            .iter()
            .map(|size| format!("{} {}", number(*size as f64), sized(scenario))),
    );
    Table {
        scenario: Some(scenario),
        title: format!("{}: {}", scenario.name(), metric.name()),
        text: format!("{} {}", what(scenario), means(metric)),
        head,
        rows: rows.collect(),
    }
}

/// Of each store distlock, then the floor, then the others by name.
pub(super) fn who<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<(Kind, &'a str)> {
    let mut who: Vec<_> = records
        .map(|record| (record.store, record.contender.as_str()))
        .collect();
    who.sort_by_key(|(store, name)| (*store, *name != "distlock", *name != FLOOR, *name));
    who.dedup();
    who
}

/// `median / 99th percentile (times the floor)`.
fn cell(record: &Record) -> String {
    let mut text = number(record.median);
    if let Some(p99) = record.p99 {
        text = format!("{text} / {}", number(p99));
    }
    if let Some(ratio) = record.ratio.filter(|_| record.contender != FLOOR) {
        text = format!("{text} ({}×)", number(ratio));
    }
    text
}

fn gaps(report: &Report) -> Option<Table> {
    if report.gaps.is_empty() {
        return None;
    }
    let rows = report.gaps.iter().map(|gap| {
        vec![
            gap.store.to_string(),
            gap.contender.clone(),
            format!("{}, {}", gap.scenario.name(), number(gap.tasks as f64)),
            gap.why.clone(),
        ]
    });
    Some(Table {
        scenario: None,
        title: "What is missing".to_owned(),
        text: "Figures that there are not, and why.".to_owned(),
        head: ["store", "contender", "scenario", "why"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    })
}

impl Table {
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("\n### {}\n\n{}\n\n", self.title, self.text);
        text.push_str(&line(&self.head));
        text.push_str(&line(&vec!["---".to_owned(); self.head.len()]));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

/// Three digits or so, thousands apart.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size < 1e-9 {
        return "0".to_owned();
    }
    if size < 100.0 && value.fract() != 0.0 {
        let places = if size < 1.0 {
            3
        } else if size < 10.0 {
            2
        } else {
            1
        };
        return format!("{value:.places$}");
    }
    let digits = format!("{size:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// What the number of tasks counts.
pub(super) fn sized(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Pairs | Scenario::Reentry => "task(s)",
        Scenario::Handover | Scenario::HandoverProcesses => "compete",
        Scenario::Death => "waiter",
        Scenario::Held | Scenario::Growth => "held",
        Scenario::Waiting => "waiting",
    }
}

fn what(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Pairs => "Tasks acquire and release, each its own key.",
        Scenario::Reentry => {
            "A holder enters its lock again, and leaves again; who is not here cannot."
        }
        Scenario::Handover => {
            "Tasks of one process compete for one key; the floor is one task alone, since the bare store has no waiters."
        }
        Scenario::HandoverProcesses => {
            "Four processes compete for one key; the floor is one task alone."
        }
        Scenario::Death => {
            "A holder with a lease of 2 s is killed 1 s after its grant, while somebody waits."
        }
        Scenario::Held => {
            "Locks with a lease of 6 s are held; the floor renews each with a request of its own every 2 s."
        }
        Scenario::Waiting => "Many wait for one lock that stays held.",
        Scenario::Growth => {
            "Locks with a lease of 30 s are held; the floor renews each with a request of its own every 10 s."
        }
    }
}

fn means(metric: Metric) -> &'static str {
    match metric {
        Metric::PairLatency => {
            "The time of a pair in µs: median / 99th percentile (times the floor's)."
        }
        Metric::PairsPerSecond => "Pairs a second, of all tasks (times the floor's).",
        Metric::ReentryLatency => "The time of both in µs: median / 99th percentile.",
        Metric::HandoverLatency => {
            "From just before a release to the grant of another in µs: median / 99th percentile (times the floor's release and acquire)."
        }
        Metric::HandoversPerSecond => {
            "How often in a second the lock changes its holder (times the floor's pairs)."
        }
        Metric::TurnsPerSecond => {
            "How often in a second it is granted, to the same task again included."
        }
        Metric::RequestsPerHandover => {
            "Requests that the store answered, for each time that the lock changed its holder."
        }
        Metric::DeathToGrant => "From its death to the next grant in ms: median / 99th percentile.",
        Metric::RequestsPerSecond => "Requests that the store answered in a second.",
        Metric::Connections => "Connections of the client.",
        Metric::ClientCpu => "Processor time of the client in ms a second.",
        Metric::ClientMemory => "Memory of the client that came with them in KiB.",
        Metric::CpuPerRenewal => {
            "Processor time of the client in µs, for each lock and third of its lease."
        }
        Metric::MemoryPerLock => "Memory of the client that came with each lock in bytes.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.1234, 1.5, 12.34, 7.0, 1234.5, 1_234_567.0, -4321.0].map(number);
        let expected = [
            "0",
            "0.123",
            "1.50",
            "12.3",
            "7",
            "1,234",
            "1,234,567",
            "-4,321",
        ];
        assert_eq!(texts, expected);
    }
}
