//! Comparison of runs: does quantization explain what came over the network, and what did it cost?
//!
//! # What quantization explains
//! Every worker rounds `x * scale` to an integer, which changes `x` by at most `0.5 / scale`. An
//! average of such values is off by no more than that, and is rounded once more to an `f32`. So
//! every element of step `t`'s averaged gradient is off by at most `e(t) = 0.5 / scale + 2^-24 *
//! max |g(t)|`. Carried through momentum and step size with all errors of one sign, every weight is
//! off by at most `w(t)`: `v(t + 1) = momentum * v(t) + e(t)`, `w(t + 1) = w(t) + learning_rate *
//! v(t + 1)`. To first order the loss is then off by at most `w(t) * sum |g(t)|`, plus its own
//! rounding.
//!
//! Two limits apply. First order means that the changed weights' effect on later gradients is left
//! out. The worst case, all errors of one sign, is far larger than what rounding does. So the bound
//! has room for that effect, but this is not a proof. Second, floats are summed in another order
//! than in one process. That effect is not bounded but measured: by the TCP ring's run, which does
//! not quantize.
//!
//! The sharper check needs no bound: one process that quantizes and sums as the client and the
//! aggregator do must end with the same weights, bit for bit ([`Report::same_bits_as_emulated`]).

use std::fmt::Write as _;

use serde::Serialize;

use crate::record::Record;

/// Rounding to an `f32` changes a value by at most this part of it.
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// The records of all ranks of one run.
#[derive(Clone, Debug)]
pub struct Run(Vec<Record>);

/// Records that cannot be compared.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ReportError {
    /// Records of a run are missing, or of several runs.
    #[error(
        "{system}: expected the records of ranks 0 to {workers} less one of one run, got {got}"
    )]
    Ranks {
        /// The run's system.
        system: String,
        /// How many parts a batch was divided into.
        workers: usize,
        /// Systems and ranks of the records.
        got: String,
    },
    /// The ranks of a run ended with different weights: some all-reduce gave them different sums.
    #[error("{system}: the ranks' weights differ ({digests}); all must be equal, bit for bit")]
    WeightsDiffer {
        /// The run's system.
        system: String,
        /// The digests, by rank.
        digests: String,
    },
    /// The runs were made with different settings.
    #[error("{system} was run with other settings ({theirs}) than single ({ours})")]
    Settings {
        /// The run's system.
        system: String,
        /// Its settings.
        theirs: String,
        /// Those of the single process.
        ours: String,
    },
}

impl Run {
    /// A run from the records of its processes, in any order.
    ///
    /// # Errors
    /// Ranks are missing, or ended with different weights.
    pub fn new(mut records: Vec<Record>) -> Result<Self, ReportError> {
        records.sort_by_key(|record| record.rank);
        let first = records.first();
        let system = first.map_or_else(|| "no record".into(), |r| r.system.clone());
        let workers = first.map_or(0, |record| record.workers);
        // One process plays all workers in these.
        let alone = ["single", "emulated"].contains(&system.as_str());
        let expected = if alone { 1 } else { workers };
        let in_place = |(i, r): (usize, &Record)| {
            usize::from(r.rank) == i && r.system == system && r.workers == workers
        };
        if records.len() != expected || expected == 0 || !records.iter().enumerate().all(in_place) {
            let got = records.iter().map(|r| format!("{} {}", r.system, r.rank));
            let got = got.collect::<Vec<_>>().join(", ");
            return Err(ReportError::Ranks { system, workers: expected, got });
        }
        if records.iter().any(|record| record.digest != records[0].digest) {
            let digests = records.iter().map(|record| record.digest.as_str());
            let digests = digests.collect::<Vec<_>>().join(", ");
            return Err(ReportError::WeightsDiffer { system, digests });
        }
        Ok(Self(records))
    }

    /// Rank 0's record.
    pub fn first(&self) -> &Record {
        &self.0[0]
    }

    /// All records, by rank.
    pub fn records(&self) -> &[Record] {
        &self.0
    }

    /// Magnitudes of the losses' differences from another run's, by step.
    pub fn loss_differences(&self, other: &Self) -> Vec<f64> {
        let losses = self.first().loss_by_step.iter().zip(&other.first().loss_by_step);
        losses.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).collect()
    }
}

