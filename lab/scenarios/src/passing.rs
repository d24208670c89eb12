//! `bench passing`: the paper's settings, with the systems that it compares.

mod cluster;
mod output;
mod predict;
mod row;
mod table;

use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xdp_agg_common::frame::IP_OVERHEAD;
use xdp_agg_common::lanes::{CHUNK_LEN, MAX_CHUNKS};
use xdp_agg_testbed::LinkMeter;
use xdp_agg_workloads::model::{Servers, Setting, System};
use xdp_agg_workloads::{Network, Workload, claims};

use super::compare;
use super::files::{report_file, reports, scratch};
use super::lab::{Engine, Plan, Privilege};
use super::machine::{self, Facts};
use super::setting::Rate;
use cluster::{Cluster, Pool, Size};
use output::Output;
use predict::{Compute, Phase, Run};
use row::{Ran, Report, Row};

/// The paper's comparison: parameter servers, PSRing, SwitchML, ATP, a ring and PASSING, with 2 or
/// 4 hosts of 2 or 4 processes each, replaying the gradients of real networks.
///
/// Every host and every parameter server is behind one link, shaped and counted in both
/// directions; the aggregator is the switch. Networks are scaled down (--fraction) so that all of
/// it ends within --limit; the time to be expected is computed first. Computation is slept: the
/// processes of this test share the processors of one machine. A system that fails is reported and
/// the others go on. The exit status is 1 then, and where a link carried more than its rate, a sum
/// was wrong, or a system took more than 1.15 times what its own links allow.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Whose gradients, separated by commas: resnet50, vgg16, vgg19 or bert.
    #[arg(long, value_delimiter = ',', default_value = "vgg19,resnet50")]
    workload: Vec<Network>,
    /// Hosts and processes on each, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "2x2,2x4,4x2,4x4")]
    setting: Vec<Place>,
    /// Figures 4 to 6: clusters from one process up to 4x4 instead of --setting, with ps and ring,
    /// and the paper's computation before communication.
    #[arg(long, conflicts_with = "setting")]
    sweep: bool,
    /// Systems, separated by commas. Default: ps, psring, switchml, atp, ring, passing.
    #[arg(long, value_delimiter = ',')]
    system: Option<Vec<System>>,
    /// Parameter servers, separated by commas: a number of them, each on a host of its own, or
    /// `hosts` for one on every host with workers. Systems without servers are run once.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    servers: Vec<Servers>,
    /// Rate of every link in each direction, such as 100mbit or 1gbit. ATP's switch is a process:
    /// on two processors it keeps up with links of 50 Mbit/s, and with no faster ones.
    #[arg(long, default_value = "50mbit")]
    rate: Rate,
    /// Scale every tensor to this share of its elements. Default: what fits --limit.
    #[arg(long, value_parser = fraction)]
    fraction: Option<f64>,
    /// Iterations without computation.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iters: u32,
    /// Computation of an iteration, separated by commas: seconds; `paper` for the one that follows
    /// from the paper's figures 18 and 19 beside links of 10 Gbit/s; `paper@1` for the same seconds
    /// beside links of 1 Gbit/s.
    #[arg(long, value_delimiter = ',', default_value = "0,paper,paper@1")]
    compute: Vec<Compute>,
    /// Iterations with computation.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    compute_iters: u32,
    /// With computation, only sum after all of it, or only during the backward pass. Default: both.
    #[arg(long)]
    overlap: Option<bool>,
    /// Seconds that all of it may take.
    #[arg(long, default_value_t = 1200.0)]
    limit: f64,
    /// MTU of all links; XDP on veth takes at most 3506.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(256..=3506))]
    mtu: u32,
    /// Slots of the aggregator's pool, and of ATP's switch: a power of two. Default: 1024, which is
    /// what a job has.
    #[arg(long, value_parser = slots)]
    slots: Option<u32>,
    /// Elements in a slot, and so in a packet to it: a multiple of 16. Default: as many as --mtu
    /// allows. Streams have packets as long as --mtu allows in any case.
    #[arg(long, value_parser = elements)]
    elements: Option<u32>,
    /// `paper` is the pool of the paper's testbed: 32 slots of 64 elements.
    #[arg(long, value_enum, conflicts_with_all = ["slots", "elements"])]
    pool: Option<Preset>,
    /// What sums in the aggregator. Default: xdp where this is root.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Let every packet cross the links by itself, as on a cable, instead of TCP's super-packets of
    /// 64 KiB in one piece.
    #[arg(long)]
    no_offloads: bool,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write rows, plots and a report (Markdown and HTML) into this directory.
    #[arg(long, value_name = "DIR", default_value = "target/bench/passing")]
    report: PathBuf,
}

