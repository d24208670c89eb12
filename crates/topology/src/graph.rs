//! Networks as graphs: hosts and switches, links with capacity and latency, and routes.
//!
//! [`Network::of`] is the tree that a [`Topology`] describes; a [`Builder`] makes any other, for
//! example with several paths.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::model::Topology;
use crate::plan::Site;
use crate::units::Rate;

/// Latency of a link of [`Network::of`], in nanoseconds: a short cable and a store-and-forward.
pub const LATENCY_NS: u64 = 1000;

/// A network. Links are directed; each cable is two of them.
#[derive(Clone, Debug)]
pub struct Network {
    nodes: Vec<NodeKind>,
    links: Vec<Link>,
    /// Links that leave each node.
    leaving: Vec<Vec<usize>>,
    /// Node of each host.
    hosts: Vec<usize>,
    /// Node that each region's aggregator is at.
    regions: Vec<usize>,
    /// Distance from each node to each switch: `[switch's number * nodes + node]`.
    distance: Vec<u32>,
    /// Number of each switch among the switches.
    numbers: Vec<usize>,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A host, as an index into [`Topology::hosts`].
    Host(usize),
    /// A switch.
    Switch,
    /// The host of a region's aggregator, as an index into [`Topology::regions`].
    Aggregator(usize),
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Node that sends.
    pub from: usize,
    /// Node that receives.
    pub to: usize,
    /// What it carries.
    pub capacity: Rate,
    /// Time from the last bit sent to the last bit received, in nanoseconds.
    pub latency_ns: u64,
    /// What the link adds to the length of a route; routes are the shortest.
    pub cost: u32,
}

/// A network in the making.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    nodes: Vec<NodeKind>,
    links: Vec<Link>,
}

impl Builder {
    /// Adds a node; its number.
    pub fn node(&mut self, kind: NodeKind) -> usize {
        self.nodes.push(kind);
        self.nodes.len() - 1
    }

    /// Both directions of a cable.
    pub fn cable(&mut self, a: usize, b: usize, capacity: Rate, latency_ns: u64, cost: u32) {
        for (from, to) in [(a, b), (b, a)] {
            self.links.push(Link { from, to, capacity, latency_ns, cost });
        }
    }

    /// The network; `regions` are the nodes that the regions' aggregators are at.
    #[must_use]
    pub fn finish(self, regions: Vec<usize>) -> Network {
        let Self { nodes, links } = self;
        let mut leaving = vec![Vec::new(); nodes.len()];
        for (index, link) in links.iter().enumerate() {
            leaving[link.from].push(index);
        }
        let mut hosts = Vec::new();
        let mut numbers = vec![usize::MAX; nodes.len()];
        let mut switches = Vec::new();
        for (index, kind) in nodes.iter().enumerate() {
            match kind {
                NodeKind::Host(_) => hosts.push(index),
                NodeKind::Switch => {
                    numbers[index] = switches.len();
                    switches.push(index);
                }
                NodeKind::Aggregator(_) => {}
            }
        }
        let distance = switches.iter().flat_map(|&to| distances(&leaving, &links, to)).collect();
        Network { nodes, links, leaving, hosts, regions, distance, numbers }
    }
}

/// Distance of every node to one; cables are as long in one direction as in the other.
fn distances(leaving: &[Vec<usize>], links: &[Link], to: usize) -> Vec<u32> {
    let mut distance = vec![u32::MAX; leaving.len()];
    distance[to] = 0;
    let mut next = BinaryHeap::from([Reverse((0, to))]);
    while let Some(Reverse((so_far, node))) = next.pop() {
        if so_far > distance[node] {
            continue;
        }
        for &link in &leaving[node] {
            let Link { to, cost, .. } = links[link];
            if so_far + cost < distance[to] {
                distance[to] = so_far + cost;
                next.push(Reverse((so_far + cost, to)));
            }
        }
    }
    distance
}

