//! One page, readable without scripts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    plot::Plot,
    table::{self, Table},
};
use crate::{Kind, Metric, Report, Result, Scenario};

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem }
figure { margin: 0 } svg { width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.86rem; margin: 0.5rem 0 1rem }
th, td { border: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: left; white-space: nowrap }
td:nth-child(n+3) { font-variant-numeric: tabular-nums }
tr.ours { background: #e8f5f0; font-weight: 600 } tr.floor { color: #666 }
";

pub(super) fn page(report: &Report) -> Result<String> {
    let tables = table::all(report);
    let sections = SECTIONS
        .iter()
        .filter(|section| tables.iter().any(|table| section.has(table)))
        .map(|section| section.draw(report, &tables))
        .collect::<Result<Vec<_>>>()?;
    let others = tables.iter().filter(|table| table.scenario.is_none());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "distlock: the stores side by side" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "distlock: the stores side by side" }
                p { "Measured " (report.date) " in " (report.took) " s on " (report.machine) "." }
                p { (report.versions.join(" · ")) }
                p {
                    "The floor is the bare store: the same requests from the same client library, "
                    "and no more. Figures are medians of interleaved rounds."
                }
                @for section in &sections { (section) }
                @for other in others { h2 { (other.title) } (drawn(other)) }
            }
        }
    };
    Ok(page.into_string())
}

/// A scenario or two, with plots beside the tables.
struct Section {
    title: &'static str,
    scenarios: &'static [Scenario],
    plots: &'static [Drawn],
}

/// How a plot is made of the report.
enum Drawn {
    /// One for each store, of all contenders: a metric over the number of tasks.
    OverTasks(Scenario, Metric, &'static str, &'static str),
    /// One for each store, of all contenders: a distribution.
    Times(Scenario, usize, Metric, &'static str),
    /// One plot of distlock on all stores: a metric over the number of tasks.
    Stores(Scenario, Metric, &'static str, &'static str),
}

const SECTIONS: &[Section] = &[
    Section {
        title: "Nobody competes",
        scenarios: &[Scenario::Pairs],
        plots: &[
            Drawn::Stores(
                Scenario::Pairs,
                Metric::PairsPerSecond,
                "tasks",
                "pairs a second",
            ),
            Drawn::OverTasks(
                Scenario::Pairs,
                Metric::PairsPerSecond,
                "tasks",
                "pairs a second",
            ),
            Drawn::Times(Scenario::Pairs, 1, Metric::PairLatency, "one pair, µs"),
        ],
    },
    Section {
        title: "Re-entry",
        scenarios: &[Scenario::Reentry],
        plots: &[],
    },
    Section {
        title: "Many compete for one key",
        scenarios: &[Scenario::Handover, Scenario::HandoverProcesses],
        plots: &[
            Drawn::Stores(
                Scenario::Handover,
                Metric::HandoversPerSecond,
                "compete",
                "hand-overs a second",
            ),
            Drawn::OverTasks(
                Scenario::Handover,
                Metric::HandoverLatency,
                "compete",
                "release to grant, µs",
            ),
            Drawn::OverTasks(
                Scenario::Handover,
                Metric::HandoversPerSecond,
                "compete",
                "hand-overs a second",
            ),
            Drawn::Times(
                Scenario::Handover,
                16,
                Metric::HandoverLatency,
                "release to grant, µs",
            ),
        ],
    },
    Section {
        title: "A holder dies",
        scenarios: &[Scenario::Death],
        plots: &[],
    },
    Section {
        title: "At rest",
        scenarios: &[Scenario::Held, Scenario::Waiting],
        plots: &[],
    },
    Section {
        title: "More and more locks",
        scenarios: &[Scenario::Growth],
        plots: &[
            Drawn::Stores(
                Scenario::Growth,
                Metric::CpuPerRenewal,
                "locks held",
                "µs of client a lock and renewal",
            ),
            Drawn::Stores(
                Scenario::Growth,
                Metric::MemoryPerLock,
                "locks held",
                "bytes of client a lock",
            ),
        ],
    },
];

impl Section {
    fn has(&self, table: &Table) -> bool {
        table
            .scenario
            .is_some_and(|one| self.scenarios.contains(&one))
    }

