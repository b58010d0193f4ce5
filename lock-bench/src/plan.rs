//! How much is measured, and for how long.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What is done with the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Scenario {
    /// Tasks acquire and release, each its own key.
    Pairs,
    /// A holder enters its lock again.
    Reentry,
    /// Tasks of one process compete for one key.
    Handover,
    /// Four processes compete for one key.
    HandoverProcesses,
    /// A holder is killed while somebody waits.
    Death,
    /// Locks are held, and nothing happens.
    Held,
    /// Many wait for a lock that stays held.
    Waiting,
    /// More and more locks are held.
    Growth,
}

impl Scenario {
    /// All of them, in the order in which they are run.
    pub const ALL: [Self; 8] = [
        Self::Pairs,
        Self::Reentry,
        Self::Handover,
        Self::HandoverProcesses,
        Self::Death,
        Self::Held,
        Self::Waiting,
        Self::Growth,
    ];

    /// Its name in the records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Reentry => "reentry",
            Self::Handover => "handover",
            Self::HandoverProcesses => "handover_processes",
            Self::Death => "death",
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Growth => "growth",
        }
    }
}

/// The sizes and times of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is run, in this order.
    pub scenarios: Vec<Scenario>,
    /// Rounds that count of what is repeated; a shorter one before them warms up.
    pub rounds: usize,
    /// The length of a round.
    pub round: Duration,
    /// How many tasks there are, each with its own key.
    pub tasks: Vec<usize>,
    /// How many compete for one key.
    pub waiters: Vec<usize>,
    /// How many compete in four processes together.
    pub in_processes: usize,
    /// Holders that are killed, all at once.
    pub deaths: usize,
    /// The lease of those who are killed, and of those who compete with nobody.
    pub short: Duration,
    /// Locks that are held, and waiters, at rest.
    pub at_rest: usize,
    /// The lease of what is at rest.
    pub rest: Duration,
    /// How long it is watched: for two renewals, which come every third of the lease.
    pub watch_rest: Duration,
    /// How many locks are held while more and more are.
    pub growth: Vec<usize>,
    /// The lease of those.
    pub growing: Duration,
    /// How long they are watched: for one renewal.
    pub watch_growing: Duration,
}

/// The lease where none is meant to end.
pub(crate) const LONG: Duration = Duration::from_secs(30);

impl Plan {
    /// Everything, with so many seconds of measuring for each figure that comes from rounds.
    pub fn full(seconds: u64) -> Self {
        let rounds = 5;
        Self {
            scenarios: Scenario::ALL.to_vec(),
            rounds,
            round: Duration::from_secs(seconds) / rounds as u32,
            tasks: vec![1, 16, 64, 256],
            waiters: vec![2, 16, 64],
            in_processes: 16,
            deaths: 5,
            short: Duration::from_secs(2),
            at_rest: 1000,
            rest: Duration::from_secs(6),
            watch_rest: Duration::from_secs(4),
            growth: vec![10, 1_000, 100_000],
            growing: Duration::from_secs(30),
            watch_growing: Duration::from_secs(10),
        }
    }

    /// A little of everything, to see that it works; its figures mean nothing.
    pub fn smoke() -> Self {
        Self {
            rounds: 1,
            round: Duration::from_millis(60),
            tasks: vec![1, 4],
            waiters: vec![2],
            in_processes: 4,
            deaths: 1,
            at_rest: 20,
            rest: Duration::from_secs(2),
            watch_rest: Duration::from_millis(200),
            growth: vec![10],
            growing: Duration::from_secs(2),
            watch_growing: Duration::from_millis(200),
            ..Self::full(1)
        }
    }
}
