//! `bench torch`: PyTorch over xdp-agg, beside gloo over the same links.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::compare;
use super::files::make_directory;
use super::lab::{Plan, Privilege};
use super::setting::{Rate, parse_bytes, short_bytes};
use super::torchrun::{self, Script};

/// The script that times one backend.
const SCRIPT: &str = "bindings/python/bench/torch_bench.py";
/// The longest that one run may take.
const LIMIT: Duration = Duration::from_secs(420);

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// `dist.all_reduce` of short tensors.
    Latency,
    /// Steps of DDP, and what of them is communication.
    Ddp,
}

/// PyTorch's `all_reduce` and DDP over xdp-agg and over gloo, on the same hosts and links.
///
/// Each host is a network namespace with a torchrun of its own. Every link's rate is checked while
/// a system runs, and every gradient's value.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What is timed.
    #[arg(value_enum)]
    part: Part,
    /// Number of hosts, with one process each.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    workers: u16,
    /// Rate of every link in each direction, such as 500mbit, or none. Default: 500mbit for DDP.
    #[arg(long)]
    rate: Option<Rate>,
    /// Bytes of tensors, or of a step's gradients. Default: 1 KiB and 64 KiB, or 97 MiB.
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes)]
    bytes: Option<Vec<u64>>,
    /// Calls or steps that are timed.
    #[arg(long)]
    iters: Option<u32>,
    /// Buckets of a step.
    #[arg(long, default_value_t = 8)]
    layers: u32,
    /// Milliseconds that a step computes, spread over its buckets.
    #[arg(long, default_value_t = 0)]
    compute_ms: u32,
    /// Instead: how often matrices of 256 x 256 are multiplied for each bucket, by this machine's
    /// processors.
    #[arg(long, default_value_t = 0, conflicts_with = "compute_ms")]
    matmuls: u32,
    /// Threads of PyTorch that multiply, of each rank. Default: as many as there are processors.
    #[arg(long, requires = "matmuls")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// The systems, in their order.
    #[arg(long, value_delimiter = ',', default_values = ["xdp-agg", "gloo"])]
    systems: Vec<String>,
    /// Where records go.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench-torch")]
    out: PathBuf,
}

/// Of one quantity, in seconds.
#[derive(Deserialize)]
struct Times {
    median: f64,
    q1: f64,
    q3: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Steps {
    step: Times,
    local: Times,
    wrong: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Latencies {
    all_reduce: std::collections::BTreeMap<u64, Times>,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    make_directory(&args.out)?;
    let none = Rate { bits: None };
    let capped: Rate = "500mbit".parse().map_err(anyhow::Error::msg)?;
    let rate = args.rate.unwrap_or(if args.part == Part::Ddp { capped } else { none });
    let plan = Plan::new(args.workers, rate, privilege);
    println!("# torch: {} hosts, {rate} a link and direction, MTU 1500", args.workers);
    match args.part {
        Part::Latency => latency(args, plan),
        Part::Ddp => steps(args, plan),
    }
}

/// Runs the script over one system; its record, and whether every link kept its rate.
fn run<T: DeserializeOwned>(
    args: &Args,
    plan: Plan,
    system: &str,
    arguments: &[String],
) -> Result<(T, bool)> {
    let (backend, arguments) = (system, arguments.to_vec());
    let script = Script { path: SCRIPT, arguments, backend, limit: LIMIT, shown: false };
    torchrun::record(plan, script, &args.out.join(format!("{system}.json")))
}

fn latency(args: &Args, plan: Plan) -> Result<()> {
    let sizes = args.bytes.clone().unwrap_or_else(|| vec![4, 1 << 10, 64 << 10]);
    let list: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let iters = args.iters.unwrap_or(500).to_string();
    let arguments = ["latency", "--bytes", &list.join(","), "--iters", &iters].map(str::to_owned);
    println!("{:<10} {:>8} {:>12} {:>12} {:>12}", "system", "bytes", "median µs", "q1–q3", "p99");
    for system in &args.systems {
        let (record, _): (Latencies, _) = run(args, plan, system, &arguments)?;
        for (bytes, times) in record.all_reduce {
            let micros = |seconds: f64| (seconds * 1e6).round();
            let middle = format!("{}–{}", micros(times.q1), micros(times.q3));
            let (median, p99) = (micros(times.median), micros(times.p99));
            println!("{system:<10} {bytes:>8} {median:>12} {middle:>12} {p99:>12}");
        }
    }
    Ok(())
}

fn steps(args: &Args, plan: Plan) -> Result<()> {
    let bytes = args.bytes.as_ref().and_then(|all| all.first().copied()).unwrap_or(97 << 20);
    let iters = args.iters.unwrap_or(5).to_string();
    let compute = f64::from(args.compute_ms) / 1e3;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = match args.matmuls {
        0 => 1,
        _ => args.threads.map_or(processors, |threads| threads as usize),
    };
    let arguments = [
        "ddp",
        "--bytes",
        &bytes.to_string(),
        "--iters",
        &iters,
        "--layers",
        &args.layers.to_string(),
        "--compute",
        &compute.to_string(),
        "--matmuls",
        &args.matmuls.to_string(),
        "--threads",
        &threads.to_string(),
    ]
    .map(str::to_owned);
    let heading = ["gradients", "step ms", "q1–q3", "alone ms", "communication ms", "wrong"];
    println!(
        "{:<10} {:>10} {:>10} {:>14} {:>10} {:>17} {:>6}  caps kept",
        "system", heading[0], heading[1], heading[2], heading[3], heading[4], heading[5]
    );
    let mut communication = Vec::new();
    for system in &args.systems {
        let (record, kept): (Steps, _) = run(args, plan, system, &arguments)?;
        let [step, q1, q3, local] =
            [record.step.median, record.step.q1, record.step.q3, record.local.median]
                .map(|seconds| (seconds * 1e4).round() / 10.0);
        let own = step - local;
        println!(
            "{system:<10} {:>10} {step:>10} {:>14} {local:>10} {own:>17.1} {:>6}  {}",
            short_bytes(record.bytes),
            format!("{q1}–{q3}"),
            record.wrong,
            if kept { "yes" } else { "NO" },
        );
        if record.wrong > 0 || !kept {
            bail!("not a result: {} wrong gradients, caps kept: {kept}", record.wrong);
        }
        communication.push(own);
    }
    if let [first, second] = communication[..] {
        println!(
            "# {}'s communication takes {:.2} of {}'s",
            args.systems[0],
            first / second,
            args.systems[1]
        );
    }
    if let Some(bits) = plan.rate.bits {
        let bound = bytes as f64 * 8.0 / bits as f64 * 1e3;
        println!("# the vector alone takes {bound:.0} ms at a link's rate");
    }
    Ok(())
}
