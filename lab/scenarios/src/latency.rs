//! `bench latency`: short vectors.

use anyhow::{Result, bail};

use super::compare::{self, Calls, Common, System};
use super::lab::{Lab, Privilege};
use super::row::{Row, heading, write_json};
use super::setting::Rate;
use xdp_agg_report::plot::{Axes, Labels, Panel, Series, lines};

/// Sizes where none are given: 4 B to 64 KiB.
const SIZES: [u64; 8] = [4, 64, 256, 1024, 4096, 16_384, 32_768, 65_536];

/// Short vectors: the time of a call from 4 B to 64 KiB.
///
/// Links are not limited unless --rate says so: the shapers let bursts of some ten kilobytes pass
/// anyway, so for short vectors a rate would change little.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rate of every link in each direction, such as 500mbit or 1gbit, or none.
    #[arg(long, default_value = "none")]
    rate: Rate,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let common = &args.common;
    let plan = common.plan(args.rate, privilege);
    let bytes = common.bytes.clone().unwrap_or_else(|| SIZES.to_vec());
    let calls = Calls { bytes: &bytes, iters: common.iters.unwrap_or(1000), warmup: 100 };
    let systems = common.systems(privilege);
    let title = format!(
        "{} workers, links: {}, MTU {}{}",
        plan.workers,
        plan.rate,
        plan.mtu,
        if plan.offloads { "" } else { ", no offloads" }
    );
    println!("# latency: {title}\n{}", heading());
    let mut rows: Vec<Row> = Vec::new();
    for system in &systems {
        let lab = Lab::build(plan)?;
        rows.extend(compare::measure(&lab, *system, &calls)?);
    }
    compare::print_ratios(&rows);
    if let Some(file) = &common.json {
        write_json(file, &rows)?;
    }
    let plot = common.plot_file("latency");
    let labels = Labels { title: &title, x: "bytes", y: "median time of a call (µs)" };
    lines(&plot, &[Panel { labels, axes: Axes::Logarithmic, series: &series(&systems, &rows) }])?;
    println!("# plot: {}", plot.display());
    common.write_report("latency", &title, &rows)?;
    let complaints = compare::complaints(&rows);
    if !complaints.is_empty() {
        bail!("not a result: {}", complaints.join("; "));
    }
    Ok(())
}

fn series(systems: &[System], rows: &[Row]) -> Vec<Series> {
    let name = |system: &System| match system {
        System::XdpAgg => "xdp-agg",
        System::TcpRing => "tcp-ring",
        System::Openmpi => "openmpi",
    };
    let points = |name: &str| {
        let mine = rows.iter().filter(|row| row.system == name && row.bytes > 0);
        mine.map(|row| (row.bytes as f64, row.time_us_median)).collect()
    };
    systems
        .iter()
        .map(|system| Series { name: name(system).into(), points: points(name(system)) })
        .collect()
}
