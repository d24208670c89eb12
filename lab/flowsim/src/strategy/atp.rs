//! Parameter servers with in-network aggregation on the way, as ATP has them.
//!
//! The traffic to a server flows along one tree of shortest paths. A switch that aggregates sends
//! one copy on, whatever comes in (paper 3, section III-B, lemma 2); any other passes everything on
//! (lemma 1); all keep the pace of the slowest (lemma 3). Results take the same tree back, and are
//! copied where sums were made.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use xdp_agg_topology::graph::{Network, NodeKind};

use crate::engine::{ResourceId, Schedule, Stream, Uses};
use crate::fabric::Fabric;

/// Parameter servers, each with an equal share of the vector, and the trees of paths to them.
#[derive(Debug)]
pub struct Servers<'a> {
    network: &'a Network,
    ways: Vec<Way>,
}

/// A switch on the way to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The network's node.
    pub node: usize,
    /// Hosts at it.
    pub own: usize,
    /// Workers whose contributions it passes on, counted for each server.
    pub below: usize,
}

/// What links of one rate carry, in vectors, with results on their way back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occupation {
    /// On the busiest direction of a link: the reciprocal of a worker's throughput in the
    /// bandwidth-occupation model (paper 3, section III-B).
    pub busiest: f64,
    /// On all of them.
    pub all: f64,
}

impl<'a> Servers<'a> {
    /// Servers on the hosts of these ranks.
    pub fn new(network: &'a Network, ranks: impl IntoIterator<Item = u16>) -> Self {
        let ways = ranks.into_iter().map(|rank| Way::to(network, rank)).collect();
        Self { network, ways }
    }

    /// A server on each host.
    pub fn everywhere(network: &'a Network) -> Self {
        Self::new(network, 0..network.hosts().len() as u16)
    }

    /// The switches on the ways, those farthest from the first server first: what is to be replaced
    /// by aggregating ones.
    pub fn switches(&self) -> Vec<Switch> {
        let Self { network, ways } = self;
        let sent = self.sent(&BTreeSet::new());
        let mut own = vec![0; network.nodes().len()];
        for link in network.links() {
            own[link.to] += usize::from(matches!(network.nodes()[link.from], NodeKind::Host(_)));
        }
        let order = ways.first().map_or(&[][..], |way| &way.order);
        let used = |&&node: &&usize| network.nodes()[node] == NodeKind::Switch && sent[node] > 0.0;
        let used = order.iter().rev().filter(used);
        used.map(|&node| Switch { node, own: own[node], below: sent[node] as usize }).collect()
    }

    /// By node: the copies that it sends towards servers where these nodes aggregate.
    pub fn sent(&self, aggregating: &BTreeSet<usize>) -> Vec<f64> {
        let mut sent = vec![0.0; self.network.nodes().len()];
        for way in &self.ways {
            let copies = way.copies(self.network, aggregating);
            sent.iter_mut().zip(copies).for_each(|(sent, copies)| *sent += copies);
        }
        sent
    }

    /// What the links carry where these nodes aggregate.
    pub fn occupation(&self, aggregating: &BTreeSet<usize>) -> Occupation {
        let mut carried = vec![0.0; self.network.links().len()];
        for way in &self.ways {
            let copies = way.copies(self.network, aggregating);
            for (link, copies) in way.towards.iter().zip(copies) {
                let Some(link) = *link else { continue };
                carried[link] += copies;
                carried[link ^ 1] += copies;
            }
        }
        let share = 1.0 / self.ways.len().max(1) as f64;
        let busiest = carried.iter().copied().fold(0.0, f64::max);
        Occupation { busiest: busiest * share, all: carried.iter().sum::<f64>() * share }
    }

    /// The schedule of one all-reduce where these nodes aggregate.
    pub fn schedule(
        &self,
        fabric: &Fabric<'_>,
        aggregating: &BTreeSet<usize>,
        bytes: f64,
    ) -> Schedule {
        let mut schedule = Schedule::new();
        let mut uses = fabric.uses();
        let costs = fabric.costs();
        let (framing, step) = if aggregating.is_empty() {
            (costs.streamed, costs.step_of(self.network.hosts().len()))
        } else {
            (costs.aggregated, costs.hop)
        };
        let share = framing.wire(bytes) / self.ways.len().max(1) as f64;
        for way in &self.ways {
            let latency = way.uses(fabric, aggregating, &mut uses);
            // Two steps: to the server and back.
            let latency = 2.0 * (latency + step);
            schedule.add(Stream { latency, ..Stream::whole(share) }, &mut uses);
        }
        schedule
    }
}

