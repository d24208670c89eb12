//! `bench racks`: trees of aggregators beside a ring and parameter servers, in racks whose uplinks
//! are over-subscribed (RAT, Rina, co-located).

mod draw;
mod outcome;
mod planned;
mod stall;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use tempfile::TempDir;
use xdp_agg_testbed::{Error, Fabric, MAX_DELAY, Process, Shape, Sink, Spot, Topology, program};
use xdp_agg_topology::Strategy;

use super::bound;
use super::compare::warn_if_busy;
use super::files::{report_file, reports, scratch, write_json};
use super::lab::{Privilege, RENDEZVOUS_PORT, start_server, wait_all};
use super::setting::{Rate, parse_bytes};
use draw::Draw;
use outcome::{Row, SocketLimits, row};
use stall::Stall;

/// Where parameter servers listen, one on each worker's host.
const SERVER_PORT: u16 = 9872;
/// The longest packet that crosses a link whole: 64 KiB of TCP and its headers.
const SUPER_PACKET: u32 = 66 << 10;
/// Time for a call beyond what the links need.
const GRACE: Duration = Duration::from_secs(60);

/// Trees of aggregators in racks with over-subscribed uplinks, beside a TCP ring and parameter
/// servers.
///
/// Every rack is a switch that may run an aggregator, every worker a host behind one link; links
/// and uplinks are shaped and counted in both directions. Workers have no privileges: their sockets
/// hold what `net.core.rmem_max` and `wmem_max` allow, as is shown. `rat`, `rina` and `passing` use
/// the racks' aggregators, `rat-hosts` and `colocated` daemons on the workers' hosts and nothing
/// else, `atp` both; `ps` has a parameter server on every host. Each system gets a new network.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of racks; 1: all hosts are on one switch.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    racks: u16,
    /// Hosts of a rack.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    hosts: u16,
    /// Rate of every host's link in each direction, such as 100mbit.
    #[arg(long, default_value = "200mbit")]
    rate: Rate,
    /// How many times as much a rack's hosts can send as its uplink carries.
    #[arg(long, default_value_t = 4.0)]
    oversubscription: f64,
    /// Bytes of the vector, with K, M, G (1024-based).
    #[arg(long, default_value = "16M", value_parser = parse_bytes)]
    bytes: u64,
    /// Timed calls.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iters: u32,
    /// Systems, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rat,rina,colocated,ring,ps")]
    system: Vec<System>,
    /// Racks that have an aggregator, the first ones; the others' workers sum on their own hosts.
    #[arg(long)]
    equipped: Option<u16>,
    /// What sums in daemons on hosts; those of racks are always XDP.
    #[arg(long, default_value = "xdp", value_parser = ["xdp", "userspace"])]
    engine: String,
    /// Stop the last worker for 200 ms in every second: its `process`, whose kernel goes on sending
    /// what it has queued; or its `host`, whose link stands still, too, and what is sent there
    /// waits; or its `link`, which loses it.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "process")]
    stall: Option<Stall>,
    /// With --stall, instead of the last worker: so many workers, drawn at random, stand still at
    /// any time (paper 2, figure 7).
    #[arg(long, value_name = "K", requires = "stall")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    stalled: Option<u16>,
    /// Milliseconds after which others are drawn.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    redraw_ms: u64,
    /// What they are drawn from: the same number draws the same ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of pods, each with as many of the racks at a switch of its own, which leads to the
    /// middle and has an aggregator where racks have one; 0: racks lead to the middle.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=4))]
    pods: u16,
    /// How many times as much a pod's racks can send as its uplink carries.
    #[arg(long, default_value_t = 2.0)]
    pod_oversubscription: f64,
    /// MTU of every link.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=3506))]
    mtu: u32,
    /// Bits of a lane in which aggregators sum; rings and parameter servers carry floats.
    #[arg(long, default_value = "32", value_parser = ["16", "32"])]
    lanes: String,
    /// Only single packets cross the hosts' links, as on a cable: no super-packets of TCP, no
    /// trains of UDP.
    #[arg(long)]
    no_offloads: bool,
    /// Microseconds that every link takes for a packet in each direction, besides what its rate
    /// takes: two hosts of a rack are two links apart, others four.
    #[arg(long, value_name = "US", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MAX_DELAY.as_micros() as u64))]
    delay_us: u64,
    /// Bytes that may cross a link at once after a pause (with a `--rate`); the usual 2.1 ms of the
    /// rate or 72K let all of a short call through. Less than 66K only with `--no-offloads`.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    burst: Option<u64>,
    /// One call follows the other. Otherwise all ranks meet before each, in a call of one element,
    /// which they do not leave at the same time. Where links take their time, a rank that leaves it
    /// first waits for the others in what is timed.
    #[arg(long)]
    through: bool,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum System {
    /// A tree rooted at each rack's aggregator.
    Rat,
    /// A tree rooted at each host's daemon.
    RatHosts,
    /// The racks along a ring.
    Rina,
    /// The racks' aggregators share the vector: every worker sends to all of them.
    Passing,
    /// Servers on all hosts, fed by the racks' aggregators where there are any.
    Atp,
    /// Every host's daemon sums a share.
    Colocated,
    /// A TCP ring of all workers, rack by rack.
    Ring,
    /// Rings in the racks and across them (H-AR).
    HAr,
    /// A parameter server on every host.
    Ps,
}

