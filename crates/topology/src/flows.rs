//! The bytes that hosts and aggregators send each other in an all-reduce, for each strategy and for
//! the schemes that paper 2 (table 1) compares with.
//!
//! Headers are not counted, and neither are the barriers between steps.

use crate::graph::Network;
use crate::model::{Strategy, Topology};
use crate::plan::{Forest, PlanError, Site, racks, ring_order};
use crate::units::Rate;

/// Bytes from one host or aggregator to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// The sender.
    pub from: Site,
    /// The receiver.
    pub to: Site,
    /// How much.
    pub bytes: f64,
}

/// How an all-reduce is carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheme {
    /// Over aggregation trees.
    Forest(Forest),
    /// Over rings: one over all, or rings within regions and across them.
    Rings(Rings),
    /// Every worker exchanges everything with one partner in each step.
    Butterfly(Vec<u16>),
    /// Recursive halving, then doubling.
    HalvingDoubling(Vec<u16>),
    /// Reduce to the first rank up a tree in which a parent has up to `k - 1` children a step, and
    /// broadcast down it.
    KNomial(Vec<u16>, usize),
}

/// Rings, level by level: each region scatter-reduces, then each part of the vector goes on round
/// a ring across the regions, and the all-gather comes back. In a region that has fewer workers
/// than another one, a worker has a place in several of the rings across.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rings {
    /// The rings of each level, the innermost first: the ranks of each, and the share of the vector
    /// that goes round it. A level begins when the one before it is done.
    pub levels: Vec<Vec<(Vec<u16>, f64)>>,
    /// Messages of a chain of which each waits for the one before.
    pub chain: usize,
    /// The ranks that own a part of the sum after the scatter-reduce.
    owners: Vec<u16>,
}

impl Rings {
    /// Rings across parts of a network; nothing is added for a single one.
    fn across(parts: Vec<Self>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().filter(|part| !part.owners.is_empty()).collect();
        if parts.len() < 2 {
            return parts.pop().unwrap_or_default();
        }
        let most = parts.iter().map(|part| part.owners.len()).max().unwrap_or(0);
        let mut whole = Self::default();
        let mut rings = Vec::with_capacity(most);
        for place in 0..most {
            let ring: Vec<_> =
                parts.iter().map(|part| part.owners[place % part.owners.len()]).collect();
            whole.owners.extend_from_slice(&ring);
            rings.push((ring, 1.0 / most as f64));
        }
        let inner = parts.iter().map(|part| part.chain).max().unwrap_or(0);
        whole.chain = inner + 2 * (parts.len() - 1);
        let inner = parts.iter().map(|part| part.levels.len()).max().unwrap_or(0);
        whole.levels = vec![Vec::new(); inner];
        for part in parts {
            for (level, inside) in whole.levels.iter_mut().zip(part.levels) {
                level.extend(inside);
            }
        }
        whole.levels.push(rings);
        whole
    }

    /// One ring over all.
    fn one(ranks: &[u16]) -> Self {
        let alone = |&rank| Self { owners: vec![rank], ..Self::default() };
        Self::across(ranks.iter().map(alone).collect())
    }

    /// Rings across regions, across those around them, and so on.
    fn nested(topology: &Topology) -> Self {
        let mut inside = vec![Vec::new(); topology.regions.len()];
        let mut core = Vec::new();
        for host in &topology.hosts {
            let alone = Self { owners: vec![host.rank], ..Self::default() };
            host.region.map_or(&mut core, |region| &mut inside[region]).push(alone);
        }
        for (index, region) in topology.regions.iter().enumerate().rev() {
            let rings = Self::across(std::mem::take(&mut inside[index]));
            region.parent.map_or(&mut core, |parent| &mut inside[parent]).push(rings);
        }
        Self::across(core)
    }
}

