//! `xdp-agg-demo`: trains one rank of a data-parallel training, and compares such runs.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use xdp_agg_client::Builder;
use xdp_agg_demo::exchange::{Emulated, Exchange};
use xdp_agg_demo::plot;
use xdp_agg_demo::record::{Options, Record};
use xdp_agg_demo::report::{Report, Run};
use xdp_agg_demo::training::{Progress, train};
use xdp_agg_mesh::Mesh;

/// Data-parallel training of a small network on 1797 handwritten digits.
/// Seven decimal digits behind the point, and room for sums up to 214: gradients are smaller.
const DEFAULT_SCALE: f64 = 1e7;

#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train one rank, or the whole batch in one process.
    Worker(Worker),
    /// Compare runs with the training of one process, from their JSON files.
    Report(ReportArgs),
}

/// How gradients are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    /// By the aggregator: RANK, WORLD_SIZE and XDP_AGG_ADDR say where (and XDP_AGG_JOB, …).
    XdpAgg,
    /// By a TCP ring: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where.
    TcpRing,
    /// Not at all: one process computes the whole batch.
    Single,
    /// In one process that plays all workers, with the fixed-point numbers of xdp-agg.
    Emulated,
}

#[derive(Debug, Args)]
struct Worker {
    /// How gradients are averaged.
    #[arg(long, value_enum)]
    system: System,
    /// Passes over the training images.
    #[arg(long, default_value_t = Options::default().epochs)]
    epochs: usize,
    /// Seed of the weights, of the images' order, and of the split into training and test images.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// Images of a step, over all workers; a multiple of their number.
    #[arg(long, default_value_t = Options::default().batch)]
    batch: usize,
    /// Step size.
    #[arg(long, default_value_t = Options::default().learning_rate)]
    learning_rate: f32,
    /// Part of the last step that the next one keeps, from 0 to below 1.
    #[arg(long, default_value_t = Options::default().momentum)]
    momentum: f32,
    /// Scale of the fixed-point numbers (xdp-agg and emulated).
    #[arg(long, env = "XDP_AGG_SCALE", default_value_t = DEFAULT_SCALE)]
    scale: f64,
    /// Workers to play (emulated).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Write this rank's record here, as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// The record of the single process.
    #[arg(long, value_name = "FILE")]
    single: PathBuf,
    /// The records of all ranks of one run, separated by commas; once for every run.
    #[arg(long = "run", value_name = "FILES", required = true)]
    runs: Vec<String>,
    /// Write a plot here, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write the comparison here, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Worker(worker) => run_worker(&worker),
        Command::Report(args) => run_report(&args),
    }
}

fn run_worker(worker: &Worker) -> Result<()> {
    if !(0.0..1.0).contains(&worker.momentum) || worker.learning_rate <= 0.0 {
        bail!("the momentum must be from 0 to below 1, and the learning rate above 0");
    }
    if !worker.scale.is_finite() || worker.scale <= 0.0 {
        bail!(
            "the scale is {}; it must be a number above 0, such as {DEFAULT_SCALE:e}",
            worker.scale
        );
    }
    let mut exchange = connect(worker)?;
    let fixed_point = matches!(worker.system, System::XdpAgg | System::Emulated);
    let scale = fixed_point.then_some(worker.scale);
    let &Worker { epochs, seed, batch, learning_rate, momentum, .. } = worker;
    let options = Options { epochs, seed, batch, learning_rate, momentum };
    let mut show = Show::new(exchange.rank() == 0);
    let record = train(options, scale, &mut exchange, |progress| show.progress(progress))
        .with_context(|| format!("training of rank {} failed", exchange.rank()))?;
    show.end(&record);
    if let Some(path) = &worker.out {
        record.write(path)?;
    }
    Ok(())
}

fn connect(worker: &Worker) -> Result<Exchange> {
    Ok(match worker.system {
        System::Single => Exchange::Single,
        System::Emulated => Exchange::Emulated(Emulated::new(worker.workers, worker.scale)?),
        System::TcpRing => {
            Exchange::Ring(Box::new(Mesh::from_env().context("cannot build the TCP ring")?))
        }
        System::XdpAgg => {
            let communicator = Builder::from_env()
                .and_then(|builder| builder.scale(worker.scale).learning(false).connect())
                .context("cannot join the aggregation")?;
            Exchange::Aggregator(Box::new(communicator))
        }
    })
}

/// Progress on standard error: a bar on a terminal, a line now and then elsewhere; without colours.
struct Show {
    speaks: bool,
    bar: Option<ProgressBar>,
    next_line: usize,
}

impl Show {
    fn new(speaks: bool) -> Self {
        let bar = (speaks && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {msg}");
            let bar = ProgressBar::new(0);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { speaks, bar, next_line: 0 }
    }

    fn progress(&mut self, progress: Progress) {
        let Progress { epoch, step, steps, loss, epoch_ends } = progress;
        if let Some(bar) = &self.bar {
            bar.set_length(steps as u64);
            bar.set_message(format!("epoch {epoch}, loss {loss:.4}"));
            bar.set_position(step as u64);
        } else if self.speaks && epoch_ends && (step >= self.next_line || step == steps) {
            eprintln!("epoch {epoch}: step {step} of {steps}, loss {loss:.4}");
            self.next_line = step + steps / 5;
        }
    }

    fn end(&self, record: &Record) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
        if self.speaks {
            eprintln!(
                "{}: {:.1} % of {} test images right, {:.2} s of training, {:.2} s of it in \
                 all-reduce",
                record.system,
                record.test_accuracy * 100.0,
                record.images[1],
                record.seconds,
                record.communication_seconds
            );
        }
    }
}

fn run_report(args: &ReportArgs) -> Result<()> {
    let read = |paths: &str| -> Result<Run> {
        let records = paths.split(',').map(|path| Record::read(Path::new(path)));
        Ok(Run::new(records.collect::<Result<_, _>>()?)?)
    };
    let single = Run::new(vec![Record::read(&args.single)?])?;
    let runs: Vec<Run> = args.runs.iter().map(|paths| read(paths)).collect::<Result<_>>()?;
    let report = Report::new(&single, &runs)?;
    print!("{}", report.text());
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &single, &runs, &report)?;
    }
    if report.explained == Some(false) || report.same_bits_as_emulated == Some(false) {
        bail!("the run by the aggregator is not what it should be: see above");
    }
    Ok(())
}
