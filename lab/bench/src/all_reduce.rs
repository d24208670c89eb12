//! One worker of an all-reduce benchmark.
//!
//! Runs in every worker, with rank and world size from the environment. All ranks agree on the
//! result through the collective itself, so rank 0 prints the whole: the columns of nccl-tests.
//! With a strategy it replays iterations of training instead (`replay`).

mod measure;
mod pattern;
mod replay;
mod report;
mod strategy;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use xdp_agg_baselines::{BoxError, Collective};
use xdp_agg_client::{Builder, Communicator};
use xdp_agg_mesh::Mesh;
use xdp_agg_workloads::{Network, Workload};

use measure::Plan;
use replay::{Load, Phase};
use report::{Report, Row};
use strategy::Strategy;

/// Measure all-reduce as one worker of a job.
///
/// Start it once per worker. RANK and WORLD_SIZE come from the environment, as torchrun and MPI
/// launchers set them; xdp-agg further reads XDP_AGG_ADDR and XDP_AGG_JOB, tcp-ring MASTER_ADDR and
/// MASTER_PORT or XDP_AGG_PORT. Rank 0 prints the columns of nccl-tests. The vector is summed in
/// place; before and after timing it holds a pattern whose sum is known exactly, and #wrong counts
/// elements that differ from it. Exits with 1 where there are any.
///
/// With --strategy it replays iterations of training: the gradients of --workload in buckets, from
/// the last layer to the first, or each of --bytes as one bucket. LOCAL_RANK and LOCAL_WORLD_SIZE
/// tell which processes share a host; XDP_AGG_PS_ADDRS where parameter servers are.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-bench", version, after_help = crate::EXIT_CODES)]
#[command(args_override_self = true)]
pub struct Args {
    /// What to measure.
    #[arg(long, value_enum, default_value_t = System::XdpAgg)]
    system: System,
    /// Replay iterations of training over this: ps, psring, switchml, atp, ring, h-ar or
    /// passing.
    #[arg(long, conflicts_with = "system")]
    strategy: Option<Strategy>,
    /// Whose gradients to replay: resnet50, vgg16, vgg19 or bert. Default: each of --bytes.
    #[arg(long, requires = "strategy", conflicts_with = "bytes")]
    workload: Option<Network>,
    /// Scale every tensor to this share of its elements.
    #[arg(long, requires = "workload", default_value_t = 1.0, value_parser = fraction)]
    fraction: f64,
    /// Iterations to replay, separated by commas: how many, and the seconds that an iteration
    /// computes. `+overlap` sums buckets while layers before them are computed. With `+through` one
    /// iteration follows the other; otherwise all ranks meet before each.
    #[arg(long, requires = "strategy", value_delimiter = ',', default_value = "10x0")]
    phase: Vec<Phase>,
    /// Say on standard output when a phase begins and ends, and pause there.
    #[arg(long, hide = true)]
    marks: bool,
    /// Sizes of the vector, separated by commas: bytes, or with K, M, G (1024-based), as `-b` of
    /// nccl-tests; or 97e6.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = xdp_agg_topology::size::of_vector,
        default_value = "4K,64K,1M,16M"
    )]
    bytes: Vec<usize>,
    /// Timed calls per size.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iters: u32,
    /// Calls before them that are not timed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    warmup: u32,
    /// Keep the vector in the segment that the processes of a host share, for which XDP_AGG_BUFFERS
    /// has to give room.
    #[arg(long, conflicts_with = "strategy")]
    in_segment: bool,
    /// Type of the elements.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Write all times and counters of this rank here; `{rank}` stands for its number.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An implementation of all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    /// Summed by the aggregator.
    XdpAgg,
    /// The baseline: a ring of TCP connections.
    TcpRing,
    /// As xdp-agg, but each size learns which way is fastest.
    Auto,
}

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dtype {
    /// 32-bit floats.
    F32,
    /// 32-bit integers.
    I32,
}

fn open(system: System) -> Result<Box<dyn Collective>> {
    Ok(match system {
        System::XdpAgg | System::Auto => {
            let settings = Builder::from_env()?.scale(pattern::EXACT_SCALE);
            Box::new(settings.learning(system == System::Auto).connect()?)
        }
        System::TcpRing => Box::new(Mesh::from_env()?),
    })
}

/// `algorithm` in tables: what sums, and how results come.
fn algorithm(communicator: &Communicator) -> String {
    format!("{}, {}", communicator.engine(), communicator.result_mode().name())
}

