//! The few figures that one asks for first.

use super::table::{Table, number};
use crate::{Kind, Metric, Record, Report, Scenario, record::FLOOR};

/// distlock next to whoever else is best.
pub(super) fn others(report: &Report) -> Option<Table> {
    let asked = |store: Kind| {
        let rows = ASKED.iter();
        rows.filter_map(move |asked| asked.row(report, store))
    };
    let rows: Vec<_> = report.stores().into_iter().flat_map(asked).collect();
    (!rows.is_empty()).then(|| Table {
        scenario: None,
        title: "In short: distlock and the best of the others".to_owned(),
        text: "On each store that has others, whoever of them is best at the figure. In Postgres that is \
               a lock of the session, which writes nothing and costs a connection for each lock and \
               each waiter: not a fast way to the same, but another thing.".to_owned(),
        head: [
            "store",
            "figure",
            "distlock",
            "the best of the others",
            "who that is",
            "distlock is",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    })
}

struct Asked {
    scenario: Scenario,
    tasks: usize,
    metric: Metric,
    what: &'static str,
    better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

const ASKED: [Asked; 6] = [
    Asked {
        scenario: Scenario::Pairs,
        tasks: 1,
        metric: Metric::PairLatency,
        what: "acquire and release of a free lock, µs",
        better: Better::Less,
    },
    Asked {
        scenario: Scenario::Pairs,
        tasks: 64,
        metric: Metric::PairsPerSecond,
        what: "pairs a second, 64 tasks on 64 keys",
        better: Better::More,
    },
    Asked {
        scenario: Scenario::Handover,
        tasks: 16,
        metric: Metric::HandoverLatency,
        what: "release to grant, 16 compete, µs",
        better: Better::Less,
    },
    Asked {
        scenario: Scenario::Handover,
        tasks: 16,
        metric: Metric::HandoversPerSecond,
        what: "hand-overs a second, 16 compete",
        better: Better::More,
    },
    Asked {
        scenario: Scenario::Handover,
        tasks: 16,
        metric: Metric::RequestsPerHandover,
        what: "requests for a hand-over, 16 compete",
        better: Better::Less,
    },
    Asked {
        scenario: Scenario::Waiting,
        tasks: 1000,
        metric: Metric::RequestsPerSecond,
        what: "requests a second of 1,000 waiters at rest",
        better: Better::Less,
    },
];

impl Asked {
    fn row(&self, report: &Report, store: Kind) -> Option<Vec<String>> {
        let of = report.records.iter().filter(|record| {
            (record.store, record.scenario, record.tasks, record.metric)
                == (store, self.scenario, self.tasks, self.metric)
        });
        let (ours, others): (Vec<&Record>, Vec<&Record>) = of
            .filter(|record| record.contender != FLOOR)
            .partition(|record| record.contender == "distlock");
        let ours = ours.first()?;
        let by_value = |one: &&&Record, other: &&&Record| one.median.total_cmp(&other.median);
        let best = match self.better {
            Better::Less => others.iter().min_by(by_value),
            Better::More => others.iter().max_by(by_value),
        }?;
        Some(vec![
            store.to_string(),
            self.what.to_owned(),
            number(ours.median),
            number(best.median),
            best.contender.clone(),
            self.better.verdict(ours.median, best.median),
        ])
    }
}

impl Better {
    /// How many times better or worse, in words.
    fn verdict(self, ours: f64, best: f64) -> String {
        let gain = match self {
            Self::Less => best / ours,
            Self::More => ours / best,
        };
        if ours == best {
            "as good".to_owned()
        } else if gain.is_infinite() {
            "better: it needs none".to_owned()
        } else if gain >= 1.0 {
            format!("{}× better", number(gain))
        } else {
            format!("{}× worse", number(1.0 / gain))
        }
    }
}

/// What a lock of very many costs, next to one of many.
pub(super) fn growth(report: &Report) -> Option<Table> {
    let of = |store: Kind, metric: Metric| {
        let ours = report.records.iter().filter(move |record| {
            (record.store, record.scenario, record.metric) == (store, Scenario::Growth, metric)
                && record.contender == "distlock"
        });
        let at = |tasks: usize| ours.clone().find(|record| record.tasks == tasks);
        Some((at(MANY)?.median, at(VERY_MANY)?.median))
    };
    let rows: Vec<_> = report
        .stores()
        .into_iter()
        .filter_map(|store| {
            let (cpu, memory) = (
                of(store, Metric::CpuPerRenewal)?,
                of(store, Metric::MemoryPerLock)?,
            );
            let cells = [cpu, memory].into_iter().flat_map(|(many, very_many)| {
                [
                    number(many),
                    number(very_many),
                    number(very_many / many) + "×",
                ]
            });
            Some([store.to_string()].into_iter().chain(cells).collect())
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        scenario: None,
        title: "In short: a lock among 100,000".to_owned(),
        text: "Of the client with distlock: processor time in µs for each lock and renewal, and \
               memory in bytes for each lock."
            .to_owned(),
        head: [
            "store",
            "µs, of 1,000",
            "µs, of 100,000",
            "ratio",
            "bytes, of 1,000",
            "bytes, of 100,000",
            "ratio",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    })
}

const MANY: usize = 1_000;
const VERY_MANY: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_told_from_worse() {
        let verdict = Better::Less.verdict(100.0, 250.0);
        assert_eq!(verdict, "2.50× better");
        assert_eq!(Better::Less.verdict(250.0, 100.0), "2.50× worse");
        assert_eq!(Better::More.verdict(250.0, 100.0), "2.50× better");
        assert_eq!(Better::More.verdict(100.0, 250.0), "2.50× worse");
        assert_eq!(Better::More.verdict(0.0, 0.0), "as good");
        assert_eq!(Better::Less.verdict(0.0, 5.0), "better: it needs none");
    }
}
