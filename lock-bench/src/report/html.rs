//! One page, readable without scripts.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::style::RGBColor;

use super::{
    plot::{self, Bar, Bars, Line, Lines},
    table::{self, Table},
};
use crate::{Kind, Metric, Record, Report, Result, Scenario, record::FLOOR};

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(30rem, 1fr)); gap: 1rem }
figure { margin: 0 } svg { width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.86rem; margin: 0.5rem 0 1rem }
th, td { border: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: left; white-space: nowrap; vertical-align: top }
.words td, .words th { white-space: normal; min-width: 5rem }
tbody td:nth-child(n+3) { font-variant-numeric: tabular-nums }
tr.ours { background: #e8f5f0; font-weight: 600 } tr.floor { color: #666 }
";

pub(super) fn page(report: &Report) -> Result<String> {
    let tables = table::all(report);
    let sections = SECTIONS
        .iter()
        .filter(|section| tables.iter().any(|table| section.has(table)))
        .map(|section| section.draw(report, &tables))
        .collect::<Result<Vec<_>>>()?;
    let others = |table: &&Table| table.scenario.is_none();
    let first: Vec<_> = tables.iter().take_while(others).collect();
    let last = tables.iter().skip(first.len()).filter(others);
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
                    "and no more; figures in brackets are multiples of it. Figures are medians of "
                    "interleaved rounds; both axes of a plot are logarithmic."
                }
                @for table in &first { h2 { (table.title) } (drawn(table)) }
                @for section in &sections { (section) }
                @for table in last { h2 { (table.title) } (drawn(table)) }
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
    /// One plot of all contenders on all stores: a metric at the largest number of tasks; its
    /// title, and what the axis says.
    Bars(Scenario, Metric, &'static str, &'static str),
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
        plots: &[Drawn::Bars(
            Scenario::Reentry,
            Metric::ReentryLatency,
            "To enter again and leave",
            "µs",
        )],
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
            Drawn::Bars(
                Scenario::Handover,
                Metric::RequestsPerHandover,
                "Requests for a hand-over",
                "requests",
            ),
            Drawn::Bars(
                Scenario::HandoverProcesses,
                Metric::HandoverLatency,
                "Release to grant, in four processes",
                "µs",
            ),
        ],
    },
    Section {
        title: "A holder dies",
        scenarios: &[Scenario::Death],
        plots: &[Drawn::Bars(
            Scenario::Death,
            Metric::DeathToGrant,
            "Death to the next grant",
            "ms",
        )],
    },
    Section {
        title: "At rest",
        scenarios: &[Scenario::Held, Scenario::Waiting],
        plots: &[
            Drawn::Bars(
                Scenario::Held,
                Metric::RequestsPerSecond,
                "Requests",
                "requests a second",
            ),
            Drawn::Bars(
                Scenario::Held,
                Metric::Connections,
                "Connections of the client",
                "connections",
            ),
            Drawn::Bars(
                Scenario::Held,
                Metric::ClientCpu,
                "Processor time of the client",
                "ms a second",
            ),
            Drawn::Bars(
                Scenario::Held,
                Metric::ClientMemory,
                "Memory of the client",
                "KiB",
            ),
            Drawn::Bars(
                Scenario::Waiting,
                Metric::RequestsPerSecond,
                "Requests",
                "requests a second",
            ),
            Drawn::Bars(
                Scenario::Waiting,
                Metric::Connections,
                "Connections of the client",
                "connections",
            ),
            Drawn::Bars(
                Scenario::Waiting,
                Metric::ClientCpu,
                "Processor time of the client",
                "ms a second",
            ),
            Drawn::Bars(
                Scenario::Waiting,
                Metric::ClientMemory,
                "Memory of the client",
                "KiB",
            ),
        ],
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
            Self::OverTasks(scenario, metric, across, up) => report
                .stores()
                .into_iter()
                .filter_map(|store| {
                    let colours = Colours::of(report, store);
                    let lines = colours.names().map(|name| Line {
                        name: name.to_owned(),
                        colour: colours.colour(name),
                        points: over_tasks(report, store, name, *scenario, *metric),
                    });
                    lines_plot(store.to_string(), across, up, lines.collect())
                })
                .collect(),
            Self::Stores(scenario, metric, across, up) => {
                let lines = report.stores().into_iter().map(|store| Line {
                    name: store.to_string(),
                    colour: plot::of_store(store),
                    points: over_tasks(report, store, "distlock", *scenario, *metric),
                });
                let title = "distlock on each store".to_owned();
                lines_plot(title, across, up, lines.collect())
                    .into_iter()
                    .collect()
            }
            Self::Times(scenario, tasks, metric, up) => report
                .stores()
                .into_iter()
                .filter_map(|store| {
                    let colours = Colours::of(report, store);
                    let of = report.distributions.iter().filter(|one| {
                        (one.store, one.scenario, one.tasks, one.metric)
                            == (store, *scenario, *tasks, *metric)
                    });
                    let lines = of.map(|one| Line {
                        name: one.contender.clone(),
                        colour: colours.colour(&one.contender),
                        points: one
                            .points
                            .iter()
                            .map(|(share, time)| (1.0 / (1.0 - share), *time))
                            .collect(),
                    });
                    let title = format!("{store}: {tasks} {}", table::sized(*scenario));
                    lines_plot(title, "one in so many is slower", up, lines.collect())
                })
                .collect(),
            Self::Bars(scenario, metric, title, across) => {
                let of = |one: &&Record| (one.scenario, one.metric) == (*scenario, *metric);
                let records: Vec<_> = report.records.iter().filter(of).collect();
                let Some(most) = records.iter().map(|one| one.tasks).max() else {
                    return Ok(Vec::new());
                };
                let largest = || records.iter().copied().filter(|one| one.tasks == most);
                let bars = table::who(largest()).into_iter().flat_map(|(store, name)| {
                    let colour = Colours::of(report, store).colour(name);
                    let of = move |one: &&Record| (one.store, &*one.contender) == (store, name);
                    largest().filter(of).map(move |one| Bar {
                        name: format!("{store} {name}"),
                        colour,
                        value: one.median,
                    })
                });
                let size = table::number(most as f64);
                let plot = Bars {
                    title: &format!("{title}: {size} {}", table::sized(*scenario)),
                    across,
                    bars: bars.collect(),
                };
                plot.svg().map(|svg| vec![svg])
            }
        }
    }
}

/// Who has which colour on a store, the same in every plot.
struct Colours<'a>(Vec<&'a str>);

impl<'a> Colours<'a> {
    fn of(report: &'a Report, store: Kind) -> Self {
        let of = report.records.iter().filter(|one| one.store == store);
        Self(table::who(of).into_iter().map(|(_, name)| name).collect())
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().copied()
    }

    fn colour(&self, name: &str) -> RGBColor {
        let others = self.0.iter().filter(|one| !OURS.contains(one));
        let place = others.take_while(|one| **one != name).count();
        plot::of_contender(name, place)
    }
}

const OURS: [&str; 2] = ["distlock", FLOOR];

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

/// Nothing, when no line has two points.
fn lines_plot(
    title: String,
    across: &str,
    up: &str,
    mut lines: Vec<Line>,
) -> Option<Result<String>> {
    lines.retain(|line| line.points.len() > 1);
    if lines.is_empty() {
        return None;
    }
    let plot = Lines {
        title: &title,
        across,
        up,
        lines,
    };
    Some(plot.svg())
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
            table class=(if table.scenario.is_none() { "words" } else { "figures" }) {
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
