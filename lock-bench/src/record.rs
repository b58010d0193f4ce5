//! One figure.

use serde::{Deserialize, Serialize};

use crate::{Kind, Scenario};

/// What a figure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// From the request for a free lock to the end of its release, in µs.
    PairLatency,
    /// Acquisitions and releases in a second, of all tasks together.
    PairsPerSecond,
    /// From the request to enter again to having left again, in µs.
    ReentryLatency,
    /// From just before a release to the grant of somebody else, in µs.
    HandoverLatency,
    /// How often in a second the lock changes its holder.
    HandoversPerSecond,
    /// How often in a second it is granted, to the same task again included.
    TurnsPerSecond,
    /// Requests that the store answered, over the times that the lock changed its holder.
    RequestsPerHandover,
    /// From the death of a holder to the next grant, in ms.
    DeathToGrant,
    /// Requests that the store answered in a second.
    RequestsPerSecond,
    /// Connections of the client.
    Connections,
    /// Processor time of the client in a second, in ms.
    ClientCpu,
    /// Memory of the client that came with the locks, in KiB.
    ClientMemory,
    /// Processor time of the client for each lock and third of its lease, in µs.
    CpuPerRenewal,
    /// Memory of the client for each lock, in bytes.
    MemoryPerLock,
}

impl Metric {
    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Self::PairLatency | Self::ReentryLatency | Self::HandoverLatency => "us",
            Self::PairsPerSecond
            | Self::HandoversPerSecond
            | Self::TurnsPerSecond
            | Self::RequestsPerSecond => "1/s",
            Self::RequestsPerHandover | Self::Connections => "1",
            Self::DeathToGrant => "ms",
            Self::ClientCpu => "ms/s",
            Self::ClientMemory => "KiB",
            Self::CpuPerRenewal => "us",
            Self::MemoryPerLock => "B",
        }
    }

    /// Its name in the records.
    pub fn name(self) -> &'static str {
        match self {
            Self::PairLatency => "pair_latency",
            Self::PairsPerSecond => "pairs_per_second",
            Self::ReentryLatency => "reentry_latency",
            Self::HandoverLatency => "handover_latency",
            Self::HandoversPerSecond => "handovers_per_second",
            Self::TurnsPerSecond => "turns_per_second",
            Self::RequestsPerHandover => "requests_per_handover",
            Self::DeathToGrant => "death_to_grant",
            Self::RequestsPerSecond => "requests_per_second",
            Self::Connections => "connections",
            Self::ClientCpu => "client_cpu",
            Self::ClientMemory => "client_memory",
            Self::CpuPerRenewal => "cpu_per_renewal",
            Self::MemoryPerLock => "memory_per_lock",
        }
    }
}

/// A figure of one contender, and how it compares with the bare store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The store.
    pub store: Kind,
    /// `distlock`, `floor` for the bare store, or the name of another library.
    pub contender: String,
    /// What was done.
    pub scenario: Scenario,
    /// Tasks, waiters or held locks, as the scenario has it.
    pub tasks: usize,
    /// What the figure says.
    pub metric: Metric,
    /// Its unit.
    pub unit: String,
    /// The middle of the rounds; of times, the middle of each round's median.
    pub median: f64,
    /// Of times, the middle of each round's 99th percentile.
    pub p99: Option<f64>,
    /// How many rounds there were.
    pub rounds: usize,
    /// The median over the floor's, where there is one that is not zero.
    pub ratio: Option<f64>,
    /// The smallest of the rounds.
    pub low: f64,
    /// The largest of the rounds.
    pub high: f64,
}

/// Fills in what every record is of the floor's.
pub(crate) fn compare(records: &mut [Record]) {
    let floors: Vec<Record> = records
        .iter()
        .filter(|record| record.contender == FLOOR)
        .cloned()
        .collect();
    for record in records {
        let of = |floor: &&Record| {
            (floor.store, floor.scenario, floor.tasks, floor.metric)
                == (record.store, record.scenario, record.tasks, record.metric)
        };
        record.ratio = floors
            .iter()
            .find(of)
            .map(|floor| record.median / floor.median)
            .filter(|ratio| ratio.is_finite());
    }
}

/// The name of the bare store.
pub(crate) const FLOOR: &str = "floor";

#[cfg(test)]
mod tests {
    use super::*;

    fn record(contender: &str, tasks: usize, median: f64) -> Record {
        Record {
            store: Kind::Redis,
            contender: contender.to_owned(),
            scenario: Scenario::Pairs,
            tasks,
            metric: Metric::PairsPerSecond,
            unit: "1/s".to_owned(),
            median,
            p99: None,
            rounds: 5,
            ratio: None,
            low: median,
            high: median,
        }
    }

    #[test]
    fn a_ratio_needs_its_own_floor() {
        let mut records = [
            record("floor", 1, 200.0),
            record("distlock", 1, 100.0),
            record("distlock", 2, 100.0),
            record("floor", 3, 0.0),
            record("distlock", 3, 100.0),
        ];
        compare(&mut records);
        let ratios = records.map(|record| record.ratio);
        assert_eq!(ratios, [Some(1.0), Some(0.5), None, None, None]);
    }

    #[test]
    fn names_are_those_of_the_json() {
        for metric in [
            Metric::PairLatency,
            Metric::CpuPerRenewal,
            Metric::DeathToGrant,
        ] {
            assert_eq!(serde_json::json!(metric), metric.name());
        }
        for scenario in Scenario::ALL {
            assert_eq!(serde_json::json!(scenario), scenario.name());
        }
    }
}
