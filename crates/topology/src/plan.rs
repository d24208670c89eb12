//! Aggregation trees: which node sums what, and which node gets the sum next.

mod grow;
mod scope;
mod spares;

use serde::Serialize;

use crate::agents::remedy;
pub use crate::model::Site;
use crate::model::{Strategy, Topology};

use scope::Scopes;

/// The trees of a job. Block `j` of a vector goes to tree `j` modulo their number, so each
/// carries an equal share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Forest {
    /// The trees.
    pub trees: Vec<Tree>,
}

/// A tree of aggregators, with ranks as leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Tree {
    /// The first is the root; parents come before their children.
    pub nodes: Vec<Node>,
}

/// An aggregator in a tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Node {
    /// Where it runs; at most one node of a tree is at a site.
    pub site: Site,
    /// Index of the node that its sums go to; None for the root.
    pub parent: Option<usize>,
    /// The ranks that send to it directly, ascending.
    pub ranks: Vec<u16>,
    /// Hosts of its rack that take its place while it is lost, the first of them whose daemon is
    /// there. They are no nodes of this tree. The root has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<Site>,
}

impl Node {
    /// A node that nobody stands in for.
    #[must_use]
    pub const fn new(site: Site, parent: Option<usize>, ranks: Vec<u16>) -> Self {
        Self { site, parent, ranks, spares: Vec::new() }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The strategy needs no trees.
    #[error("strategy {0} has no aggregation trees; expected colocated, rat, rina, passing or atp")]
    NoTrees(Strategy),
    /// There is no worker.
    #[error("there is no worker; a plan needs at least one")]
    NoWorkers,
    /// There is no aggregator at all.
    #[error("strategy {0} finds no aggregator; {remedy}", remedy = remedy(*.0))]
    NoAggregator(Strategy),
}

impl Tree {
    /// Index of the node whose leaf the rank is.
    #[must_use]
    pub fn node_of(&self, rank: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.ranks.binary_search(&rank).is_ok())
    }

    /// The nodes whose sums go to this one.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(move |&child| self.nodes[child].parent == Some(node))
    }

    /// All ranks below the node, ascending; the first stands for them at the node's parent.
    #[must_use]
    pub fn ranks_below(&self, node: usize) -> Vec<u16> {
        let mut below = vec![false; self.nodes.len()];
        let mut ranks = Vec::new();
        for (index, other) in self.nodes.iter().enumerate().skip(node) {
            // Parents come before children, so the parent is decided already.
            below[index] = index == node || other.parent.is_some_and(|parent| below[parent]);
            if below[index] {
                ranks.extend_from_slice(&other.ranks);
            }
        }
        ranks.sort_unstable();
        ranks
    }

    /// Hops of a contribution on its way to the root: 1 if all ranks are the root's leaves.
    #[must_use]
    pub fn depth(&self) -> usize {
        let mut depths = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            depths.push(node.parent.map_or(1, |parent: usize| depths[parent] + 1));
        }
        let used = self.nodes.iter().zip(depths).filter(|(node, _)| !node.ranks.is_empty());
        used.map(|(_, depth)| depth).max().unwrap_or(0)
    }
}

impl Forest {
    /// The plan of a strategy on a network.
    ///
    /// # Errors
    /// [`PlanError`]: the strategy has no trees, or lacks aggregators, or there is no worker.
    pub fn plan(topology: &Topology, strategy: Strategy) -> Result<Self, PlanError> {
        if !strategy.is_forest() {
            return Err(PlanError::NoTrees(strategy));
        }
        let scopes = Scopes::of(topology, strategy);
        if scopes.workers().is_empty() {
            return Err(PlanError::NoWorkers);
        }
        let trees = match strategy {
            Strategy::Rat => with_spares(topology, grow::rat(&scopes)),
            Strategy::Rina => with_spares(topology, grow::rina(&scopes)),
            Strategy::Atp => grow::atp(&scopes),
            _ => grow::flat(&scopes, strategy),
        };
        if trees.is_empty() {
            return Err(PlanError::NoAggregator(strategy));
        }
        Ok(Self { trees })
    }
}

/// The trees, with the hosts that take the place of a node that is lost.
fn with_spares(topology: &Topology, mut trees: Vec<Tree>) -> Vec<Tree> {
    for (index, tree) in trees.iter_mut().enumerate() {
        let taken: Vec<_> = tree.nodes.iter().map(|node| node.site).collect();
        for node in tree.nodes.iter_mut().skip(1) {
            node.spares = spares::of(topology, node.site, &taken, index);
        }
    }
    trees
}

/// The ranks in the order of a ring that enters and leaves each region once.
#[must_use]
pub fn ring_order(topology: &Topology) -> Vec<u16> {
    let mut hosts: Vec<_> = topology.hosts.iter().collect();
    hosts.sort_by_cached_key(|host| {
        let mut path: Vec<_> = topology.around(host.region).collect();
        path.reverse();
        (path, host.rank)
    });
    hosts.into_iter().map(|host| host.rank).collect()
}

/// The rings of `h-ar`: the ranks of each rack, racks in the order of [`ring_order`]. Workers at
/// the core are a rack each.
#[must_use]
pub fn racks(topology: &Topology) -> Vec<Vec<u16>> {
    let mut racks: Vec<Vec<u16>> = Vec::new();
    let mut last = None;
    for rank in ring_order(topology) {
        let region = topology.hosts[usize::from(rank)].region;
        match racks.last_mut() {
            Some(rack) if region.is_some() && region == last => rack.push(rank),
            _ => racks.push(vec![rank]),
        }
        last = region;
    }
    racks
}