/// One system's line of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The system.
    pub system: String,
    /// What sums, where an aggregator does.
    pub engine: Option<String>,
    /// Parts of a batch.
    pub workers: usize,
    /// Mean loss of the last epoch.
    pub last_epoch_loss: f64,
    /// Part of the test images that were recognised.
    pub test_accuracy: f64,
    /// Largest magnitude of a step's difference in loss from the single process.
    pub loss_difference_max: f64,
    /// Mean over the ranks of the seconds in all-reduce.
    pub communication_seconds: f64,
    /// Median over the ranks of their medians over the steps, in microseconds.
    pub communication_us_median: f64,
    /// Largest of the ranks' seconds of training.
    pub seconds: f64,
    /// Elements that were clamped, on all ranks; None without fixed-point numbers.
    pub saturated: Option<u64>,
    /// Of the final weights.
    pub digest: String,
}

/// The comparison of all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One row a run; the single process first.
    pub rows: Vec<Row>,
    /// Steps of training.
    pub steps: usize,
    /// Parameters of the network.
    pub parameters: usize,
    /// Scale of the fixed-point numbers of the run that is judged.
    pub scale: Option<f64>,
    /// What quantization explains of a difference in loss, at most over all steps; see the module.
    pub quantization_bound: Option<f64>,
    /// What the order of sums alone makes, measured: the TCP ring's largest difference from the
    /// single process.
    pub summation_order: Option<f64>,
    /// Whether the aggregated run's difference is within the sum of these two, without any clamped
    /// element. None without an aggregated run.
    pub explained: Option<bool>,
    /// Whether the aggregated run ended with the very weights of the emulation. None where one of
    /// them is missing.
    pub same_bits_as_emulated: Option<bool>,
    /// [`Self::quantization_bound`] by step, for plots.
    #[serde(skip)]
    pub bound_by_step: Vec<f64>,
}

impl Report {
    /// Compares runs with the training of one process (`single`).
    ///
    /// # Errors
    /// A run was made with other settings.
    pub fn new(single: &Run, runs: &[Run]) -> Result<Self, ReportError> {
        let ours = settings(single.first());
        for run in runs {
            let (system, theirs) = (run.first().system.clone(), settings(run.first()));
            if theirs != ours {
                return Err(ReportError::Settings { system, theirs, ours });
            }
        }
        let mut rows = vec![row(single, single)];
        rows.extend(runs.iter().map(|run| row(run, single)));
        let find = |system: &str| runs.iter().find(|run| run.first().system == system);
        let (aggregated, emulated) = (find("xdp-agg"), find("emulated"));
        let scale = aggregated.or(emulated).and_then(|run| run.first().scale);
        let bound_by_step =
            scale.map(|scale| bound_by_step(single.first(), scale)).unwrap_or_default();
        let quantization_bound = scale.map(|_| largest(&bound_by_step));
        let summation_order = find("tcp-ring").map(|run| largest(&run.loss_differences(single)));
        let explained = aggregated.zip(quantization_bound).map(|(run, bound)| {
            let clamped = run.records().iter().any(|record| record.saturated != Some(0));
            let difference = largest(&run.loss_differences(single));
            !clamped && difference <= bound + summation_order.unwrap_or(0.0)
        });
        let same_bits_as_emulated =
            aggregated.zip(emulated).map(|(a, b)| a.first().digest == b.first().digest);
        Ok(Self {
            rows,
            steps: single.first().steps,
            parameters: single.first().parameters,
            scale,
            quantization_bound,
            summation_order,
            explained,
            same_bits_as_emulated,
            bound_by_step,
        })
    }