impl Network {
    /// The tree that a topology describes: a switch for the core and for each region, one cable
    /// for each uplink. A region without `uplink` has one that carries all that its hosts send.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let mut builder = Builder::default();
        let core = builder.node(NodeKind::Switch);
        let capacity = topology.host_capacity();
        let mut switches = Vec::with_capacity(topology.regions.len());
        for (region, below) in topology.regions.iter().zip(capacity) {
            let switch = builder.node(NodeKind::Switch);
            let around = region.parent.map_or(core, |parent: usize| switches[parent]);
            let all = Rate::nearest(below as f64);
            builder.cable(switch, around, region.uplink.unwrap_or(all), LATENCY_NS, 1);
            switches.push(switch);
        }
        for (index, host) in topology.hosts.iter().enumerate() {
            let node = builder.node(NodeKind::Host(index));
            let switch = host.region.map_or(core, |region| switches[region]);
            builder.cable(node, switch, host.rate, LATENCY_NS, 1);
        }
        let mut sites = switches.clone();
        for (index, region) in topology.regions.iter().enumerate() {
            if let Some(rate) = region.aggregator.as_ref().and_then(|aggregator| aggregator.rate) {
                sites[index] = builder.node(NodeKind::Aggregator(index));
                builder.cable(sites[index], switches[index], rate, LATENCY_NS, 1);
            }
        }
        builder.finish(sites)
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NodeKind] {
        &self.nodes
    }

    /// All links; the two directions of a cable follow each other.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Node of each host, in the order of [`Topology::hosts`].
    #[must_use]
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// The node that an aggregator runs at: a host, a switch, or a host beside it.
    #[must_use]
    pub fn node_of(&self, site: Site) -> usize {
        match site {
            Site::Host(host) => self.hosts[host],
            Site::Region(region) => self.regions[region],
        }
    }

    /// The switch of a region: the one that its aggregator is in or beside.
    ///
    /// # Panics
    /// If there is no such region.
    #[must_use]
    pub fn switch_of(&self, region: usize) -> usize {
        let node = self.regions[region];
        match self.nodes[node] {
            NodeKind::Switch => node,
            _ => self.links[self.leaving[node][0]].to,
        }
    }

    /// Calls `visit` with each link from one node to another, in order. Of several shortest routes
    /// the flow's number chooses one, as the hash of addresses and ports does in a switch (ECMP):
    /// the same flow always takes the same. Nothing is visited if there is no route.
    pub fn route(&self, from: usize, to: usize, flow: u64, mut visit: impl FnMut(usize)) {
        // Other nodes than switches have one cable, so the way to them is that to their switch.
        let (last, end) = if self.nodes[to] == NodeKind::Switch {
            (None, to)
        } else {
            // Its first link leaves it; the other direction is beside it.
            let Some(&out) = self.leaving[to].first() else { return };
            (Some(out ^ 1), self.links[out].to)
        };
        let distance = |node: usize| self.distance[self.numbers[end] * self.nodes.len() + node];
        let mut node = from;
        if from == to || distance(node) == u32::MAX {
            return;
        }
        while node != end {
            let left = distance(node);
            let nearer = |&&link: &&usize| {
                let Link { to, cost, .. } = self.links[link];
                distance(to).checked_add(cost) == Some(left)
            };
            let ways = self.leaving[node].iter().filter(nearer).count();
            let Some(way) = mix(flow ^ ((node as u64) << 40)).checked_rem(ways as u64) else {
                return;
            };
            let mut nearest = self.leaving[node].iter().filter(nearer);
            let Some(&link) = nearest.nth(usize::try_from(way).unwrap_or(0)) else { return };
            visit(link);
            node = self.links[link].to;
        }
        if let Some(last) = last {
            visit(last);
        }
    }
}

/// Every bit of the input moves every bit of the output.
fn mix(x: u64) -> u64 {
    SplitMix64::seed_from_u64(x).next_u64()
}
