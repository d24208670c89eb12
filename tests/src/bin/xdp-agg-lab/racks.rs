//! `bench racks`: trees of aggregators beside a ring and parameter servers, in racks whose uplinks
//! are over-subscribed (RAT, Rina, co-located).

mod stall;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use xdp_agg_tests::{Error, Fabric, LinkReport, Process, Sink, Spot, Topology, program};
use xdp_agg_topology::Strategy;

use super::bound;
use super::compare::warn_if_busy;
use super::lab::{Privilege, RENDEZVOUS_PORT, wait_all};
use super::row::{quantile, write_json};
use super::scratch::Scratch;
use super::setting::{Rate, parse_bytes};
use stall::Stall;

/// Where parameter servers listen, one on each worker's host.
const SERVER_PORT: u16 = 9871;
/// Time for a call beyond what the links need.
const GRACE: Duration = Duration::from_secs(60);

/// Trees of aggregators in racks with over-subscribed uplinks, beside a TCP ring and parameter
/// servers.
///
/// Every rack is a switch that may run an aggregator, every worker a host behind one link; links
/// and uplinks are shaped and counted in both directions. `rat`, `rina` and `passing` use the
/// racks' aggregators, `rat-hosts` and `colocated` daemons on the workers' hosts and nothing
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
    /// A rack's hosts can send so many times as much as its uplink carries.
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
    /// what it has queued, or its `host`, whose links stand still, too.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "process")]
    stall: Option<Stall>,
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

    /// What `xdp-agg bench --strategy` calls it.
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

/// One system's result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    system: System,
    racks: u16,
    hosts: u16,
    equipped: u16,
    rate: String,
    uplink_bits: Option<u64>,
    bytes: u64,
    mtu: u32,
    lanes: String,
    offloads: bool,
    stall: Option<Stall>,
    /// Median, least and most of an iteration, averaged over the ranks, in seconds.
    time_s: [f64; 3],
    /// Median of the iterations at the slowest rank of each.
    slowest_s: f64,
    /// Processor seconds of the workers in the timed calls, and of daemons or servers from the
    /// workers' start to their end.
    cpu_s: f64,
    /// Bytes on the busiest uplink in its busier direction, for a call, over those of the vector.
    uplink_share: f64,
    /// The same of a host's link.
    host_share: f64,
    wrong: u64,
    caps_kept: Option<bool>,
}

/// What one worker writes (`xdp-agg bench --strategy … --json`), as far as it is used here.
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
    process_cpu_s: f64,
}

/// Runs the scenario.
pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("bench racks needs root: aggregators in racks are XDP programs");
    }
    if args.stall == Some(Stall::Host) && args.rate.bits.is_none() {
        bail!("--stall=host holds links at their shapers, so it needs a --rate other than none");
    }
    warn_if_busy()?;
    println!(
        "{:10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>9} {:>9} {:>6} {:>5}",
        "system",
        "time/ms",
        "min",
        "max",
        "slowest",
        "cpu/s",
        "uplink/K",
        "host/K",
        "wrong",
        "caps"
    );
    let mut rows: Vec<Row> = Vec::new();
    for system in &args.system {
        let row = measure(args, *system).with_context(|| format!("{system:?}"))?;
        println!("{}", line(&row));
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
    Ok(())
}

fn line(row: &Row) -> String {
    let Row { system, time_s, slowest_s, cpu_s, .. } = row;
    let Row { uplink_share, host_share, wrong, caps_kept, .. } = row;
    let name = system.to_possible_value().map(|value| value.get_name().to_owned());
    // Calls of less than ten milliseconds differ behind the point.
    let in_ms = |seconds: f64| match seconds * 1e3 {
        ms if ms < 10.0 => format!("{ms:.3}"),
        ms => format!("{ms:.1}"),
    };
    let [median, least, most] = time_s.map(in_ms);
    let slowest = in_ms(*slowest_s);
    let caps = caps_kept.map_or("-", |kept| if kept { "yes" } else { "NO" });
    format!(
        "{:10} {median:>10} {least:>10} {most:>10} {slowest:>10} {cpu_s:8.2} {uplink_share:9.3} \
         {host_share:9.3} {wrong:6} {caps:>5}",
        name.unwrap_or_default()
    )
}

