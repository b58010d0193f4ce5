//! Plots, as SVG.

use plotters::prelude::*;

use super::table::number;
use crate::{Error, Result};

/// What is drawn.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) across: &'a str,
    pub(super) up: &'a str,
    pub(super) lines: Vec<(String, Vec<(f64, f64)>)>,
}

const SIZE: (u32, u32) = (620, 380);

/// `distlock` and `floor` look the same everywhere.
fn colour(name: &str, place: usize) -> RGBColor {
    const OTHERS: [RGBColor; 4] = [
        RGBColor(217, 95, 2),
        RGBColor(117, 112, 179),
        RGBColor(231, 41, 138),
        RGBColor(166, 118, 29),
    ];
    match name {
        "distlock" => RGBColor(0, 110, 84),
        "floor" => RGBColor(120, 120, 120),
        _ => OTHERS[place % OTHERS.len()],
    }
}

impl Plot<'_> {
    /// Lines with a point at each value, on two logarithmic axes.
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg)
            .map_err(|why| Error::failed("a plot", why))?;
        // Room for a narrow window.
        Ok(svg.replacen(
            &format!("<svg width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1),
            "<svg role=\"img\"",
            1,
        ))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (left, right) = range(points().map(|(x, _)| *x), 1.0);
        let (low, high) = range(points().map(|(_, y)| *y), 1.6);
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 17))
            .margin(8)
            .x_label_area_size(38)
            .y_label_area_size(72)
            .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.across)
            .y_desc(self.up)
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .light_line_style(WHITE)
            .draw()?;
        for (place, (name, points)) in self.lines.iter().enumerate() {
            let colour = colour(name, place);
            let width = if name == "distlock" { 3 } else { 2 };
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(width));
            chart
                .draw_series(line.point_size(3))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(width))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
        Ok(())
    }
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
