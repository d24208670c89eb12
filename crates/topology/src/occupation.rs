//! The bandwidth-occupation model of in-network aggregation before a parameter server, and the
//! time model of a ring (paper 3, sections III-A and III-B).

use crate::graph::{Network, NodeKind};
use crate::model::Topology;

/// The switches between the workers and the parameter server, as the tree that the gradients go
/// up. The model's assumptions are the paper's: all workers send at once, there is one path from
/// each to the server, and a switch that aggregates can add all that arrives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occupation {
    /// The switches; the first is next to the server, and parents come before their children.
    pub switches: Vec<Switch>,
    /// What a worker's own link carries, in bit/s; the slowest counts.
    pub host_rate: f64,
}

/// A switch of the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// Its node in the graph.
    pub node: usize,
    /// The next one on the way to the server; None at the first.
    pub parent: Option<usize>,
    /// Workers connected to it.
    pub workers: usize,
    /// Whether it aggregates.
    pub aggregates: bool,
    /// What its link towards the server carries, in bit/s.
    pub rate: f64,
}

impl Occupation {
    /// A network of regions with the server on host `server`; the regions' aggregators aggregate.
    ///
    /// # Panics
    /// If there is no host `server`.
    #[must_use]
    pub fn of(topology: &Topology, server: usize) -> Self {
        let network = Network::of(topology);
        let regions = topology.regions.iter().enumerate();
        let equipped: Vec<_> = regions
            .filter(|(_, region)| region.aggregator.is_some())
            .map(|(index, _)| network.switch_of(index))
            .collect();
        Self::on_graph(&network, server, |node| equipped.contains(&node))
    }

    /// The switches of a graph on the way to the server on host `server`, whose own worker needs
    /// no network. `equipped` says which nodes of the graph aggregate. Of several shortest ways
    /// each switch takes one, so that there is one path from each worker, as the model wants.
    ///
    /// # Panics
    /// If there is no host `server`.
    #[must_use]
    pub fn on_graph(network: &Network, server: usize, equipped: impl Fn(usize) -> bool) -> Self {
        let to = network.hosts()[server];
        let mut place = vec![None; network.nodes().len()];
        let mut made = Self { switches: Vec::new(), host_rate: f64::INFINITY };
        for &from in network.hosts() {
            let mut way = Vec::new();
            network.route(from, to, 0, |link| way.push(link));
            let Some((last, rest)) = way.split_last() else { continue };
            // From the server outwards, so that parents come first.
            let mut next = None;
            for &link in std::iter::once(last).chain(rest.iter().rev()) {
                let link = network.links()[link];
                if network.nodes()[link.from] != NodeKind::Switch {
                    made.host_rate = made.host_rate.min(link.capacity.bits() as f64);
                    break;
                }
                next = Some(*place[link.from].get_or_insert_with(|| {
                    made.switches.push(Switch {
                        node: link.from,
                        parent: next,
                        workers: 0,
                        aggregates: equipped(link.from),
                        rate: link.capacity.bits() as f64,
                    });
                    made.switches.len() - 1
                }));
            }
            if let Some(first) = next {
                made.switches[first].workers += 1;
            }
        }
        made
    }

    /// Copies of the gradients on the link of each switch towards the server. A switch that does
    /// not aggregate sends on all that it gets (lemma 1); one that does counts as one worker
    /// (lemma 2).
    #[must_use]
    pub fn copies(&self) -> Vec<usize> {
        let mut copies: Vec<_> = self.switches.iter().map(|switch| switch.workers).collect();
        for (index, switch) in self.switches.iter().enumerate().rev() {
            if switch.aggregates {
                copies[index] = copies[index].min(1);
            }
            if let Some(parent) = switch.parent {
                copies[parent] += copies[index];
            }
        }
        copies
    }

    /// What every worker gets through, in bit/s: all wait for the slowest (lemma 3).
    #[must_use]
    pub fn throughput(&self) -> f64 {
        let copies = self.copies().into_iter().zip(&self.switches);
        let used = copies.filter(|(copies, _)| *copies > 0);
        used.map(|(copies, switch)| switch.rate / copies as f64).fold(self.host_rate, f64::min)
    }
}

/// What a step of a ring costs beside the transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCosts {
    /// Seconds of each step that do not depend on the size: `O(G_u)`.
    pub overhead: f64,
    /// Standard deviation of a worker's time for a step, in seconds: `sigma`.
    pub sigma: f64,
}

/// What [`StepCosts`] are if nobody measured them: a round trip in a rack, and a third of it.
impl Default for StepCosts {
    fn default() -> Self {
        Self { overhead: 50e-6, sigma: 15e-6 }
    }
}

/// Seconds of the scatter-reduce of a ring of `n` by equation (3) of paper 3,
/// `N O + k + N sigma sqrt(2 ln N)`, where `transfer` is `k`, the seconds that the data takes.
#[must_use]
pub fn ring_seconds(n: usize, transfer: f64, costs: StepCosts) -> f64 {
    let count = n as f64;
    let slowest = (2.0 * count.max(1.0).ln()).sqrt();
    count * costs.overhead + transfer + count * costs.sigma * slowest
}

#[cfg(test)]
mod tests {
    use super::*;

    const B0: f64 = 1e10;

    fn switch(parent: Option<usize>, workers: usize, aggregates: bool) -> Switch {
        Switch { node: 0, parent, workers, aggregates, rate: B0 }
    }

    /// Figure 4 of the paper: switch 4 next to the server has a worker and INA switch 3, which has
    /// two workers and switch 2 with four workers behind it.
    #[test]
    fn the_papers_example() {
        let mut model = Occupation {
            switches: vec![
                switch(None, 1, false),
                switch(Some(0), 2, true),
                switch(Some(1), 4, false),
            ],
            host_rate: B0,
        };
        assert_eq!(model.copies(), [2, 1, 4]);
        assert!((model.throughput() - B0 / 4.0).abs() < 1.0, "sub-topology T1 is the slowest");
        model.switches[2].aggregates = true;
        assert!((model.throughput() - B0 / 2.0).abs() < 1.0, "then switch 4");
        model.switches[0].aggregates = true;
        assert!((model.throughput() - B0).abs() < 1.0);
    }

    #[test]
    fn regular_switches_alone_give_each_of_n_an_nth() {
        let model = Occupation {
            switches: vec![switch(None, 3, false), switch(Some(0), 5, false)],
            host_rate: B0,
        };
        assert!((model.throughput() - B0 / 8.0).abs() < 1.0, "lemma 1");
    }

    #[test]
    fn a_longer_ring_takes_longer_though_it_carries_no_more() {
        let costs = StepCosts { overhead: 1e-3, sigma: 0.0 };
        assert!((ring_seconds(8, 0.5, costs) - 0.508).abs() < 1e-12);
        let costs = StepCosts { overhead: 0.0, sigma: 1e-3 };
        let expected = 0.5 + 8e-3 * (2.0 * 8_f64.ln()).sqrt();
        assert!((ring_seconds(8, 0.5, costs) - expected).abs() < 1e-12);
        assert!((ring_seconds(1, 0.5, costs) - 0.5).abs() < 1e-12);
    }
}
