//! Plots, as SVG.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::table::number;
use crate::{Error, Kind, Result};

/// Lines with a point at each value, on two logarithmic axes.
pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    pub(super) across: &'a str,
    pub(super) up: &'a str,
    pub(super) lines: Vec<Line>,
}

/// A line of a [`Lines`] plot.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) points: Vec<(f64, f64)>,
}

/// A bar for each value, one below the other, on a logarithmic axis.
pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    pub(super) across: &'a str,
    pub(super) bars: Vec<Bar>,
}

/// A bar of a [`Bars`] plot.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) value: f64,
}

const WIDTH: u32 = 620;
const HEIGHT: u32 = 380;
/// Of a bar and what is around it.
const BAR: u32 = 19;
/// Of everything around the bars.
const AROUND: u32 = 96;

/// `distlock` and the floor look the same everywhere; the others of a store by their place.
pub(super) fn of_contender(name: &str, place: usize) -> RGBColor {
    const OTHERS: [RGBColor; 4] = [
        RGBColor(217, 95, 2),
        RGBColor(117, 112, 179),
        RGBColor(214, 39, 110),
        RGBColor(166, 118, 29),
    ];
    match name {
        "distlock" => RGBColor(0, 128, 96),
        "floor" => RGBColor(150, 150, 150),
        _ => OTHERS[place % OTHERS.len()],
    }
}

/// The colour of a store, where only distlock is drawn.
pub(super) fn of_store(kind: Kind) -> RGBColor {
    match kind {
        Kind::Memory => RGBColor(130, 130, 130),
        Kind::Sqlite => RGBColor(31, 119, 180),
        Kind::Redis => RGBColor(214, 39, 40),
        Kind::Postgres => RGBColor(117, 112, 179),
        Kind::Etcd => RGBColor(230, 140, 0),
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Lines<'_> {
    pub(super) fn svg(&self) -> Result<String> {
        svg(self.title, HEIGHT, |area| self.draw(area))
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (left, right) = range(points().map(|(x, _)| *x), 1.0);
        let (low, high) = range(points().map(|(_, y)| *y), 1.6);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(8)
            .margin_right(20)
            .x_label_area_size(42)
            .y_label_area_size(76)
            .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .label_style(("sans-serif", 13))
            .x_desc(self.across)
            .y_desc(self.up)
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .bold_line_style(RGBColor(225, 225, 225))
            .light_line_style(WHITE)
            .draw()?;
        for line in &self.lines {
            let width = if line.name == "distlock" { 3 } else { 2 };
            let style = line.colour.stroke_width(width);
            let series = LineSeries::new(line.points.iter().copied(), style).point_size(3);
            chart
                .draw_series(series)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 13))
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    }
}

impl Bars<'_> {
    pub(super) fn svg(&self) -> Result<String> {
        let height = AROUND + BAR * self.bars.len() as u32;
        svg(self.title, height, |area| self.draw(area))
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn {
        // Room for the numbers on the right.
        let (low, high) = range(self.bars.iter().map(|bar| bar.value), 3.0);
        let bars = self.bars.len();
        // They are counted from below.
        let name = |place: &SegmentValue<usize>| match place {
            SegmentValue::CenterOf(place) if *place < bars => {
                self.bars[bars - 1 - place].name.clone()
            }
            _ => String::new(),
        };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(8)
            .margin_right(20)
            .x_label_area_size(42)
            .y_label_area_size(200)
            .build_cartesian_2d(
                (low..high).log_scale(),
                (0..bars.saturating_sub(1)).into_segmented(),
            )?;
        chart
            .configure_mesh()
            .label_style(("sans-serif", 13))
            .x_desc(self.across)
            .x_labels(7)
            .y_labels(bars)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&name)
            .disable_y_mesh()
            .bold_line_style(RGBColor(225, 225, 225))
            .light_line_style(WHITE)
            .draw()?;
        let placed = || self.bars.iter().rev().enumerate();
        chart.draw_series(placed().map(|(place, bar)| {
            let from = (low, SegmentValue::Exact(place));
            let to = (bar.value.max(low), SegmentValue::Exact(place + 1));
            let mut drawn = Rectangle::new([from, to], bar.colour.filled());
            drawn.set_margin(2, 2, 0, 0);
            drawn
        }))?;
        let beside =
            TextStyle::from(("sans-serif", 13).into_font()).pos(Pos::new(HPos::Left, VPos::Center));
        chart.draw_series(placed().map(|(place, bar)| {
            let end = (bar.value.max(low), SegmentValue::CenterOf(place));
            EmptyElement::at(end) + Text::new(number(bar.value), (5, 0), beside.clone())
        }))?;
        Ok(())
    }
}

fn svg(
    title: &str,
    height: u32,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area)
            .and_then(|()| Ok(area.present()?))
            .map_err(|why| Error::failed(format!("the plot {title}"), why))?;
    }
    // As wide as there is room.
    let fixed = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
    Ok(svg.replacen(&fixed, "<svg role=\"img\"", 1))
}

/// What the values span, and a little more; for an axis of logarithms.
fn range(values: impl Iterator<Item = f64>, room: f64) -> (f64, f64) {
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    match low.is_finite() {
        false => (1.0, 10.0),
        true => (low / room, (high * room).max(low * 1.5)),
    }
}
