//! A whole run.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;
use uuid::Uuid;

use crate::{
    Args, Error, Kind, Plan, Report, Result, Roster, Target,
    plan::LONG,
    probe::Probe,
    record::compare,
    report::{FeatureRow, machine},
    scenario::{Ring, Sheet},
    worker::runtime,
};

/// A run that is ready to start: its options have been checked.
#[derive(Debug)]
pub struct Bench {
    stores: Vec<(Kind, String)>,
    plan: Plan,
    outputs: Outputs,
    roster: Roster,
    versions: Vec<String>,
    /// Deleted with it.
    _folder: TempDir,
}

/// Where the results go.
#[derive(Clone, Debug)]
pub struct Outputs {
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    markdown: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// All figures.
    pub report: Report,
    /// Whether it went to a file; if not, somebody has to print it.
    pub is_written: bool,
}

impl Bench {
    /// Checks the options. Without a store among them it measures `private` ones, given as URLs,
    /// and those that need no server.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an option that cannot be used, [`Error::Output`] for a file that
    /// cannot be written. Nothing has been measured then.
    pub fn new(args: &Args, roster: Roster, private: impl FnOnce() -> Vec<String>) -> Result<Self> {
        let mut stores = args.stores()?;
        let outputs = Outputs::of(args)?;
        let folder = tempfile::tempdir().map_err(|why| Error::failed("a folder", why))?;
        if stores.is_empty() {
            stores.push((Kind::Memory, "memory:".to_owned()));
            if cfg!(feature = "sqlite") {
                let path = folder.path().join("locks.db");
                stores.push((Kind::Sqlite, format!("sqlite://{}", path.display())));
            }
            for url in private() {
                stores.push((Kind::of(&url)?, url));
            }
        }
        Ok(Self {
            stores,
            plan: args.plan(),
            outputs,
            roster,
            versions: vec![format!("distlock {}", env!("CARGO_PKG_VERSION"))],
            _folder: folder,
        })
    }

    /// Tells the report of more versions, such as `library 1.2`.
    pub fn with_versions(mut self, versions: impl IntoIterator<Item = String>) -> Self {
        self.versions.extend(versions);
        self
    }

    /// Measures, and writes the files.
    ///
    /// # Errors
    ///
    /// When a store cannot be reached, the bare store or distlock fails, or a file cannot be
    /// written. What fails of others is noted in the report.
    pub fn run(self) -> Result<Outcome> {
        let report = runtime()?.block_on(self.measure())?;
        let is_written = self.outputs.write(&report)?;
        Ok(Outcome { report, is_written })
    }

    async fn measure(&self) -> Result<Report> {
        let begin = SystemTime::now();
        let mut report = Report {
            date: humantime::format_rfc3339_seconds(begin).to_string(),
            machine: machine(),
            versions: self.versions.clone(),
            ..Report::default()
        };
        report
            .versions
            .push(env!("DISTLOCK_BENCH_RUSTC").to_owned());
        let bar = bar(self.stores.len() * self.plan.scenarios.len());
        let prefix = format!("bench-{}", Uuid::new_v4().simple());
        for (kind, url) in &self.stores {
            let target = Target {
                kind: *kind,
                url: url.clone(),
                ttl: LONG,
                prefix: prefix.clone(),
                size: 1,
            };
            // Says at once what is wrong with the URL.
            let store = distlock::open(url).await?;
            store
                .close()
                .await
                .map_err(|why| Error::failed(kind, why))?;
            let mut probe = Probe::open(&target).await?;
            report.versions.push(probe.version().await?);
            let contenders = (self.roster)(*kind);
            report
                .features
                .extend(contenders.iter().map(|one| FeatureRow {
                    store: *kind,
                    contender: one.name().to_owned(),
                    features: one.features(),
                }));
            let mut ring = Ring {
                plan: &self.plan,
                target,
                contenders,
                probe,
                sheet: Sheet::new(*kind),
            };
            for scenario in &self.plan.scenarios {
                bar.set_message(format!("{kind}: {}", scenario.name()));
                ring.run(*scenario).await?;
                bar.inc(1);
            }
            let (records, distributions, gaps) = ring.sheet.finish();
            report.records.extend(records);
            report.distributions.extend(distributions);
            report.gaps.extend(gaps);
        }
        bar.finish_and_clear();
        compare(&mut report.records);
        report.took = begin.elapsed().unwrap_or_default().as_secs();
        Ok(report)
    }
}

/// On a terminal only.
fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} {msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

impl Outputs {
    fn of(args: &Args) -> Result<Self> {
        for path in [&args.json, &args.html, &args.markdown]
            .into_iter()
            .flatten()
        {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|why| output(path, why))?;
        }
        Ok(Self {
            json: args.json.clone(),
            html: args.html.clone(),
            markdown: args.markdown.clone(),
        })
    }

    /// Says whether there was anything to write to.
    fn write(&self, report: &Report) -> Result<bool> {
        let mut is_written = false;
        let files = [
            (&self.json, Report::json as fn(&Report) -> Result<String>),
            (&self.html, Report::html),
            (&self.markdown, |report| Ok(report.markdown())),
        ];
        for (path, of) in files {
            if let Some(path) = path {
                std::fs::write(path, of(report)?).map_err(|why| output(path, why))?;
                is_written = true;
            }
        }
        Ok(is_written)
    }
}

fn output(path: &Path, why: std::io::Error) -> Error {
    Error::Output {
        path: path.display().to_string(),
        why,
    }
}
