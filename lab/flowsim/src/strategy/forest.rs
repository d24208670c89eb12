//! Strategies through aggregators: the planner's forests as streams.

use xdp_agg_topology::{Forest, Tree};

use crate::engine::{After, Schedule, Stream, StreamId, Uses};
use crate::fabric::Fabric;

/// How the links of a tree depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// All links of a tree carry its blocks at the same pace, as slots make them: a block's slot is
    /// used again once its sum has come back. Exact for windows that are short against the vector.
    Lockstep,
    /// Every aggregator takes what comes, keeps it, and passes sums on chunk by chunk, as hosts
    /// with memory for the whole vector do. Each tree's share is cut into this number of chunks.
    Buffered(u32),
}

/// What every rank sends into a forest, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Bytes on the wire, with headers.
    pub wire_bytes: f64,
    /// Seconds that a hop takes apart from the links.
    pub hop: f64,
}

/// The schedule of a forest.
pub fn forest(fabric: &Fabric<'_>, forest: &Forest, load: Load, coupling: Coupling) -> Schedule {
    let mut schedule = Schedule::new();
    let mut uses = fabric.uses();
    let share = load.wire_bytes / forest.trees.len().max(1) as f64;
    for (number, tree) in forest.trees.iter().enumerate() {
        let planter = Planter { fabric, tree, number: number as u64, share, hop: load.hop };
        match coupling {
            Coupling::Lockstep => planter.lockstep(&mut schedule, &mut uses),
            Coupling::Buffered(chunks) => planter.buffered(&mut schedule, &mut uses, chunks),
        }
    }
    schedule
}

/// Steps of a forest's dependency chain: the hops up and down again. A leaf on its aggregator's
/// own host costs one too, as it does in paper 2's table 1, which counts `2 (l + 1)`.
pub fn chain(forest: &Forest) -> usize {
    2 * forest.trees.iter().map(Tree::depth).max().unwrap_or(0)
}

struct Planter<'a> {
    fabric: &'a Fabric<'a>,
    tree: &'a Tree,
    number: u64,
    share: f64,
    hop: f64,
}

impl Planter<'_> {
    fn node(&self, node: usize) -> usize {
        self.fabric.network().node_of(self.tree.nodes[node].site)
    }

    fn host(&self, rank: u16) -> usize {
        self.fabric.network().hosts()[usize::from(rank)]
    }

    /// Of a hop, so that different ones are spread over equal paths.
    fn flow(&self, hop: usize) -> u64 {
        (self.number << 20) ^ hop as u64
    }

    /// One stream: what all hops of the tree use, up and down.
    fn lockstep(&self, schedule: &mut Schedule, uses: &mut Uses) {
        let nodes = &self.tree.nodes;
        // Of the slowest way up from below each node, and back down to there.
        let mut below = vec![0.0_f64; nodes.len()];
        for (index, node) in nodes.iter().enumerate().rev() {
            let here = self.node(index);
            self.fabric.aggregate(uses, here);
            for &rank in &node.ranks {
                let host = self.host(rank);
                let there = self.both_ways(uses, host, here, usize::from(rank));
                below[index] = below[index].max(there + 2.0 * self.hop);
            }
            if let Some(parent) = node.parent {
                // Numbers of ranks end where those of aggregators begin.
                let hop = usize::from(u16::MAX) + index;
                let there = self.both_ways(uses, here, self.node(parent), hop);
                below[parent] = below[parent].max(below[index] + there + 2.0 * self.hop);
            }
        }
        let latency = below[0];
        let window = self.fabric.costs().slots.map(|slots| {
            f64::from(slots) * self.fabric.costs().aggregated.packet / latency.max(1e-12)
        });
        let limit = window.unwrap_or(f64::INFINITY);
        schedule.add(Stream { latency, limit, ..Stream::whole(self.share) }, uses);
    }

    fn both_ways(&self, uses: &mut Uses, low: usize, high: usize, hop: usize) -> f64 {
        let flow = self.flow(hop);
        let up = self.fabric.route(uses, low, high, flow);
        up + self.fabric.route(uses, high, low, flow)
    }

    /// A stream for each hop up and each hop down.
    fn buffered(&self, schedule: &mut Schedule, uses: &mut Uses, chunks: u32) {
        let nodes = &self.tree.nodes;
        let bytes = self.share / f64::from(chunks);
        let mut hop = |schedule: &mut Schedule, from: usize, to: usize, number: usize| {
            let latency = self.fabric.route(uses, from, to, self.flow(number));
            let latency = if from == to { 0.0 } else { latency + self.hop };
            schedule.add(Stream { latency, ..Stream::chunked(chunks, bytes) }, uses)
        };
        // What each node waits for, children before parents.
        let mut inputs: Vec<Vec<StreamId>> = vec![Vec::new(); nodes.len()];
        for (index, node) in nodes.iter().enumerate().rev() {
            let here = self.node(index);
            for &rank in &node.ranks {
                let up = hop(schedule, self.host(rank), here, usize::from(rank));
                inputs[index].push(up);
            }
            if let Some(parent) = node.parent {
                let number = usize::from(u16::MAX) + index;
                let up = hop(schedule, here, self.node(parent), number);
                for input in std::mem::take(&mut inputs[index]) {
                    schedule.wait(up, input, After::Lag(0));
                }
                inputs[parent].push(up);
            }
        }
        // Stands for the root's sums, so that no stream has to wait for each of the root's inputs.
        let sums = hop(schedule, self.node(0), self.node(0), 0);
        for &input in &inputs[0] {
            schedule.wait(sums, input, After::Lag(0));
        }
        let mut results = vec![sums; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            let here = self.node(index);
            if let Some(parent) = node.parent {
                let number = usize::from(u16::MAX) + index;
                let down = hop(schedule, self.node(parent), here, number);
                schedule.wait(down, results[parent], After::Lag(0));
                results[index] = down;
            }
            for &rank in &node.ranks {
                let down = hop(schedule, here, self.host(rank), usize::from(rank));
                schedule.wait(down, results[index], After::Lag(0));
            }
        }
    }
}