/// Pools by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Preset {
    /// PASSING, section 5.1: `y = 32` buckets of `x = 64` integers of 32 bits.
    Paper,
}

impl Args {
    /// The pool that is asked for.
    fn pool(&self) -> Pool {
        let (slots, elements) = match self.pool {
            Some(Preset::Paper) => (Some(32), Some(64)),
            None => (self.slots, self.elements),
        };
        let mtu = |elements: u32| IP_OVERHEAD as u32 + elements * size_of::<u32>() as u32;
        Pool { slots, mtu: elements.map(mtu), window: None }
    }
}

/// A power of two that a pool may have.
fn slots(text: &str) -> Result<u32, String> {
    let value = text
        .parse()
        .ok()
        .filter(|value: &u32| value.is_power_of_two() && (2..=65_536).contains(value));
    value.ok_or_else(|| format!("{text:?} slots; expected a power of two from 2 to 65536"))
}

/// A number of elements of 32 bits in a packet of ours.
fn elements(text: &str) -> Result<u32, String> {
    let most = (MAX_CHUNKS * CHUNK_LEN / size_of::<u32>()) as u32;
    let value = text
        .parse()
        .ok()
        .filter(|value: &u32| value.is_multiple_of(16) && (16..=most).contains(value));
    value.ok_or_else(|| format!("{text:?} elements; expected a multiple of 16, at most {most}"))
}

/// Hosts and processes on each, as a person types them: `4x2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    hosts: u16,
    processes: u16,
}

/// Clusters of figures 4 to 6: 1, 2, 4, 8 and 16 processes.
const SWEEP: [Place; 7] = {
    const fn place(hosts: u16, processes: u16) -> Place {
        Place { hosts, processes }
    }
    [place(1, 1), place(1, 2), place(1, 4), place(2, 2), place(2, 4), place(4, 2), place(4, 4)]
};

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('x').and_then(|(s, n)| Some((s.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((hosts @ 1..=32, processes @ 1..=32)) if hosts * processes <= 64 => {
                Ok(Self { hosts, processes })
            }
            _ => Err(format!(
                "{text:?} is no setting; expected hosts and processes on each such as 4x2, at most \
                 64 processes"
            )),
        }
    }
}

/// A share above 0, at most 1.
fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| format!("{text:?} is no share; expected a number above 0, at most 1"))
}

/// A system that did not come to an end.
pub(crate) struct Failure {
    pub(crate) system: System,
    pub(crate) size: Size,
    pub(crate) network: Network,
    pub(crate) reason: String,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    compare::warn_if_busy()?;
    let facts = Facts::gather();
    let stolen = machine::steal_s();
    let bench = Bench::new(args, privilege)?;
    let workloads = bench.workloads()?;
    let mut output = Output::new(args, &bench, facts);
    for (workload, seconds) in &workloads {
        output.begin(workload, *seconds);
        for setting in &bench.settings {
            let run = |system: &&System| bench.run().is_run(**system, setting);
            for &system in bench.systems.iter().filter(run) {
                let size = bench.size(setting);
                bench.announce(workload, system, size);
                match bench.measure(workload, system, setting) {
                    Ok(rows) => output.rows(rows),
                    Err(error) => {
                        let (network, reason) = (workload.network, format!("{error:#}"));
                        output.failure(Failure { system, size, network, reason });
                    }
                }
            }
        }
    }
    output.finish(machine::steal_s() - stolen)
}

