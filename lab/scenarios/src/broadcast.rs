//! `bench broadcast`: every way that a broadcast can go, and what a tuned table makes of it.
//!
//! `xdp-agg tune` runs as every worker: first to write a table, then on its own, to compare the
//! table's choice with the best of all. A third run of short vectors leaves out the agreement on a
//! call, so that only the trees over TCP are timed. MPI_Bcast of OpenMPI is timed on the same
//! links, where it is installed.

mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use statrs::statistics::{Data, Median, OrderStatistics};
use tempfile::TempDir;

use super::compare;
use super::files::{make_parent, read_json, report_file, scratch};
use super::lab::{Engine, Lab, Plan, Privilege, Program, wait_all};
use super::openmpi::{BROADCASTS, OpenMpi};
use super::setting::{Rate, parse_bytes, short_bytes};
use table::{Kept, ModelError, MpiRow, Report};

/// Sizes where none are given: 4 bytes to 64 MiB.
const SIZES: [u64; 11] =
    [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Calls of MPI_Bcast before those that are timed.
const MPI_WARMUP: u32 = 3;
/// Size at which the aggregator and the binomial tree are compared.
const SHORT: u64 = 4 << 10;
/// How far the choice may be from the best, and how much faster the aggregator has to be.
const AIMS: (f64, f64) = (0.10, 2.0);
/// The longest that one call, and one run, may take.
const LIMITS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1800));

/// Broadcast: every algorithm over TCP, the aggregator and MPI_Bcast, 4 bytes to 64 MiB, and what
/// is chosen.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Hosts.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=32))]
    workers: u16,
    /// Worker processes of each host. With several, topology-chain is measured beside
    /// pipelined-chain.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    processes: u16,
    /// Sizes, separated by commas, such as 4K,1M.
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes)]
    bytes: Option<Vec<u64>>,
    /// Measure these ways alone, separated by commas: aggregator, or algorithms.
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
    /// Leave MPI_Bcast out, as is done with several processes a host.
    #[arg(long)]
    no_openmpi: bool,
    /// Calls of each way and turn; large vectors get fewer.
    #[arg(long, default_value_t = 30)]
    iters: u32,
    /// Rate of every link in each direction, such as 500mbit or 1gbit, or none.
    #[arg(long, default_value = "none")]
    rate: Rate,
    /// MTU of every link. With 3500 a block is 3456 bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Every packet crosses the links on its own, as on a cable; TCP's super-packets do not.
    #[arg(long)]
    no_offloads: bool,
    /// What sums in the aggregator. Default: xdp as root, userspace otherwise.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Keep the table here.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Keep all rows here, as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let plan = Plan {
        mtu: args.mtu,
        engine: privilege.engine(args.engine),
        offloads: !args.no_offloads,
        ..Plan::new(args.workers, args.rate, privilege)
    };
    let (lab, scratch) = (Lab::build(plan)?, scratch()?);
    let daemon = lab.start_daemon()?;
    let sizes = args.bytes.clone().unwrap_or_else(|| SIZES.to_vec());
    let list = |sizes: &[u64]| sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let offloads = if plan.offloads { "" } else { ", no offloads" };
    let Plan { workers, rate, mtu, .. } = plan;
    let engine = daemon.engine();
    let processes = args.processes;
    let links = format!("{rate}, MTU {mtu}{offloads}, {engine}");
    println!("# broadcast: {workers} hosts x {processes}, links: {links}");
    let table = scratch.path().join("table.toml");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let ways = args.ways.join(",");
    let ways = if ways.is_empty() { Vec::new() } else { vec!["--ways", &ways] };
    let tune = |job: &str, further: &[&str]| {
        let further = [further, &ways].concat();
        tune((&lab, processes), &scratch, job, args.iters, &further)
    };
    tune("tune", &["--bytes", &list(&sizes), "--write", &path(&table)])?;
    let judged = tune("judge", &["--bytes", &list(&sizes), "--tuning", &path(&table)])?;
    let short = tune("short", &["--bytes", &SHORT.to_string(), "--unchecked"])?;
    if let Some(file) = &args.write {
        fs::copy(&table, file).with_context(|| format!("writing {}", file.display()))?;
    }
    let mut complaints = judge(&judged, &sizes);
    complaints.extend(compare_short(&short));
    print_models(&judged);
    let mut mpi = Vec::new();
    let is_wanted = !args.no_openmpi && processes == 1;
    let measures_mpi = is_wanted && OpenMpi::is_installed();
    let of_sizes = (&judged, &*sizes, args.iters);
    if measures_mpi {
        println!("# MPI_Bcast of OpenMPI: median (10 % - 90 %) in us, over our best of the size");
        complaints.extend(openmpi(&lab, of_sizes, "", &mut mpi)?);
    } else if is_wanted {
        println!("# MPI_Bcast: not installed (`cargo xtask setup --openmpi` does that)");
    }
    daemon.stop()?;
    if measures_mpi {
        complaints.extend(openmpi(&lab, of_sizes, ", no daemon", &mut mpi)?);
    }
    let kept = Kept { hosts: workers, processes, links, report: judged, openmpi: mpi };
    println!("# for documents: times in us, and models\n{}\n{}", kept.times(), kept.models());
    if let Some(file) = &args.report {
        make_parent(file)?;
        let json = serde_json::to_string_pretty(&kept)? + "\n";
        fs::write(file, json).with_context(|| format!("writing {}", file.display()))?;
    }
    if complaints.is_empty() { Ok(()) } else { bail!("missed: {}", complaints.join("; ")) }
}

