//! `bench share`: all-reduces beside TCP flows on the same links.

mod onset;
mod outcome;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use xdp_agg_client::Congestion;
use xdp_agg_testbed::beside::{RttProbe, TcpFlow};
use xdp_agg_testbed::{Direction, Fabric, Process, Shape, Sink, Spot, Topology, program};
use xdp_agg_topology::Strategy;

use super::compare::warn_if_busy;
use super::files::{report_file, reports, scratch, write_json};
use super::lab::{Privilege, RENDEZVOUS_PORT, reap};
use super::setting::{Rate, parse_bytes};
use outcome::{Round, Row, Span};

/// Time between samples of the links and flows.
const SAMPLE: Duration = Duration::from_millis(20);
/// Time between two packets of the probe.
const PROBE: Duration = Duration::from_millis(5);
/// Flows have found their shares by then.
const SETTLING: Duration = Duration::from_secs(2);
/// How long the flows are alone.
const ALONE: Duration = Duration::from_secs(2);
/// Workers have met by then, and their links are full.
const JOINING: Duration = Duration::from_millis(700);
/// The longest that one run of the workers may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// All-reduces beside TCP flows on the same link: who gets how much of it, how long its queue is,
/// and how much longer a call takes.
///
/// Two racks of hosts; the flows go from the first rack's first host to the second rack's first
/// one, as fast as they can. With uplinks that are slower than hosts' links they share an uplink
/// with all workers' sums and results; with `--oversubscription 1` they share the host's link.
/// Links carry single packets, as cables do, and have a queue that drops its newest packet when it
/// is full. Every direction of every link is counted before and behind its shaper.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Hosts of a rack.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    hosts: u16,
    /// Rate of every host's link in each direction, such as 100mbit.
    #[arg(long, default_value = "100mbit")]
    rate: Rate,
    /// How many times as much a rack's hosts can send as its uplink carries.
    #[arg(long, default_value_t = 4.0)]
    oversubscription: f64,
    /// Bytes that may wait at every link in each direction.
    #[arg(long, default_value = "256K", value_parser = parse_bytes)]
    queue: u64,
    /// Bytes of the vector, with K, M, G (1024-based).
    #[arg(long, default_value = "4M", value_parser = parse_bytes)]
    bytes: u64,
    /// Timed calls of a round.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iters: u32,
    /// How often all is done.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of TCP flows.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    flows: u16,
    /// Their congestion controls, separated by commas: what
    /// `/proc/sys/net/ipv4/tcp_available_congestion_control` has.
    #[arg(long, value_delimiter = ',', default_value = "cubic")]
    tcp: Vec<String>,
    /// Systems that all-reduce, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rat,ring")]
    system: Vec<System>,
    /// What makes workers of aggregators send less (`XDP_AGG_CONGESTION`), separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "tolerant")]
    #[arg(value_parser = Congestion::ALL.map(Congestion::name))]
    congestion: Vec<String>,
    /// Instead: for this many milliseconds from the start of the first call, how many sums and
    /// results cross the first rack's uplink in each direction (`rat` alone, no flows).
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    onset: Option<u64>,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What all-reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum System {
    /// A tree rooted at the aggregator of each rack's switch.
    Rat,
    /// A tree rooted at each host's daemon.
    RatHosts,
    /// A TCP ring of all workers, rack by rack, with the flows' congestion control or cubic.
    Ring,
}

impl System {
    const fn uses_aggregators(self) -> bool {
        !matches!(self, Self::Ring)
    }
}

/// One system under one congestion control, beside flows of one kind.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    args: &'a Args,
    system: System,
    congestion: &'a str,
    tcp: &'a str,
}

/// The link where flows and all-reduces meet, and its rate in bits a second.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    link: usize,
    rate: u64,
}

