//! How a call begins on an uplink: sums and results by the millisecond.
//!
//! Paper 3 has its all-gather begin at rate zero, because sums of other shards still fill the
//! links. Here a result leaves when the last contribution has come. The two directions of the first
//! rack's uplink show how the results' rate rises.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use xdp_agg_common::wire::Kind;
use xdp_agg_testbed::Direction;
use xdp_agg_testbed::tap::{Passage, Tap};

use super::super::files::{scratch, write_json};
use super::super::lab::wait_all;
use super::{Args, Case, PATIENCE, System, build};

/// Packets of one millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Bin {
    /// Since the first sum.
    ms: u64,
    sums_up: u32,
    results_up: u32,
    sums_down: u32,
    results_down: u32,
}

/// Measures it.
pub(super) fn main(args: &Args, rate: u64, time: Duration) -> Result<()> {
    let fabric = build(args, rate, System::Rat)?;
    let congestion = args.congestion.first().context("a congestion control is needed")?;
    let case = Case { args, system: System::Rat, congestion, tcp: "-" };
    let scratch = scratch()?;
    let tap = Tap::on_uplink(&fabric.topology, 0)?;
    wait_all(case.start_workers(&fabric, &scratch)?, PATIENCE)?;
    let bins = bins(&tap.finish(), time).context("no sum crossed the uplink")?;
    println!(
        "# packets on the uplink of rack 0, {congestion}; a full direction has {:.1} a ms",
        fabric.topology.rack_rate(0).unwrap_or(rate) as f64 / 8.0 / 1472.0 / 1e3
    );
    println!(
        "{:>5} {:>8} {:>10} {:>10} {:>12}",
        "ms", "sums up", "results up", "sums down", "results down"
    );
    for bin in &bins {
        let Bin { ms, sums_up, results_up, sums_down, results_down } = bin;
        println!("{ms:5} {sums_up:8} {results_up:10} {sums_down:10} {results_down:12}");
    }
    match &args.json {
        Some(file) => write_json(file, &bins),
        None => Ok(()),
    }
}

/// Full blocks by the millisecond, from the first sum on; `None`: there was none.
fn bins(seen: &[Passage], time: Duration) -> Option<Vec<Bin>> {
    // The probes of paths and calls of one element come before.
    let is_full = |passage: &&Passage| passage.bytes > 1000;
    let sum = |passage: &&Passage| passage.kind == Kind::Contribution;
    let first = seen.iter().filter(is_full).find(sum)?.at;
    let count = time.as_millis() as u64;
    let mut bins: Vec<Bin> = (0..count).map(|ms| Bin { ms, ..Bin::default() }).collect();
    for passage in seen.iter().filter(is_full) {
        let Some(after) = passage.at.checked_duration_since(first) else { continue };
        let Some(bin) = bins.get_mut(after.as_millis() as usize) else { continue };
        match (passage.kind, passage.direction) {
            (Kind::Contribution, Direction::Up) => bin.sums_up += 1,
            (Kind::Contribution, Direction::Down) => bin.sums_down += 1,
            (Kind::Result, Direction::Up) => bin.results_up += 1,
            (Kind::Result, Direction::Down) => bin.results_down += 1,
            _ => {}
        }
    }
    Some(bins)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_begins_with_the_first_full_sum() {
        let start = Instant::now();
        let passage = |us, kind, direction, bytes| Passage {
            at: start + Duration::from_micros(us),
            kind,
            direction,
            bytes,
        };
        let seen = [
            passage(0, Kind::Contribution, Direction::Up, 192),
            passage(10, Kind::Probe, Direction::Up, 1472),
            passage(500, Kind::Contribution, Direction::Down, 1472),
            passage(1400, Kind::Result, Direction::Up, 1472),
            passage(1600, Kind::Result, Direction::Up, 1472),
            passage(9000, Kind::Result, Direction::Up, 1472),
        ];
        let bins = bins(&seen, Duration::from_millis(2)).expect("a sum");
        let both = [
            Bin { ms: 0, sums_down: 1, results_up: 1, ..Bin::default() },
            Bin { ms: 1, results_up: 1, ..Bin::default() },
        ];
        assert_eq!(bins, both);
        assert_eq!(super::bins(&seen[..2], Duration::from_millis(2)), None);
    }
}
