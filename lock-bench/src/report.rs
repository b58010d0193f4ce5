//! What people and scripts get.

mod html;
mod plot;
mod summary;
mod table;

use serde::Serialize;

use crate::{Error, Features, Kind, Metric, Record, Result, Scenario};

/// All figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// When it began, in UTC.
    pub date: String,
    /// How long it took, in seconds.
    pub took: u64,
    /// What it ran on.
    pub machine: String,
    /// Of the stores, the libraries and the compiler.
    pub versions: Vec<String>,
    /// Who took part, and what each gives.
    pub features: Vec<FeatureRow>,
    /// The figures.
    pub records: Vec<Record>,
    /// The times behind some of them.
    pub distributions: Vec<Distribution>,
    /// The figures that there are not, and why.
    pub gaps: Vec<Gap>,
}

/// Somebody who took part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureRow {
    /// On which store.
    pub store: Kind,
    /// Who.
    pub contender: String,
    /// What it gives.
    pub features: Features,
}

/// How long something took, of all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// On which store.
    pub store: Kind,
    /// Who.
    pub contender: String,
    /// What was done.
    pub scenario: Scenario,
    /// By how many.
    pub tasks: usize,
    /// What took so long.
    pub metric: Metric,
    /// Shares of all times, from 0 to 1, and what they do not exceed, in the metric's unit.
    pub points: Vec<(f64, f64)>,
}

/// A figure that there is not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// On which store.
    pub store: Kind,
    /// Whose.
    pub contender: String,
    /// What was to be done.
    pub scenario: Scenario,
    /// By how many.
    pub tasks: usize,
    /// Why it was not.
    pub why: String,
}

impl Report {
    /// The records, as one JSON array.
    ///
    /// # Errors
    ///
    /// When a figure cannot be written as JSON.
    pub fn json(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(&self.records);
        json.map_err(|why| Error::failed("the records", why))
    }

    /// A page that needs no scripts and no other file.
    ///
    /// # Errors
    ///
    /// When a plot cannot be drawn.
    pub fn html(&self) -> Result<String> {
        html::page(self)
    }

    /// Those that were measured.
    fn stores(&self) -> Vec<Kind> {
        let mut stores: Vec<_> = self.records.iter().map(|one| one.store).collect();
        stores.sort();
        stores.dedup();
        stores
    }

    /// The tables as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Measured {} in {} s on {}, with {}.\n",
            self.date,
            self.took,
            self.machine,
            self.versions.join(", ")
        );
        for table in table::all(self) {
            text.push_str(&table.markdown());
        }
        text
    }
}

/// Processor, cores and memory, where /proc tells, and the system.
pub(crate) fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let model =
        field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "a machine".to_owned());
    let memory = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or_else(String::new, |kib| {
            format!(", {:.0} GiB", kib / 1024.0 / 1024.0)
        });
    format!("{model}, {cores} cores{memory}, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::compare;

    fn record(contender: &str, tasks: usize, median: f64) -> Record {
        Record {
            store: Kind::Redis,
            contender: contender.to_owned(),
            scenario: Scenario::Pairs,
            tasks,
            metric: Metric::PairLatency,
            unit: Metric::PairLatency.unit().to_owned(),
            median,
            p99: Some(median * 2.0),
            rounds: 5,
            ratio: None,
            low: median,
            high: median,
        }
    }

    fn report() -> Report {
        let mut records = vec![
            record("a<b>|c", 1, 150.0),
            record("distlock", 1, 110.0),
            record("distlock", 16, 1234.0),
            record("floor", 1, 100.0),
            record("floor", 16, 1000.0),
        ];
        compare(&mut records);
        Report {
            date: "2030-01-02T03:04:05Z".to_owned(),
            records,
            distributions: vec![Distribution {
                store: Kind::Redis,
                contender: "distlock".to_owned(),
                scenario: Scenario::Pairs,
                tasks: 1,
                metric: Metric::PairLatency,
                points: vec![(0.5, 110.0), (0.99, 220.0)],
            }],
            gaps: vec![Gap {
                store: Kind::Postgres,
                contender: "advisory".to_owned(),
                scenario: Scenario::Held,
                tasks: 1000,
                why: "a connection each".to_owned(),
            }],
            ..Report::default()
        }
    }

    #[test]
    fn tables_begin_with_distlock_and_compare_with_the_floor() {
        let text = report().markdown();
        let pairs = text.split("### pairs").nth(1).expect("a table of pairs");
        let rows: Vec<_> = pairs
            .lines()
            .filter(|line| line.starts_with("| redis"))
            .collect();
        assert_eq!(
            rows,
            [
                "| redis | distlock | 110 / 220 (1.10×) | 1,234 / 2,468 (1.23×) |",
                "| redis | floor | 100 / 200 | 1,000 / 2,000 |",
                r"| redis | a<b>\|c | 150 / 300 (1.50×) | – |",
            ]
        );
        assert!(text.contains("| postgres | advisory | held, 1,000 | a connection each |"));
    }

    #[test]
    fn the_json_is_an_array_of_records() {
        let report = report();
        let read: Vec<Record> =
            serde_json::from_str(&report.json().expect("JSON")).expect("records");
        assert_eq!(read, report.records);
        let values: serde_json::Value =
            serde_json::from_str(&report.json().expect("JSON")).expect("values");
        assert_eq!(values[1]["metric"], "pair_latency");
        assert_eq!(values[1]["scenario"], "pairs");
        assert_eq!(values[1]["store"], "redis");
    }

    #[test]
    fn the_page_has_plots_and_names_cannot_break_it() {
        let page = report().html().expect("a page");
        assert!(page.contains("<svg") && page.contains("distlock"));
        assert!(!page.contains("<script") && !page.contains("a<b>"));
        assert!(Report::default().html().is_ok(), "nothing was measured");
    }
}
