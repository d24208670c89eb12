//! Which rack to equip with an aggregator next, and what that gains (paper 3, sections III-B, III-C
//! and IV-D).

use serde::Serialize;

use crate::analysis::Traffic;
use crate::flows::{Scheme, staffed};
use crate::graph::Network;
use crate::model::{Strategy, Topology, equip};
use crate::occupation::{Occupation, StepCosts, ring_seconds};

/// The state after a region more has been equipped; the first is today's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Upgrade {
    /// The region that was equipped last, as an index; None: nothing yet.
    pub region: Option<usize>,
    /// Its name.
    pub name: String,
    /// Estimated seconds of an all-reduce.
    pub seconds: f64,
    /// Times faster than today.
    pub gain: f64,
    /// `rina`: groups in the ring. With a parameter server: the fullest link's copies.
    pub count: usize,
}

/// Upgrades one by one for `rina`, as the paper says. The rack with the most workers is first, then
/// regions of racks in the same way, until no region is left whose equipment saves a group.
///
/// The time is equation (3) twice, over the groups; each group's daemon and link are as fast as its
/// hosts', and every host runs a daemon.
#[must_use]
pub fn rina(topology: &Topology, bytes: f64, costs: StepCosts) -> Vec<Upgrade> {
    let mut network = staffed(topology);
    let state = |network: &Topology| {
        let scheme = Scheme::of(network, Strategy::Rina).ok()?;
        let Scheme::Forest(forest) = &scheme else { return None };
        let groups = forest.trees.len();
        // The data takes its time once; both phases share the links.
        let transfer = Traffic::of(network, &scheme, bytes).seconds / 2.0;
        Some((2.0 * ring_seconds(groups, transfer, costs), groups))
    };
    let mut upgrades = Vec::new();
    let Some(today) = state(&network) else { return upgrades };
    push(&mut upgrades, None, topology, today);
    let mut racks = vec![0; topology.regions.len()];
    let mut all = racks.clone();
    for host in &topology.hosts {
        if let Some(rack) = host.region {
            racks[rack] += 1;
        }
        for region in topology.around(host.region) {
            all[region] += 1;
        }
    }
    let mut order: Vec<_> = (0..topology.regions.len()).filter(|&region| all[region] > 1).collect();
    order.sort_by_key(|&region| (racks[region] == 0, std::cmp::Reverse(all[region]), region));
    let mut before = today.1;
    for region in order {
        let around = network.around(Some(region)).any(|r| network.regions[r].aggregator.is_some());
        if around {
            continue;
        }
        equip(&mut network, region);
        match state(&network) {
            Some(now) if now.1 < before => {
                before = now.1;
                push(&mut upgrades, Some(region), topology, now);
            }
            _ => network.regions[region].aggregator = None,
        }
    }
    upgrades
}

/// Upgrades one by one for in-network aggregation before a parameter server on the host of rank 0
/// (as ATP), by the bandwidth-occupation model. The region that gains most is first. Of several
/// that gain nothing yet, it is the one that takes most copies off the links.
#[must_use]
pub fn server(topology: &Topology, bytes: f64, costs: StepCosts) -> Vec<Upgrade> {
    let mut upgrades = Vec::new();
    if topology.hosts.is_empty() {
        return upgrades;
    }
    let network = Network::of(topology);
    let mut model = Occupation::of(topology, 0);
    let mut regions = vec![None; network.nodes().len()];
    (0..topology.regions.len())
        .for_each(|region| regions[network.switch_of(region)] = Some(region));
    // Push and pull take their ways at the same time; each is one step.
    let steps = 2.0 * step_seconds(topology.world(), costs);
    let state = |model: &Occupation| State {
        seconds: bytes * 8.0 / model.throughput() + steps,
        most: model.copies().into_iter().max().unwrap_or(0),
        all: model.copies().into_iter().sum(),
    };
    let mut now = state(&model);
    push(&mut upgrades, None, topology, (now.seconds, now.most));
    loop {
        let mut best: Option<(usize, usize, State)> = None;
        for index in 0..model.switches.len() {
            let Some(region) = regions[model.switches[index].node] else { continue };
            if std::mem::replace(&mut model.switches[index].aggregates, true) {
                continue;
            }
            let next = state(&model);
            model.switches[index].aggregates = false;
            let better = best.is_none_or(|(_, than, best)| next.key(region) < best.key(than));
            if next.all < now.all && better {
                best = Some((index, region, next));
            }
        }
        let Some((index, region, next)) = best else { return upgrades };
        model.switches[index].aggregates = true;
        now = next;
        push(&mut upgrades, Some(region), topology, (now.seconds, now.most));
    }
}

