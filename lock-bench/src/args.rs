//! The options, the same for each program.

use std::path::PathBuf;

use clap::{ArgAction, value_parser};

use crate::{Error, Kind, Plan, Result, Scenario};

/// What is measured, and where the results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A store to measure; may be given several times
    ///
    /// Locks are taken and given back there as fast as it can; tables, keys and files whose names
    /// begin with `distlock_floor`, or with `bench-`, come and go. A URL with a password belongs in
    /// the variable: arguments are shown to every user of the machine.
    #[arg(
        long,
        env = "DISTLOCK_BENCH_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub store: Vec<String>,

    /// How long each figure that comes from rounds is measured
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Measure this only; may be given several times
    #[arg(long, value_name = "SCENARIO")]
    pub only: Vec<Scenario>,

    /// Write the records to a file, as one JSON array
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with plots and tables
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the tables as Markdown; without any file they go to stdout
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// A little of everything in a minute, to see that it works: the figures mean nothing
    #[arg(long, action = ArgAction::SetTrue)]
    pub smoke: bool,
}

impl Args {
    /// The stores that are named, each with its kind.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when one has a scheme that is not known, or what is named more than once.
    pub(crate) fn stores(&self) -> Result<Vec<(Kind, String)>> {
        let mut stores: Vec<(Kind, String)> = Vec::new();
        for url in self.store.iter().filter(|url| !url.is_empty()) {
            let kind = Kind::of(url)?;
            if stores.iter().any(|(known, _)| *known == kind) {
                return Err(Error::Usage(format!(
                    "two stores are of the kind {kind}: their records could not be told apart"
                )));
            }
            stores.push((kind, url.clone()));
        }
        Ok(stores)
    }

    pub(crate) fn plan(&self) -> Plan {
        let mut plan = match self.smoke {
            true => Plan::smoke(),
            false => Plan::full(self.seconds),
        };
        if !self.only.is_empty() {
            plan.scenarios.retain(|one| self.only.contains(one));
        }
        plan
    }
}
