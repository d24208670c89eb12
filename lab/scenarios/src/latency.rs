//! `bench latency`: short vectors.

use anyhow::Result;

use super::compare::{self, Calls, Common};
use super::cost;
use super::lab::Privilege;
use super::row::Row;
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
    #[command(flatten)]
    cost: cost::Cost,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let common = &args.common;
    let plan = common.plan(args.rate, privilege);
    let bytes = common.bytes.clone().unwrap_or_else(|| SIZES.to_vec());
    let calls = Calls { bytes: &bytes, iters: common.iters.unwrap_or(1000), warmup: 100 };
    if let Some(done) = args.cost.run(common, plan, &calls) {
        return done;
    }
    let title = format!(
        "{} workers, links: {}, MTU {}{}",
        plan.ranks(),
        plan.rate,
        plan.mtu,
        if plan.offloads { "" } else { ", no offloads" }
    );
    common.run(("latency", &title), plan, &calls, |file, rows| {
        let labels = Labels { title: &title, x: "bytes", y: "median time of a call (µs)" };
        lines(file, &[Panel { labels, axes: Axes::Logarithmic, series: &series(rows) }])
    })
}

fn series(rows: &[Row]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        let point = (row.bytes as f64, row.time_us_median);
        match series.iter_mut().find(|series| series.name == row.system) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name: row.system.clone(), points: vec![point] }),
        }
    }
    series
}
