//! `xdp-agg tune`: one worker of a measurement of broadcast and its kin, by every way they can go.
//!
//! All ranks measure together and agree on the times through the communicator, so all know the
//! same; rank 0 prints, and writes the table that later jobs choose by.

mod measure;
mod report;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xdp_agg_client::Builder;
use xdp_agg_client::collectives::{Kind, Tuning, Way};
use xdp_agg_topology::file::bounded;
use xdp_agg_topology::size;

use measure::{Bench, Measured};
use report::Report;

/// Measure every way that collectives can go, as one worker of a job, and write a table to choose
/// by: broadcast, reduce, reduce-scatter, all-gather, all-reduce.
///
/// Start it once per worker, with the environment of training. Each time is the longest of all
/// ranks'. Rank 0 prints the times beside the models (1) to (6) of the broadcast paper, with t_s
/// and B fitted to these measurements. It also prints how far off each model is; (6) is of a tree
/// whose root copies the data first. It writes the table for XDP_AGG_TUNING, with what pipelined
/// chains cost and so with the chunk that model (5) makes best, where that is the fastest. The exit
/// code is 1 if a byte is wrong.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Sizes, separated by commas: bytes, or with K, M, G (1024-based).
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = size::of_vector,
        default_value = "4K,16K,64K,256K,1M,4M,16M,64M"
    )]
    bytes: Vec<usize>,
    /// What to measure, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "broadcast,reduce,reduce-scatter,all-gather,all-reduce"
    )]
    collective: Vec<What>,
    /// Measure these ways alone, separated by commas: aggregator, ring, or algorithms of
    /// broadcasts. Default: all.
    #[arg(long, value_delimiter = ',', value_parser = way)]
    ways: Vec<String>,
    /// The root of broadcast and reduce.
    #[arg(long, default_value_t = 0)]
    root: u16,
    /// Timed calls of each way and size; large vectors get fewer.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iters: u32,
    /// Calls among the workers do not agree over the aggregator first (`checked = false`).
    #[arg(long)]
    unchecked: bool,
    /// The table that is in force, to compare with. Default: XDP_AGG_TUNING, or the built-in one.
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Write what is best to this table (rank 0). Rules for other numbers of ranks in it stay.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write all times here as JSON (rank 0).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A collective to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The root's data to all.
    Broadcast,
    /// All data to one, summed.
    Reduce,
    /// Each rank a part of the sum.
    ReduceScatter,
    /// Each rank's part to all.
    AllGather,
    /// All data to all, summed.
    AllReduce,
}

impl What {
    const fn kind(self) -> Kind {
        match self {
            Self::Broadcast => Kind::Broadcast,
            Self::Reduce => Kind::Reduce,
            Self::ReduceScatter => Kind::ReduceScatter,
            Self::AllGather => Kind::AllGather,
            Self::AllReduce => Kind::AllReduce,
        }
    }
}

/// Measures as this rank.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(odd) = args.bytes.iter().find(|bytes| **bytes == 0 || *bytes % 4 != 0) {
        let problem = "elements have four bytes, so a size is a multiple of 4 above 0";
        return Err(crate::exit::WrongConfig(format!("--bytes {odd}: {problem}")).into());
    }
    // Its own calls between the measured ones need no way of their own.
    let mut settings = Builder::from_env()?.learning(false);
    if let Some(file) = &args.tuning {
        settings = settings.tuning(read(file)?);
    }
    let communicator = settings.connect()?;
    let (rank, world) = (communicator.rank(), communicator.world_size());
    if args.root >= world {
        let problem = format!("--root {}: ranks count from 0 to {}", args.root, world - 1);
        return Err(crate::exit::WrongConfig(problem).into());
    }
    let mut bytes = args.bytes.clone();
    bytes.sort_unstable();
    bytes.dedup();
    let mut bench = Bench {
        communicator: &communicator,
        root: args.root,
        iters: args.iters,
        checked: !args.unchecked,
        extra_us: 0.0,
        only: &args.ways,
    };
    let check_us = bench.check_us()?;
    if bench.checked {
        bench.extra_us = check_us;
    }
    let mut all: Vec<Measured> = Vec::new();
    for what in &args.collective {
        for bytes in &bytes {
            if rank == 0 {
                eprintln!("measuring {} of {bytes} bytes", what.kind());
            }
            let measured = bench.measure(what.kind(), *bytes, &all);
            all.extend(measured.with_context(|| format!("{} of {bytes} bytes", what.kind()))?);
        }
    }
    let wrong: u64 = all.iter().map(|measured| measured.wrong).sum();
    let report = Report::new(world, &communicator.engine(), check_us, !args.unchecked, all);
    if rank == 0 {
        print!("{}", report.text());
        if let Some(file) = &args.json {
            report.write(file)?;
        }
        if let Some(file) = &args.write {
            let table = if file.exists() { read(file)? } else { Tuning::default() };
            let text = report.table(table)?;
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    match wrong {
        0 => Ok(ExitCode::SUCCESS),
        wrong => bail!("{wrong} elements are wrong: no way is to be trusted"),
    }
}

fn way(name: &str) -> Result<String, String> {
    name.parse::<Way>().map(|way| way.name().to_owned())
}

fn read(file: &PathBuf) -> Result<Tuning> {
    let wrong = |problem| crate::exit::WrongConfig(format!("{}: {problem}", file.display()));
    let text = File::open(file).and_then(bounded).map_err(|error| wrong(error.to_string()))?;
    Ok(Tuning::parse(&text).map_err(wrong)?)
}
