//! `xdp-agg topology measure`: one host of a probe of the network between the hosts.
//!
//! All hosts take part, one process each, and meet as the ranks of a mesh. Rank 0 writes the file.

mod costs;

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_launcher::Launch;
use xdp_agg_mesh::Mesh;
use xdp_agg_topology::infer::{Inferred, infer};
use xdp_agg_topology::{Host, Measured, Rate, Strategy, Topology};

/// Longest time for all hosts to come, and for a step of the probe.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes in which a host describes itself to the others.
const FACTS: usize = 512;
/// Longest time to find out whether a daemon answers on this host.
const KNOCK: Duration = Duration::from_secs(1);

/// Measure the network between the hosts, as one of them, and write the topology file
///
/// Start it on every host, by torchrun, mpirun or srun as every worker is started, or with RANK
/// and WORLD_SIZE; MASTER_ADDR and MASTER_PORT (or XDP_AGG_PORT) say where they meet. Of several
/// processes on a host the first one measures. All hosts send to all others at the same time, over
/// TCP, so that narrow uplinks show; then messages are timed, and daemons where they answer on port
/// 9870 (or at XDP_AGG_ADDR). Rank 0 writes the file: hosts, the rates between them, and costs that
/// `auto` chooses by.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write the topology here (rank 0). A file that is there keeps its hosts, regions and
    /// strategy, and gets new rates and costs; comments are lost. Default: standard output
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Seconds for which the hosts send to each other and count
    #[arg(long, value_name = "SECS", default_value_t = 4.0, value_parser = seconds)]
    time: f64,
    /// Seconds before that, in which the connections find their shares of the links
    #[arg(long, value_name = "SECS", default_value_t = 2.0, value_parser = seconds)]
    ramp: f64,
    /// Leave the daemons out: rates and costs of TCP only
    #[arg(long)]
    no_daemons: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("0.1 to 60 seconds are expected".into()),
    }
}

/// This process among the hosts.
#[derive(Clone, Copy, Debug)]
struct Seat {
    host: u16,
    hosts: u16,
}

/// What a host tells of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Facts {
    name: String,
    address: Ipv4Addr,
    interface: Option<String>,
    daemon: bool,
}

/// Measures as this host.
pub(super) fn run(args: &Args) -> Result<()> {
    let Some(seat) = seat()? else { return Ok(()) };
    if seat.hosts < 2 {
        bail!("WORLD_SIZE: {} host; a network to measure has at least two", seat.hosts);
    }
    let say = |what: &str| {
        if seat.host == 0 {
            eprintln!("{what}");
        }
    };
    let mut mesh = open(seat)?;
    let hosts = introduce(&mut mesh, args)?;
    say("measuring rates: all hosts send to all others");
    // All have come in, and can meet for the next mesh.
    mesh.barrier()?;
    let time = Duration::from_secs_f64(args.time);
    let from = open(seat)?.flood(Duration::from_secs_f64(args.ramp), time)?;
    let rates = gather(&mut mesh, &from)?;
    say("measuring messages and bytes");
    let costs = costs::measure(&mut mesh, &hosts, args.no_daemons)?;
    mesh.barrier()?;
    if seat.host > 0 {
        return Ok(());
    }
    let topology = describe(args, &hosts, &rates)?;
    let topology = Topology { costs, ..topology };
    let text = head(&topology)? + &topology.to_toml();
    Topology::parse(&text).context(
        "what was measured makes no topology; hosts are told apart by their addresses, and \
         LOCAL_WORLD_SIZE says how many processes share one",
    )?;
    match &args.write {
        None => io::stdout().write_all(text.as_bytes())?,
        Some(file) => {
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
            write!(io::stdout(), "{}", head(&topology)?)?;
        }
    }
    Ok(())
}

/// None: another process of this host measures.
fn seat() -> Result<Option<Seat>> {
    let launch = Launch::from_env()?;
    let (rank, world) = launch.world()?;
    let each = launch.processes();
    if each == 0 || !world.is_multiple_of(each) {
        bail!(
            "{each} processes on this host do not divide a world of {world}: hosts must be alike"
        );
    }
    let seat = Seat { host: rank / each, hosts: world / each };
    Ok(rank.is_multiple_of(each).then_some(seat))
}

