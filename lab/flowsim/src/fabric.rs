//! A network as the engine sees it: capacities, routes, and what a byte costs.

use xdp_agg_topology::graph::{Network, NodeKind};
pub use xdp_agg_workloads::Framing;

use crate::engine::{ResourceId, Uses};

/// What transfers cost beside the links' rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of strategies that go through aggregators.
    pub aggregated: Framing,
    /// Of strategies over TCP: rings, halving and doubling, parameter servers.
    pub streamed: Framing,
    /// `t_s`: seconds that each step between hosts over TCP takes, apart from the links.
    pub step: f64,
    /// Seconds that each hop to or from an aggregator takes, apart from the links. Blocks follow
    /// each other without waiting for it, so it counts once for each hop of the chain.
    pub hop: f64,
    /// `sigma` of paper 3 (Rina), equation (3): deviation of a step's time among its members, in
    /// seconds. A step of `m` members takes `sigma * sqrt(2 ln m)` longer on average.
    pub jitter: f64,
    /// Wire bytes a second that a host can send, and as many that it can receive, whatever its
    /// link; infinity: the link alone counts. On the way to parameter servers on one tree (`atp`,
    /// `ps-one`) the links alone count.
    pub host: f64,
    /// Wire bytes a second of sums that an aggregating switch can make, of all trees together;
    /// infinity: line rate on every port.
    pub aggregator: f64,
    /// Slots that each tree has at its aggregators: this number of packets is on the way at once.
    /// None: enough of them.
    pub slots: Option<u32>,
}

impl Costs {
    /// Links alone: no headers, no overheads, no limits.
    pub const IDEAL: Self = Self {
        aggregated: Framing::NONE,
        streamed: Framing::NONE,
        step: 0.0,
        hop: 0.0,
        jitter: 0.0,
        host: f64::INFINITY,
        aggregator: f64::INFINITY,
        slots: None,
    };

    /// Seconds that a step with this number of members costs.
    pub fn step_of(&self, members: usize) -> f64 {
        self.step + self.jitter * (2.0 * (members.max(1) as f64).ln()).sqrt()
    }
}

/// A network's resources and what using them costs.
#[derive(Clone, Debug)]
pub struct Fabric<'a> {
    network: &'a Network,
    costs: Costs,
    capacities: Vec<f64>,
    /// The first resource that is not a link.
    own: usize,
}

/// Resources of each node that are not links: what it sends, receives, sums.
const OWN: usize = 3;

impl<'a> Fabric<'a> {
    /// Resources of a network.
    pub fn new(network: &'a Network, costs: Costs) -> Self {
        let links = network.links();
        let mut capacities: Vec<f64> = links.iter().map(|link| link.capacity.bytes()).collect();
        for _ in network.nodes() {
            capacities.extend([costs.host, costs.host, costs.aggregator]);
        }
        Self { network, costs, capacities, own: links.len() }
    }

    /// The network.
    pub const fn network(&self) -> &'a Network {
        self.network
    }

    /// What transfers cost.
    pub const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Capacities of all resources in bytes a second; links first, in the network's order.
    pub fn capacities(&self) -> &[f64] {
        &self.capacities
    }

    /// An empty set of uses of these resources.
    pub fn uses(&self) -> Uses {
        Uses::new(self.capacities.len())
    }

    /// Adds what a copy of the bytes uses from one node to another; returns the route's latency in
    /// seconds. Nothing is used between a node and itself.
    pub fn route(&self, uses: &mut Uses, from: usize, to: usize, flow: u64) -> f64 {
        self.route_weighted(uses, (from, to), flow, 1.0)
    }

    /// Likewise for `weight` copies.
    pub fn route_weighted(
        &self,
        uses: &mut Uses,
        (from, to): (usize, usize),
        flow: u64,
        weight: f32,
    ) -> f64 {
        if from == to {
            return 0.0;
        }
        let links = self.network.links();
        let mut latency_ns = 0;
        self.network.route(from, to, flow, |link| {
            uses.add(ResourceId(link as u32), weight);
            latency_ns += links[link].latency_ns;
        });
        for (node, which) in [(from, 0), (to, 1)] {
            // An aggregator in a switch is not a host.
            let is_host = self.network.nodes()[node] != NodeKind::Switch;
            if is_host && self.costs.host.is_finite() {
                self.use_own(uses, node, which, weight);
            }
        }
        latency_ns as f64 * 1e-9
    }

    /// Adds the sums that an aggregator at the node makes.
    pub fn aggregate(&self, uses: &mut Uses, node: usize) {
        if self.costs.aggregator.is_finite() {
            self.use_own(uses, node, 2, 1.0);
        }
    }

    fn use_own(&self, uses: &mut Uses, node: usize, which: usize, weight: f32) {
        uses.add(ResourceId((self.own + OWN * node + which) as u32), weight);
    }

    /// What each host sends through: the first link on its way anywhere.
    pub fn uplinks(&self) -> Vec<ResourceId> {
        let hosts = self.network.hosts();
        let links = self.network.links();
        let uplink = |&host: &usize| {
            links.iter().position(|link| link.from == host).map(|link| ResourceId(link as u32))
        };
        hosts.iter().filter_map(uplink).collect()
    }
}
