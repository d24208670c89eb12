//! `xdp-agg-netsim`: the papers' figures by simulation, and predictions for one's own network.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use xdp_agg_netsim::engine::{Options, Outcome, Pauses, Progress, SimulationError};
use xdp_agg_netsim::fabric::{Costs, Fabric, Framing};
use xdp_agg_netsim::figures::{self, Bench, Plan};
use xdp_agg_netsim::predict::{PredictError, Question, predict};
use xdp_agg_netsim::strategy::{Coupling, Way};
use xdp_agg_topology::Topology;
use xdp_agg_topology::graph::{Network, NodeKind};

/// Simulates all-reduce on networks, flow by flow (docs/netsim.md).
#[derive(Debug, Parser)]
#[command(name = "xdp-agg-netsim", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Figures(FiguresArgs),
    Simulate(SimulateArgs),
}

/// Make the papers' figures: report.md, report.html, SVG files, and figures.json with all numbers.
#[derive(Debug, clap::Args)]
struct FiguresArgs {
    /// Write them here
    #[arg(long, value_name = "DIR", default_value = "target/bench/figures")]
    report: PathBuf,
    /// Make these alone: rat-6, rat-7, rina-5, rina-10 (with 11), passing-18 (with 19), scale
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer points, in a minute
    #[arg(long)]
    quick: bool,
    /// Seed of everything that is drawn by lot
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// Predict how long one all-reduce takes on a network.
#[derive(Debug, clap::Args)]
struct SimulateArgs {
    /// The network (docs/topology.md)
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// ps-one, ps, ring, h-ar, halving-doubling, atp, colocated, rat, rina, passing or switchml
    #[arg(long, value_name = "NAME")]
    strategy: Way,
    /// Bytes of each worker's vector
    #[arg(long, value_name = "N")]
    bytes: f64,
    /// Worker processes behind each host's one link (ps-one, ps, atp, switchml)
    #[arg(long, value_name = "N", default_value_t = 1)]
    processes: u16,
    /// Count no headers; without this, 1472 bytes for 1408 of a vector through aggregators, and
    /// 1514 for 1448 over TCP
    #[arg(long)]
    no_headers: bool,
    /// Microseconds that a step between hosts takes beside the links
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    step_us: f64,
    /// Microseconds that a hop to an aggregator takes beside the links
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    hop_us: f64,
    /// Packets (of 1472 bytes) a second that a host can send, and as many that it can receive
    #[arg(long, value_name = "PPS")]
    host_packets: Option<f64>,
    /// Packets a second of sums that an aggregator can make
    #[arg(long, value_name = "PPS")]
    aggregator_packets: Option<f64>,
    /// Slots of each tree at its aggregators
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Aggregators keep what arrives and send in so many chunks; without this, all links of a tree
    /// go at the same pace
    #[arg(long, value_name = "CHUNKS")]
    buffered: Option<u32>,
    /// Pause so many senders, fewer than hosts, drawn anew every --pause-ms. Trees want --buffered
    /// as well; ps-one and atp, one tree each, do not go with it
    #[arg(long, value_name = "K", default_value_t = 0)]
    pause: usize,
    /// Milliseconds between drawings
    #[arg(long, value_name = "MS", default_value_t = 10.0)]
    pause_ms: f64,
    /// Of the drawing
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Figures(args) => make_figures(args),
        Command::Simulate(args) => simulate(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} chunks, {elapsed}, {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn make_figures(args: FiguresArgs) -> Result<()> {
    let FiguresArgs { report, only, quick, seed } = args;
    let plan = Plan { seed, quick, only };
    let bar = bar();
    let bench = Bench::new(bar.clone());
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("xdp-agg-netsim {}", command.join(" "));
    let figures = figures::make(&plan, &command, &report, &bench)?;
    bar.finish_and_clear();
    for figure in &figures {
        println!("{}", figure.summary());
    }
    println!("# report: {}", report.join("report.md").display());
    Ok(())
}

impl SimulateArgs {
    fn costs(&self) -> Costs {
        let framing = |real| if self.no_headers { Framing::NONE } else { real };
        let rate =
            |packets: Option<f64>| packets.map_or(f64::INFINITY, |n| n * Framing::XDP.packet);
        Costs {
            aggregated: framing(Framing::XDP),
            streamed: framing(Framing::TCP),
            step: self.step_us * 1e-6,
            hop: self.hop_us * 1e-6,
            jitter: 0.0,
            host: rate(self.host_packets),
            aggregator: rate(self.aggregator_packets),
            slots: self.slots,
        }
    }

    /// An error in the words of the options.
    fn explained(&self, error: PredictError) -> anyhow::Error {
        let Self { strategy, pause, .. } = self;
        match error {
            PredictError::Simulation(SimulationError::AlwaysPaused { senders, .. }) => {
                if *pause >= senders {
                    anyhow!(
                        "--pause {pause} of {senders} hosts: nobody would ever send; at most {}",
                        senders - 1
                    )
                } else if strategy.has_coupled_trees() && self.buffered.is_none() {
                    anyhow!(
                        "--pause {pause}: all links of a tree go at the same pace, so that one \
                         paused sender stops {strategy} for good; give --buffered CHUNKS, with \
                         which aggregators keep what arrives"
                    )
                } else {
                    anyhow!(
                        "--pause {pause}: all links of {strategy}'s tree go at the same pace, so \
                         that one paused sender stops it for good; leave --pause out, or choose \
                         a strategy without a single server"
                    )
                }
            }
            other => other.into(),
        }
    }
}

fn simulate(args: &SimulateArgs) -> Result<()> {
    let path = args.topology.display();
    let text = fs::read_to_string(&args.topology).with_context(|| format!("reading {path}"))?;
    let topology = Topology::parse(&text).with_context(|| format!("{path}"))?.inferred();
    if args.bytes.is_nan() || args.bytes <= 0.0 {
        bail!("--bytes {}: expected a positive number", args.bytes);
    }
    let network = Network::of(&topology);
    let costs = args.costs();
    let pauses = (args.pause > 0).then(|| Pauses {
        senders: Fabric::new(&network, costs).uplinks(),
        count: args.pause,
        period: args.pause_ms * 1e-3,
        seed: args.seed,
    });
    let coupling = args.buffered.map_or(Coupling::Lockstep, Coupling::Buffered);
    let question = Question {
        way: args.strategy,
        bytes: args.bytes,
        processes: args.processes,
        coupling,
        costs,
        options: Options { pauses, ..Options::default() },
    };
    let bar = bar();
    let mut observe = |progress: Progress| {
        bar.set_length(progress.of_chunks);
        bar.set_position(progress.chunks);
    };
    let outcome = predict(&network, &topology, &question, &mut observe);
    bar.finish_and_clear();
    let outcome = outcome.map_err(|error| args.explained(error))?;
    print(args, &topology, &network, &outcome)
}

fn print(
    args: &SimulateArgs,
    topology: &Topology,
    network: &Network,
    outcome: &Outcome,
) -> Result<()> {
    let name = |node: usize| match network.nodes()[node] {
        NodeKind::Host(host) => topology.hosts[host].name.clone(),
        NodeKind::Aggregator(region) => format!("{}'s aggregator", topology.regions[region].name),
        NodeKind::Switch => match node.checked_sub(1) {
            // The core comes first, then a switch for each region.
            None => "core".to_owned(),
            Some(region) => topology.regions[region].name.clone(),
        },
    };
    let links: Vec<_> = network
        .links()
        .iter()
        .zip(&outcome.bytes)
        .map(|(link, &bytes)| {
            let use_of = bytes / link.capacity.bytes() / outcome.seconds;
            (format!("{} -> {}", name(link.from), name(link.to)), bytes, use_of)
        })
        .collect();
    let goodput = args.bytes * 8e-9 / outcome.seconds;
    if args.json {
        let links: Vec<_> = links
            .iter()
            .map(|(link, bytes, use_of)| {
                serde_json::json!({ "link": link, "bytes": bytes, "use": use_of })
            })
            .collect();
        let all = serde_json::json!({
            "network": topology.name,
            "strategy": args.strategy.name(),
            "workers": topology.world(),
            "bytes": args.bytes,
            "seconds": outcome.seconds,
            "goodput_gbit": goodput,
            "events": outcome.events,
            "links": links,
        });
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let world = topology.world();
    println!("{}: {}, {world} workers, {} bytes", topology.name, args.strategy, args.bytes);
    println!("seconds  {:.6}", outcome.seconds);
    println!("goodput  {goodput:.3} Gbit/s");
    let mut busiest: Vec<_> = links.iter().filter(|(_, bytes, _)| *bytes > 0.0).collect();
    busiest.sort_by(|a, b| b.2.total_cmp(&a.2));
    println!("busiest links:");
    for (link, bytes, use_of) in busiest.iter().take(8) {
        println!("  {:5.1} %  {bytes:14.0} bytes  {link}", use_of * 100.0);
    }
    Ok(())
}