/// What a parameter server's network does.
#[derive(Clone, Copy)]
struct State {
    seconds: f64,
    /// Copies on the link that has the most.
    most: usize,
    /// Copies on all links.
    all: usize,
}

impl State {
    /// The smaller, the better; times that differ by less than a nanosecond are equal.
    fn key(&self, region: usize) -> (f64, usize, usize) {
        ((self.seconds * 1e9).round(), self.all, region)
    }
}

/// One step that waits for the slowest of `n`.
fn step_seconds(n: usize, costs: StepCosts) -> f64 {
    ring_seconds(n, 0.0, costs) / n.max(1) as f64
}

fn push(
    upgrades: &mut Vec<Upgrade>,
    region: Option<usize>,
    topology: &Topology,
    (seconds, count): (f64, usize),
) {
    let name = region.map_or("-".into(), |region| topology.regions[region].name.clone());
    let gain = upgrades.first().map_or(1.0, |today| today.seconds / seconds);
    upgrades.push(Upgrade { region, name, seconds, gain, count });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::racks;

    const BYTES: f64 = 98e6;

    #[test]
    fn with_half_of_the_racks_equipped_rina_is_faster() {
        let topology = racks(8, 4, 4.0);
        let costs = StepCosts::default();
        let (rina, server) = (rina(&topology, BYTES, costs), server(&topology, BYTES, costs));
        assert_eq!((rina.len(), server.len()), (9, 9));
        assert!(rina[4].seconds * 1.5 < server[4].seconds, "{rina:?} {server:?}");
    }

    #[test]
    fn with_all_racks_equipped_both_are_as_fast() {
        let topology = racks(2, 4, 4.0);
        let costs = StepCosts { overhead: 1e-6, sigma: 0.0 };
        let (rina, server) = (rina(&topology, BYTES, costs), server(&topology, BYTES, costs));
        let [rina, server] = [rina, server].map(|upgrades| upgrades[2].seconds);
        assert!((rina / server - 1.0).abs() < 0.01, "{rina} {server}");
    }

    #[test]
    fn the_rack_with_most_workers_comes_first() {
        let mut topology = racks(3, 4, 4.0);
        for host in &mut topology.hosts[8..] {
            host.region = Some(1);
        }
        let upgrades = rina(&topology, BYTES, StepCosts::default());
        let names: Vec<_> = upgrades.iter().map(|upgrade| upgrade.name.as_str()).collect();
        assert_eq!(names, ["-", "rack1", "rack0"]);
        let counts: Vec<_> = upgrades.iter().map(|upgrade| upgrade.count).collect();
        assert_eq!(counts, [12, 5, 2]);
    }

    #[test]
    fn what_is_equipped_already_is_not_proposed() {
        let mut topology = racks(2, 4, 4.0);
        equip(&mut topology, 0);
        for upgrades in [
            rina(&topology, BYTES, StepCosts::default()),
            server(&topology, BYTES, StepCosts::default()),
        ] {
            let names: Vec<_> = upgrades.iter().map(|upgrade| upgrade.name.as_str()).collect();
            assert_eq!(names, ["-", "rack1"]);
        }
    }
}
