//! `bench inhost`: collectives inside a host (paper 5): CSC, rings, and the product with and
//! without the host's shared memory, beside the paper's models.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use xdp_agg_bench::inhost::{Measured, Operation, System};
use xdp_agg_intranode::model::{self, Cost, Fusion, Host};
use xdp_agg_quantize::throughput::{CHUNK, Row as Kernel, communication, fusion};
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};
use xdp_agg_report::plot::{Axes, Labels, Panel, Series, lines};
use xdp_agg_report::quantile;
use xdp_agg_testbed::{Process, Sink, program};

use super::compare::warn_if_busy;
use super::files::{report_file, reports, scratch, write_json};
use super::lab::{Engine, Lab, Plan, Privilege, wait_all};
use super::machine::{self, Facts};
use super::setting::{Rate, parse_bytes, short_bytes};

/// What is aimed at with four processes at 4 MiB: CSC over the ring in shared memory, and the
/// product in the host's memory over the product without it.
const AIMS: (f64, f64) = (1.5, 2.0);
/// The size of these.
const AIMED: u64 = 4 << 20;
/// Rounds of each kernel.
const ROUNDS: usize = 11;
/// The longest that one call, and all of it, may take.
const LIMITS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1800));

/// Collectives inside a host: CSC, a ring in shared memory, a ring of sends and receives, and the
/// product with and without shared memory; the paper's models; and what fusion saves.
///
/// All systems take turns in one run. A call's time is from the first process's begin to the last
/// one's end. The exit status is 1 if an element was wrong.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Processes of the host.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=32))]
    processes: u16,
    /// Sizes of the whole buffer, separated by commas, such as 64K,4M.
    #[arg(
        long, value_delimiter = ',', value_parser = parse_bytes,
        default_value = "64K,256K,1M,4M,16M,64M,256M"
    )]
    bytes: Vec<u64>,
    /// Timed calls of each system and size; large buffers get fewer.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iters: u32,
    /// The product without shared memory is measured up to this size.
    #[arg(long, value_parser = parse_bytes, default_value = "16M")]
    out_up_to: u64,
    /// Sizes of the buffer of which fusion is measured; 0 for none.
    #[arg(
        long, value_delimiter = ',', value_parser = parse_bytes,
        default_value = "2M,4M,8M,16M,32M"
    )]
    fusion: Vec<u64>,
    /// What sums in the aggregator. Default: xdp as root, userspace otherwise.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Write rows, a plot and a report (Markdown and HTML) into this directory.
    #[arg(long, value_name = "DIR", default_value = "target/bench/inhost")]
    report: PathBuf,
}

/// A system at a size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    operation: Operation,
    system: System,
    processes: u16,
    bytes: u64,
    time_us_median: f64,
    time_us_p10: f64,
    time_us_p90: f64,
    /// Bytes over the median, in 1e9 bytes a second.
    algbw_gbs: f64,
    /// Bytes a second that a process copies while all do, in buffers of this size, in 1e9.
    memory_gbs: f64,
    /// Synchronisations of a call of CSC.
    synchronizations: f64,
    /// By the paper's model with the fitted values, where it has one.
    modelled_us: Option<f64>,
    /// Share of the time in which data moves (Fig. 13).
    moving: Option<f64>,
    wrong: u64,
}