    fn draw(&self, report: &Report, tables: &[Table]) -> Result<Markup> {
        let plots = self.plots.iter().map(|plot| plot.of(report));
        let plots = plots.collect::<Result<Vec<_>>>()?.concat();
        Ok(html! {
            h2 { (self.title) }
            div.plots { @for svg in &plots { figure { (PreEscaped(svg)) } } }
            @for table in tables.iter().filter(|table| self.has(table)) {
                h3 { (table.title) }
                (drawn(table))
            }
        })
    }
}

impl Drawn {
    fn of(&self, report: &Report) -> Result<Vec<String>> {
        match self {
            Self::OverTasks(scenario, metric, across, up) => stores(report)
                .into_iter()
                .filter_map(|store| {
                    let lines = names(report, store).into_iter().map(|name| {
                        let points = over_tasks(report, store, &name, *scenario, *metric);
                        (name, points)
                    });
                    plot(&store.to_string(), across, up, lines.collect(), 2)
                })
                .collect(),
            Self::Stores(scenario, metric, across, up) => {
                let lines = stores(report).into_iter().map(|store| {
                    let points = over_tasks(report, store, "distlock", *scenario, *metric);
                    (store.to_string(), points)
                });
                plot("distlock on each store", across, up, lines.collect(), 2)
                    .into_iter()
                    .collect()
            }
            Self::Times(scenario, tasks, metric, up) => stores(report)
                .into_iter()
                .filter_map(|store| {
                    let of = report.distributions.iter().filter(|one| {
                        (one.store, one.scenario, one.tasks, one.metric)
                            == (store, *scenario, *tasks, *metric)
                    });
                    let lines = of.map(|one| {
                        let points = one.points.iter();
                        let points = points.map(|(share, time)| (1.0 / (1.0 - share), *time));
                        (one.contender.clone(), points.collect())
                    });
                    let title = format!("{store}: {tasks} {}", table::sized(*scenario));
                    plot(&title, "one in so many is slower", up, lines.collect(), 2)
                })
                .collect(),
        }
    }
}

fn over_tasks(
    report: &Report,
    store: Kind,
    name: &str,
    scenario: Scenario,
    metric: Metric,
) -> Vec<(f64, f64)> {
    let of = report.records.iter().filter(|one| {
        (one.store, one.contender.as_str(), one.scenario, one.metric)
            == (store, name, scenario, metric)
            && one.median > 0.0
    });
    of.map(|one| (one.tasks as f64, one.median)).collect()
}

/// Nothing, when no line has enough points.
fn plot(
    title: &str,
    across: &str,
    up: &str,
    mut lines: Vec<(String, Vec<(f64, f64)>)>,
    enough: usize,
) -> Option<Result<String>> {
    lines.retain(|(_, points)| points.len() >= enough);
    if lines.is_empty() {
        return None;
    }
    let plot = Plot {
        title,
        across,
        up,
        lines,
    };
    Some(plot.svg())
}

fn stores(report: &Report) -> Vec<Kind> {
    let mut stores: Vec<_> = report.records.iter().map(|one| one.store).collect();
    stores.sort();
    stores.dedup();
    stores
}

fn names(report: &Report, store: Kind) -> Vec<String> {
    let of = report.records.iter().filter(|one| one.store == store);
    let mut names: Vec<_> = of.map(|one| one.contender.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn drawn(table: &Table) -> Markup {
    let class = |row: &[String]| match row.get(1).map(String::as_str) {
        Some("distlock") => "ours",
        Some("floor") => "floor",
        _ => "other",
    };
    html! {
        p { (table.text) }
        div.wide {
            table {
                thead { tr { @for cell in &table.head { th { (cell) } } } }
                tbody {
                    @for row in &table.rows {
                        tr class=(class(row)) { @for cell in row { td { (cell) } } }
                    }
                }
            }
        }
    }
}