/// Runs `xdp-agg tune` as every worker; its output is shown.
fn tune(
    (lab, processes): (&Lab, u16),
    scratch: &TempDir,
    job: &str,
    iters: u32,
    further: &[&str],
) -> Result<Report> {
    let file = report_file(scratch, job);
    let mut arguments = vec!["tune".to_owned(), "--collective".into(), "broadcast".into()];
    arguments.extend(["--iters".into(), iters.to_string()]);
    arguments.extend(["--json".into(), file.to_string_lossy().into_owned()]);
    arguments.extend(further.iter().map(ToString::to_string));
    let program = Program { name: "xdp-agg", job, deadline: LIMITS.0, shows_rank_0: true };
    wait_all(lab.start_processes(&program, processes, |_| arguments.clone())?, LIMITS.1)?;
    read_json(&file)
}

/// Prints every way, and what the choice is worth; what is missed.
fn judge(report: &Report, sizes: &[u64]) -> Vec<String> {
    println!("# time: median (10 % - 90 %) of the calls in us, each the longest of all ranks'");
    println!("# model: equations (1) to (6) in us, with t_s and B fitted to all of them");
    println!("# * best, < chosen by the table of an earlier run");
    let mut complaints = Vec::new();
    for row in &report.rows {
        let marks = [(row.best, "*"), (row.chosen, "<")];
        let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
        let model = row.model_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"));
        println!(
            "{:>6}  {:<30} {:>9.0} ({:.0} - {:.0}) model {model} {marks}",
            short_bytes(row.bytes),
            row.name(),
            row.median_us,
            row.p10_us,
            row.p90_us
        );
        if row.wrong > 0 {
            complaints.push(format!("{} elements wrong by {}", row.wrong, row.name()));
        }
    }
    println!("# {:>6}  {:<22} {:<22} chosen/best (aim: 1.10)", "bytes", "chosen", "best");
    for bytes in sizes {
        let of_size = || report.rows.iter().filter(|row| row.bytes == *bytes);
        let (best, chosen) = (of_size().find(|row| row.best), of_size().find(|row| row.chosen));
        let Some((best, chosen)) = best.zip(chosen) else {
            complaints.push(format!("{}: nothing was chosen", short_bytes(*bytes)));
            continue;
        };
        let ratio = chosen.median_us / best.median_us;
        let size = short_bytes(*bytes);
        println!("{size:>8}  {:<22} {:<22} {ratio:.2}", chosen.name(), best.name());
        if ratio > 1.0 + AIMS.0 {
            complaints.push(format!("{size}: {} is {ratio:.2} of the best", chosen.name()));
        }
    }
    complaints
}

/// The aggregator against the binomial tree alone.
fn compare_short(report: &Report) -> Option<String> {
    let of = |name: &str| report.rows.iter().find(|row| row.algorithm == name);
    let (aggregator, binomial) = of("aggregator").zip(of("binomial"))?;
    let ratio = binomial.median_us / aggregator.median_us;
    println!(
        "# {}: aggregator {:.0} us, binomial over TCP (nothing agreed before) {:.0} us: \
         {ratio:.2}x (aim: {:.0}x)",
        short_bytes(SHORT),
        aggregator.median_us,
        binomial.median_us,
        AIMS.1
    );
    (ratio < AIMS.1).then(|| format!("the aggregator is {ratio:.2}x as fast at 4 KiB"))
}

/// How far the models are from what was measured.
fn print_models(report: &Report) {
    if let Some((startup_us, rate)) = report.startup_us.zip(report.bytes_per_s) {
        println!("# models: t_s = {startup_us:.1} us, B = {:.1} MB/s", rate / 1e6);
    }
    for ModelError { equation, of, count, error, slower } in &report.models {
        let (error, slower) = (error * 100.0, slower * 100.0);
        println!(
            "# ({equation}) {of}: off by {error:.0} % over {count}, {slower:+.0} % on average"
        );
    }
}

/// MPI_Bcast over the same links, beside the best of ours; what is wrong. A daemon's XDP program
/// takes TCP's super-packets from virtual links, so it is measured with a daemon there and without.
fn openmpi(
    lab: &Lab,
    (report, sizes, iters): (&Report, &[u64], u32),
    place: &str,
    kept: &mut Vec<MpiRow>,
) -> Result<Vec<String>> {
    let mpi = OpenMpi::prepare()?;
    let mut complaints = Vec::new();
    for algorithm in &BROADCASTS {
        let rows = mpi.run(lab, algorithm, sizes, (iters, MPI_WARMUP), LIMITS.1)?;
        for row in rows {
            let best = report.rows.iter().find(|ours| ours.bytes == row.bytes && ours.best);
            let mut times = Data::new(row.mean_us);
            let median = times.median();
            let (name, bytes) = (format!("{}{place}", algorithm.name), row.bytes);
            let over = best.map_or(f64::NAN, |best| median / best.median_us);
            println!(
                "{:>6}  MPI_Bcast {name:<31} {median:>9.0} ({:.0} - {:.0}) {over:.2}x",
                short_bytes(row.bytes),
                times.percentile(10),
                times.percentile(90)
            );
            if row.wrong > 0 {
                complaints.push(format!("{} elements wrong by MPI_Bcast", row.wrong));
            }
            kept.push(MpiRow { algorithm: name, bytes, median_us: median });
        }
    }
    Ok(complaints)
}