fn open(seat: Seat) -> Result<Mesh> {
    let mesh = xdp_agg_mesh::Builder::from_env()?.rank(seat.host).world_size(seat.hosts);
    Ok(mesh.group_size(1).deadline(DEADLINE).open()?)
}

/// All hosts tell each other their facts; all get the same list.
fn introduce(mesh: &mut Mesh, args: &Args) -> Result<Vec<Facts>> {
    let address = match mesh.local_address() {
        Some(IpAddr::V4(address)) => address,
        other => bail!("this host is in the mesh at {other:?}; an IPv4 address is needed"),
    };
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let all = xdp_agg::link::addresses().context("listing the interfaces' addresses")?;
    let interface = all.into_iter().find(|known| known.addr == address);
    let interface = interface.map(|at| without_label(&at.interface).to_owned());
    let control = SocketAddr::V4(SocketAddrV4::new(address, CONTROL_PORT));
    let daemon = !args.no_daemons && TcpStream::connect_timeout(&control, KNOCK).is_ok();
    let own = serde_json::to_vec(&Facts { name: tidy(&name), address, interface, daemon })?;
    let world = usize::from(mesh.world_size());
    let mut words = vec![0_u8; FACTS * world];
    words[FACTS * usize::from(mesh.rank())..][..own.len().min(FACTS)]
        .copy_from_slice(&own[..own.len().min(FACTS)]);
    mesh.all_gather(&mut words)?;
    let facts = words.chunks(FACTS).map(|words| {
        let len = words.iter().position(|byte| *byte == 0).unwrap_or(FACTS);
        serde_json::from_slice(&words[..len]).context("a host described itself in other words")
    });
    let mut facts: Vec<Facts> = facts.collect::<Result<_>>()?;
    let names: std::collections::BTreeSet<_> = facts.iter().map(|host| &host.name).collect();
    if names.len() < facts.len() || names.iter().any(|name| name.is_empty()) {
        for (rank, host) in facts.iter_mut().enumerate() {
            host.name = format!("host{rank}");
        }
    }
    Ok(facts)
}

/// A host's name as a file takes it.
fn tidy(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control() && !c.is_whitespace()).take(64).collect()
}

/// `eth0` of `eth0:1`: an address may have a label, with the interface's name in front.
fn without_label(name: &str) -> &str {
    name.split_once(':').map_or(name, |(interface, _)| interface)
}

/// Every host's numbers, in order of rank; each host has the same number of them.
fn gather(mesh: &mut Mesh, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let world = usize::from(mesh.world_size());
    let mut all = vec![0.0_f64; own.len() * world];
    let part = mesh.part(all.len());
    all[part].copy_from_slice(own);
    mesh.all_gather(&mut all)?;
    Ok(all.chunks(own.len()).map(<[f64]>::to_vec).collect())
}

/// The network, without costs. `rates[to][from]` in bytes a second.
fn describe(args: &Args, hosts: &[Facts], rates: &[Vec<f64>]) -> Result<Topology> {
    let count = hosts.len();
    let mbit = |from: usize| (0..count).map(move |to| round(rates[to][from] * 8.0 / 1e6));
    let mbit = (0..count).map(|from| mbit(from).collect()).collect();
    let kept = args.write.as_deref().filter(|file| file.exists());
    let mut topology = match kept {
        Some(file) => keep(file, hosts)?,
        None => Topology {
            name: "measured".into(),
            strategy: Strategy::Auto,
            regions: Vec::new(),
            hosts: Vec::new(),
            measured: None,
            costs: xdp_agg_topology::KnownCosts::default(),
        },
    };
    let names = match kept {
        Some(_) => topology.hosts.iter().map(|host| host.name.clone()).collect(),
        None => hosts.iter().map(|host| host.name.clone()).collect(),
    };
    let measured = Measured { hosts: names, mbit };
    if kept.is_none() {
        let rates = infer(&measured).host_mbit;
        topology.hosts = hosts.iter().zip(rates).zip(0..).map(describe_host).collect();
    }
    topology.measured = Some(measured);
    Ok(topology)
}