impl Scheme {
    /// A strategy on a network.
    ///
    /// # Errors
    /// [`PlanError`]: it lacks aggregators, or is `auto`.
    pub fn of(topology: &Topology, strategy: Strategy) -> Result<Self, PlanError> {
        match strategy {
            Strategy::Ring => Ok(Self::Rings(Rings::one(&ring_order(topology)))),
            Strategy::HAr => {
                let racks = racks(topology);
                let rings = racks.iter().map(|rack| Rings::one(rack)).collect();
                Ok(Self::Rings(Rings::across(rings)))
            }
            Strategy::Ps => Forest::plan(&staffed(topology), Strategy::Colocated).map(Self::Forest),
            _ => Forest::plan(topology, strategy).map(Self::Forest),
        }
    }

    /// BlueConnect (Cho et al. 2019): rings within each level of regions.
    #[must_use]
    pub fn blue_connect(topology: &Topology) -> Self {
        Self::Rings(Rings::nested(topology))
    }

    /// PLink (Luo et al. 2020): two levels, racks and everything above, whatever there is above;
    /// one aggregating host in each rack, the load spread over the hosts.
    ///
    /// # Errors
    /// [`PlanError`]: there is no host.
    pub fn plink(topology: &Topology) -> Result<Self, PlanError> {
        let mut flat = staffed(topology);
        for region in &mut flat.regions {
            region.parent = None;
            region.aggregator = None;
            // Every rack counts as over-subscribed.
            region.uplink = Some(Rate::nearest(1.0));
        }
        Forest::plan(&flat, Strategy::Rat).map(Self::Forest)
    }

    /// The flows of `bytes` a worker, phase by phase: none begins before the one before it has
    /// ended. Blocks follow each other through trees and round one ring, so these have one phase.
    ///
    /// What a level of rings or a pair of partners does on the way out and on the way back (the
    /// scatter-reduce and the all-gather) puts the same on all links, and counts as one phase.
    #[must_use]
    pub fn phases(&self, bytes: f64) -> Vec<Vec<Flow>> {
        let mut phases = match self {
            Self::Forest(forest) => vec![Flows::forest(forest, bytes)],
            Self::Rings(Rings { levels, .. }) => {
                levels.iter().map(|rings| Flows::rings(rings, 2.0 * bytes)).collect()
            }
            Self::Butterfly(ranks) => Flows::pairs(ranks, bytes, |_| bytes),
            Self::HalvingDoubling(ranks) => {
                Flows::pairs(ranks, bytes, |step| 2.0 * bytes / (2_u64 << step) as f64)
            }
            Self::KNomial(ranks, k) => Flows::tree(ranks, *k, bytes),
        };
        phases.retain(|phase| !phase.0.is_empty());
        phases.into_iter().map(|phase| phase.0).collect()
    }

    /// Messages of a chain of which each waits for the one before.
    #[must_use]
    pub fn chain(&self) -> usize {
        // Ranks beyond a power of two go through a partner.
        let extra = |count: usize| 2 * usize::from(!count.is_power_of_two());
        let halvings = |count: usize| count.checked_ilog2().unwrap_or(0) as usize;
        match self {
            Self::Forest(forest) => {
                2 * forest.trees.iter().map(crate::Tree::depth).max().unwrap_or(0)
            }
            Self::Rings(rings) => rings.chain,
            Self::Butterfly(ranks) => halvings(ranks.len()) + extra(ranks.len()),
            Self::HalvingDoubling(ranks) => 2 * halvings(ranks.len()) + extra(ranks.len()),
            Self::KNomial(ranks, k) => 2 * rounds(ranks.len(), *k),
        }
    }
}

/// The network with a daemon on every host.
pub(crate) fn staffed(topology: &Topology) -> Topology {
    let mut all = topology.clone();
    for host in &mut all.hosts {
        host.daemon.get_or_insert(std::net::SocketAddrV4::new(host.address, 0));
    }
    all
}

/// Rounds until `k` to their power are `count` or more.
pub(crate) fn rounds(count: usize, k: usize) -> usize {
    std::iter::successors(Some(1), |reached: &usize| Some(reached.saturating_mul(k.max(2))))
        .take_while(|reached| *reached < count)
        .count()
}

