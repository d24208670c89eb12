//! `demo --torch`: PyTorch's DDP on four hosts, over xdp-agg and then over gloo.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Deserialize;
use xdp_agg_report::plot::{Axes, Labels, Panel, Series, lines};

use super::lab::Plan;
use super::torchrun::{self, Script};

/// The example that is run, as any user would run it.
const EXAMPLE: &str = "examples/ddp_digits.py";
/// The systems, in the order in which they train.
const SYSTEMS: [&str; 2] = ["xdp-agg", "gloo"];
/// The longest that one training may take.
const LIMIT: Duration = Duration::from_secs(300);
/// By how much two trainings may differ that sum the same gradients but round in different ways.
const LOSS_MAX: f64 = 1e-3;
const ACCURACY_MAX: f64 = 0.01;

/// What a training says of itself.
#[derive(Deserialize)]
struct Record {
    world_size: u16,
    loss_by_epoch: Vec<f64>,
    /// Of the test set, from 0 to 1.
    accuracy: f64,
    step_seconds: Step,
    steps: u64,
    /// Elements of a known sum that came back wrong.
    wrong: u64,
    #[serde(default)]
    stats: serde_json::Value,
}

#[derive(Deserialize)]
struct Step {
    median: f64,
    q1: f64,
    q3: f64,
}

/// Trains over both systems, shows what came of it, and says whether it is as it should be.
pub(crate) fn main(plan: Plan, epochs: Option<u32>, out: &Path) -> Result<()> {
    let start = Instant::now();
    let python = torchrun::interpreter()?;
    println!(
        "PyTorch on {} hosts ({}), each in a network namespace",
        plan.workers,
        python.display()
    );
    println!("links: {}, {} % loss", plan.rate, plan.loss.percent());
    let mut records = Vec::new();
    for (number, system) in SYSTEMS.into_iter().enumerate() {
        println!(
            "\n{}. torchrun --nnodes {} {EXAMPLE} --backend {system}",
            number + 1,
            plan.workers
        );
        records.push(train(plan, system, epochs, out)?);
    }
    println!("\n3. What came of it");
    let [ours, theirs] = &records[..] else { bail!("two systems train") };
    print(ours, theirs);
    plot(&records, out)?;
    println!(
        "\ndone in {:.0} s; records and plot: {}",
        start.elapsed().as_secs_f64(),
        out.display()
    );
    verdict(plan, ours, theirs)
}

/// One training, in a network of its own.
fn train(plan: Plan, system: &str, epochs: Option<u32>, out: &Path) -> Result<Record> {
    let epochs = epochs.map(|epochs| ["--epochs".to_owned(), epochs.to_string()]);
    let arguments = epochs.into_iter().flatten().collect();
    let script = Script { path: EXAMPLE, arguments, backend: system, limit: LIMIT, shown: true };
    Ok(torchrun::record(plan, script, &out.join(format!("torch-{system}.json")))?.0)
}

fn print(ours: &Record, theirs: &Record) {
    println!("loss     {:>12} {:>12}", SYSTEMS[0], SYSTEMS[1]);
    let pairs = ours.loss_by_epoch.iter().zip(&theirs.loss_by_epoch);
    for (epoch, (own, other)) in pairs.enumerate() {
        println!("epoch {:>2} {own:>12.8} {other:>12.8}", epoch + 1);
    }
    let percent = |record: &Record| record.accuracy * 100.0;
    println!("accuracy {:>10.2} % {:>10.2} %", percent(ours), percent(theirs));
    let millis = |record: &Record| {
        let Step { median, q1, q3 } = record.step_seconds;
        format!("{:.1} ({:.1}–{:.1})", median * 1e3, q1 * 1e3, q3 * 1e3)
    };
    println!("step, ms {:>12} {:>12}  median and quartiles", millis(ours), millis(theirs));
    println!(
        "a step takes {:.2} of gloo's time; {} steps; wrong = {}",
        ours.step_seconds.median / theirs.step_seconds.median,
        ours.steps,
        ours.wrong
    );
    if let Some(results) = ours.stats.get("results").and_then(serde_json::Value::as_u64) {
        println!("rank 0 had {results} blocks summed by the aggregator");
    }
}

fn plot(records: &[Record], out: &Path) -> Result<()> {
    let series = |(system, record): (&str, &Record)| Series {
        name: system.to_owned(),
        points: (1..).zip(&record.loss_by_epoch).map(|(at, loss)| (f64::from(at), *loss)).collect(),
    };
    let series: Vec<Series> = SYSTEMS.into_iter().zip(records).map(series).collect();
    let labels = Labels { title: "DDP on handwritten digits", x: "epoch", y: "training loss" };
    Ok(lines(&out.join("torch.svg"), &[Panel { labels, axes: Axes::Linear, series: &series }])?)
}

/// The same training, or an error that says what differs.
fn verdict(plan: Plan, ours: &Record, theirs: &Record) -> Result<()> {
    if ours.world_size != plan.workers || theirs.world_size != plan.workers {
        bail!("a training had {} ranks, not {}", ours.world_size, plan.workers);
    }
    if ours.wrong + theirs.wrong > 0 {
        bail!("{} and {} elements of a known sum came back wrong", ours.wrong, theirs.wrong);
    }
    let pairs = ours.loss_by_epoch.iter().zip(&theirs.loss_by_epoch);
    let off = pairs.map(|(own, other)| (own - other).abs()).fold(0.0, f64::max);
    if off > LOSS_MAX || ours.loss_by_epoch.len() != theirs.loss_by_epoch.len() {
        bail!("the losses differ by {off:.2e}; quantization explains {LOSS_MAX:e} at most");
    }
    if (ours.accuracy - theirs.accuracy).abs() > ACCURACY_MAX {
        bail!("the accuracies differ: {} and {}", ours.accuracy, theirs.accuracy);
    }
    Ok(())
}
