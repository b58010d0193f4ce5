//! What a campaign tells, while it runs and at its end.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Injected, Kind, Options, StoreKind, fleet::Log};
use crate::{
    checker::Violation,
    fenced::{Leniency, Tally},
    history::Hold,
    sabotage::Bug,
};

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything held.
    #[default]
    Good,
    /// Something did not.
    Bad,
    /// It could not have shown it, for these reasons.
    Void(Vec<String>),
}

impl Verdict {
    /// The exit code: 0 when everything held, 1 when something did not, 3 when the run is void.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Bad => 1,
            Self::Void(_) => 3,
        }
    }
}

/// What was done, and what came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The store.
    pub store: StoreKind,
    /// The program behind it, and its version.
    pub version: String,
    /// What the schedule followed from.
    pub seed: u64,
    /// Client processes at a time.
    pub clients: u32,
    /// Tasks of each.
    pub tasks: u32,
    /// Locks.
    pub keys: u32,
    /// Planted, if one was.
    pub bug: Option<Bug>,
    /// For how long faults were brought about.
    pub seconds: f64,
    /// Grants that there had to be in a second.
    pub least: f64,
    /// Grants.
    pub grants: usize,
    /// How often acquires failed how.
    pub refusals: BTreeMap<String, u64>,
    /// How often holds ended how.
    pub endings: BTreeMap<String, u64>,
    /// Acquires and holds that ended with their process.
    pub killed: u64,
    /// The longest time from an acquire's call to its grant.
    pub longest_wait_ms: u64,
    /// Every fault, in order.
    pub faults: Vec<Injected>,
    /// What the resource answered.
    pub tally: Tally,
    /// How often two held a lock for a cause that the guarantees name.
    pub excused: BTreeMap<String, u64>,
    /// What must not be.
    pub violations: Vec<Violation>,
    /// Windows that the second oracle looked at.
    pub windows: usize,
    /// The longest time to the next grant of a lock after the last fault.
    pub recovery_ms: u64,
    /// When a planted bug was found.
    pub found_after: Option<f64>,
    /// How it ended.
    pub verdict: Verdict,
    #[serde(skip)]
    is_lenient: bool,
}

impl Report {
    pub(super) fn new(options: &Options, version: String) -> Self {
        Self {
            store: options.store,
            version,
            seed: options.seed,
            clients: options.clients,
            tasks: options.tasks,
            keys: options.keys,
            bug: options.bug,
            least: options.least,
            is_lenient: options.leniency != Leniency::None,
            seconds: 0.0,
            grants: 0,
            refusals: BTreeMap::new(),
            endings: BTreeMap::new(),
            killed: 0,
            longest_wait_ms: 0,
            faults: Vec::new(),
            tally: Tally::default(),
            excused: BTreeMap::new(),
            violations: Vec::new(),
            windows: 0,
            recovery_ms: 0,
            found_after: None,
            verdict: Verdict::Good,
        }
    }

    pub(super) fn progress(&self, since: Duration, log: &Log) {
        let last = self.faults.last().map(|fault| fault.planned.kind);
        eprintln!(
            "{:>4} s  {:>8} grants  {:>4} faults, last {}  {:>5} holds refused by the resource",
            since.as_secs(),
            log.grants(),
            self.faults.len(),
            last.map(super::name).unwrap_or_default(),
            log.stale,
        );
    }

    pub(super) fn take(&mut self, log: &Log) {
        self.grants = log.grants();
        self.refusals = log.refusals.clone();
        self.endings = log.endings.clone();
        self.killed = log.killed;
        self.longest_wait_ms = log.longest_wait / 1_000_000;
    }

    /// Each kind of fault: how often, and with how much evidence in all.
    pub fn kinds(&self) -> BTreeMap<Kind, (u64, u64)> {
        let mut kinds = BTreeMap::<Kind, (u64, u64)>::new();
        for fault in &self.faults {
            let (times, evidence) = kinds.entry(fault.planned.kind).or_default();
            *times += 1;
            *evidence += fault.evidence;
        }
        kinds
    }