/// What fusion saves of a buffer (tables 3 and 4).
#[derive(Clone, Debug, Serialize)]
struct Saved {
    operation: &'static str,
    bytes: u64,
    communication_us: f64,
    saved_us: f64,
    /// `saved / communication`: the paper's measure.
    of_communication: f64,
    /// `saved / (one operation after the other)`, beside Eq. (11).
    of_all: f64,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    warn_if_busy()?;
    let (facts, stolen) = (Facts::gather(), machine::steal_s());
    let none: Rate = "none".parse().map_err(anyhow::Error::msg)?;
    let plan = Plan { engine: privilege.engine(args.engine), ..Plan::new(1, none, privilege) };
    let (lab, scratch) = (Lab::build(plan)?, scratch()?);
    let daemon = lab.start_daemon()?;
    let engine = daemon.engine().to_owned();
    let list = |sizes: &[u64]| sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let start = |rank: u16| -> Result<Process> {
        let mut command = lab.topology().worker(0).command(program("xdp-agg-inhost")?);
        command
            .args(["--bytes", &list(&args.bytes), "--iters", &args.iters.to_string()])
            .args(["--out-up-to", &args.out_up_to.to_string(), "--report"])
            .arg(report_file(&scratch, rank))
            .envs([("RANK", rank), ("LOCAL_RANK", rank)].map(|(k, v)| (k, v.to_string())))
            .envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|k| (k, args.processes.to_string())))
            .env("XDP_AGG_ADDR", lab.control_address())
            .env("XDP_AGG_JOB", "inhost")
            .env("XDP_AGG_DEADLINE", LIMITS.0.as_secs().to_string())
            .env("NO_COLOR", "1");
        let name = format!("process {rank}");
        Ok(Process::spawn_with(name, command, Sink::Capture, Sink::Capture)?)
    };
    wait_all((0..args.processes).map(start).collect::<Result<_>>()?, LIMITS.1)?;
    daemon.stop()?;
    let measured: Vec<Vec<Measured>> = reports(&scratch, args.processes)?;
    let (rows, host) = rows(&measured, args.processes);
    let saved = savings(args)?;
    let stolen = machine::steal_s() - stolen;
    let tables = tables(&rows, &saved);
    println!("# inhost: {} processes of one host, {engine}", args.processes);
    println!("# {}", fitted(host, &rows));
    for (title, heading, lines) in &tables {
        println!("\n{title}\n{}", heading.join("  "));
        lines.iter().for_each(|line| println!("{}", line.join("  ")));
    }
    let aims = aims(&rows);
    aims.iter().for_each(|line| println!("# {line}"));
    let mut report = facts.report("Collectives inside a host");
    report.text(format!(
        "{engine}; {stolen:.2} processor seconds were stolen. {}.",
        fitted(host, &rows)
    ));
    for (title, heading, lines) in tables {
        report.heading(title);
        report.table(&heading, lines);
    }
    report.text(aims.join("; "));
    report.plot("inhost.svg", "algorithm bandwidth of all-gathers by size (Fig. 14)");
    draw(args, &rows)?;
    report.write(&args.report)?;
    write_json(&args.report.join("rows.json"), &rows)?;
    write_json(&args.report.join("fusion.json"), &saved)?;
    println!("# report: {}", args.report.display());
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    if wrong > 0 { bail!("{wrong} elements were wrong; rows.json says where") } else { Ok(()) }
}

/// What a process moves and waits for, where the paper's models say how that becomes time.
fn cost(row: &Measured, n: u16) -> Option<Cost> {
    let (of, v) = (f64::from(n), row.bytes as f64);
    let csc = Cost { launches: 1.0, synchronizations: row.synchronizations, ..Cost::default() };
    let ring = model::ring_all_gather(n.into(), v, 0.0);
    // Reads and writes of a reduction are half a copied byte each.
    let share = match (row.operation, row.system) {
        (Operation::Copy, _) => 1.0,
        (Operation::Barrier, _) => 0.0,
        // The own part in, all parts out.
        (Operation::AllGather, System::Csc | System::CscPieces) => 1.0 / of + 1.0,
        // Each of the others' parts in and out, the own part out.
        (Operation::AllGather, System::RingShared { .. } | System::RingSockets) => {
            2.0 * (of - 1.0) / of + 1.0 / of
        }
        // The others' parts in; n reads and a write of the own one.
        (Operation::ReduceScatter, System::Csc | System::CscPieces) => {
            (of - 1.0) / of + 0.5 * (1.0 + 1.0 / of)
        }
        // In each round a part in, and two reads and a write of another.
        (Operation::ReduceScatter, System::RingShared { .. } | System::RingSockets) => {
            (of - 1.0) / of * 2.5
        }
        // A reduce-scatter, and all parts out.
        (Operation::AllReduce, System::Csc | System::CscPieces) => {
            (of - 1.0) / of + 0.5 * (1.0 + 1.0 / of) + 1.0
        }
        _ => return None,
    };
    let counted = match (row.operation, row.system) {
        (Operation::Copy, _) => Cost { launches: 1.0, ..Cost::default() },
        (Operation::Barrier, _) => Cost { synchronizations: 1.0, ..Cost::default() },
        (_, System::Csc | System::CscPieces) => csc,
        _ => ring,
    };
    Some(Cost { bytes: share * v, ..counted })
}