/// What to measure, settled.
struct Bench<'a> {
    args: &'a Args,
    plan: Plan,
    systems: Vec<System>,
    settings: Vec<Setting>,
    phases: Vec<Phase>,
    /// Bytes a second over a link.
    link: f64,
    started: Instant,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args, privilege: Privilege) -> Result<Self> {
        let Some(bits) = args.rate.bits else {
            bail!("--rate none: this bench compares links that are the limit; give them a rate");
        };
        let (link, in_host) = (bits as f64 / 8.0, copy_rate());
        let places = if args.sweep { SWEEP.to_vec() } else { args.setting.clone() };
        let settings = places.iter().flat_map(|place| {
            let Place { hosts, processes } = *place;
            let setting = move |&servers| Setting { hosts, processes, servers, link, in_host };
            args.servers.iter().map(setting)
        });
        let plan = Plan {
            mtu: args.mtu,
            engine: privilege.engine(args.engine),
            offloads: !args.no_offloads,
            ..Plan::new(0, args.rate, privilege)
        };
        let systems = match &args.system {
            Some(systems) => systems.clone(),
            None if args.sweep => vec![System::Ps, System::Ring],
            None => System::ALL.to_vec(),
        };
        let (settings, phases) = (settings.collect(), phases(args));
        Ok(Self { args, plan, systems, settings, phases, link, started: Instant::now() })
    }

    fn run(&self) -> Run<'_> {
        Run { systems: &self.systems, settings: &self.settings, phases: &self.phases }
    }

    /// The networks, scaled, with the seconds that each is expected to take.
    fn workloads(&self) -> Result<Vec<(Workload, f64)>> {
        let (args, run) = (self.args, self.run());
        let limit = args.limit / args.workload.len().max(1) as f64;
        let memory = machine::available_memory() as f64 / 2.0;
        let mut workloads = Vec::new();
        for &network in &args.workload {
            let fraction = args.fraction.or_else(|| run.fraction(network, limit, memory));
            let Some(fraction) = fraction else {
                bail!(
                    "--limit {}: starting all networks and processes alone takes {:.0} s; allow \
                     more, or choose fewer systems, settings or workloads",
                    args.limit,
                    run.seconds(network, 0.0) * args.workload.len() as f64
                );
            };
            let workload = Workload::new(network, fraction);
            let bytes = workload.bytes() as f64;
            let needed = run.memory_bytes(bytes);
            if needed > memory {
                bail!(
                    "--fraction {fraction}: {network} would need about {:.1} GiB of memory, and \
                     {:.1} GiB shall be used at most; choose a smaller one",
                    needed / f64::from(1 << 30),
                    memory / f64::from(1 << 30)
                );
            }
            let seconds = run.seconds(network, bytes);
            workloads.push((workload, seconds));
        }
        let all: f64 = workloads.iter().map(|(_, seconds)| seconds).sum();
        if all > args.limit * 1.02 {
            bail!(
                "this would take about {all:.0} s by the models, more than --limit {}; choose a \
                 smaller --fraction, a higher --rate, fewer iterations, or a higher --limit",
                args.limit
            );
        }
        Ok(workloads)
    }

    const fn size(&self, setting: &Setting) -> Size {
        let Setting { hosts, processes, servers, .. } = *setting;
        Size { hosts, processes, servers }
    }

    /// Says on a terminal what is going on.
    fn announce(&self, workload: &Workload, system: System, size: Size) {
        if stderr().is_terminal() {
            let Size { hosts, processes, .. } = size;
            let network = workload.network;
            let elapsed = self.started.elapsed().as_secs();
            eprintln!("[{elapsed} s] {network}, {hosts}x{processes}, {system} …");
        }
    }

    /// One system in one setting, in a network of its own.
    fn measure(&self, workload: &Workload, system: System, setting: &Setting) -> Result<Vec<Row>> {
        let size = self.size(setting);
        let servers = if system.uses_servers() { size.servers } else { Servers::Apart(0) };
        let bits = (self.link * 8.0) as u64;
        let pool = self.args.pool().of(system, bits, self.plan.mtu);
        let cluster = Cluster::build(self.plan, Size { servers, ..size }, pool)?;
        let services = cluster.serve(system)?;
        let scratch = scratch()?;
        let (network, bytes) = (workload.network, workload.bytes() as f64);
        let phases: Vec<_> =
            self.phases.iter().map(|phase| phase.argument(network, bytes, self.link)).collect();
        let arguments = |rank: u16| {
            let file = report_file(&scratch, rank).to_string_lossy().into_owned();
            let fraction = format!("{:e}", workload.fraction);
            let pairs = [
                ("--strategy", system.name().to_owned()),
                ("--workload", network.name().to_owned()),
                ("--fraction", fraction),
                ("--phase", phases.join(",")),
                ("--json", file),
            ];
            let pairs = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
            ["--marks".to_owned()].into_iter().chain(pairs).collect()
        };
        let expected = self.run().cell_seconds(network, bytes, system, setting);
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let patience = (seconds(30.0 + expected), seconds(90.0 + 4.0 * expected));
        let meter = cluster.lab().meter()?;
        let marks = cluster.run(&format!("bench-{system}"), patience, arguments)?;
        let links = meter.map(LinkMeter::finish).transpose()?;
        for broken in links.iter().flatten().filter(|link| !link.kept) {
            eprintln!("{broken}");
        }
        let reports: Vec<Report> = reports(&scratch, size.world())?;
        let ran = Ran {
            system,
            workload,
            size,
            rate: self.plan.rate,
            mtu: self.plan.mtu,
            slot_mtu: pool.mtu.unwrap_or(self.plan.mtu),
            in_host: setting.in_host,
        };
        let mut rows = ran.rows(&reports, &marks, links.as_deref());
        let counted = services.stop()?;
        rows.iter_mut().for_each(|row| row.counted.clone_from(&counted));
        for (row, phase) in rows.iter_mut().zip(&self.phases) {
            row.paper_gbits = phase.compute.paper_gbits();
        }
        Ok(rows)
    }
}