/// The flows of a phase.
#[derive(Default)]
struct Flows(Vec<Flow>);

impl Flows {
    fn add(&mut self, from: Site, to: Site, bytes: f64) {
        if from != to && bytes > 0.0 {
            self.0.push(Flow { from, to, bytes });
        }
    }

    fn both(&mut self, a: Site, b: Site, bytes: f64) {
        self.add(a, b, bytes);
        self.add(b, a, bytes);
    }

    fn forest(forest: &Forest, bytes: f64) -> Self {
        let mut flows = Self::default();
        let share = bytes / forest.trees.len() as f64;
        for tree in &forest.trees {
            for node in &tree.nodes {
                for &rank in &node.ranks {
                    flows.both(host(rank), node.site, share);
                }
                if let Some(parent) = node.parent {
                    flows.both(node.site, tree.nodes[parent].site, share);
                }
            }
        }
        flows
    }

    /// Each sends `(n - 1) / n` of its ring's share of `bytes` to the next.
    fn rings(rings: &[(Vec<u16>, f64)], bytes: f64) -> Self {
        let mut flows = Self::default();
        for (ring, share) in rings {
            let count = ring.len();
            let part = bytes * share * count.saturating_sub(1) as f64 / count as f64;
            for (index, &rank) in ring.iter().enumerate() {
                flows.add(host(rank), host(ring[(index + 1) % count]), part);
            }
        }
        flows
    }

    /// Exchanges with the partner at half the distance in each step. Ranks beyond a power of two
    /// give everything to a partner first and get the result from it at last.
    fn pairs(ranks: &[u16], whole: f64, bytes: impl Fn(u32) -> f64) -> Vec<Self> {
        let Some(most) = ranks.len().checked_ilog2() else { return Vec::new() };
        let power = 1 << most;
        let (mut first, mut last) = (Self::default(), Self::default());
        for extra in power..ranks.len() {
            first.add(host(ranks[extra]), host(ranks[extra - power]), whole);
            last.add(host(ranks[extra - power]), host(ranks[extra]), whole);
        }
        let mut phases = vec![first];
        for step in 0..most {
            let distance = power >> (step + 1);
            let mut exchanges = Self::default();
            for index in 0..power {
                let partner = index ^ distance;
                exchanges.add(host(ranks[index]), host(ranks[partner]), bytes(step));
            }
            phases.push(exchanges);
        }
        phases.push(last);
        phases
    }

    /// Up a tree round by round, each of which sums the subtrees of the one before, and down it in
    /// the reverse order.
    fn tree(ranks: &[u16], k: usize, bytes: f64) -> Vec<Self> {
        let k = k.max(2);
        let rounds = rounds(ranks.len(), k);
        let mut phases: Vec<_> = (0..2 * rounds).map(|_| Self::default()).collect();
        for index in 1..ranks.len() {
            // The parent's number lacks the lowest digit to the base k that is not 0.
            let (mut place, mut round) = (1, 0);
            while (index / place).is_multiple_of(k) {
                place *= k;
                round += 1;
            }
            let parent = index - (index / place % k) * place;
            let (child, parent) = (host(ranks[index]), host(ranks[parent]));
            phases[round].add(child, parent, bytes);
            phases[2 * rounds - 1 - round].add(parent, child, bytes);
        }
        phases
    }
}

const fn host(rank: u16) -> Site {
    Site::Host(rank as usize)
}

/// Bytes on each link of the network, by its index, for `bytes` a worker.
#[must_use]
pub fn load(network: &Network, flows: &[Flow]) -> Vec<f64> {
    let mut load = vec![0.0; network.links().len()];
    for (number, flow) in flows.iter().enumerate() {
        let (from, to) = (network.node_of(flow.from), network.node_of(flow.to));
        network.route(from, to, number as u64, |link| load[link] += flow.bytes);
    }
    load
}
