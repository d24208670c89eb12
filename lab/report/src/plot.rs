//! Plots as SVG files.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::{ReportError, make_directory};

const SIZE: (u32, u32) = (900, 520);
/// Colours that people with colour blindness can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(80, 80, 80),
];

/// Title and axes of a plot.
pub struct Labels<'a> {
    /// Above the plot.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// Beside it.
    pub y: &'a str,
}

/// A line of a plot.
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A bar of a plot, with the mark of what is possible at best.
pub struct Bar {
    /// Below the bar.
    pub name: String,
    /// Its height.
    pub value: f64,
    /// The height of the mark.
    pub bound: Option<f64>,
}

/// Bars that belong together, such as those of one setting.
pub struct Group {
    /// Below them.
    pub name: String,
    /// One for each series; none where nothing was measured. With the mark of what is possible at
    /// best.
    pub bars: Vec<Option<(f64, Option<f64>)>>,
}

/// How the axes are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// Both evenly, the vertical one from 0.
    Linear,
    /// Both in powers.
    Logarithmic,
    /// The horizontal one evenly, the vertical one in powers. Of curves that may lie on each other,
    /// the first is the widest.
    LogarithmicY,
}

/// Lines in one frame.
pub struct Panel<'a> {
    /// Title and axes.
    pub labels: Labels<'a>,
    /// How the axes are divided.
    pub axes: Axes,
    /// The lines.
    pub series: &'a [Series],
}

/// Draws lines, in panels one below the other.
///
/// # Errors
///
/// [`ReportError`]: a panel has no point, or the file cannot be written.
pub fn lines(file: &Path, panels: &[Panel<'_>]) -> Result<(), ReportError> {
    let mut points = panels.iter().map(|panel| panel.series.iter().any(|s| !s.points.is_empty()));
    if !points.all(|any| any) {
        return Err(ReportError::Nothing);
    }
    draw(file, panels.len(), |root| {
        let areas = root.split_evenly((panels.len(), 1));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| lines_in(area, panel))
    })
}

fn lines_in(area: &Area<'_>, panel: &Panel<'_>) -> DrawResult {
    let all = || panel.series.iter().flat_map(|line| line.points.iter().copied());
    let x = range(all().map(|(x, _)| x));
    let y = range(all().map(|(_, y)| y));
    let powers = (y.start * 0.7..y.end * 1.5).log_scale();
    let mut chart = ChartBuilder::on(area);
    chart.caption(panel.labels.title, ("sans-serif", 20)).margin(15);
    chart.x_label_area_size(45).y_label_area_size(75);
    match panel.axes {
        Axes::Linear => series_in(chart.build_cartesian_2d(x, 0.0..y.end * 1.05)?, panel),
        Axes::Logarithmic => {
            let x = (x.start * 0.8..x.end * 1.25).log_scale();
            series_in(chart.build_cartesian_2d(x, powers)?, panel)
        }
        Axes::LogarithmicY => series_in(chart.build_cartesian_2d(x, powers)?, panel),
    }
}

/// Draws bars beside each other.
///
/// # Errors
///
/// [`ReportError::Draw`]: the file cannot be written.
pub fn bars(file: &Path, labels: &Labels<'_>, bars: &[Bar]) -> Result<(), ReportError> {
    let highest =
        bars.iter().map(|bar| bar.value.max(bar.bound.unwrap_or(0.0))).fold(0.0, f64::max);
    draw(file, 1, |root| {
        let mut chart = bar_chart(root, labels, 20, (bars.len(), highest * 1.15))?;
        for (i, bar) in bars.iter().enumerate() {
            let (left, right) = (i as f64 + 0.2, i as f64 + 0.8);
            let colour = COLOURS[i % COLOURS.len()];
            chart.draw_series([Rectangle::new(
                [(left, 0.0), (right, bar.value)],
                colour.filled(),
            )])?;
            let text = format!("{:.1}", bar.value);
            let above = (left, bar.value + highest * 0.05);
            chart.draw_series([Text::new(text, above, ("sans-serif", 15))])?;
            let below = (i as f64 + 0.1, -highest * 0.03);
            chart.draw_series([Text::new(bar.name.clone(), below, ("sans-serif", 15))])?;
            if let Some(bound) = bar.bound {
                let mark = [(left - 0.1, bound), (right + 0.1, bound)];
                chart.draw_series([PathElement::new(mark, BLACK.stroke_width(3))])?;
            }
        }
        Ok(())
    })
}

