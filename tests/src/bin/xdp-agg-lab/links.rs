//! `bench links`: long vectors over links of one rate.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::compare::{self, Calls, Common};
use super::lab::{Lab, Privilege};
use super::plot::{Bar, Labels, bars};
use super::row::{Row, heading, write_json};
use super::setting::{Rate, short_bytes};

/// Long vectors over links that are held to a rate: how close does each system come to what the
/// links allow?
///
/// Every worker's link is shaped in both directions, for all systems at the same place, and counted
/// meanwhile. `bound` is the number of bytes on the wire over the rate: for xdp-agg the vector and
/// 64 bytes a block, for a ring 2(N-1)/N of the vector in full TCP segments. A row whose links
/// carried more than their rate says so and is no result; then the exit status is 1.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rate of every link in each direction, such as 500mbit or 1gbit, or none.
    #[arg(long, default_value = "500mbit")]
    rate: Rate,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let common = &args.common;
    let plan = common.plan(args.rate, privilege);
    let bytes = common.bytes.clone().unwrap_or_else(|| vec![97 << 20]);
    let calls = Calls { bytes: &bytes, iters: common.iters.unwrap_or(5), warmup: 1 };
    let systems = common.systems(privilege);
    let title = format!(
        "{} workers, {} a link and direction, MTU {}, {} % loss{}",
        plan.workers,
        plan.rate,
        plan.mtu,
        plan.loss.percent(),
        if plan.offloads { "" } else { ", no offloads" }
    );
    println!("# links: {title}\n{}", heading());
    let mut rows: Vec<Row> = Vec::new();
    for system in systems {
        // A network of its own for each: no system inherits another's queues or connections.
        let lab = Lab::build(plan)?;
        rows.extend(compare::measure(&lab, system, &calls)?);
    }
    compare::print_ratios(&rows);
    if let Some(file) = &common.json {
        write_json(file, &rows)?;
    }
    let plot = common.plot.clone().unwrap_or_else(|| PathBuf::from("target/bench/links.svg"));
    let bar = |row: &Row| Bar {
        name: format!("{} {}", row.system, short_bytes(row.bytes)),
        value: row.time_us_median / 1e3,
        bound: row.bound_us.map(|bound| bound / 1e3),
    };
    let labels = Labels {
        title: &title,
        x: "lines: what the links allow at best (bytes on the wire over the rate)",
        y: "time of a call (ms)",
    };
    bars(&plot, &labels, &rows.iter().map(bar).collect::<Vec<_>>())?;
    println!("# plot: {}", plot.display());
    let complaints = compare::complaints(&rows);
    if !complaints.is_empty() {
        bail!("not a result: {}", complaints.join("; "));
    }
    Ok(())
}