impl Args {
    /// Values of a lane for a whole one: sums of whole numbers are exact in either width.
    fn scale(&self) -> u32 {
        if self.lanes == "16" { 1 } else { 1024 }
    }

    /// The timed calls, as `xdp-agg-bench` takes them.
    fn phase(&self) -> String {
        format!("{}x0{}", self.iters, if self.through { "+through" } else { "" })
    }

    /// Bits a second of a rack's uplink.
    fn uplink_bits(&self) -> Option<u64> {
        let hosts = f64::from(self.hosts);
        self.rate.bits.map(|bits| (bits as f64 * hosts / self.oversubscription).round() as u64)
    }

    /// Bits a second of a pod's uplink, where there are pods.
    fn pod_uplink_bits(&self) -> Option<u64> {
        let racks = f64::from(self.racks.checked_div(self.pods)?);
        let uplink = self.uplink_bits()? as f64;
        Some((uplink * racks / self.pod_oversubscription).round() as u64)
    }

    /// Which workers stand still, where they are drawn.
    fn draw(&self) -> Option<Draw> {
        let count = usize::from(self.stalled?);
        Some(Draw { count, every: Duration::from_millis(self.redraw_ms), seed: self.seed })
    }
}

impl System {
    const fn strategy(self) -> Option<Strategy> {
        match self {
            Self::Rat | Self::RatHosts => Some(Strategy::Rat),
            Self::Rina => Some(Strategy::Rina),
            Self::Passing => Some(Strategy::Passing),
            Self::Atp => Some(Strategy::Atp),
            Self::Colocated => Some(Strategy::Colocated),
            Self::HAr => Some(Strategy::HAr),
            Self::Ring | Self::Ps => None,
        }
    }

    /// What `xdp-agg-bench --strategy` calls it.
    const fn bench(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::HAr => "h-ar",
            Self::Ps => "ps",
            _ => "passing",
        }
    }

    const fn uses_racks(self) -> bool {
        matches!(self, Self::Rat | Self::Rina | Self::Passing | Self::Atp)
    }

    const fn uses_hosts(self) -> bool {
        matches!(self, Self::RatHosts | Self::Atp | Self::Colocated)
    }
}

/// Runs the scenario.
pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("bench racks needs root: aggregators in racks are XDP programs");
    }
    check(args)?;
    warn_if_busy()?;
    let buffers = SocketLimits::read()?;
    println!("# {buffers}");
    println!("{}", outcome::HEADING);
    let mut rows: Vec<Row> = Vec::new();
    for system in &args.system {
        let mut row = measure(args, *system).with_context(|| format!("{system:?}"))?;
        row.socket_limits = Some(buffers);
        println!("{}", row.line());
        if let Some(seconds) = row.planned_s {
            println!("# the planner's time of the fullest link: {:.1} ms", seconds * 1e3);
        }
        if let Some(share) = row.pod_share {
            println!("# a pod's uplink carries {share:.3} vectors");
        }
        if let Some(delays) = &row.delays {
            println!("# delay: {delays}");
        }
        rows.push(row);
    }
    if let Some(first) = rows.first() {
        for other in &rows[1..] {
            let ratio = other.time_s[0] / first.time_s[0];
            println!("# {:?} takes {ratio:.2} times as long as {:?}", other.system, first.system);
        }
    }
    if let Some(file) = &args.json {
        write_json(file, &rows)?;
    }
    let broken = rows.iter().any(|row| row.wrong > 0 || row.caps_kept == Some(false));
    if broken {
        bail!("a sum was wrong, or a link carried more than its rate: this is no result");
    }
    if rows.iter().any(|row| !row.kept_delay()) {
        bail!(
            "links kept packets for more than a fifth longer than --delay-us asked for, or lost \
             some: this is no result. The processors were busy: take a longer --delay-us and a \
             lower --rate"
        );
    }
    Ok(())
}

