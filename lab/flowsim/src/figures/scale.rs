//! Networks that nobody runs on two cores: how long they take, and how long simulating them takes.

use std::fs;
use std::time::Instant;

use crate::generate::{Generated, SpineLeaf, fat_tree};
use anyhow::Result;
use procfs::process::Process;
use xdp_agg_report::plot::Axes;
use xdp_agg_topology::Rate;

use crate::fabric::Costs;
use crate::predict::Question;
use crate::strategy::Way;

use super::{Bench, Cell, Claim, Figure, Picture, Plan, RESNET50_BYTES, Verdict, judged};

const COSTS: Costs = Costs { step: 10e-6, hop: 10e-6, ..Costs::IDEAL };
/// What the issue grants a run with 4096 workers.
const MOST_SECONDS: f64 = 60.0;
const MOST_MIB: f64 = 4096.0;
const WAYS: [Way; 9] = [
    Way::OneServer,
    Way::Servers,
    Way::Ring,
    Way::HierarchicalRing,
    Way::HalvingDoubling,
    Way::OneAtp,
    Way::Colocated,
    Way::Rat,
    Way::Rina,
];

/// Completion time, simulating time and memory by size.
pub(super) fn scale(plan: &Plan, bench: &Bench) -> Result<Vec<Figure>> {
    let sizes: &[usize] = if plan.quick { &[16, 64] } else { &[64, 256, 1024, 4096] };
    let mut networks = vec![fat_tree(8, Rate::gbit(25))?];
    for &size in sizes {
        networks.push(racks(size)?);
    }
    let mut rows = Vec::new();
    let mut series: Vec<(String, Vec<(f64, f64)>)> =
        WAYS.iter().map(|way| (way.name().to_owned(), Vec::new())).collect();
    let (mut longest, mut busiest, mut largest) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (at, generated) in networks.iter().enumerate() {
        let world = generated.topology.world();
        for (way, (_, points)) in WAYS.into_iter().zip(&mut series) {
            let run = measured(bench, generated, way)?;
            longest = longest.max(run.wall);
            busiest = busiest.max(run.cpu);
            largest = largest.max(run.mib);
            if at > 0 {
                points.push((world as f64, run.seconds * 1e3));
            }
            rows.push(vec![
                Cell::from(&generated.topology.name),
                world.into(),
                way.name().into(),
                (run.seconds * 1e3).into(),
                (run.events as f64).into(),
                run.wall.into(),
                run.cpu.into(),
                run.mib.into(),
            ]);
        }
    }
    Ok(vec![Figure {
        name: "scale",
        title: "One all-reduce of ResNet-50 (97 MB) by workers: racks of 16 to 64, 25 Gbit/s, 4:1",
        assumptions: vec![
            "spine and leaf: 4 spines, square numbers of racks and hosts, over-subscribed 4:1; \
             the fat-tree has k = 8"
                .into(),
            "10 microseconds for each step between hosts and for each hop to an aggregator".into(),
            "Rina and ATP: an aggregator in every rack; ATP none in the spines".into(),
        ],
        claims: judged(plan, vec![limits(busiest, longest, largest)]),
        columns: vec![
            "network",
            "workers",
            "strategy",
            "ms",
            "events",
            "simulated in s",
            "processor s",
            "memory MiB",
        ],
        rows,
        picture: Picture::Lines {
            x: "workers",
            y: "completion time, ms",
            axes: Axes::Logarithmic,
            // One server is off any scale, and a server on each host is like co-located ones.
            series: series.split_off(2),
        },
    }])
}

/// What a run may take, beside the slowest one and the largest one.
fn limits(busiest: f64, longest: f64, largest: f64) -> Claim {
    Claim {
        paper: "the issue: 4096 workers, one iteration, within 60 s and 4 GiB".into(),
        ours: format!(
            "the slowest run took {busiest:.1} s of a processor ({longest:.1} s by the clock, with \
             whatever else the machine did), the largest {largest:.0} MiB"
        ),
        verdict: Verdict::of(busiest <= MOST_SECONDS && largest <= MOST_MIB, false),
    }
}

/// As many racks as hosts in each.
fn racks(world: usize) -> Result<Generated> {
    let side = world.isqrt();
    let shape = (4, side, side);
    Ok(SpineLeaf::oversubscribed(shape, Rate::gbit(25), 4.0).generate()?)
}

struct Measured {
    seconds: f64,
    events: u64,
    wall: f64,
    cpu: f64,
    mib: f64,
}

fn measured(bench: &Bench, plain: &Generated, way: Way) -> Result<Measured> {
    let mut generated = plain.clone();
    if matches!(way, Way::Rina | Way::OneAtp) {
        for host in &plain.topology.hosts {
            if let Some(rack) = host.region {
                generated.equip(rack);
            }
        }
    }
    forget_peak();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let question = Question { costs: COSTS, ..Question::ideal(way, RESNET50_BYTES) };
    let outcome = bench.run(&generated, &question)?;
    let (seconds, events) = (outcome.seconds, outcome.events);
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    Ok(Measured { seconds, events, wall, cpu, mib: peak_mib() })
}

/// What this process has taken of a processor so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = Process::myself().and_then(|this| this.stat());
    // The kernel shows hundredths of seconds on every architecture that this runs on.
    stat.map_or(0.0, |stat| (stat.utime + stat.stime) as f64 / 100.0)
}

/// Begins a new measurement of the peak; where that is not allowed, the peak is of all runs.
fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Largest resident memory since the measurement began.
fn peak_mib() -> f64 {
    let status = Process::myself().and_then(|this| this.status());
    status.ok().and_then(|status| status.vmhwm).unwrap_or(0) as f64 / 1024.0
}
