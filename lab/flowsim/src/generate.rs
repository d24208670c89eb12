//! Standard networks: fat-tree, dragonfly, spine and leaf. Each with the [`Topology`] that the
//! planner needs: a region for each switch with hosts, and for each pod or group.
//!
//! Hosts are named `h0`, `h1`, …, rank by rank, and have a daemon each. Nothing is equipped with
//! an aggregator; [`Generated::equip`] does that.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg_topology::graph::{Builder, LATENCY_NS, Network, NodeKind};
use xdp_agg_topology::model::{MAX_WORLD, equip};
use xdp_agg_topology::{Host, KnownCosts, Rate, Region, Strategy, Topology};

/// The port of the hosts' daemons.
const DAEMON_PORT: u16 = 9870;

/// A network, as a graph and as regions.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Nodes, links and routes.
    pub network: Network,
    /// Hosts and regions.
    pub topology: Topology,
}

/// Why a network cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// A size that makes no such network.
    #[error("{what} = {value}: expected {expected}")]
    Size {
        /// Which size.
        what: &'static str,
        /// What it is.
        value: usize,
        /// What it may be.
        expected: &'static str,
    },
    /// More hosts than can be numbered.
    #[error("{0} hosts; expected at most {MAX_WORLD}")]
    World(usize),
}

/// A spine-and-leaf network: `leaves` racks, each with a cable to each of `spines` switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpineLeaf {
    /// Switches that connect the racks; at least 1.
    pub spines: usize,
    /// Racks; at least 1.
    pub leaves: usize,
    /// Hosts of each rack; at least 1.
    pub hosts_per_leaf: usize,
    /// Rate of each host's link.
    pub host_rate: Rate,
    /// Rate of each cable from a rack to a spine.
    pub spine_rate: Rate,
}

impl SpineLeaf {
    /// The network whose racks' hosts can send `ratio` times what the racks' cables carry.
    pub fn oversubscribed(
        (spines, leaves, hosts_per_leaf): (usize, usize, usize),
        host_rate: Rate,
        ratio: f64,
    ) -> Self {
        let below = host_rate.bits() as f64 * hosts_per_leaf as f64;
        let spine_rate = Rate::nearest(below / ratio / spines as f64);
        Self { spines, leaves, hosts_per_leaf, host_rate, spine_rate }
    }

    /// Makes the network.
    ///
    /// # Errors
    /// [`GenerateError`]: a number is 0, or there are too many hosts.
    pub fn generate(&self) -> Result<Generated, GenerateError> {
        let Self { spines, leaves, hosts_per_leaf, host_rate, spine_rate } = *self;
        at_least("spines", spines, 1)?;
        at_least("leaves", leaves, 1)?;
        at_least("hosts_per_leaf", hosts_per_leaf, 1)?;
        let name = format!("spine-leaf {spines}x{leaves}x{hosts_per_leaf}");
        let mut maker = Maker::new(name, leaves.saturating_mul(hosts_per_leaf))?;
        let spines: Vec<_> = (0..spines).map(|_| maker.switch()).collect();
        for leaf in 0..leaves {
            let switch = maker.switch();
            let uplink = times(spine_rate, spines.len());
            let region = maker.region(format!("rack{leaf}"), None, uplink, switch);
            for &spine in &spines {
                maker.cable(switch, spine, spine_rate, 1);
            }
            maker.hosts(hosts_per_leaf, region, switch, host_rate);
        }
        Ok(maker.finish())
    }
}

/// A fat-tree of `k`-port switches (Al-Fares et al. 2008), all links of one rate: `k` pods of `k/2`
/// racks of `k/2` hosts; no rack and no pod is over-subscribed. Pods are regions, and so are the
/// racks within them.
///
/// # Errors
/// [`GenerateError`]: `k` is odd or 0, or there are too many hosts.
pub fn fat_tree(k: usize, rate: Rate) -> Result<Generated, GenerateError> {
    if k == 0 || !k.is_multiple_of(2) {
        let expected = "an even number from 2 on";
        return Err(GenerateError::Size { what: "k", value: k, expected });
    }
    let half = k / 2;
    let mut maker = Maker::new(format!("fat-tree k={k}"), k.saturating_pow(3) / 4)?;
    let cores: Vec<_> = (0..half * half).map(|_| maker.switch()).collect();
    for pod in 0..k {
        let middles: Vec<_> = (0..half).map(|_| maker.switch()).collect();
        for (index, &middle) in middles.iter().enumerate() {
            for &core in &cores[index * half..(index + 1) * half] {
                maker.cable(middle, core, rate, 1);
            }
        }
        let uplink = times(rate, half * half);
        let region = maker.region(format!("pod{pod}"), None, uplink, middles[0]);
        for rack in 0..half {
            let switch = maker.switch();
            for &middle in &middles {
                maker.cable(switch, middle, rate, 1);
            }
            let name = format!("pod{pod}-rack{rack}");
            let rack = maker.region(name, Some(region), times(rate, half), switch);
            maker.hosts(half, rack, switch, rate);
        }
    }
    Ok(maker.finish())
}