/// Runs the scenario.
pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("bench share needs root: aggregators in racks are XDP programs");
    }
    let Some(rate) = args.rate.bits else {
        bail!("--rate none: where no link is full nobody has to share; give a rate");
    };
    if !(1.0..=64.0).contains(&args.oversubscription) {
        bail!("--oversubscription {}: expected 1 to 64", args.oversubscription);
    }
    if args.queue < 2 * 1514 || u32::try_from(args.queue).is_err() {
        bail!("--queue {}: expected room for two packets, and less than 4G", args.queue);
    }
    warn_if_busy()?;
    if let Some(ms) = args.onset {
        return onset::main(args, rate, Duration::from_millis(ms));
    }
    println!("{}", outcome::HEADING);
    let mut rows: Vec<Row> = Vec::new();
    for system in &args.system {
        let own = ["-".to_owned()];
        let congestions =
            if system.uses_aggregators() { args.congestion.as_slice() } else { own.as_slice() };
        for congestion in congestions {
            for tcp in &args.tcp {
                let case = Case { args, system: *system, congestion, tcp };
                let row = case.measure(rate).with_context(|| format!("{system:?}"))?;
                println!("{}", row.line());
                rows.push(row);
            }
        }
    }
    if let Some(file) = &args.json {
        write_json(file, &rows)?;
    }
    if rows.iter().any(|row| row.wrong > 0 || !row.caps_kept) {
        bail!("a sum was wrong, or a link carried more than its rate: this is no result");
    }
    Ok(())
}

/// The network of a system, with its daemons.
fn build(args: &Args, rate: u64, system: System) -> Result<Fabric> {
    let uplink = (rate as f64 * f64::from(args.hosts) / args.oversubscription).round() as u64;
    // Eleven packets: little beside the queue, and the shaper wakes up seldom enough.
    let shape = Shape { burst: 16 << 10, queue: args.queue as u32, ..Shape::new(rate) };
    let topology = Topology::builder()
        .workers(usize::from(2 * args.hosts))
        .racks(2)
        .shape(Some(shape))
        .uplink(Some(uplink))
        .offloads(false)
        .xdp_on_hosts(system == System::RatHosts)
        .build()
        .context("building the test network")?;
    let mut fabric = Fabric::new(topology);
    let spots: Vec<Spot> = match system {
        System::Rat => (0..2).map(Spot::Rack).collect(),
        System::RatHosts => (0..fabric.topology.workers().len()).map(Spot::Worker).collect(),
        System::Ring => Vec::new(),
    };
    for spot in spots {
        fabric.serve(spot, "xdp", &[])?;
    }
    Ok(fabric)
}

/// What one worker writes, as far as it is used here.
#[derive(Debug, Deserialize)]
struct Report {
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
}

/// Counters at a moment.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    /// Bytes that left the link where all meet, and packets that it dropped.
    link: (u64, u64),
    /// Bytes that each flow's receiver has read.
    flows: Vec<u64>,
}

