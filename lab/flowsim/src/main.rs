//! `xdp-agg-flowsim`: the papers' figures by simulation, and predictions for one's own network.

mod simulate;
mod source;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use xdp_agg_flowsim::figures::{self, Bench, Plan};

/// Simulates all-reduce on networks, flow by flow (docs/flowsim.md).
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-flowsim", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Figures(FiguresArgs),
    Simulate(Box<simulate::Args>),
}

/// Make the papers' figures: report.md, report.html, SVG files, and figures.json with all numbers.
#[derive(Debug, clap::Args)]
struct FiguresArgs {
    /// Write them here
    #[arg(long, value_name = "DIR", default_value = "target/bench/figures")]
    report: PathBuf,
    /// Make these alone: rat-6, rat-7, rina-5, rina-10 (with 11), passing-14 (with
    /// 15 to 17), passing-18 (with 19), broadcast-11, scale
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer points, in a minute
    #[arg(long)]
    quick: bool,
    /// Seed of everything that is drawn by lot
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Figures(args) => make_figures(args),
        Command::Simulate(args) => simulate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If not even that can be written, the exit code says enough.
            drop(writeln!(io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// `bench simulate … | head -1`: the reader has read enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} chunks, {elapsed}, {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn make_figures(args: FiguresArgs) -> Result<()> {
    let FiguresArgs { report, only, quick, seed } = args;
    let plan = Plan { seed, quick, only };
    let bar = bar();
    let bench = Bench::new(bar.clone());
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("xdp-agg-flowsim {}", command.join(" "));
    let figures = figures::make(&plan, &command, &report, &bench)?;
    bar.finish_and_clear();
    let mut out = io::stdout().lock();
    for figure in &figures {
        writeln!(out, "{}", figure.summary())?;
    }
    writeln!(out, "# report: {}", report.join("report.md").display())?;
    Ok(())
}
