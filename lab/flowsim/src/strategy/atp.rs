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

/// The schedule of parameter servers on the given ranks, each with an equal share of the vector.
/// The switches that aggregate are given as nodes of the network.
pub fn servers(
    fabric: &Fabric<'_>,
    ranks: &[u16],
    aggregating: &BTreeSet<usize>,
    bytes: f64,
) -> Schedule {
    let mut schedule = Schedule::new();
    let mut uses = fabric.uses();
    let costs = fabric.costs();
    let workers = fabric.network().hosts().len();
    let (framing, step) = if aggregating.is_empty() {
        (costs.streamed, costs.step_of(workers))
    } else {
        (costs.aggregated, costs.hop)
    };
    let share = framing.wire(bytes) / ranks.len().max(1) as f64;
    for &rank in ranks {
        let way = Way::to(fabric.network(), rank);
        let latency = way.uses(fabric, aggregating, &mut uses);
        // Two steps: to the server and back.
        let latency = 2.0 * (latency + step);
        schedule.add(Stream { latency, ..Stream::whole(share) }, &mut uses);
    }
    schedule
}

/// The switches on the way to a server, nearest to the workers first: those to replace by
/// aggregating ones.
pub fn switches_on_way(network: &Network, server: u16) -> Vec<usize> {
    let way = Way::to(network, server);
    let copies = way.copies(network, &BTreeSet::new());
    let switch = |&&node: &&usize| network.nodes()[node] == NodeKind::Switch && copies[node] > 0.0;
    way.order.iter().rev().filter(switch).copied().collect()
}

/// Copies on the busiest link on the way to a server: the reciprocal of the throughput in the
/// bandwidth-occupation model (paper 3, section III-B) with links of one rate.
pub fn occupation(network: &Network, server: u16, aggregating: &BTreeSet<usize>) -> f64 {
    let copies = Way::to(network, server).copies(network, aggregating);
    copies.into_iter().fold(0.0, f64::max)
}

/// A tree of shortest paths to a server's host.
struct Way {
    /// By node: the link towards the server; None for the server and for what is cut off.
    towards: Vec<Option<usize>>,
    /// Nodes by their distance from the server.
    order: Vec<usize>,
}

impl Way {
    /// Of several parents the one with the lowest index, so that paths meet early.
    fn to(network: &Network, server: u16) -> Self {
        let nodes = network.nodes().len();
        let root = network.hosts()[usize::from(server)];
        let mut into: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        for (index, link) in network.links().iter().enumerate() {
            into[link.to].push(index);
        }
        let mut towards = vec![None; nodes];
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
                    towards[hop.from] = Some(link);
                    next.push(Reverse((further, hop.from)));
                }
            }
        }
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
