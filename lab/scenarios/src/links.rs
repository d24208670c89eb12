//! `bench links`: long vectors over links of one rate.

use anyhow::{Result, bail};

use super::compare::{self, Calls, Common};
use super::cost;
use super::lab::{Lab, Plan, Privilege};
use super::row::{HEADING, Row};
use super::setting::{Loss, Rate, short_bytes};
use xdp_agg_report::plot::{Bar, Labels, bars};
use xdp_agg_report::quantile;

/// Long vectors over links that are held to a rate: how close does each system come to what the
/// links allow?
///
/// Every worker's link is shaped in both directions, for all systems at the same place, and counted
/// meanwhile. `bound` is the number of bytes on the wire over the rate: for xdp-agg the vector and
/// 64 bytes a block, for a ring 2(N-1)/N of the vector in full TCP segments. A row whose links
/// carried more than their rate says so and does not count; then the exit status is 1.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rate of every link in each direction, such as 500mbit or 1gbit, or none.
    #[arg(long, default_value = "500mbit")]
    rate: Rate,
    /// With --loss: measure without loss, too, in turns, and print the ratio of the rates.
    #[arg(long, conflicts_with = "report")]
    loss_compare: bool,
    #[command(flatten)]
    cost: cost::Cost,
}

/// Turns of --loss-compare.
const TURNS: usize = 3;

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let common = &args.common;
    let plan = common.plan(args.rate, privilege);
    let bytes = common.bytes.clone().unwrap_or_else(|| vec![97 << 20]);
    let calls = Calls { bytes: &bytes, iters: common.iters.unwrap_or(5), warmup: 1 };
    if args.loss_compare {
        return compare_loss(args, privilege, &calls);
    }
    if let Some(done) = args.cost.run(common, plan, &calls) {
        return done;
    }
    let title = format!(
        "{} workers, {} a link and direction, MTU {}, {} % loss{}",
        plan.ranks(),
        plan.rate,
        plan.mtu,
        plan.loss.percent(),
        if plan.offloads { "" } else { ", no offloads" }
    );
    common.run(("links", &title), plan, &calls, |file, rows| {
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
        bars(file, &labels, &rows.iter().map(bar).collect::<Vec<_>>())
    })
}

/// The same calls with and without loss, in turns, so that other load on this machine meets both;
/// what share of the rate is left.
fn compare_loss(args: &Args, privilege: Privilege, calls: &Calls<'_>) -> Result<()> {
    let common = &args.common;
    let lossy = common.plan(args.rate, privilege);
    if lossy.loss.ppm == 0 {
        bail!("--loss-compare needs --loss, such as --loss 1");
    }
    let clean = Plan { loss: Loss { ppm: 0 }, ..lossy };
    println!("# links: with and without loss, in turns\n{}", HEADING);
    let mut rows: Vec<Row> = Vec::new();
    for system in common.systems(privilege) {
        let mut pairs: Vec<(Row, Row)> = Vec::new();
        for _ in 0..TURNS {
            let before = compare::measure(&Lab::build(clean)?, system, calls)?;
            let after = compare::measure(&Lab::build(lossy)?, system, calls)?;
            pairs.extend(before.into_iter().zip(after));
        }
        for bytes in calls.bytes {
            let same = |pair: &&(Row, Row)| pair.0.bytes == *bytes;
            let ratio = |(clean, lossy): &(Row, Row)| clean.time_us_median / lossy.time_us_median;
            let ratios: Vec<f64> = pairs.iter().filter(same).map(ratio).collect();
            println!(
                "# {system:?}, {}: with {} % loss {:.1} % of the rate without (median of {} turns, \
                 {:.1} to {:.1} %)",
                short_bytes(*bytes),
                lossy.loss.percent(),
                quantile(&ratios, 0.5) * 100.0,
                ratios.len(),
                quantile(&ratios, 0.0) * 100.0,
                quantile(&ratios, 1.0) * 100.0,
            );
        }
        rows.extend(pairs.into_iter().flat_map(|(clean, lossy)| [clean, lossy]));
    }
    common.finish(&rows)
}
