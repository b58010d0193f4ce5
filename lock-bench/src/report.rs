//! What people and scripts get.

mod html;
mod plot;
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

/// Processor, cores, memory and system, where /proc tells.
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
    let system = format!(
        "{} {}",
        std::env::consts::OS,
        read("/proc/sys/kernel/osrelease").trim()
    );
    format!("{model}, {cores} cores{memory}, {}", system.trim())
}
