//! Builds a test network and keeps it until its standard input ends: for a look around by hand, and
//! for the harness's own tests.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use xdp_agg_testbed::traffic::ping;
use xdp_agg_testbed::{
    Faults, Mode, Namespace, Topology, enter_user_namespace, is_root, parse_rate,
};

/// Build a test network, print how to enter its hosts, and keep it until standard input ends.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Number of workers, 1 to 64
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Where the aggregator sits
    #[arg(long, value_enum, default_value_t = Place::Ports)]
    mode: Place,
    /// Rate of each link and direction: 500mbit, 1gbit, none
    #[arg(long, default_value = "none")]
    rate: String,
    /// MTU of all interfaces, in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Chance that a packet is lost, per link and direction, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Do without root: a user namespace, no kernel program (so no loss, and no XDP)
    #[arg(long)]
    unprivileged: bool,
    /// Tie the aggregator's host to this network namespace by a veth pair named `tether`, whose end
    /// over there vanishes with the network
    #[arg(long, value_name = "PATH")]
    tether: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    /// It is the switch: a port per worker
    Ports,
    /// It is one more host on the switch
    OneNic,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let unprivileged = arguments.unprivileged || !is_root();
    if unprivileged {
        enter_user_namespace()?;
    }
    let topology = Topology::builder()
        .workers(arguments.workers)
        .mode(match arguments.mode {
            Place::Ports => Mode::Ports,
            Place::OneNic => Mode::OneNic,
        })
        .rate(parse_rate(&arguments.rate)?)
        .mtu(arguments.mtu)
        .wire(!unprivileged)
        .faults(Faults::loss(arguments.loss))
        .build()?;
    if let Some(path) = &arguments.tether {
        let outside = Namespace::open(path)?;
        let address = |last| Ipv4Addr::new(10, 89, 0, last);
        let here = ("tether", address(1));
        topology.aggregator().connect(here, &outside, ("tether", address(2)))?;
    }
    for worker in topology.workers() {
        ping(worker, topology.aggregator_addr(), Duration::from_secs(10))?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}ready", topology.describe()).and_then(|()| out.flush()).context("printing")?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("reading standard input")?;
    Ok(())
}