/// Iterations without computation, then with each computation, summing after it and during it. The
/// sweep has the paper's computation alone, and sums after it.
fn phases(args: &Args) -> Vec<Phase> {
    let mut phases = Vec::new();
    if args.sweep {
        let compute = Compute::Paper(claims::EFFICIENCY_GBITS);
        return vec![Phase { iters: args.compute_iters, compute, overlap: false }];
    }
    for &compute in &args.compute {
        if compute == Compute::Seconds(0.0) {
            phases.push(Phase { iters: args.iters, compute, overlap: false });
            continue;
        }
        for overlap in [false, true] {
            if args.overlap.is_none_or(|wanted| wanted == overlap) {
                phases.push(Phase { iters: args.compute_iters, compute, overlap });
            }
        }
    }
    phases
}

/// Bytes a second that one process copies from memory to memory: what a bus between the processes
/// of a host is for equation (1).
fn copy_rate() -> f64 {
    const BYTES: usize = 32 << 20;
    let (from, mut to) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        best = best.min(start.elapsed().as_secs_f64());
    }
    BYTES as f64 / best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hosts_and_processes() {
        assert_eq!("4x2".parse(), Ok(Place { hosts: 4, processes: 2 }));
        for text in ["4", "x4", "0x4", "4x0", "16x8", "4x2x1"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_papers_pool_is_32_slots_of_64_elements() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let pool = |line: &str| {
            use clap::Parser as _;
            Line::try_parse_from(line.split(' ')).map(|line| line.args.pool())
        };
        let paper = pool("passing --pool paper").expect("it is a preset");
        assert_eq!(paper, Pool { slots: Some(32), mtu: Some(306), window: None });
        assert_eq!(pool("passing --slots 32 --elements 64").expect("the same"), paper);
        assert_eq!(pool("passing").expect("none"), Pool::default());
        assert!(pool("passing --pool paper --slots 64").is_err());
        assert!(pool("passing --slots 33").is_err() && pool("passing --elements 65").is_err());
    }

    #[test]
    fn copying_takes_a_time() {
        assert!((1e7..1e13).contains(&copy_rate()));
    }
}
