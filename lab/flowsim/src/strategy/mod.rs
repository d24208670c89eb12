//! Ways to sum, as schedules: which node sends what to which over which links, and after what.

mod atp;
mod forest;
mod ring;

use std::collections::BTreeSet;

use strum::VariantNames as _;
use thiserror::Error;
use xdp_agg_topology::graph::{Network, NodeKind};
use xdp_agg_topology::plan::{racks, ring_order};
use xdp_agg_topology::{Forest, Node, PlanError, Site, Strategy, Topology, Tree};

use crate::engine::Schedule;
use crate::fabric::Fabric;

pub use atp::{Occupation, Servers, Switch};
pub use forest::{Coupling, Load, chain, forest};
pub use ring::{halving_doubling, hierarchical, ring};

/// A way to sum that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", parse_err_ty = StrategyError, parse_err_fn = no_way)]
pub enum Way {
    /// One parameter server, on the host of rank 0.
    #[strum(serialize = "ps-one")]
    OneServer,
    /// A parameter server on each host, each with an equal share.
    #[strum(serialize = "ps")]
    Servers,
    /// One ring.
    Ring,
    /// Rings in and across racks.
    #[strum(serialize = "h-ar")]
    HierarchicalRing,
    /// Recursive halving and doubling.
    HalvingDoubling,
    /// One parameter server on the host of rank 0, and switches that aggregate on the way.
    #[strum(serialize = "atp-one")]
    OneAtp,
    /// A parameter server on each host, and switches that aggregate on the way.
    Atp,
    /// Each host's daemon aggregates an equal share.
    Colocated,
    /// Trees over over-subscribed regions.
    Rat,
    /// A ring of racks.
    Rina,
    /// One aggregator, or several that share the vector.
    Passing,
    /// The same, for each process of a host: no sum in hosts first.
    #[strum(serialize = "switchml")]
    SwitchMl,
}

impl Way {
    /// The name on command lines.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The jobs' strategy whose plan it takes, and which wants the aggregators that it wants.
    pub const fn planned(self) -> Option<Strategy> {
        match self {
            Self::Colocated => Some(Strategy::Colocated),
            Self::Rat => Some(Strategy::Rat),
            Self::Rina => Some(Strategy::Rina),
            Self::Passing | Self::SwitchMl => Some(Strategy::Passing),
            Self::OneServer
            | Self::Servers
            | Self::Ring
            | Self::HierarchicalRing
            | Self::HalvingDoubling
            | Self::OneAtp
            | Self::Atp => None,
        }
    }

    /// Whether it goes through trees, whose links depend on each other as their [`Coupling`] says.
    pub const fn has_coupled_trees(self) -> bool {
        match self {
            Self::Servers
            | Self::Colocated
            | Self::Rat
            | Self::Rina
            | Self::Passing
            | Self::SwitchMl => true,
            // A server's tree is one stream, whatever the coupling.
            Self::OneServer
            | Self::OneAtp
            | Self::Atp
            | Self::Ring
            | Self::HierarchicalRing
            | Self::HalvingDoubling => false,
        }
    }
}

fn no_way(text: &str) -> StrategyError {
    StrategyError::Unknown(text.to_owned())
}

/// Why a strategy has no schedule on a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrategyError {
    /// A name that no strategy has.
    #[error(
        "{0:?} is no strategy; expected one of {names}",
        names = Way::VARIANTS.join(", ")
    )]
    Unknown(String),
    /// Hierarchical rings connect the members with the same number.
    #[error("racks of {0} and of {1} hosts; h-ar expects racks of equal size")]
    UnequalRacks(usize, usize),
    /// Halving and doubling pairs ranks.
    #[error("{0} ranks; halving-doubling expects a power of two")]
    NoPowerOfTwo(usize),
    /// The planner has no trees.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// What is to be summed where.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The network as regions and hosts; its regions' aggregators are those that the strategies
    /// may use.
    pub topology: &'a Topology,
    /// The vector's bytes.
    pub bytes: f64,
    /// Processes of a host that are workers of their own behind its one link, with `ps-one`, `ps`,
    /// `atp-one`, `atp` and `switchml`; the others sum in the host first, which takes no time here.
    pub processes: u16,
    /// How trees' links depend on each other.
    pub coupling: Coupling,
}

/// The schedule of one all-reduce.
///
/// Forests come from the planner (`xdp-agg-topology`), rings from its order of ranks.
///
/// # Errors
///
/// [`StrategyError`]: the strategy does not fit the network.
pub fn schedule(fabric: &Fabric<'_>, way: Way, job: &Job<'_>) -> Result<Schedule, StrategyError> {
    let Job { topology, bytes, processes, coupling } = *job;
    let costs = fabric.costs();
    let all_bytes = bytes * f64::from(processes);
    let planted = |strategy, bytes| -> Result<Schedule, StrategyError> {
        let plan = Forest::plan(topology, strategy)?;
        let load = Load { wire_bytes: costs.aggregated.wire(bytes), hop: costs.hop };
        Ok(forest(fabric, &plan, load, coupling))
    };
    let ranks = || ring_order(topology);
    let network = fabric.network();
    let aggregating = || equipped(topology, network);
    let served = |servers: &Servers<'_>, aggregating: &BTreeSet<usize>| {
        servers.schedule(fabric, aggregating, all_bytes)
    };
    match way {
        Way::OneServer => Ok(served(&Servers::new(network, [0]), &BTreeSet::new())),
        Way::Servers => {
            let plan = everywhere(topology);
            let hop = costs.step_of(topology.world());
            let load = Load { wire_bytes: costs.streamed.wire(all_bytes), hop };
            Ok(forest(fabric, &plan, load, coupling))
        }
        Way::Ring => Ok(ring(fabric, &ranks(), bytes)),
        Way::HierarchicalRing => hierarchical(fabric, &racks(topology), bytes),
        Way::HalvingDoubling => halving_doubling(fabric, &ranks(), bytes),
        Way::OneAtp => Ok(served(&Servers::new(network, [0]), &aggregating())),
        Way::Atp => Ok(served(&Servers::everywhere(network), &aggregating())),
        Way::Colocated => planted(Strategy::Colocated, bytes),
        Way::Rat => planted(Strategy::Rat, bytes),
        Way::Rina => planted(Strategy::Rina, bytes),
        Way::Passing => planted(Strategy::Passing, bytes),
        Way::SwitchMl => planted(Strategy::Passing, all_bytes),
    }
}

/// A parameter server on each host: to the links, a tree of one node each.
fn everywhere(topology: &Topology) -> Forest {
    let ranks: Vec<u16> = topology.hosts.iter().map(|host| host.rank).collect();
    let server = |host| {
        let node = Node::new(Site::Host(host), None, ranks.clone());
        Tree { nodes: vec![node] }
    };
    Forest { trees: (0..topology.hosts.len()).map(server).collect() }
}

/// Switches of the regions that have an aggregator in them.
fn equipped(topology: &Topology, network: &Network) -> BTreeSet<usize> {
    let regions = topology.regions.iter().enumerate();
    let with = regions.filter(|(_, region)| region.aggregator.is_some());
    let nodes = with.map(|(index, _)| network.node_of(Site::Region(index)));
    nodes.filter(|&node| network.nodes()[node] == NodeKind::Switch).collect()
}