/// A dragonfly (Kim et al. 2008), all links of one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    /// Switches of a group, each connected to each other; at least 1.
    pub a: usize,
    /// Groups, from 2 to `a * h + 1`, each connected to each other by one cable.
    pub g: usize,
    /// Most cables of a switch to other groups; at least 1.
    pub h: usize,
    /// Hosts of a switch; at least 1. The paper's networks have `h` as well.
    pub p: usize,
}

impl Dragonfly {
    /// What a cable between groups adds to a route: a minimal route takes one of them and at most
    /// one cable within each group, though two of them would be fewer hops.
    const GLOBAL_COST: u32 = 4;

    /// Makes the network. Groups are regions, and so are the switches' racks within them.
    ///
    /// # Errors
    /// [`GenerateError`]: a number is out of its range, or there are too many hosts.
    pub fn generate(&self, rate: Rate) -> Result<Generated, GenerateError> {
        let Self { a, g, h, p } = *self;
        for (what, value) in [("a", a), ("h", h), ("p", p)] {
            at_least(what, value, 1)?;
        }
        if g < 2 || g > a.saturating_mul(h).saturating_add(1) {
            let expected = "from 2 to a * h + 1, or some groups could not be connected";
            return Err(GenerateError::Size { what: "g", value: g, expected });
        }
        let world = a.saturating_mul(g).saturating_mul(p);
        let mut maker = Maker::new(format!("dragonfly a={a} g={g} h={h}"), world)?;
        let mut switches: Vec<Vec<usize>> = Vec::new();
        for group in 0..g {
            let own: Vec<_> = (0..a).map(|_| maker.switch()).collect();
            let uplink = times(rate, g - 1);
            let region = maker.region(format!("group{group}"), None, uplink, own[0]);
            for (index, &switch) in own.iter().enumerate() {
                let globals = (index * h..(index + 1) * h).filter(|&port| port < g - 1).count();
                let uplink = times(rate, (a - 1 + globals).max(1));
                let name = format!("group{group}-rack{index}");
                let rack = maker.region(name, Some(region), uplink, switch);
                maker.hosts(p, rack, switch, rate);
                for &other in &own[..index] {
                    maker.cable(other, switch, rate, 1);
                }
            }
            for (other, theirs) in switches.iter().enumerate() {
                // Port `n` of a group goes to the group `n + 1` further on.
                let port = (group + g - other - 1) % g;
                let back = (other + g - group - 1) % g;
                maker.cable(theirs[port / h], own[back / h], rate, Self::GLOBAL_COST);
            }
            switches.push(own);
        }
        Ok(maker.finish())
    }
}

impl Generated {
    /// Gives a region an aggregator in its switch.
    ///
    /// # Panics
    /// If there is no such region.
    pub fn equip(&mut self, region: usize) {
        equip(&mut self.topology, region);
    }
}

fn at_least(what: &'static str, value: usize, least: usize) -> Result<(), GenerateError> {
    if value < least {
        return Err(GenerateError::Size { what, value, expected: "at least 1" });
    }
    Ok(())
}

fn times(rate: Rate, count: usize) -> Rate {
    Rate::nearest(rate.bits() as f64 * count as f64)
}

/// Graph and regions in the making.
struct Maker {
    builder: Builder,
    topology: Topology,
    switches: Vec<usize>,
}

impl Maker {
    fn new(name: String, world: usize) -> Result<Self, GenerateError> {
        if world > MAX_WORLD {
            return Err(GenerateError::World(world));
        }
        let (regions, hosts) = (Vec::new(), Vec::with_capacity(world));
        let costs = KnownCosts::default();
        let topology =
            Topology { name, strategy: Strategy::Auto, regions, hosts, measured: None, costs };
        Ok(Self { builder: Builder::default(), topology, switches: Vec::new() })
    }

    fn switch(&mut self) -> usize {
        self.builder.node(NodeKind::Switch)
    }

    fn cable(&mut self, a: usize, b: usize, rate: Rate, cost: u32) {
        self.builder.cable(a, b, rate, LATENCY_NS, cost);
    }

    fn region(
        &mut self,
        name: String,
        parent: Option<usize>,
        uplink: Rate,
        switch: usize,
    ) -> usize {
        let uplink = Some(uplink);
        self.topology.regions.push(Region { name, parent, uplink, aggregator: None });
        self.switches.push(switch);
        self.switches.len() - 1
    }

    fn hosts(&mut self, count: usize, region: usize, switch: usize, rate: Rate) {
        for _ in 0..count {
            let index = self.topology.hosts.len();
            let node = self.builder.node(NodeKind::Host(index));
            self.cable(node, switch, rate, 1);
            let [.., a, b] = (index + 1).to_be_bytes();
            let address = Ipv4Addr::new(10, 16, a, b);
            self.topology.hosts.push(Host {
                name: format!("h{index}"),
                rank: u16::try_from(index).unwrap_or(u16::MAX),
                address,
                region: Some(region),
                rate,
                daemon: Some(SocketAddrV4::new(address, DAEMON_PORT)),
                slots: None,
                interface: None,
            });
        }
    }

    fn finish(self) -> Generated {
        let Self { builder, topology, switches } = self;
        Generated { network: builder.finish(switches), topology }
    }
}

#[cfg(test)]
mod tests;