impl Case<'_> {
    fn measure(&self, rate: u64) -> Result<Row> {
        let fabric = build(self.args, rate, self.system)?;
        let topology = &fabric.topology;
        let uplink = topology.rack_rate(0).unwrap_or(rate);
        let meeting = match uplink < rate {
            true => Meeting { link: topology.rack_link(0), rate: uplink },
            false => Meeting { link: 0, rate },
        };
        let meter = topology.meter()?;
        let rounds: Result<Vec<Round>> =
            (0..self.args.rounds).map(|_| self.round(&fabric, meeting)).collect();
        let links = meter.finish()?;
        for broken in links.iter().filter(|link| !link.kept) {
            eprintln!("{broken}");
        }
        let caps_kept = links.iter().all(|link| link.kept);
        Row::new(self, meeting, &rounds?, caps_kept)
    }

    /// Calls alone, flows alone, and both.
    fn round(&self, fabric: &Fabric, meeting: Meeting) -> Result<Round> {
        let topology = &fabric.topology;
        let far = usize::from(self.args.hosts);
        let (near_end, far_end) =
            [0, far].map(|w| (topology.worker(w), topology.worker_addr(w))).into();
        let probe = RttProbe::start(near_end, far_end, PROBE)?;
        let alone = self.calls(fabric, meeting, &[])?;
        let start = || TcpFlow::start(near_end.0, far_end, self.tcp);
        let flows = (0..self.args.flows).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
        thread::sleep(SETTLING);
        let before = sample(topology, meeting, &flows)?;
        thread::sleep(ALONE);
        let flows_alone = [before, sample(topology, meeting, &flows)?];
        let beside = self.calls(fabric, meeting, &flows)?;
        if let Some(ended) = flows.iter().position(|flow| !flow.is_open()) {
            bail!("TCP flow {ended} ended before it was told to");
        }
        drop(flows);
        let began = probe.began();
        let trips = probe.finish();
        let span = |samples: &[Sample]| Span::new(samples, began, &trips);
        Ok(Round {
            alone: span(&alone.samples)?,
            flows_alone: span(&flows_alone)?,
            beside: span(&beside.samples)?,
            calls_alone_s: alone.calls_s,
            calls_beside_s: beside.calls_s,
            wrong: alone.wrong + beside.wrong,
        })
    }

    /// One run of the workers, with what the link carried while all of them were at it.
    fn calls(&self, fabric: &Fabric, meeting: Meeting, flows: &[TcpFlow]) -> Result<Run> {
        let scratch = scratch()?;
        let begun = Instant::now();
        let mut workers = self.start_workers(fabric, &scratch)?;
        let mut samples = Vec::new();
        while !workers.is_empty() {
            if begun.elapsed() > JOINING {
                samples.push(sample(&fabric.topology, meeting, flows)?);
            }
            let count = workers.len();
            workers = reap(workers)?;
            if workers.len() < count {
                // The calls are over at all of them, or about to be.
                break;
            }
            if begun.elapsed() > PATIENCE {
                bail!("the workers have not ended in {PATIENCE:?}");
            }
            thread::sleep(SAMPLE);
        }
        super::lab::wait_all(workers, PATIENCE)?;
        // The last ones are from after the calls.
        samples.truncate(samples.len().saturating_sub(samples.len() / 20 + 2));
        let reports: Vec<Report> = reports(&scratch, 2 * self.args.hosts)?;
        let loads = reports.iter().filter_map(|report| report.loads.first());
        let wrong = loads.clone().map(|load| load.wrong).sum();
        let times: Vec<&Vec<f64>> =
            loads.filter_map(|load| Some(&load.phases.first()?.times_s)).collect();
        let count = times.iter().map(|times| times.len()).min().context("no worker has a time")?;
        let mean = |i: usize| times.iter().map(|times| times[i]).sum::<f64>() / times.len() as f64;
        Ok(Run { samples, calls_s: (0..count).map(mean).collect(), wrong })
    }

    fn start_workers(&self, fabric: &Fabric, scratch: &TempDir) -> Result<Vec<Process>> {
        let Args { bytes, iters, .. } = self.args;
        let topology = &fabric.topology;
        let count = topology.workers().len();
        let strategy = if self.system.uses_aggregators() { "passing" } else { "ring" };
        let plan = match self.system.uses_aggregators() {
            true => Some(fabric.write_plan(scratch.path(), Strategy::Rat)?),
            false => None,
        };
        let start = |rank: usize| {
            let host = topology.worker(rank);
            let mut command = host.unprivileged_command(program("xdp-agg-bench")?);
            command
                .args(["--strategy", strategy, "--bytes", &bytes.to_string()])
                .args(["--phase", &format!("{iters}x0+through"), "--json"])
                .arg(report_file(scratch, rank))
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", count.to_string())
                .env("MASTER_ADDR", topology.worker_addr(0).to_string())
                .env("MASTER_PORT", RENDEZVOUS_PORT.to_string())
                .env("XDP_AGG_JOB", "share")
                .env("XDP_AGG_SCALING", "fixed:1024")
                .env("XDP_AGG_DEADLINE", PATIENCE.as_secs().to_string())
                .env("NO_COLOR", "1");
            if let Some(plan) = &plan {
                command.env("XDP_AGG_TOPOLOGY", plan).env("XDP_AGG_CONGESTION", self.congestion);
            }
            let name = format!("worker {rank}");
            Ok(Process::spawn_with(name, command, Sink::Capture, Sink::Capture)?)
        };
        (0..count).map(start).collect()
    }
}

/// What the workers did.
struct Run {
    samples: Vec<Sample>,
    calls_s: Vec<f64>,
    wrong: u64,
}

fn sample(topology: &Topology, meeting: Meeting, flows: &[TcpFlow]) -> Result<Sample> {
    let counters = topology.queue_counters(meeting.link, Direction::Up)?;
    let counters = counters.context("the link has no shaper")?;
    let flows = flows.iter().map(TcpFlow::received).collect();
    Ok(Sample { at: Instant::now(), link: (counters.bytes, counters.drops), flows })
}
