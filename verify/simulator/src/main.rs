//! `xdp-agg-simulator`: simulated runs by seed. `cargo xtask sim` builds and starts it.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use xdp_agg_simulator::{Choice, Outcome, Stats, bulk, mutants, switch};

/// Simulates xdp-agg: the production code of workers, daemon and slots under a virtual clock, on a
/// network and with processes that fail in every way, all from one seed. Every step is compared
/// with an exact reference (docs/simulation.md).
///
/// Without options: 10 000 seeds. Exit code 1: something was violated.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", version)]
struct Args {
    /// Run this seed alone, and print everything that happens
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "first_seed", "mutants"])]
    seed: Option<u64>,
    /// Run this number of seeds, on all processors
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0)]
    first_seed: u64,
    /// Jobs on the simulated aggregator, 1 or 2 [default: as the seed says]
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u8).range(1..=2))]
    jobs: Option<u8>,
    /// Several aggregators, in trees, in every run [default: in each fourth]
    #[arg(long)]
    trees: bool,
    /// One aggregator in every run
    #[arg(long, conflicts_with = "trees")]
    no_trees: bool,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "THREADS", default_value_t = 0)]
    threads: usize,
    /// Stop at the first violation
    #[arg(long)]
    stop: bool,
    /// Break the sources in each way of verify/simulator/mutants.toml, and show that it is noticed
    #[arg(long)]
    mutants: bool,
    /// Keep the seeds by which mutants were noticed: the next run tries them first
    #[arg(long, requires = "mutants")]
    record: bool,
    /// Build them alone: the next run with them begins at once
    #[arg(long, requires = "mutants", conflicts_with = "record")]
    build: bool,
    /// Run as this mutant (in the program that `--mutants` builds)
    #[arg(long, hide = true)]
    mutant: Option<u32>,
}

fn main() -> ExitCode {
    match act(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// True: nothing was violated.
fn act(args: &Args) -> Result<bool> {
    if let Some(mutant) = args.mutant
        && !switch::choose(mutant)
    {
        bail!("this program has no mutants; `cargo xtask sim --mutants` builds one that has");
    }
    if args.build {
        return mutants::build().map(|()| true);
    }
    if args.mutants {
        return mutants::main(args.seeds, args.record);
    }
    let trees = (args.trees || args.no_trees).then_some(args.trees);
    let choice = Choice { jobs: args.jobs.map(usize::from), trees };
    match args.seed {
        Some(seed) => Ok(one(seed, choice)),
        None => Ok(many(args, choice)),
    }
}

/// One seed, with its trace.
fn one(seed: u64, choice: Choice) -> bool {
    let outcome = xdp_agg_simulator::run(seed, choice, true);
    let Outcome { scenario, stats, trace, violation, end } = &outcome;
    println!("{scenario:#?}\n");
    for line in trace.lines() {
        println!("{line}");
    }
    println!();
    print_stats(stats);
    println!("virtual time {:.3} s, trace {:016x}", *end as f64 / 1e9, trace.hash());
    match violation {
        Some(violation) => println!("seed {seed}: VIOLATION: {violation}"),
        None => println!("seed {seed}: all is well"),
    }
    violation.is_none()
}

/// Many seeds, with a summary.
fn many(args: &Args, choice: Choice) -> bool {
    let bar = progress_bar(args.seeds);
    let start = Instant::now();
    let Args { first_seed: first, seeds: count, threads, stop, .. } = *args;
    let plan = bulk::Plan { first, count, choice, threads, stop };
    let report = bulk::run(&plan, |runs| bar.inc(runs));
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    print_stats(&report.stats);
    println!("time        {seconds:.1} s, {:.0} runs a second", report.stats.runs as f64 / seconds);
    for (seed, violation) in &report.violations {
        println!("seed {seed}: VIOLATION: {violation}");
    }
    if let Some((seed, _)) = report.violations.first() {
        println!("replay with: cargo xtask sim --seed {seed}");
    }
    report.violations.is_empty()
}

fn progress_bar(seeds: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(seeds);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn print_stats(stats: &Stats) {
    for line in stats.lines() {
        println!("{line}");
    }
}