/// Refuses what cannot be built, or what would mean something else than it says.
fn check(args: &Args) -> Result<()> {
    if args.stall.is_some_and(Stall::needs_rate) && args.rate.bits.is_none() {
        bail!("--stall=host and =link stop links at their shapers: they need a --rate, not none");
    }
    if args.burst.is_some() && args.rate.bits.is_none() {
        bail!("--burst is part of a link's rate: it needs a --rate other than none");
    }
    let workers = args.racks * args.hosts;
    if args.stalled.is_some_and(|count| count >= workers) {
        bail!("--stalled: of {workers} workers at most {} stand still at a time", workers - 1);
    }
    if args.pods > 0 && (args.pods > args.racks || !args.racks.is_multiple_of(args.pods)) {
        bail!("--pods {}: expected as many of the {} racks in each pod", args.pods, args.racks);
    }
    if args.pods > 0 && args.equipped.is_some() {
        bail!("--equipped counts racks: with --pods all of them have aggregators, or none");
    }
    let least = if args.no_offloads { args.mtu + 14 } else { SUPER_PACKET };
    if args.burst.is_some_and(|burst| burst < least.into() || u32::try_from(burst).is_err()) {
        bail!(
            "--burst must let {least} bytes through at once, one packet as it crosses a link ({}), \
             and be less than 4G",
            if args.no_offloads { "of --mtu" } else { "a super-packet, without --no-offloads" }
        );
    }
    Ok(())
}

/// The network of a system, with its daemons.
fn build(args: &Args, system: System) -> Result<Fabric> {
    let workers = usize::from(args.racks * args.hosts);
    let mut builder = Topology::builder();
    if let Some((burst, rate)) = args.burst.zip(args.rate.bits) {
        builder = builder.shape(Some(Shape { burst: burst as u32, ..Shape::new(rate) }));
    }
    let topology = builder
        .workers(workers)
        .racks(args.racks.into())
        .rate(args.rate.bits)
        .uplink(args.uplink_bits())
        .pods(args.pods.into())
        .pod_uplink(args.pod_uplink_bits())
        .mtu(args.mtu)
        .offloads(!args.no_offloads)
        .delay(Duration::from_micros(args.delay_us))
        .xdp_on_hosts(system.uses_hosts() || args.equipped.is_some())
        .build()
        .context("building the test network")?;
    let mut fabric = Fabric::new(topology);
    let equipped = usize::from(args.equipped.unwrap_or(args.racks).min(args.racks));
    if system.uses_racks() {
        for rack in 0..equipped {
            fabric.serve(Spot::Rack(rack), "xdp", &[])?;
        }
        for pod in 0..usize::from(args.pods) {
            fabric.serve(Spot::Pod(pod), "xdp", &[])?;
        }
    }
    let bare = fabric.topology.rack_workers(equipped).start;
    let own = if system.uses_hosts() {
        0..workers
    } else if system == System::Rina || system == System::Rat {
        bare.min(workers)..workers
    } else {
        0..0
    };
    for worker in own {
        fabric.serve(Spot::Worker(worker), &args.engine, &[])?;
    }
    Ok(fabric)
}