/// The network of a system, with its daemons.
fn build(args: &Args, system: System) -> Result<Fabric> {
    let workers = usize::from(args.racks * args.hosts);
    let uplink = args
        .rate
        .bits
        .map(|bits| (bits as f64 * f64::from(args.hosts) / args.oversubscription).round() as u64);
    let topology = Topology::builder()
        .workers(workers)
        .racks(args.racks.into())
        .rate(args.rate.bits)
        .uplink(uplink)
        .mtu(args.mtu)
        .offloads(!args.no_offloads)
        .xdp_on_hosts(system.uses_hosts() || args.equipped.is_some())
        .build()
        .context("building the test network")?;
    let mut fabric = Fabric::new(topology);
    let equipped = usize::from(args.equipped.unwrap_or(args.racks).min(args.racks));
    if system.uses_racks() {
        for rack in 0..equipped {
            fabric.serve(Spot::Rack(rack), "xdp", &[])?;
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
    let scratch = Scratch::new()?;
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
    match args.stall {
        Some(stall) => stall::last(stall, topology, workers, limit)?,
        None => wait_all(workers, limit)?,
    }
    let daemons_s = (cpu_time()? - cpu_before).as_secs_f64();
    let links = meter.map(xdp_agg_tests::LinkMeter::finish).transpose()?;
    let after = carried(topology)?;
    let reports = reports(&scratch, topology.workers().len())?;
    let row = row(args, system, &reports, (&before, &after), links.as_deref())?;
    Ok(Row { cpu_s: row.cpu_s + daemons_s, ..row })
}

fn write_plan(fabric: &Fabric, scratch: &Scratch, strategy: Strategy) -> Result<PathBuf> {
    let file = scratch.file("topology.toml");
    fs::write(&file, fabric.plan(strategy).to_toml())?;
    Ok(file)
}

fn start_servers(fabric: &Fabric) -> Result<Vec<Process>> {
    let start = |worker: usize| {
        let at = format!("{}:{SERVER_PORT}", fabric.topology.worker_addr(worker));
        let mut command = fabric.topology.worker(worker).command(program("xdp-agg")?);
        command.args(["ps", "--listen", &at]).env("NO_COLOR", "1");
        let server = Process::spawn(format!("server {worker}"), command)?;
        server.wait_line("that it is ready", GRACE, |line| line.starts_with("ready "))?;
        Ok(server)
    };
    (0..fabric.topology.workers().len()).map(start).collect()
}

fn start_workers(
    args: &Args,
    fabric: &Fabric,
    system: System,
    plan: Option<&PathBuf>,
    scratch: &Scratch,
) -> Result<Vec<Process>> {
    let topology = &fabric.topology;
    let count = topology.workers().len();
    let servers: Vec<String> = (0..count)
        .map(|worker| format!("{}:{SERVER_PORT}", topology.worker_addr(worker)))
        .collect();
    let start = |rank: usize| {
        let mut command = topology.worker(rank).command(program("xdp-agg")?);
        command
            .args(["bench", "--strategy", system.bench(), "--bytes", &args.bytes.to_string()])
            .args(["--phase", &format!("{}x0", args.iters), "--json"])
            .arg(scratch.file(format!("{rank}.json")))
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

fn reports(scratch: &Scratch, workers: usize) -> Result<Vec<Report>> {
    let read = |rank: usize| {
        let file = scratch.file(format!("{rank}.json"));
        let json = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_slice(&json)
            .with_context(|| format!("the report of rank {rank} is not as expected"))
    };
    (0..workers).map(read).collect()
}

fn row(
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
        uplink_bits: args.rate.bits.map(|bits| {
            (bits as f64 * f64::from(args.hosts) / args.oversubscription).round() as u64
        }),
        bytes: args.bytes,
        mtu: args.mtu,
        lanes: args.lanes.clone(),
        offloads: !args.no_offloads,
        stall: args.stall,
        time_s: [quantile(&means, 0.5), least, most],
        slowest_s: quantile(&slowest, 0.5),
        cpu_s: loads.iter().flat_map(|load| &load.phases).map(|phase| phase.process_cpu_s).sum(),
        uplink_share: busiest(workers..workers + usize::from(args.racks)),
        host_share: busiest(0..workers),
        wrong: loads.iter().map(|load| load.wrong).sum(),
        caps_kept: links.map(|links| links.iter().all(|link| link.kept)),
    })
}
