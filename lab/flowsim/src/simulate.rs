//! `xdp-agg-flowsim simulate`: one all-reduce on a network.

use std::io::{self, Write as _};

use anyhow::{Result, anyhow, bail};
use xdp_agg_flowsim::engine::{Options, Outcome, Pauses, Progress, SimulationError};
use xdp_agg_flowsim::fabric::{Costs, Fabric, Framing};
use xdp_agg_flowsim::generate::Generated;
use xdp_agg_flowsim::predict::{PredictError, Question, predict};
use xdp_agg_flowsim::strategy::{Coupling, Way};
use xdp_agg_topology::graph::Network;
use xdp_agg_topology::size;

use crate::bar;
use crate::source::Source;

/// Predict how long one all-reduce takes on a network.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// ps-one, ps, ring, h-ar, halving-doubling, atp-one, atp, colocated, rat, rina, passing or
    /// switchml
    #[arg(long, value_name = "NAME")]
    strategy: Way,
    /// Size of each worker's vector: bytes, or with K, M, G (1024-based), or 97e6
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    bytes: u64,
    /// Worker processes behind each host's one link (ps-one, ps, atp-one, atp, switchml)
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..))]
    processes: u16,
    /// Count no headers; without this, 1472 bytes for 1408 of a vector through aggregators, and
    /// 1514 for 1448 over TCP
    #[arg(long)]
    no_headers: bool,
    /// Microseconds that a step between hosts takes beside the links
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = not_negative)]
    step_us: f64,
    /// Microseconds that a hop to an aggregator takes beside the links
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = not_negative)]
    hop_us: f64,
    /// Packets (of 1472 bytes) a second that a host can send, and as many that it can receive
    #[arg(long, value_name = "PPS", value_parser = positive)]
    host_packets: Option<f64>,
    /// Packets a second of sums that an aggregator can make
    #[arg(long, value_name = "PPS", value_parser = positive)]
    aggregator_packets: Option<f64>,
    /// Slots of each tree at its aggregators
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// Aggregators keep what arrives and send it in this number of chunks; without this, all links
    /// of a tree go at the same pace
    #[arg(long, value_name = "CHUNKS", value_parser = clap::value_parser!(u32).range(1..))]
    buffered: Option<u32>,
    /// Pause this number of senders, fewer than hosts, drawn anew every --pause-ms. Trees want
    /// --buffered as well; ps-one, atp-one and atp do not go with it
    #[arg(long, value_name = "K", default_value_t = 0)]
    pause: usize,
    /// Milliseconds between drawings
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = period)]
    pause_ms: f64,
    /// Seed of the drawing
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A size of at least a byte.
fn some_bytes(text: &str) -> Result<u64, String> {
    match size::bytes(text) {
        Ok(0) => Err("expected more than 0 bytes".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn number(text: &str, expected: &str, fits: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number.is_finite() && fits(number));
    number.ok_or_else(|| format!("expected {expected}"))
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, "a number, 0 or more", |number| number >= 0.0)
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, "a number above 0", |number| number > 0.0)
}

/// A time that the engine's clock can tell from nothing.
fn period(text: &str) -> Result<f64, String> {
    number(text, "milliseconds, at least 0.000001", |number| number * 1e-3 >= 1e-9)
}

impl Args {
    fn costs(&self) -> Costs {
        let framing = |real| if self.no_headers { Framing::NONE } else { real };
        let rate =
            |packets: Option<f64>| packets.map_or(f64::INFINITY, |n| n * Framing::xdp(1500).packet);
        Costs {
            aggregated: framing(Framing::xdp(1500)),
            streamed: framing(Framing::tcp(1500)),
            step: self.step_us * 1e-6,
            hop: self.hop_us * 1e-6,
            jitter: 0.0,
            host: rate(self.host_packets),
            aggregator: rate(self.aggregator_packets),
            slots: self.slots,
        }
    }

    fn question(&self, network: &Network) -> Result<Question> {
        let costs = self.costs();
        let senders = Fabric::new(network, costs).uplinks();
        if self.pause >= senders.len() {
            bail!(
                "--pause {} of {} hosts: nobody would ever send; expected at most {}",
                self.pause,
                senders.len(),
                senders.len().saturating_sub(1)
            );
        }
        let (count, period, seed) = (self.pause, self.pause_ms * 1e-3, self.seed);
        let pauses = (count > 0).then_some(Pauses { senders, count, period, seed });
        Ok(Question {
            way: self.strategy,
            bytes: self.bytes as f64,
            processes: self.processes,
            coupling: self.buffered.map_or(Coupling::Lockstep, Coupling::Buffered),
            costs,
            options: Options { pauses, ..Options::default() },
        })
    }

    /// An error in the words of the options.
    fn explained(&self, error: PredictError) -> anyhow::Error {
        let Self { strategy, pause, .. } = self;
        match error {
            PredictError::Simulation(SimulationError::AlwaysPaused { .. }) => {
                if strategy.has_coupled_trees() && self.buffered.is_none() {
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

pub(crate) fn run(args: &Args) -> Result<()> {
    let made = args.source.network(args.strategy.planned())?;
    let Generated { network, topology } = &made;
    let question = args.question(network)?;
    let bar = bar();
    let mut observe = |progress: Progress| {
        bar.set_length(progress.of_chunks);
        bar.set_position(progress.chunks);
    };
    let outcome = predict(network, topology, &question, &mut observe);
    bar.finish_and_clear();
    let outcome = outcome.map_err(|error| args.explained(error))?;
    print(args, &made, &outcome)
}

fn print(args: &Args, made: &Generated, outcome: &Outcome) -> Result<()> {
    let Generated { network, topology } = made;
    let names = args.source.names(made);
    let links: Vec<_> = network
        .links()
        .iter()
        .zip(&outcome.bytes)
        .map(|(link, &bytes)| {
            let use_of = bytes / link.capacity.bytes() / outcome.seconds;
            (format!("{} -> {}", names[link.from], names[link.to]), bytes, use_of)
        })
        .collect();
    let goodput = args.bytes as f64 * 8e-9 / outcome.seconds;
    let mut out = io::stdout().lock();
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
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    let world = topology.world();
    writeln!(out, "{}: {}, {world} workers, {} bytes", topology.name, args.strategy, args.bytes)?;
    writeln!(out, "seconds  {:.6}", outcome.seconds)?;
    writeln!(out, "goodput  {goodput:.3} Gbit/s")?;
    let mut busiest: Vec<_> = links.iter().filter(|(_, bytes, _)| *bytes > 0.0).collect();
    busiest.sort_by(|a, b| b.2.total_cmp(&a.2));
    writeln!(out, "busiest links:")?;
    for (link, bytes, use_of) in busiest.iter().take(8) {
        writeln!(out, "  {:5.1} %  {bytes:14.0} bytes  {link}", use_of * 100.0)?;
    }
    Ok(())
}