fn measure(args: &Args, system: System) -> Result<Row> {
    let fabric = build(args, system)?;
    let scratch = scratch()?;
    let servers = match system {
        System::Ps => start_servers(&fabric)?,
        _ => Vec::new(),
    };
    let plan = match system.strategy() {
        Some(strategy) => Some(write_plan(&fabric, &scratch, strategy)?),
        None => None,
    };
    let topology = &fabric.topology;
    let before = carried(topology)?;
    let meter = args.rate.bits.map(|_| topology.meter()).transpose()?;
    let cpu_time = || {
        let servers: Result<Duration, _> = servers.iter().map(Process::cpu_time).sum();
        Ok::<_, Error>(servers? + fabric.cpu_time()?)
    };
    let cpu_before = cpu_time()?;
    let workers = start_workers(args, &fabric, system, plan.as_ref(), &scratch)?;
    let limit = patience(args) * (args.iters + 4) + GRACE;
    match (args.stall, args.draw()) {
        (Some(stall), Some(draw)) => draw::stop(stall, draw, topology, workers, limit)?,
        (Some(stall), None) => stall::last(stall, topology, workers, limit)?,
        (None, _) => wait_all(workers, limit)?,
    }
    let daemons_s = (cpu_time()? - cpu_before).as_secs_f64();
    let links = meter.map(xdp_agg_testbed::LinkMeter::finish).transpose()?;
    let delays = topology.delays()?;
    let after = carried(topology)?;
    let reports = reports(&scratch, args.racks * args.hosts)?;
    let mut row = row(args, system, &reports, (&before, &after), links.as_deref())?;
    row.cpu_s += daemons_s;
    row.delays = delays;
    row.planned_s = planned::seconds(args, &fabric, system);
    Ok(row)
}

fn write_plan(fabric: &Fabric, scratch: &TempDir, strategy: Strategy) -> Result<PathBuf> {
    let file = scratch.path().join("topology.toml");
    fs::write(&file, fabric.plan(strategy).to_toml())?;
    Ok(file)
}

fn start_servers(fabric: &Fabric) -> Result<Vec<Process>> {
    let start = |worker: usize| {
        let at = format!("{}:{SERVER_PORT}", fabric.topology.worker_addr(worker));
        start_server(fabric.topology.worker(worker), format!("server {worker}"), &at)
    };
    (0..fabric.topology.workers().len()).map(start).collect()
}

fn start_workers(
    args: &Args,
    fabric: &Fabric,
    system: System,
    plan: Option<&PathBuf>,
    scratch: &TempDir,
) -> Result<Vec<Process>> {
    let topology = &fabric.topology;
    let count = topology.workers().len();
    let servers: Vec<String> = (0..count)
        .map(|worker| format!("{}:{SERVER_PORT}", topology.worker_addr(worker)))
        .collect();
    let start = |rank: usize| {
        let mut command = topology.worker(rank).unprivileged_command(program("xdp-agg-bench")?);
        command
            .args(["--strategy", system.bench(), "--bytes", &args.bytes.to_string()])
            .args(["--phase", &args.phase(), "--json"])
            .arg(report_file(scratch, rank))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", topology.worker_addr(0).to_string())
            .env("MASTER_PORT", RENDEZVOUS_PORT.to_string())
            .env("XDP_AGG_PS_ADDRS", servers.join(","))
            .env("XDP_AGG_JOB", "racks")
            .env("XDP_AGG_SCALING", format!("fixed:{}", args.scale()))
            .env("XDP_AGG_LANES", &args.lanes)
            .env("XDP_AGG_DEADLINE", (patience(args) + GRACE).as_secs().to_string())
            .env("NO_COLOR", "1");
        if let Some(plan) = plan {
            command.env("XDP_AGG_TOPOLOGY", plan);
        }
        Ok(Process::spawn_with(format!("worker {rank}"), command, Sink::Capture, Sink::Capture)?)
    };
    (0..count).map(start).collect()
}

/// Far more than a call may need: parameter servers behind the uplinks, at a fifth of the rate.
fn patience(args: &Args) -> Duration {
    let rate = args.rate.bits.unwrap_or(100_000_000);
    let vectors = f64::from(args.racks * args.hosts) * args.oversubscription.max(1.0);
    Duration::from_micros((bound::time_us(args.bytes as f64 * vectors, rate) * 5.0) as u64)
}

/// Bytes that each link has carried, out of it and into it: hosts, then uplinks.
fn carried(topology: &Topology) -> Result<Vec<[u64; 2]>> {
    let links = 0..topology.link_count();
    let one = |link| {
        let counters = topology.host_counters(link)?;
        Ok([counters.tx_bytes, counters.rx_bytes])
    };
    links.map(one).collect()
}
