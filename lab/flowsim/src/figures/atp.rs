//! ATP as the figures of paper 3 compare it: where its parameter servers are, and which switches on
//! the way to them are replaced first. The text leaves both open, and both decide.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use anyhow::Result;
use xdp_agg_topology::graph::Network;

use crate::engine::{Options, simulate};
use crate::fabric::Fabric;
use crate::strategy::{Occupation, Servers};

/// Servers, and the switches that are replaced by aggregating ones.
pub(super) struct Atp<'a> {
    pub(super) name: &'static str,
    pub(super) servers: Servers<'a>,
    /// By their number: which nodes of the network.
    replaced: Vec<BTreeSet<usize>>,
}

/// Their names.
pub(super) const ARRANGEMENTS: [&str; 4] =
    ["one server", "one server, racks first", "servers on all", "servers on all, racks first"];

impl<'a> Atp<'a> {
    /// In the order of [`ARRANGEMENTS`]. One server is on the host of rank 0.
    pub(super) fn all(network: &'a Network) -> [Self; 4] {
        let one = || Servers::new(network, [0]);
        let on_all = || Servers::everywhere(network);
        let made = [
            (one(), best as fn(&Servers<'_>) -> Vec<BTreeSet<usize>>),
            (one(), |servers| one_by_one(&racks_first(servers))),
            (on_all(), |servers| one_by_one(&greedy(servers))),
            (on_all(), |servers| one_by_one(&racks_first(servers))),
        ];
        let mut names = ARRANGEMENTS.into_iter();
        made.map(|(servers, replace)| {
            let replaced = replace(&servers);
            Self { name: names.next().unwrap_or_default(), servers, replaced }
        })
    }

    /// Switches that can be replaced.
    pub(super) fn switches(&self) -> usize {
        self.replaced.len() - 1
    }

    /// What a worker gets through, as a share of its link: paper 3's bandwidth-occupation model.
    pub(super) fn throughput(&self, count: usize) -> f64 {
        1.0 / self.servers.occupation(&self.replaced[count]).busiest
    }

    /// Seconds with this number of switches replaced, or all if there are fewer; as PS with none.
    pub(super) fn seconds(&self, fabric: &Fabric<'_>, count: usize, bytes: f64) -> Result<f64> {
        let replaced = &self.replaced[count.min(self.switches())];
        let schedule = self.servers.schedule(fabric, replaced, bytes);
        let outcome = simulate(&schedule, fabric.capacities(), &Options::default(), &mut |_| {})?;
        Ok(outcome.seconds)
    }
}

/// With one server, by number: the switches that leave the least on the busiest link. No others of
/// that number leave less. (They are no order: what is best for one number is not always part of
/// what is best for the next.)
fn best(servers: &Servers<'_>) -> Vec<BTreeSet<usize>> {
    let nodes: Vec<usize> = servers.switches().iter().map(|switch| switch.node).collect();
    let most = servers.occupation(&BTreeSet::new()).busiest as usize;
    let fewest: Vec<_> = (1..=most).map(|limit| fewest(servers, &nodes, limit as f64)).collect();
    let by_number = (0..=nodes.len()).map(|count| {
        let found = fewest.iter().find(|set| set.len() <= count);
        let mut set = found.cloned().unwrap_or_default();
        let further: Vec<_> = nodes.iter().filter(|node| !set.contains(node)).copied().collect();
        set.extend(further.into_iter().take(count - set.len()));
        set
    });
    by_number.collect()
}

/// The fewest switches with which none sends more than `limit` copies towards the server. From the
/// leaves on, a switch that would send more has to aggregate, or some below it have to. It takes
/// the most off by itself, and is one.
fn fewest(servers: &Servers<'_>, nodes: &[usize], limit: f64) -> BTreeSet<usize> {
    let mut chosen = BTreeSet::new();
    for &node in nodes {
        if servers.sent(&chosen)[node] > limit {
            chosen.insert(node);
        }
    }
    chosen
}

/// One after the other whatever switch leaves the least on the busiest link, and of several that
/// which takes most off all links.
fn greedy(servers: &Servers<'_>) -> Vec<usize> {
    let mut left: Vec<usize> = servers.switches().iter().map(|switch| switch.node).collect();
    let mut chosen = BTreeSet::new();
    let mut order = Vec::new();
    // In millionths of a vector: shares of several servers are no whole numbers.
    let whole = |vectors: f64| (vectors * 1e6).round() as u64;
    while !left.is_empty() {
        let with = |&switch: &usize| {
            chosen.insert(switch);
            let Occupation { busiest, all } = servers.occupation(&chosen);
            chosen.remove(&switch);
            (whole(busiest), whole(all))
        };
        let keys: Vec<_> = left.iter().map(with).collect();
        let best = (0..left.len()).min_by_key(|&at| (keys[at], at)).unwrap_or(0);
        let switch = left.remove(best);
        chosen.insert(switch);
        order.push(switch);
    }
    order
}

/// The racks' switches with the most workers first, then the others by the workers below: the order
/// that paper 3 has for Rina (section IV-D).
fn racks_first(servers: &Servers<'_>) -> Vec<usize> {
    let mut switches = servers.switches();
    switches.sort_by_key(|switch| (switch.own == 0, Reverse(switch.own), Reverse(switch.below)));
    switches.into_iter().map(|switch| switch.node).collect()
}

fn one_by_one(order: &[usize]) -> Vec<BTreeSet<usize>> {
    (0..=order.len()).map(|count| order[..count].iter().copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use xdp_agg_topology::Rate;

    use super::*;
    use crate::generate::{Dragonfly, Generated, fat_tree};

    fn small_networks() -> [Generated; 2] {
        let rate = Rate::gbit(25);
        let dragonfly = Dragonfly { a: 3, g: 4, h: 1, p: 2 };
        [fat_tree(4, rate), dragonfly.generate(rate)].map(|made| made.expect("a network"))
    }

    /// By number of replaced switches: vectors on the busiest link.
    fn curve(atp: &Atp<'_>) -> Vec<f64> {
        (0..=atp.switches()).map(|count| 1.0 / atp.throughput(count)).collect()
    }

    #[test]
    fn with_one_server_no_choice_of_switches_is_better() {
        for generated in small_networks() {
            let atp = &Atp::all(&generated.network)[0];
            let nodes: Vec<_> = atp.servers.switches().iter().map(|switch| switch.node).collect();
            let mut least = vec![f64::INFINITY; nodes.len() + 1];
            for choice in 0_u32..1 << nodes.len() {
                let is_chosen = |&(at, _): &(usize, &usize)| choice >> at & 1 == 1;
                let set: BTreeSet<_> =
                    nodes.iter().enumerate().filter(is_chosen).map(|(_, node)| *node).collect();
                let least = &mut least[set.len()];
                *least = least.min(atp.servers.occupation(&set).busiest);
            }
            let curve = curve(atp);
            let near = curve.iter().zip(&least).all(|(ours, least)| (ours - least).abs() < 1e-9);
            assert!(near, "{}: {curve:?}, and {least:?}", generated.topology.name);
        }
    }

    #[test]
    fn each_switch_more_leaves_no_more_on_the_busiest_link_and_in_the_end_one_vector() {
        for generated in small_networks() {
            for atp in Atp::all(&generated.network) {
                let curve = curve(&atp);
                let falls = curve.windows(2).all(|pair| pair[1] <= pair[0] + 1e-9);
                assert!(falls, "{}, {}: {curve:?}", generated.topology.name, atp.name);
                let sets = atp.replaced.iter().enumerate();
                assert!(sets.into_iter().all(|(count, set)| set.len() == count));
            }
            let [one, racks_first, ..] = Atp::all(&generated.network).map(|atp| curve(&atp));
            assert_eq!((one[one.len() - 1], racks_first[one.len() - 1]), (1.0, 1.0));
            assert!(one.iter().zip(&racks_first).all(|(best, other)| best <= other));
            assert!(one != racks_first, "{one:?}");
        }
    }

    #[test]
    fn racks_come_first_and_then_what_has_most_workers_below() {
        let [fat_tree, _] = small_networks();
        let servers = Servers::new(&fat_tree.network, [0]);
        let of = |node: &usize| {
            let switches = servers.switches();
            let switch = switches.into_iter().find(|switch| switch.node == *node);
            switch.map(|switch| (switch.own, switch.below)).expect("it is on the way")
        };
        let order: Vec<_> = racks_first(&servers).iter().map(of).collect();
        let (racks, others) = order.split_at(8);
        // The server's own rack passes on all others' copies.
        assert_eq!((racks[0], racks[1]), ((2, 15), (2, 2)));
        assert!(racks.iter().all(|(own, _)| *own == 2) && others.iter().all(|(own, _)| *own == 0));
        assert!(others.is_sorted_by(|a, b| a.1 >= b.1), "{others:?}");
    }
}