    pub(super) fn judge(&mut self) {
        let mut void = Vec::new();
        if (self.grants as f64) < self.least * self.seconds {
            void.push(format!(
                "there were {} grants in {:.0} s, less than {} a second",
                self.grants, self.seconds, self.least
            ));
        }
        for (kind, times) in self.failed_faults() {
            void.push(format!(
                "{times} times {} did not happen",
                super::name(kind)
            ));
        }
        let paused = self
            .faults
            .iter()
            .any(|fault| fault.planned.kind.is_pause());
        if paused && !self.is_lenient && self.tally.stale_writes == 0 {
            void.push("clients stood still, and not one stale write was refused".into());
        }
        self.verdict = match (self.violations.is_empty(), void.is_empty()) {
            (false, _) => Verdict::Bad,
            (true, false) => Verdict::Void(void),
            (true, true) => Verdict::Good,
        };
    }

    fn failed_faults(&self) -> BTreeMap<Kind, u64> {
        let mut failed = BTreeMap::new();
        for fault in self.faults.iter().filter(|fault| fault.evidence == 0) {
            *failed.entry(fault.planned.kind).or_default() += 1;
        }
        failed
    }

    /// Writes the report as JSON; when something did not hold, the holds as well, one a line.
    pub(super) fn write(&self, path: &Path, holds: &[Hold]) {
        let report = serde_json::to_string_pretty(self).expect("a report");
        std::fs::write(path, report).expect("the report is written");
        if self.verdict == Verdict::Bad {
            let file = File::create(path.with_extension("holds")).expect("a file for the holds");
            let mut file = BufWriter::new(file);
            for hold in holds {
                let line = serde_json::to_string(hold).expect("a hold");
                writeln!(file, "{line}").expect("the holds are written");
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, seed {}: {} processes of {} tasks on {} locks, {:.0} s",
            self.version, self.seed, self.clients, self.tasks, self.keys, self.seconds
        )?;
        if let Some(bug) = self.bug {
            writeln!(f, "planted: {bug}")?;
        }
        let rate = self.grants as f64 / self.seconds;
        writeln!(
            f,
            "grants                {:>9}  ({rate:.0} a second)",
            self.grants
        )?;
        for (how, times) in &self.endings {
            writeln!(f, "  ended: {how:<19} {times:>3}")?;
        }
        for (why, times) in &self.refusals {
            writeln!(f, "  not granted: {why:<13} {times:>3}")?;
        }
        writeln!(f, "  with their process  {:>9}", self.killed)?;
        writeln!(f, "longest wait          {:>9} ms", self.longest_wait_ms)?;
        let Tally {
            written,
            stale,
            stale_writes,
            equal,
            ..
        } = self.tally;
        writeln!(f, "writes accepted       {written:>9}")?;
        writeln!(
            f,
            "refused as stale      {stale:>9}  ({stale_writes} of them writes)"
        )?;
        writeln!(f, "refused as equal      {equal:>9}")?;
        writeln!(
            f,
            "faults                {:>9}  of {} kinds",
            self.faults.len(),
            self.kinds().len()
        )?;
        for (kind, (times, evidence)) in self.kinds() {
            writeln!(
                f,
                "  {:<19} {times:>9}  evidence {evidence}",
                super::name(kind)
            )?;
        }
        for (why, times) in &self.excused {
            writeln!(f, "two at once because {why}: {times}")?;
        }
        writeln!(f, "windows of the oracle {:>9}", self.windows)?;
        writeln!(
            f,
            "after the last fault  {:>9} ms to the last lock's next grant",
            self.recovery_ms
        )?;
        writeln!(f, "violations            {:>9}", self.violations.len())?;
        for violation in self.violations.iter().take(5) {
            writeln!(f, "  {violation:?}")?;
        }
        match (&self.verdict, self.found_after) {
            (_, Some(seconds)) => writeln!(f, "found after {seconds:.1} s"),
            (Verdict::Good, _) => writeln!(f, "everything held"),
            (Verdict::Bad, _) => writeln!(f, "something did not hold"),
            (Verdict::Void(why), _) => writeln!(f, "void: {}", why.join("; ")),
        }
    }
}