/// The frame of bars: a place each, up to this height.
fn bar_chart<'a, 'b>(
    root: &'a Area<'b>,
    labels: &Labels<'_>,
    title_size: i32,
    (places, top): (usize, f64),
) -> Result<Chart<'a, 'b, RangedCoordf64, RangedCoordf64>, Failure> {
    let mut chart = ChartBuilder::on(root);
    chart.caption(labels.title, ("sans-serif", title_size)).margin(15);
    chart.x_label_area_size(45).y_label_area_size(75);
    let mut chart = chart.build_cartesian_2d(0.0..places as f64, 0.0..top)?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_desc(labels.y).draw()?;
    root.draw(&Text::new(labels.x, (90, SIZE.1 as i32 - 25), ("sans-serif", 15)))?;
    Ok(chart)
}

/// Draws groups of bars beside each other, a colour a series.
///
/// # Errors
///
/// [`ReportError`]: there is no bar, or the file cannot be written.
pub fn groups(
    file: &Path,
    labels: &Labels<'_>,
    series: &[String],
    groups: &[Group],
) -> Result<(), ReportError> {
    let all = || groups.iter().flat_map(|group| group.bars.iter().flatten());
    let highest = all().map(|(value, bound)| value.max(bound.unwrap_or(0.0))).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Err(ReportError::Nothing);
    }
    draw(file, 1, |root| {
        let mut chart = bar_chart(root, labels, 18, (groups.len(), highest * 1.35))?;
        let width = 0.9 / series.len().max(1) as f64;
        let place = |group: usize, bar: usize| group as f64 + 0.05 + bar as f64 * width;
        for (i, (name, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let heights = groups.iter().enumerate().filter_map(|(g, group)| {
                let (value, _) = group.bars.get(i).copied().flatten()?;
                Some((place(g, i), value))
            });
            let bars = heights.map(|(left, value)| {
                Rectangle::new([(left, 0.0), (left + width * 0.85, value)], colour.filled())
            });
            chart.draw_series(bars)?.label(name).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 15, y + 5)], colour.filled())
            });
        }
        for (g, group) in groups.iter().enumerate() {
            for (i, bar) in group.bars.iter().enumerate() {
                let Some((value, bound)) = bar else { continue };
                let left = place(g, i);
                let above = (left, value + highest * 0.04);
                chart.draw_series([Text::new(three(*value), above, ("sans-serif", 11))])?;
                if let Some(bound) = bound {
                    let mark = [(left, *bound), (left + width * 0.85, *bound)];
                    chart.draw_series([PathElement::new(mark, BLACK.stroke_width(3))])?;
                }
            }
            let below = (g as f64 + 0.3, -highest * 0.03);
            chart.draw_series([Text::new(group.name.clone(), below, ("sans-serif", 15))])?;
        }
        let mut legend = chart.configure_series_labels();
        legend
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        Ok(())
    })
}