/// Seconds of each call: from the first process's begin to the last one's end.
fn seconds(measured: &[Vec<Measured>], at: usize) -> Vec<f64> {
    let calls = measured[0][at].times.len();
    let of = |call: usize| {
        let times = measured.iter().map(|all| all[at].times[call]);
        let begin = times.clone().map(|(begin, _)| begin).min().unwrap_or(0);
        let end = times.map(|(_, end)| end).max().unwrap_or(0);
        end.saturating_sub(begin) as f64 / 1e9
    };
    (0..calls).map(of).collect()
}

fn rows(measured: &[Vec<Measured>], processes: u16) -> (Vec<Row>, Option<Host>) {
    let times: Vec<Vec<f64>> = (0..measured[0].len()).map(|at| seconds(measured, at)).collect();
    let medians: Vec<f64> = times.iter().map(|times| quantile(times, 0.5)).collect();
    // What has shared memory or copies alone: sockets are another machine.
    let fits = |row: &Measured| row.system != System::RingSockets;
    let counted: Vec<(Cost, f64)> = measured[0]
        .iter()
        .zip(&medians)
        .filter(|(row, _)| fits(row))
        .filter_map(|(row, median)| Some((cost(row, processes)?, *median)))
        .collect();
    let host = model::fit(&counted);
    let copies: BTreeMap<usize, f64> = measured[0]
        .iter()
        .zip(&medians)
        .filter(|(row, _)| row.operation == Operation::Copy)
        .map(|(row, median)| (row.bytes, row.bytes as f64 / median))
        .collect();
    let rows = measured[0].iter().enumerate().map(|(at, first)| {
        let memory = copies.get(&first.bytes).copied().unwrap_or(0.0);
        let cost = cost(first, processes);
        let modelled = cost.filter(|_| fits(first)).zip(host);
        let us = |q: f64| quantile(&times[at], q) * 1e6;
        Row {
            operation: first.operation,
            system: first.system,
            processes,
            bytes: first.bytes as u64,
            time_us_median: us(0.5),
            time_us_p10: us(0.1),
            time_us_p90: us(0.9),
            algbw_gbs: first.bytes as f64 / medians[at] / 1e9,
            memory_gbs: memory / 1e9,
            synchronizations: first.synchronizations,
            modelled_us: modelled.map(|(cost, host)| cost.seconds(host) * 1e6),
            moving: cost.map(|cost| cost.moving(memory, medians[at])),
            wrong: measured.iter().map(|all| all[at].wrong).sum(),
        }
    });
    (rows.collect(), host)
}

