//! The comparison as a picture: loss by step, and below it the differences from the single process.

use std::error::Error;
use std::path::{Path, PathBuf};

use plotters::coord::types::RangedCoordusize;
use plotters::prelude::*;

use crate::report::{Report, Run};

const SIZE: (u32, u32) = (900, 760);
/// The least difference that is drawn: below the rounding of a loss of 1 to an `f32`.
const FLOOR: f64 = 1e-8;
const GRID: RGBColor = RGBColor(225, 225, 225);
const BOUND: RGBColor = RGBColor(120, 120, 120);

/// A picture that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the plot {path}: {reason}")]
pub struct PlotError {
    path: PathBuf,
    reason: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Colours that are told apart by colour-blind readers too (Okabe and Ito), and a line width, so
/// that a curve that covers another leaves it visible.
fn style(system: &str) -> (RGBColor, u32) {
    match system {
        "single" => (RGBColor(185, 185, 185), 6),
        "xdp-agg" => (RGBColor(213, 94, 0), 2),
        "tcp-ring" => (RGBColor(0, 114, 178), 1),
        _ => (RGBColor(0, 158, 115), 1),
    }
}

/// Writes an SVG of the loss curves and their differences.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, single: &Run, runs: &[Run], report: &Report) -> Result<(), PlotError> {
    let fail = |error: Box<dyn Error>| PlotError { path: path.into(), reason: error.to_string() };
    let svg = draw(single, runs, report).map_err(fail)?;
    std::fs::write(path, svg).map_err(|error| fail(error.into()))
}

fn draw(single: &Run, runs: &[Run], report: &Report) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (losses, differences) = root.split_vertically(SIZE.1 * 55 / 100);
        draw_losses(&losses, single, runs)?;
        draw_differences(&differences, single, runs, report)?;
        root.present()?;
    }
    Ok(svg)
}

fn draw_losses(area: &Area<'_>, single: &Run, runs: &[Run]) -> Result<(), Box<dyn Error>> {
    let steps = single.first().steps.max(2);
    let all = std::iter::once(single).chain(runs);
    let values = all.clone().flat_map(|run| &run.first().loss_by_step);
    let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), loss| {
        (low.min(f64::from(*loss)), high.max(f64::from(*loss)))
    });
    let low = low.max(1e-5);
    let mut chart = ChartBuilder::on(area)
        .caption("Training loss by step", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0..steps - 1, (low / 1.5..high.max(low) * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_desc("step")
        .y_desc("cross-entropy (nats)")
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for run in all {
        let record = run.first();
        let points = record.loss_by_step.iter().map(|loss| f64::from(*loss).max(low));
        let (color, width) = style(&record.system);
        let line = ShapeStyle::from(color).stroke_width(width);
        let accuracy = record.test_accuracy * 100.0;
        let label = match record.workers {
            1 => format!("{}: {accuracy:.1} % of test images right", record.system),
            n => format!("{}, {n} workers: {accuracy:.1} %", record.system),
        };
        chart
            .draw_series(LineSeries::new((0..).zip(points), line))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], line));
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn draw_differences(
    area: &Area<'_>,
    single: &Run,
    runs: &[Run],
    report: &Report,
) -> Result<(), Box<dyn Error>> {
    let steps = single.first().steps.max(2);
    let curves: Vec<_> = runs.iter().map(|run| run.loss_differences(single)).collect();
    let highest = curves.iter().flatten().chain(&report.bound_by_step).copied();
    let high = highest.fold(FLOOR * 10.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Difference of the loss from the single process", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0..steps - 1, (FLOOR..high * 3.0).log_scale())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_desc("step")
        .y_desc("nats")
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    if !report.bound_by_step.is_empty() {
        let line = ShapeStyle::from(BOUND).stroke_width(2);
        chart
            .draw_series(LineSeries::new((0..).zip(report.bound_by_step.iter().copied()), line))?
            .label("what quantisation explains (first order, worst case)")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], line));
    }
    for (run, curve) in runs.iter().zip(curves) {
        let line = ShapeStyle::from(style(&run.first().system).0).stroke_width(1);
        // Equal losses have no place on a logarithmic axis: they lie on its lower edge.
        let points = (0..).zip(curve.into_iter().map(|value| value.max(FLOOR)));
        chart
            .draw_series(LineSeries::new(points, line))?
            .label(run.first().system.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], line));
    }
    legend(&mut chart, SeriesLabelPosition::MiddleRight)
}

fn legend<'a, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordusize, Y>>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn Error>>
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .draw()
        .map_err(|error| error.to_string().into())
}

/// `0.01`, `1e-5`: as short as it goes.
fn short(value: f64) -> String {
    let (plain, scientific) = (format!("{value}"), format!("{value:.0e}"));
    if plain.len() <= 5 { plain } else { scientific }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::{Emulated, Exchange};
    use crate::record::Options;
    use crate::training::train;

    #[test]
    fn a_plot_names_every_run() {
        let options = Options { epochs: 1, batch: 200, ..Options::default() };
        let run = |mut exchange: Exchange, scale| {
            Run::new(vec![train(options, scale, &mut exchange, |_| ()).unwrap()]).unwrap()
        };
        let single = run(Exchange::Single, None);
        let emulated =
            run(Exchange::Emulated(Emulated::new(4, 1e4).expect("it makes sense")), Some(1e4));
        let runs = [emulated];
        let report = Report::new(&single, &runs).unwrap();
        let svg = draw(&single, &runs, &report).unwrap();
        for text in ["single", "emulated, 4 workers", "what quantisation explains", "step"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
        let path = Path::new("/nonexistent/plot.svg");
        let error = write(path, &single, &runs, &report).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/plot.svg"), "{error}");
    }
}
