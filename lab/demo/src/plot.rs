//! The comparison as a picture: loss by step, and below it the differences from the single process.

use std::path::Path;

use xdp_agg_report::ReportError;
use xdp_agg_report::plot::{Axes, Labels, Panel, Series, lines};

use crate::report::{Report, Run};

/// The least loss that is drawn: a logarithmic axis has no place for 0.
const LEAST_LOSS: f64 = 1e-5;
/// The least difference that is drawn: below the rounding of a loss of 1 to an `f32`.
const FLOOR: f64 = 1e-8;

/// Writes an SVG of the loss curves and their differences.
pub fn write(path: &Path, single: &Run, runs: &[Run], report: &Report) -> Result<(), ReportError> {
    let curve = |name: String, values: &mut dyn Iterator<Item = f64>, least: f64| Series {
        name,
        points: values.enumerate().map(|(step, y)| (step as f64, y.max(least))).collect(),
    };
    let loss = |run: &Run| {
        let record = run.first();
        let accuracy = record.test_accuracy * 100.0;
        let name = match record.workers {
            1 => format!("{}: {accuracy:.1} % of test images right", record.system),
            n => format!("{}, {n} workers: {accuracy:.1} %", record.system),
        };
        curve(name, &mut record.loss_by_step.iter().map(|loss| f64::from(*loss)), LEAST_LOSS)
    };
    let losses: Vec<_> = std::iter::once(single).chain(runs).map(loss).collect();
    let difference = |run: &Run| {
        let name = run.first().system.clone();
        curve(name, &mut run.loss_differences(single).into_iter(), FLOOR)
    };
    let mut differences: Vec<_> = runs.iter().map(difference).collect();
    if !report.bound_by_step.is_empty() {
        let name = "what quantization explains (first order, worst case)".to_owned();
        differences.insert(0, curve(name, &mut report.bound_by_step.iter().copied(), FLOOR));
    }
    let panel = |title, y, series| {
        let labels = Labels { title, x: "step", y };
        Panel { labels, axes: Axes::LogarithmicY, series }
    };
    let mut panels = vec![panel("Training loss by step", "cross-entropy (nats)", &losses[..])];
    if !differences.is_empty() {
        let title = "Difference of the loss from the single process";
        panels.push(panel(title, "nats", &differences));
    }
    lines(path, &panels)
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
        let file = std::env::temp_dir().join(format!("xdp-agg-demo-{}.svg", std::process::id()));
        write(&file, &single, &runs, &report).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for text in ["single", "emulated, 4 workers", "what quantization explains", "step"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
        let path = Path::new("/proc/none/plot.svg");
        let error = write(path, &single, &runs, &report).unwrap_err().to_string();
        assert!(error.contains("/proc/none"), "{error}");
    }
}