/// The fitted values, in words.
fn fitted(host: Option<Host>, rows: &[Row]) -> String {
    let Some(Host { launch_s, sync_s, bytes_per_s }) = host else {
        return "the times fit no host".into();
    };
    let errors = rows.iter().filter_map(|row| Some(row.modelled_us? / row.time_us_median - 1.0));
    let squares: Vec<f64> = errors.map(|error| error * error).collect();
    let rms = (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt();
    format!(
        "fitted: t_launch {:.1} us, t_sync {:.1} us, B {:.2} GB/s a process; {:.0} % off (root \
         mean square)",
        launch_s * 1e6,
        sync_s * 1e6,
        bytes_per_s / 1e9,
        rms * 100.0
    )
}

/// What fusion saves by size, with the kernels of gradients, on one processor.
fn savings(args: &Args) -> Result<Vec<Saved>> {
    let format = Format::new(ElementType::F32, Op::Sum, Scaling::Block, None, 8)?;
    let sources = usize::from(args.processes).min(8);
    let mut all = Vec::new();
    for &bytes in args.fusion.iter().filter(|bytes| **bytes > 0) {
        let chunks = (bytes as usize / (4 * CHUNK)).max(1);
        let kernels = fusion(&format, sources, chunks, ROUNDS);
        let alone = communication(&format, sources, chunks, ROUNDS);
        // Sum and quantize is a reduce-scatter's; de-quantize and copy an all-gather's.
        for (operation, at, alone) in
            [("reduce-scatter", 0, &alone[0]), ("all-gather", 3, &alone[1])]
        {
            // The best of all rounds: other work on the machine only adds to it.
            let us = |kernel: &Kernel| kernel.seconds[1] * 1e6;
            let (fused, apart) = (us(&kernels[at]), us(&kernels[at + 1]));
            // Kernels repeat short buffers in a round.
            let repeats = f64::from(kernels[at].repeats);
            all.push(Saved {
                operation,
                bytes: (chunks * 4 * CHUNK) as u64,
                communication_us: us(alone) / repeats,
                saved_us: (apart - fused) / repeats,
                of_communication: (apart - fused) / us(alone),
                of_all: (apart - fused) / apart,
            });
        }
    }
    Ok(all)
}

type Table = (String, Vec<&'static str>, Vec<Vec<String>>);

fn name(system: System) -> String {
    match system {
        System::Memory => "memory".into(),
        System::Csc => "CSC".into(),
        System::CscPieces => "CSC, pieces in a room of 1 MiB".into(),
        System::RingShared { piece } => format!("ring, mailboxes of {}", short_bytes(piece as u64)),
        System::RingSockets => "ring of sends and receives".into(),
        System::InHost => "xdp-agg in the host".into(),
        System::OutOfHost => "xdp-agg out of the host".into(),
    }
}

fn title(operation: Operation) -> &'static str {
    match operation {
        Operation::Copy => "Copy by all at once",
        Operation::Barrier => "Barrier",
        Operation::AllGather => "All-gather",
        Operation::ReduceScatter => "Reduce-scatter",
        Operation::AllReduce => "All-reduce",
        Operation::Broadcast => "Broadcast",
    }
}

fn tables(rows: &[Row], saved: &[Saved]) -> Vec<Table> {
    let operations = [
        Operation::Copy,
        Operation::Barrier,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllReduce,
        Operation::Broadcast,
    ];
    let heading = vec![
        "bytes",
        "system",
        "us",
        "10 % .. 90 %",
        "GB/s",
        "copy GB/s",
        "syncs",
        "model us",
        "moving",
    ];
    let some = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let line = |row: &Row| {
        let is_csc = matches!(row.system, System::Csc | System::CscPieces);
        vec![
            short_bytes(row.bytes),
            name(row.system),
            format!("{:.0}", row.time_us_median),
            format!("{:.0} .. {:.0}", row.time_us_p10, row.time_us_p90),
            format!("{:.2}", row.algbw_gbs),
            format!("{:.2}", row.memory_gbs),
            if is_csc { format!("{:.0}", row.synchronizations) } else { "-".into() },
            some(row.modelled_us, 0),
            some(row.moving, 2),
        ]
    };
    let mut tables: Vec<Table> = operations
        .into_iter()
        .map(|operation| {
            let of = rows.iter().filter(|row| row.operation == operation);
            (title(operation).to_owned(), heading.clone(), of.map(line).collect())
        })
        .collect();
    let ratios = ratios(rows);
    tables.push((
        "Times as fast".into(),
        vec![
            "bytes",
            "operation",
            "CSC / ring in shared memory",
            "CSC / sends",
            "in / out of host",
        ],
        ratios,
    ));
    if !saved.is_empty() {
        let lines = saved.iter().map(|saved| {
            vec![
                saved.operation.to_owned(),
                short_bytes(saved.bytes),
                format!("{:.0}", saved.communication_us),
                format!("{:.0}", saved.saved_us),
                format!("{:.0}", saved.of_communication * 100.0),
                format!("{:.0}", saved.of_all * 100.0),
                format!("{:.0}", eq_11(rows, saved.bytes) * 100.0),
            ]
        });
        tables.push((
            "Fusion (tables 3 and 4)".into(),
            vec![
                "operation",
                "bytes",
                "communication us",
                "saved us",
                "% of communication",
                "% of all",
                "Eq. (11) %",
            ],
            lines.collect(),
        ));
    }
    tables
}

/// Eq. (11) with one bandwidth for both memories: here they are the same.
fn eq_11(rows: &[Row], bytes: u64) -> f64 {
    let near = rows.iter().filter(|row| row.operation == Operation::Copy);
    let near = near.min_by_key(|row| row.bytes.abs_diff(bytes));
    let rate = near.map_or(1.0, |row| row.memory_gbs * 1e9);
    Fusion { part: bytes as f64 / 4.0, local: rate, global: rate, launch_s: 0.0 }.gain()
}

/// The fastest of some systems.
fn best(
    rows: &[Row],
    operation: Operation,
    bytes: u64,
    is: impl Fn(System) -> bool,
) -> Option<f64> {
    let of = rows.iter().filter(|row| row.operation == operation && row.bytes == bytes);
    of.filter(|row| is(row.system)).map(|row| row.time_us_median).min_by(f64::total_cmp)
}

fn ratio(
    rows: &[Row],
    (operation, bytes): (Operation, u64),
    slow: impl Fn(System) -> bool,
    fast: impl Fn(System) -> bool,
) -> Option<f64> {
    Some(best(rows, operation, bytes, slow)? / best(rows, operation, bytes, fast)?)
}

const fn is_csc(system: System) -> bool {
    matches!(system, System::Csc | System::CscPieces)
}

const fn is_ring(system: System) -> bool {
    matches!(system, System::RingShared { .. })
}

fn ratios(rows: &[Row]) -> Vec<Vec<String>> {
    use Operation::{AllGather, AllReduce, Broadcast, ReduceScatter};
    let operations = [AllGather, ReduceScatter, AllReduce, Broadcast];
    let sizes: BTreeSet<u64> = rows.iter().map(|row| row.bytes).collect();
    let of = |(bytes, operation)| {
        let at = (operation, bytes);
        let all = [
            ratio(rows, at, is_ring, is_csc),
            ratio(rows, at, |system| system == System::RingSockets, is_csc),
            ratio(rows, at, |s| s == System::OutOfHost, |s| s == System::InHost),
        ];
        let all = all.map(|x| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.2}")));
        [vec![short_bytes(bytes), title(operation).to_owned()], all.to_vec()].concat()
    };
    let all = sizes.into_iter().flat_map(|bytes| operations.map(|operation| (bytes, operation)));
    all.map(of).collect()
}

/// What was aimed at, and what came of it.
fn aims(rows: &[Row]) -> Vec<String> {
    let at = (Operation::AllGather, AIMED);
    let csc = ratio(rows, at, is_ring, is_csc);
    let stays = ratio(rows, at, |s| s == System::OutOfHost, |s| s == System::InHost);
    let aims = [
        ("CSC over the best ring in shared memory", csc, AIMS.0),
        ("xdp-agg in the host over out of it", stays, AIMS.1),
    ];
    let said = aims.into_iter().filter_map(|(what, ratio, aim)| {
        Some(format!("all-gather of {}, {what}: {:.2} (aim {aim})", short_bytes(AIMED), ratio?))
    });
    said.collect()
}

fn draw(args: &Args, rows: &[Row]) -> Result<()> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows.iter().filter(|row| row.operation == Operation::AllGather) {
        let (name, point) = (name(row.system), (row.bytes as f64, row.algbw_gbs));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    let labels =
        Labels { title: "all-gathers inside a host", x: "bytes of the whole buffer", y: "GB/s" };
    let panel = Panel { labels, axes: Axes::Logarithmic, series: &series };
    Ok(lines(&args.report.join("inhost.svg"), &[panel])?)
}