fn describe_host(((facts, mbit), rank): ((&Facts, f64), u16)) -> Host {
    Host {
        name: facts.name.clone(),
        rank,
        address: facts.address,
        region: None,
        rate: Rate::nearest(round(mbit) * 1e6),
        daemon: facts.daemon.then(|| SocketAddrV4::new(facts.address, CONTROL_PORT)),
        slots: None,
        interface: facts.interface.clone(),
    }
}

/// Three digits: no measurement has more.
fn round(mbit: f64) -> f64 {
    if mbit <= 0.0 {
        return 0.0;
    }
    let unit = 10_f64.powf(mbit.log10().floor() - 2.0);
    // As a division, so that the shortest text of the number has three digits, too.
    let (digits, by) = ((mbit / unit).round(), (1.0 / unit).round());
    if unit < 1.0 { digits / by } else { digits * unit.round() }
}

/// The file that is there, if it is of these hosts.
fn keep(file: &Path, hosts: &[Facts]) -> Result<Topology> {
    let topology = super::input::read(file)?;
    let theirs = topology.hosts.iter().map(|host| host.address);
    if !theirs.eq(hosts.iter().map(|host| host.address)) {
        let found: Vec<_> = hosts.iter().map(|host| host.address.to_string()).collect();
        bail!(
            "{} is of other hosts: the ranks here are at {}; correct it, or write to another file",
            file.display(),
            found.join(", ")
        );
    }
    Ok(topology)
}

/// What was found, as comments.
fn head(topology: &Topology) -> Result<String> {
    let Some(measured) = &topology.measured else { return Ok(String::new()) };
    let found = infer(measured);
    let mut text = String::from("# By `xdp-agg topology measure`; docs/topology.md.\n");
    let hosts = measured.hosts.len();
    let regions = found.regions.len();
    let (least, most) = extremes(&found.host_mbit);
    text += &format!("# {hosts} hosts with {least} to {most} Mbit/s, {regions} regions\n");
    for (index, region) in found.regions.iter().enumerate() {
        text += &describe_region(&found, index, &measured.hosts, round(region.uplink_mbit));
    }
    let known = topology.costs.named().into_iter().filter_map(|(name, cost)| Some((name, cost?)));
    let costs: Vec<_> = known.map(|(name, cost)| format!("{name} {cost:.3e} s")).collect();
    if !costs.is_empty() {
        text += &format!("# {}\n", costs.join(", "));
    }
    Ok(text)
}

fn extremes(of: &[f64]) -> (f64, f64) {
    let least = of.iter().copied().fold(f64::INFINITY, f64::min);
    (round(least), round(of.iter().copied().fold(0.0, f64::max)))
}

fn describe_region(found: &Inferred, index: usize, names: &[String], uplink: f64) -> String {
    let within = |region: usize| {
        std::iter::successors(Some(region), |at| found.regions[*at].parent).any(|at| at == index)
    };
    let regions = found.regions.iter().enumerate().filter(|(other, _)| within(*other));
    let hosts: Vec<usize> = regions.flat_map(|(_, region)| region.hosts.iter().copied()).collect();
    let offered: f64 = hosts.iter().map(|host| found.host_mbit[*host]).sum();
    let names: Vec<_> = hosts.iter().map(|host| names[*host].as_str()).collect();
    let ratio = offered / uplink.max(f64::MIN_POSITIVE);
    format!("# measured{index}: {}, uplink {uplink} Mbit/s, {ratio:.2}:1\n", names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits() {
        for (mbit, expected) in
            [(0.0, 0.0), (47.6391, 47.6), (190.77, 191.0), (9412.3, 9410.0), (0.123_456, 0.123)]
        {
            assert_eq!(round(mbit), expected, "{mbit}");
        }
    }

    #[test]
    fn names_are_words() {
        assert_eq!(tidy("node 7\n"), "node7");
        assert_eq!(tidy(&"x".repeat(200)).len(), 64);
        assert_eq!((without_label("eth0:1"), without_label("eth0")), ("eth0", "eth0"));
    }
}