/// A tree of shortest paths to a server's host.
#[derive(Debug)]
struct Way {
    /// By node: the link towards the server; None for the server and for what is cut off.
    towards: Vec<Option<usize>>,
    /// Nodes by their distance from the server.
    order: Vec<usize>,
}

impl Way {
    /// Of several parents all nodes at a distance take the one with the same number, so that paths
    /// meet early. Which one depends on the server, so that several servers use all links alike.
    fn to(network: &Network, server: u16) -> Self {
        let nodes = network.nodes().len();
        let root = network.hosts()[usize::from(server)];
        let mut into: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        for (index, link) in network.links().iter().enumerate() {
            into[link.to].push(index);
        }
        let mut distance = vec![u64::MAX; nodes];
        let mut order = Vec::new();
        let mut next = BinaryHeap::from([Reverse((0, root))]);
        distance[root] = 0;
        while let Some(Reverse((far, node))) = next.pop() {
            if far > distance[node] {
                continue;
            }
            order.push(node);
            // Only switches pass on what is not theirs.
            if node != root && network.nodes()[node] != NodeKind::Switch {
                continue;
            }
            for &link in &into[node] {
                let hop = network.links()[link];
                let further = far + u64::from(hop.cost);
                if further < distance[hop.from] {
                    distance[hop.from] = further;
                    next.push(Reverse((further, hop.from)));
                }
            }
        }
        let passes = |node: usize| node == root || network.nodes()[node] == NodeKind::Switch;
        let mut parents: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        for (index, link) in network.links().iter().enumerate() {
            let through = distance[link.to].saturating_add(u64::from(link.cost));
            if passes(link.to) && distance[link.from] == through {
                parents[link.from].push(index);
            }
        }
        let towards = parents.iter_mut().zip(&distance).map(|(links, far)| {
            links.sort_unstable_by_key(|&link| network.links()[link].to);
            // Two hosts of a rack differ in the lowest bit, two racks in the next.
            let choice = usize::from(server) >> ((far + 1) & 1);
            links.get(choice.checked_rem(links.len())?).copied()
        });
        let towards = towards.collect();
        Self { towards, order }
    }

    /// Copies that each node sends towards the server.
    fn copies(&self, network: &Network, aggregating: &BTreeSet<usize>) -> Vec<f64> {
        let mut copies = vec![0.0; self.towards.len()];
        for &node in self.order.iter().rev() {
            if matches!(network.nodes()[node], NodeKind::Host(_)) {
                copies[node] += 1.0;
            }
            let sent: f64 = copies[node];
            let sent = if aggregating.contains(&node) { sent.min(1.0) } else { sent };
            copies[node] = sent;
            if let Some(link) = self.towards[node] {
                copies[network.links()[link].to] += sent;
            }
        }
        // What arrives at the server is nothing that it sends.
        if let Some(&server) = self.order.first() {
            copies[server] = 0.0;
        }
        copies
    }

    /// Adds what all links carry, there and back; returns the longest way's latency in seconds.
    fn uses(&self, fabric: &Fabric<'_>, aggregating: &BTreeSet<usize>, uses: &mut Uses) -> f64 {
        let network = fabric.network();
        let copies = self.copies(network, aggregating);
        let mut latency_ns = vec![0_u64; copies.len()];
        let mut longest = 0;
        for &node in &self.order {
            let Some(link) = self.towards[node] else { continue };
            let parent = network.links()[link].to;
            latency_ns[node] = latency_ns[parent] + network.links()[link].latency_ns;
            if copies[node] > 0.0 {
                longest = longest.max(latency_ns[node]);
                uses.add(ResourceId(link as u32), copies[node] as f32);
                uses.add(ResourceId(link as u32 ^ 1), copies[node] as f32);
                if aggregating.contains(&node) {
                    fabric.aggregate(uses, node);
                }
            }
        }
        longest as f64 * 1e-9
    }
}