    /// Table and verdict for the terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<9} {:>7} {:>10} {:>9} {:>16} {:>14} {:>16} {:>8}\n",
            "system",
            "workers",
            "loss",
            "accuracy",
            "loss difference",
            "in all-reduce",
            "a step (median)",
            "clamped"
        );
        for row in &self.rows {
            let alone = ["single", "emulated"].contains(&row.system.as_str());
            let (time, step) = if alone {
                ("-".into(), "-".into())
            } else {
                let step = format!("{:.0} us", row.communication_us_median);
                (format!("{:.2} s", row.communication_seconds), step)
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<9} {:>7} {:>10.6} {:>7.1} % {:>16.1e} {time:>14} {step:>16} {:>8}",
                row.system,
                row.workers,
                row.last_epoch_loss,
                row.test_accuracy * 100.0,
                row.loss_difference_max,
                row.saturated.map_or_else(|| "-".into(), |n| n.to_string()),
            );
        }
        text + &self.verdict()
    }

    /// What the numbers say, in sentences.
    pub fn verdict(&self) -> String {
        let mut text = String::new();
        let difference = self.rows.iter().find(|row| row.system == "xdp-agg");
        if let (Some(row), Some(bound)) = (difference, self.quantization_bound) {
            let order = self.summation_order.map_or_else(
                || ", and the order of sums was not measured (no tcp-ring run)".into(),
                |order| format!(" and the order of sums for {order:.1e} (tcp-ring, measured)"),
            );
            let judged = if self.explained == Some(true) { "within" } else { "NOT within" };
            let _ = writeln!(
                text,
                "loss of xdp-agg against one process: at most {:.1e} apart in {} steps, {judged} \
                 what explains it: quantization accounts for up to {bound:.1e} (scale {:e}, first \
                 order, worst case){order}",
                row.loss_difference_max,
                self.steps,
                self.scale.unwrap_or_default(),
            );
        }
        match self.same_bits_as_emulated {
            Some(true) => text.push_str(
                "weights of xdp-agg: those of the same fixed-point training in one process, bit \
                 for bit\n",
            ),
            Some(false) => text.push_str(
                "weights of xdp-agg: NOT those of the same fixed-point training in one process\n",
            ),
            None => {}
        }
        text
    }
}

fn settings(record: &Record) -> String {
    let options = record.options;
    format!("{options:?}, {} parameters, {} steps", record.parameters, record.loss_by_step.len())
}

fn row(run: &Run, single: &Run) -> Row {
    let (first, records) = (run.first(), run.records());
    let mean =
        |value: fn(&Record) -> f64| records.iter().map(value).sum::<f64>() / records.len() as f64;
    let medians: Vec<f64> = records.iter().map(|r| r.communication_us_median).collect();
    Row {
        system: first.system.clone(),
        engine: first.engine.clone(),
        workers: first.workers,
        last_epoch_loss: first.loss_by_epoch.last().copied().map_or(f64::NAN, f64::from),
        test_accuracy: first.test_accuracy,
        loss_difference_max: largest(&run.loss_differences(single)),
        communication_seconds: mean(|record| record.communication_seconds),
        communication_us_median: xdp_agg_report::quantile(&medians, 0.5),
        seconds: records.iter().map(|record| record.seconds).fold(0.0, f64::max),
        saturated: records.iter().map(|record| record.saturated).sum(),
        digest: first.digest.clone(),
    }
}

