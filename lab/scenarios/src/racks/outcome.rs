//! What a system's run on racks came to.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use xdp_agg_testbed::{DelayReport, LinkReport};

use super::super::row::said;
use super::stall::Stall;
use super::{Args, System};
use xdp_agg_report::quantile;

/// One system's result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) system: System,
    racks: u16,
    hosts: u16,
    equipped: u16,
    rate: String,
    uplink_bits: Option<u64>,
    bytes: u64,
    mtu: u32,
    lanes: String,
    offloads: bool,
    delay_us: u64,
    burst: Option<u64>,
    through: bool,
    stall: Option<Stall>,
    /// How many stand still at any time, milliseconds until others do, and what they are drawn
    /// from; where there is none it is the last worker, at a fixed beat.
    drawn: Option<(u16, u64, u64)>,
    pods: u16,
    pod_uplink_bits: Option<u64>,
    /// How much the workers' sockets may hold.
    pub(super) socket_limits: Option<SocketLimits>,
    /// Median, least and most of an iteration, averaged over the ranks, in seconds.
    pub(super) time_s: [f64; 3],
    /// Median of the iterations at the slowest rank of each.
    slowest_s: f64,
    /// Processor seconds of the workers in the timed calls, and of daemons or servers from the
    /// workers' start to their end.
    pub(super) cpu_s: f64,
    /// Bytes on the busiest uplink in its busier direction, for a call, over those of the vector.
    uplink_share: f64,
    /// The same of a host's link.
    host_share: f64,
    /// The same of a pod's uplink, where there are pods.
    pub(super) pod_share: Option<f64>,
    pub(super) wrong: u64,
    pub(super) caps_kept: Option<bool>,
    /// Seconds of the fullest link, as planned.
    pub(super) planned_s: Option<f64>,
    /// How well the links' delay was kept.
    pub(super) delays: Option<DelayReport>,
}

/// The most that a process without privileges may have in a socket's buffers. What TCP holds in
/// them hides a stopped process from the others for as long as a link takes to carry it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SocketLimits {
    receive: u64,
    send: u64,
}

impl SocketLimits {
    /// Those of this machine.
    pub(super) fn read() -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/core/{name}");
            let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
            text.trim().parse().with_context(|| format!("{path} holds {text:?}, no number"))
        };
        Ok(Self { receive: read("rmem_max")?, send: read("wmem_max")? })
    }
}

impl fmt::Display for SocketLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { receive, send } = self;
        write!(
            f,
            "workers' sockets may receive {receive} and send {send} bytes ahead \
             (net.core.rmem_max, wmem_max)"
        )
    }
}

/// What one worker writes (`xdp-agg-bench --strategy … --json`), as far as it is used here.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    loads: Vec<Load>,
}

#[derive(Debug, Deserialize)]
struct Load {
    phases: Vec<Phase>,
    wrong: u64,
}

#[derive(Debug, Deserialize)]
struct Phase {
    times_s: Vec<f64>,
    process_cpu_s: f64,
}

/// The table's first line.
pub(super) const HEADING: &str = "\
system        time/ms        min        max    slowest    cpu/s  \
uplink/K    host/K  wrong  caps";

impl Row {
    /// Whether packets were kept as long as they should be, by and large.
    pub(super) fn kept_delay(&self) -> bool {
        let asked_ns = self.delay_us * 1000;
        self.delays.is_none_or(|delays| delays.lost == 0 && delays.late_ns <= asked_ns / 5)
    }

    /// A line of the table that [`HEADING`] begins.
    pub(super) fn line(&self) -> String {
        let Row { system, time_s, slowest_s, cpu_s, .. } = self;
        let Row { uplink_share, host_share, wrong, caps_kept, .. } = self;
        let name = system.to_possible_value().map(|value| value.get_name().to_owned());
        // Calls of less than ten milliseconds differ behind the point.
        let in_ms = |seconds: f64| match seconds * 1e3 {
            ms if ms < 10.0 => format!("{ms:.3}"),
            ms => format!("{ms:.1}"),
        };
        let [median, least, most] = time_s.map(in_ms);
        let slowest = in_ms(*slowest_s);
        let caps = said(*caps_kept);
        format!(
            "{:10} {median:>10} {least:>10} {most:>10} {slowest:>10} {cpu_s:8.2} \
             {uplink_share:9.3} {host_share:9.3} {wrong:6} {caps:>5}",
            name.unwrap_or_default()
        )
    }
}

pub(super) fn row(
    args: &Args,
    system: System,
    reports: &[Report],
    (before, after): (&[[u64; 2]], &[[u64; 2]]),
    links: Option<&[LinkReport]>,
) -> Result<Row> {
    let loads: Vec<&Load> = reports.iter().filter_map(|report| report.loads.first()).collect();
    let times: Vec<&Vec<f64>> =
        loads.iter().filter_map(|load| Some(&load.phases.first()?.times_s)).collect();
    let iters = times.iter().map(|times| times.len()).min().context("no worker has a time")?;
    let mean = |i: usize| times.iter().map(|times| times[i]).sum::<f64>() / times.len() as f64;
    let means: Vec<f64> = (0..iters).map(mean).collect();
    let slowest = |i: usize| times.iter().map(|times| times[i]).fold(0.0, f64::max);
    let slowest: Vec<f64> = (0..iters).map(slowest).collect();
    // Two calls verify, before and after.
    let calls = f64::from(args.iters + 2) * args.bytes as f64;
    let busiest = |links: std::ops::Range<usize>| {
        let one = |link: usize| {
            let [out, back] = [0, 1].map(|way| after[link][way] - before[link][way]);
            out.max(back) as f64 / calls
        };
        links.map(one).fold(0.0, f64::max)
    };
    let workers = usize::from(args.racks * args.hosts);
    for broken in links.into_iter().flatten().filter(|link| !link.kept) {
        eprintln!("{broken}");
    }
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let most = means.iter().copied().fold(0.0, f64::max);
    Ok(Row {
        system,
        racks: args.racks,
        hosts: args.hosts,
        equipped: args.equipped.unwrap_or(args.racks),
        rate: args.rate.to_string(),
        uplink_bits: args.uplink_bits(),
        bytes: args.bytes,
        mtu: args.mtu,
        lanes: args.lanes.clone(),
        offloads: !args.no_offloads,
        delay_us: args.delay_us,
        burst: args.burst,
        through: args.through,
        stall: args.stall,
        drawn: args.stalled.map(|count| (count, args.redraw_ms, args.seed)),
        pods: args.pods,
        pod_uplink_bits: args.pod_uplink_bits(),
        socket_limits: None,
        time_s: [quantile(&means, 0.5), least, most],
        slowest_s: quantile(&slowest, 0.5),
        cpu_s: loads.iter().flat_map(|load| &load.phases).map(|phase| phase.process_cpu_s).sum(),
        uplink_share: busiest(workers..workers + usize::from(args.racks)),
        host_share: busiest(0..workers),
        pod_share: (args.pods > 0).then(|| {
            let first = workers + usize::from(args.racks);
            busiest(first..first + usize::from(args.pods))
        }),
        wrong: loads.iter().map(|load| load.wrong).sum(),
        caps_kept: links.map(|links| links.iter().all(|link| link.kept)),
        planned_s: None,
        delays: None,
    })
}
