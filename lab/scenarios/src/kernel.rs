//! `bench kernel`: the XDP program alone, by test runs in the kernel.

mod bench;
mod contention;
mod counts;
mod feeder;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_common::lanes::{CHUNK_LEN, MAX_CHUNKS};

use self::bench::{BenchCase, BenchConfig, BenchRow, accounts, kernel_bench};
use self::contention::contention;
use super::compare::warn_if_busy;
use super::files::write_json;
use super::lab::Privilege;
use xdp_agg_report::plot::{Axes, Labels, Panel, Series, lines};

/// The kernel program alone: nanoseconds a packet by block size and by what the packet does
/// (BPF_PROG_TEST_RUN).
///
/// The time of a test run of nothing is measured beside each sample and taken off. `add` is what
/// most packets do; below the table stands where its time goes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Payloads of a block, separated by commas, in bytes: multiples of 64, 64 to 3456.
    #[arg(long, value_delimiter = ',', default_value = "64,256,704,1408,2816,3456")]
    payload: Vec<u32>,
    /// Slots that take turns, a power of two: 64 stay in a core's own caches, 4096 do not.
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// Samples of each case; a sample is the mean of many packets.
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u32).range(25..=10_000))]
    samples: u32,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the plot here.
    #[arg(long, value_name = "FILE", default_value = "target/bench/kernel.svg")]
    plot: PathBuf,
}

/// A row in the shape of the other scenarios, with the numbers of this one.
#[derive(Serialize)]
struct Row {
    system: &'static str,
    algorithm: String,
    workers: u16,
    bytes: u32,
    rate: &'static str,
    mtu: u32,
    time_us_median: f64,
    time_us_p99: Option<f64>,
    algbw_gbs: f64,
    busbw_gbs: Option<f64>,
    cpu_s: f64,
    wrong: u64,
    bound_us: Option<f64>,
    #[serde(flatten)]
    measured: BenchRow,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("bench kernel runs a BPF program, which needs root");
    }
    warn_if_busy()?;
    let config =
        BenchConfig { chunks: chunks(&args.payload)?, slots: args.slots, samples: args.samples };
    println!(
        "# kernel: {} samples of each case, {} slots in turn, one CPU; floor (an empty test run) \
         taken off",
        config.samples, config.slots
    );
    // Asked before the benchmark pins this thread to one CPU.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // The program of a namespace of its own would run no differently: nothing is sent.
    let rows = kernel_bench(&config).context("the kernel benchmark")?;
    print_rows(&rows);
    print_accounts(&rows);
    if cpus < 2 {
        println!("# one CPU: nothing is added at the same time");
    } else {
        print_contention(&config)?;
    }
    if let Some(file) = &args.json {
        write_json(file, &rows.iter().map(json_row).collect::<Vec<_>>())?;
    }
    let labels = Labels {
        title: "the XDP program, one CPU",
        x: "payload of a packet (bytes)",
        y: "time of a packet (ns)",
    };
    lines(&args.plot, &[Panel { labels, axes: Axes::Linear, series: &series(&rows) }])?;
    println!("# plot: {}", args.plot.display());
    Ok(())
}

fn chunks(payloads: &[u32]) -> Result<Vec<u16>> {
    let chunk = CHUNK_LEN as u32;
    payloads
        .iter()
        .map(|payload| {
            let fits = payload.is_multiple_of(chunk)
                && (1..=MAX_CHUNKS as u32).contains(&(payload / chunk));
            if !fits {
                bail!("--payload {payload}: multiples of 64 from 64 to {} are expected", {
                    MAX_CHUNKS * CHUNK_LEN
                });
            }
            Ok((payload / chunk) as u16)
        })
        .collect()
}

fn print_rows(rows: &[BenchRow]) {
    println!("# {:>7} {:<13} {:>9} {:>19}", "payload", "packet", "median", "quartiles");
    println!("# {:>7} {:<13} {:>9} {:>19}", "(B)", "", "(ns)", "(ns)");
    for row in rows {
        let (low, high) = row.ns_quartiles;
        println!(
            "  {:>7} {:<13} {:>9.1} {low:>9.1} {high:>9.1}",
            row.payload,
            row.case.name(),
            row.ns_median
        );
    }
}

fn print_accounts(rows: &[BenchRow]) {
    println!("# where the time of an adding packet goes (ns)");
    println!(
        "# {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "payload", "parse", "admit", "slot", "lanes", "all"
    );
    for account in accounts(rows) {
        println!(
            "  {:>7} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            account.payload, account.parse, account.admit, account.slot, account.lanes, account.add
        );
    }
}

/// What two CPUs add at the same time, at the block size of MTU 1500.
fn print_contention(config: &BenchConfig) -> Result<()> {
    let chunks = chunks_for_mtu(1500);
    let payload = usize::from(chunks) * CHUNK_LEN;
    println!(
        "# adding {payload} bytes, {} slots in turn: each CPU's time of a packet",
        config.slots
    );
    println!("# {:<29} {:>9} {:>19}", "", "median", "quartiles");
    for row in contention(config, chunks).context("contention of two CPUs")? {
        let (low, high) = row.ns_quartiles;
        let name = row.second.in_words();
        println!("  {name:<29} {:>9.1} {low:>9.1} {high:>9.1}", row.ns_median);
    }
    Ok(())
}

fn json_row(row: &BenchRow) -> Row {
    let us = row.ns_median / 1e3;
    Row {
        system: "xdp-agg",
        algorithm: row.case.name().to_owned(),
        workers: 1,
        bytes: row.payload,
        rate: "none",
        mtu: mtu_of(row.payload),
        time_us_median: us,
        time_us_p99: None,
        algbw_gbs: if us > 0.0 { f64::from(row.payload) / us / 1e3 } else { 0.0 },
        busbw_gbs: None,
        cpu_s: us / 1e6,
        wrong: 0,
        bound_us: None,
        measured: row.clone(),
    }
}

/// The smallest MTU whose blocks have this payload.
fn mtu_of(payload: u32) -> u32 {
    let chunks = (payload / CHUNK_LEN as u32) as u16;
    (0..=4096).find(|mtu| chunks_for_mtu(*mtu) >= chunks).unwrap_or(0)
}

fn series(rows: &[BenchRow]) -> Vec<Series> {
    let mut points: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        let drawn = [BenchCase::Store, BenchCase::Add, BenchCase::Complete, BenchCase::Resend];
        if drawn.contains(&row.case) {
            let point = (f64::from(row.payload), row.ns_median);
            points.entry(row.case.name()).or_default().push(point);
        }
    }
    points.into_iter().map(|(name, points)| Series { name: name.to_owned(), points }).collect()
}

#[cfg(test)]
mod tests;