/// A number above a bar: three digits that count.
fn three(value: f64) -> String {
    let digits = 2 - usize::from(value >= 10.0) - usize::from(value >= 100.0);
    format!("{value:.digits$}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
type Failure = Box<dyn std::error::Error + Send + Sync>;
type DrawResult = Result<(), Failure>;

fn draw(
    file: &Path,
    panels: usize,
    content: impl FnOnce(&Area<'_>) -> DrawResult,
) -> Result<(), ReportError> {
    if let Some(parent) = file.parent() {
        make_directory(parent)?;
    }
    let size = (SIZE.0, SIZE.1 * panels as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let result = root
        .fill(&WHITE)
        .map_err(Into::into)
        .and_then(|()| content(&root))
        .and_then(|()| root.present().map_err(Into::into));
    result.map_err(|error| ReportError::Draw(file.to_owned(), error.to_string()))
}

fn series_in<'a, 'b: 'a, X, Y>(
    mut chart: Chart<'a, 'b, X, Y>,
    Panel { labels, axes, series }: &Panel<'_>,
) -> DrawResult
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(labels.x)
        .y_desc(labels.y)
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, (line, colour)) in series.iter().zip(COLOURS.iter().copied().cycle()).enumerate() {
        let above = if *axes == Axes::LogarithmicY { series.len() - 1 - i } else { 0 };
        let stroke = colour.stroke_width(2 + 2 * above as u32);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), stroke))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}

/// A number on an axis: no more digits than it needs.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "plotters wants this signature")]
fn short(value: &f64) -> String {
    if (1e-300..1e-3).contains(value) {
        return format!("{value:.0e}");
    }
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low < high { low..high } else { low..low + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels { title: "a title", x: "an x", y: "a y" };

    fn drawn(name: &str, draw: impl FnOnce(&Path) -> Result<(), ReportError>) -> String {
        let file = std::env::temp_dir().join(format!("xdp-agg-{}-{name}.svg", std::process::id()));
        draw(&file).expect("it can be drawn");
        let text = std::fs::read_to_string(&file).expect("it was written");
        std::fs::remove_file(&file).expect("it is there");
        text
    }

    #[test]
    fn plots_hold_their_labels_and_names() {
        let series = [Series { name: "ours".to_owned(), points: vec![(4.0, 50.0), (64.0, 90.0)] }];
        for axes in [Axes::Linear, Axes::Logarithmic, Axes::LogarithmicY] {
            let name = format!("{axes:?}");
            let panels = [Panel { labels: LABELS, axes, series: &series }];
            let svg = drawn(&name, |file| lines(file, &panels));
            for text in ["a title", "an x", "a y", "ours", "polyline"] {
                assert!(svg.contains(text), "{name}: {text}");
            }
        }
        let one = [Bar { name: "ring".to_owned(), value: 12.5, bound: Some(10.0) }];
        let svg = drawn("bars", |file| bars(file, &LABELS, &one));
        for text in ["a title", "ring", "12.5"] {
            assert!(svg.contains(text), "bars: {text}");
        }
    }

    #[test]
    fn groups_have_a_bar_a_series_and_their_marks() {
        let series = ["ours".to_owned(), "theirs".to_owned()];
        let group = Group { name: "2x2".into(), bars: vec![Some((1.5, Some(1.0))), None] };
        let svg = drawn("groups", |file| groups(file, &LABELS, &series, &[group]));
        for text in ["a title", "2x2", "ours", "theirs", "1.50", "polyline"] {
            assert!(svg.contains(text), "{text}");
        }
        let empty = [Group { name: "2x2".into(), bars: vec![None] }];
        assert!(groups(Path::new("/nonexistent/x.svg"), &LABELS, &series, &empty).is_err());
    }

    #[test]
    fn nothing_measured_is_an_error() {
        let panel = Panel { labels: LABELS, axes: Axes::Linear, series: &[] };
        assert!(lines(Path::new("/nonexistent/x.svg"), &[panel]).is_err());
    }

    #[test]
    fn axis_numbers_are_short() {
        for (value, text) in
            [(1.0, "1"), (0.25, "0.25"), (1500.0, "1500"), (0.0, "0"), (1e-5, "1e-5")]
        {
            assert_eq!(short(&value), text);
        }
    }
}