/// `algorithm` of calls that have learned: the ways of these sizes.
fn learned(communicator: &Communicator, sizes: &[usize]) -> String {
    let learned = communicator.learned();
    let of_size = |bytes: &usize| learned.iter().find(|one| one.up_to >= *bytes as u64);
    let ways = sizes.iter().filter_map(of_size).map(|one| one.route.name());
    let mut ways: Vec<&str> = ways.collect();
    ways.dedup();
    ways.join(", ")
}

/// Runs the benchmark of this rank.
///
/// # Errors
/// Settings, and what ends a call; wrong sums.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(odd) = args.bytes.iter().find(|bytes| *bytes % 4 != 0) {
        let problem = "elements have four bytes, so a size is a multiple of 4";
        return Err(crate::WrongConfig(format!("--bytes {odd}: {problem}")).into());
    }
    if let Some(strategy) = args.strategy {
        return replay_all(args, strategy);
    }
    let mut collective = open(args.system)?;
    let rank = collective.rank();
    let mut report = Report {
        rank,
        world_size: collective.world_size(),
        system: collective.system(),
        algorithm: collective.communicator().map_or_else(|| "ring".to_owned(), algorithm),
        chosen: collective.communicator().map(|communicator| communicator.chosen().clone()),
        dtype: args.dtype.name(),
        ..Report::default()
    };
    if rank == 0 {
        print!("{}", report.heading());
    }
    for &bytes in &args.bytes {
        let Args { iters, warmup, in_segment, .. } = *args;
        let plan = Plan { bytes, iters, warmup, in_segment };
        let row = measure_one(collective.as_mut(), args.dtype, plan)
            .map_err(|error| anyhow!(error))
            .with_context(|| format!("rank {rank}, {bytes} bytes"))?;
        if rank == 0 {
            println!("{}", report.line(&row));
        }
        report.rows.push(row);
    }
    if let Some(communicator) = collective.communicator() {
        if args.system == System::Auto {
            report.algorithm = learned(communicator, &args.bytes);
        }
        report.counters = serde_json::to_value(communicator.counters())?;
    }
    report.peak_memory_bytes = usage::peak_memory().unwrap_or(0);
    if rank == 0 {
        print!("{}", report.footing());
    }
    if let Some(file) = &args.json {
        write(file, rank, &report)?;
    }
    match report.wrong() {
        0 => Ok(ExitCode::SUCCESS),
        wrong => bail!("{wrong} elements are wrong: the sums cannot be trusted"),
    }
}

/// Replays the workload, or each size, over a strategy.
fn replay_all(args: &Args, strategy: Strategy) -> Result<ExitCode> {
    let loads: Vec<Load> = match args.workload {
        Some(network) => vec![Load::of(&Workload::new(network, args.fraction))],
        None => args.bytes.iter().map(|bytes| Load::of_bytes(*bytes)).collect(),
    };
    let buckets = loads.iter().map(Load::buckets).max().unwrap_or(1);
    let mut opened = strategy::open(strategy, buckets)?;
    let plan = replay::Plan { strategy, phases: &args.phase, marks: args.marks };
    let report = replay::run(opened.as_mut(), &plan, &loads)?;
    if let Some(file) = &args.json {
        write(file, opened.rank(), &report)?;
    }
    match report.wrong() {
        0 => Ok(ExitCode::SUCCESS),
        wrong => bail!("{wrong} elements are wrong on this rank: the sums cannot be trusted"),
    }
}

/// Writes a rank's report; `{rank}` in the file's name stands for the rank.
fn write(file: &Path, rank: u16, report: &impl Serialize) -> Result<()> {
    let name = file.to_string_lossy().replace("{rank}", &rank.to_string());
    let json = serde_json::to_string_pretty(report)?;
    fs::write(&name, json + "\n").with_context(|| format!("writing {name}"))
}

/// A share above 0, at most 1.
fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| format!("{text:?} is no share; expected a number above 0, at most 1"))
}

fn measure_one(
    collective: &mut dyn Collective,
    dtype: Dtype,
    plan: Plan,
) -> std::result::Result<Row, BoxError> {
    match dtype {
        Dtype::F32 => measure::measure::<f32>(collective, plan),
        Dtype::I32 => measure::measure::<i32>(collective, plan),
    }
}

impl Dtype {
    /// The name in nccl-tests' tables.
    const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::I32 => "int32",
        }
    }
}