/// What quantization explains of the difference in each step's loss; see the module.
fn bound_by_step(single: &Record, scale: f64) -> Vec<f64> {
    let (momentum, rate) =
        (f64::from(single.options.momentum), f64::from(single.options.learning_rate));
    let (mut velocity_error, mut weight_error) = (0.0, 0.0);
    let gradients = single.gradient_l1_by_step.iter().zip(&single.gradient_max_by_step);
    gradients
        .zip(&single.loss_by_step)
        .map(|((l1, max), loss)| {
            let own = 0.5 / scale + F32_ROUNDING * f64::from(*loss);
            let bound = weight_error * f64::from(*l1) + own;
            let error = 0.5 / scale + F32_ROUNDING * f64::from(*max);
            velocity_error = momentum * velocity_error + error;
            weight_error += rate * velocity_error;
            bound
        })
        .collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Options;

    fn record(system: &str, rank: u16, workers: usize, losses: &[f32]) -> Record {
        Record {
            system: system.into(),
            engine: None,
            rank,
            workers,
            options: Options { epochs: 1, seed: 1, batch: 4, learning_rate: 0.5, momentum: 0.5 },
            scale: ["xdp-agg", "emulated"].contains(&system).then_some(100.0),
            parameters: 2,
            images: [8, 2],
            steps: losses.len(),
            loss_by_step: losses.into(),
            loss_by_epoch: vec![losses.iter().sum::<f32>() / losses.len() as f32],
            gradient_l1_by_step: vec![2.0; losses.len()],
            gradient_max_by_step: vec![1.0; losses.len()],
            test_accuracy: 0.5,
            seconds: 1.0 + f64::from(rank),
            compute_seconds: 0.5,
            communication_seconds: 0.5 + f64::from(rank),
            communication_us_median: 100.0 * f64::from(rank + 1),
            saturated: ["xdp-agg", "emulated"].contains(&system).then_some(0),
            digest: "d".into(),
            counters: None,
        }
    }

    fn run(system: &str, workers: u16, losses: &[f32]) -> Run {
        let ranks = (0..workers).rev();
        Run::new(ranks.map(|r| record(system, r, workers.into(), losses)).collect()).unwrap()
    }

    /// By hand: e = 0.005 a step; v = 0.005, 0.0075; w = 0, 0.0025, 0.00625; loss = 2 w + 0.005.
    #[test]
    fn the_bound_is_that_of_the_recursion() {
        let bounds = bound_by_step(&record("single", 0, 1, &[1.0, 1.0, 1.0]), 100.0);
        for (got, expected) in bounds.iter().zip([0.005, 0.01, 0.0175]) {
            assert!((got - expected).abs() < 1e-6, "{bounds:?}");
        }
    }

    #[test]
    fn a_difference_within_the_bound_is_explained_and_a_larger_one_is_not() {
        let single = run("single", 1, &[1.0, 1.0, 1.0]);
        let ring = run("tcp-ring", 2, &[1.0, 1.001, 1.0]);
        for (loss, explained) in [(1.017, true), (1.0182, true), (1.0195, false)] {
            let runs = [run("xdp-agg", 2, &[1.0, 1.0, loss]), ring.clone()];
            let report = Report::new(&single, &runs).unwrap();
            assert_eq!(report.explained, Some(explained), "{loss}");
            assert!((report.summation_order.unwrap() - 0.001).abs() < 1e-6);
            assert_eq!(report.verdict().contains("NOT within"), !explained);
        }
    }

    #[test]
    fn clamped_elements_are_never_explained() {
        let single = run("single", 1, &[1.0]);
        let mut clamped = record("xdp-agg", 0, 1, &[1.0]);
        clamped.saturated = Some(1);
        let report = Report::new(&single, &[Run::new(vec![clamped]).unwrap()]).unwrap();
        assert_eq!(report.explained, Some(false));
    }

    #[test]
    fn rows_merge_the_ranks() {
        let single = run("single", 1, &[1.0]);
        let report = Report::new(&single, &[run("xdp-agg", 3, &[1.25])]).unwrap();
        let row = &report.rows[1];
        assert_eq!((row.communication_seconds, row.communication_us_median), (1.5, 200.0));
        assert_eq!((row.seconds, row.saturated, row.workers), (3.0, Some(0), 3));
        assert_eq!(row.loss_difference_max, 0.25);
        let text = report.text();
        assert!(
            text.lines().all(|line| !line.contains("NaN")) && text.contains("2.5e-1"),
            "{text}"
        );
    }

    #[test]
    fn the_emulation_is_compared_by_bits() {
        let single = run("single", 1, &[1.0]);
        let mut emulated = record("emulated", 0, 2, &[1.0]);
        let aggregated = run("xdp-agg", 2, &[1.0]);
        let judge = |emulated: Record| {
            let runs = [aggregated.clone(), Run::new(vec![emulated]).unwrap()];
            Report::new(&single, &runs).unwrap().same_bits_as_emulated
        };
        assert_eq!(judge(emulated.clone()), Some(true));
        emulated.digest = "e".into();
        assert_eq!(judge(emulated), Some(false));
    }

    #[test]
    fn incomplete_and_contradictory_records_are_refused() {
        let ranks = |error: Result<Run, _>| matches!(error, Err(ReportError::Ranks { .. }));
        assert!(ranks(Run::new(vec![])));
        assert!(ranks(Run::new(vec![record("tcp-ring", 0, 2, &[1.0])])));
        let twice = record("tcp-ring", 1, 2, &[1.0]);
        assert!(ranks(Run::new(vec![twice.clone(), twice.clone()])));
        let mut other = record("tcp-ring", 0, 2, &[1.0]);
        other.digest = "x".into();
        let differ = Run::new(vec![twice, other]).unwrap_err();
        assert!(differ.to_string().contains("(x, d)"), "{differ}");
        let mut seed = record("emulated", 0, 2, &[1.0]);
        seed.options.seed = 9;
        let error = Report::new(&run("single", 1, &[1.0]), &[Run::new(vec![seed]).unwrap()]);
        assert!(matches!(error, Err(ReportError::Settings { .. })));
    }
}
