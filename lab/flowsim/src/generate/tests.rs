use std::collections::HashSet;

use xdp_agg_topology::incremental::{rina, server};
use xdp_agg_topology::occupation::{Occupation, StepCosts};

use super::*;

/// Every host reaches every other one, and each route is a chain of links.
fn routes_lead_there(Generated { network, topology }: &Generated, longest: usize) {
    assert_eq!(network.hosts().len(), topology.hosts.len());
    let mut seen = 0;
    for (a, &from) in network.hosts().iter().enumerate() {
        for (b, &to) in network.hosts().iter().enumerate() {
            let mut at = from;
            let mut hops = 0;
            network.route(from, to, (a * 31 + b) as u64, |link| {
                let link = network.links()[link];
                assert_eq!(link.from, at);
                at = link.to;
                hops += 1;
            });
            assert_eq!(at, to, "{a} to {b}");
            assert_eq!(hops == 0, a == b);
            seen = seen.max(hops);
        }
    }
    assert_eq!(seen, longest);
}

#[test]
fn a_fat_tree_has_its_sizes() {
    let made = fat_tree(4, Rate::gbit(10)).expect("k is even");
    assert_eq!(made.topology.world(), 16);
    let switches = made.network.nodes().iter().filter(|kind| **kind == NodeKind::Switch);
    assert_eq!(switches.count(), 20);
    assert_eq!(made.topology.regions.len(), 4 + 8);
    assert_eq!(made.network.links().len(), 2 * (16 + 16 + 16));
    routes_lead_there(&made, 6);
    assert!(made.topology.oversubscribed().iter().all(|over| !over));
    assert_eq!(fat_tree(8, Rate::gbit(10)).expect("k is even").topology.world(), 128);
}

#[test]
fn flows_spread_over_the_core_and_keep_their_route() {
    let made = fat_tree(4, Rate::gbit(10)).expect("k is even");
    let route = |flow| {
        let mut links = Vec::new();
        made.network.route(made.network.hosts()[0], made.network.hosts()[15], flow, |link| {
            links.push(link);
        });
        links
    };
    assert_eq!(route(7), route(7));
    let routes: HashSet<_> = (0..64).map(route).collect();
    assert_eq!(routes.len(), 4, "one through each core switch");
}

#[test]
fn a_dragonfly_takes_one_cable_between_groups() {
    let made = Dragonfly { a: 4, g: 9, h: 2, p: 2 }.generate(Rate::gbit(10)).expect("72 hosts");
    assert_eq!(made.topology.world(), 72);
    // 9 groups of 6 local cables, 36 between groups, 72 to hosts.
    assert_eq!(made.network.links().len(), 2 * (54 + 36 + 72));
    routes_lead_there(&made, 5);
    let group = |node: usize| {
        let near = made.network.links().iter().find(|link| {
            link.from == node && matches!(made.network.nodes()[link.to], NodeKind::Host(_))
        });
        let Some(NodeKind::Host(host)) = near.map(|link| made.network.nodes()[link.to]) else {
            panic!("every switch has hosts");
        };
        host / 8
    };
    for (a, &from) in made.network.hosts().iter().enumerate() {
        for (b, &to) in made.network.hosts().iter().enumerate() {
            let mut global = 0;
            made.network.route(from, to, 0, |link| {
                let link = made.network.links()[link];
                let switches =
                    [link.from, link.to].map(|node| made.network.nodes()[node] == NodeKind::Switch);
                if switches == [true; 2] && group(link.from) != group(link.to) {
                    global += 1;
                }
            });
            assert_eq!(global, usize::from(a / 8 != b / 8), "{a} to {b}");
        }
    }
    // No switch has more than h of them.
    let mut ports = vec![0; made.network.nodes().len()];
    for link in made.network.links().iter().filter(|link| link.cost > 1) {
        ports[link.from] += 1;
    }
    assert_eq!(ports.into_iter().max(), Some(2));
}

#[test]
fn spine_and_leaf_are_oversubscribed_as_asked() {
    for ratio in [2.0, 8.0, 32.0] {
        let plan = SpineLeaf::oversubscribed((2, 4, 64), Rate::gbit(10), ratio);
        let made = plan.generate().expect("256 hosts");
        let below = made.topology.host_capacity()[0] as f64;
        let uplink = made.topology.regions[0].uplink.expect("it has one").bits() as f64;
        assert!((below / uplink - ratio).abs() < 1e-6);
        assert!(made.topology.oversubscribed().iter().all(|over| *over));
    }
    let plan = SpineLeaf::oversubscribed((2, 4, 4), Rate::gbit(10), 4.0);
    routes_lead_there(&plan.generate().expect("16 hosts"), 4);
    let plan = SpineLeaf::oversubscribed((16, 64, 64), Rate::gbit(10), 4.0);
    assert_eq!(plan.generate().expect("4096 hosts").topology.world(), 4096);
}

#[test]
fn impossible_sizes_are_refused() {
    let rate = Rate::gbit(1);
    assert!(fat_tree(3, rate).is_err_and(|error| error.to_string().contains("k = 3")));
    assert!(fat_tree(0, rate).is_err());
    assert_eq!(fat_tree(1000, rate).err(), Some(GenerateError::World(250_000_000)));
    assert!(Dragonfly { a: 4, g: 10, h: 2, p: 2 }.generate(rate).is_err());
    assert!(Dragonfly { a: 0, g: 2, h: 1, p: 1 }.generate(rate).is_err());
    assert!(SpineLeaf::oversubscribed((0, 2, 2), rate, 2.0).generate().is_err());
    assert!(SpineLeaf::oversubscribed((1, 1, 20_000), rate, 2.0).generate().is_err());
}

#[test]
fn addresses_differ() {
    let mut made = fat_tree(8, Rate::gbit(1)).expect("k is even");
    for region in 0..made.topology.regions.len() {
        made.equip(region);
    }
    let hosts = made.topology.hosts.iter().filter_map(|host| host.daemon);
    let regions = made.topology.regions.iter().filter_map(|region| region.aggregator.as_ref());
    let all: Vec<_> = hosts.chain(regions.map(|aggregator| aggregator.control)).collect();
    assert_eq!(all.len(), 128 + 40);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
}

#[test]
fn each_rack_gains_with_rina_but_not_before_a_server() {
    let made = fat_tree(4, Rate::gbit(10)).expect("k is even");
    let rina = rina(&made.topology, 98e6, StepCosts { overhead: 1e-3, sigma: 1e-4 });
    let groups: Vec<_> = rina.iter().map(|upgrade| upgrade.count).collect();
    assert_eq!(groups[..9], [16, 15, 14, 13, 12, 11, 10, 9, 8]);
    assert!(rina.windows(2).all(|pair| pair[1].gain > pair[0].gain), "every step gains");
    let server = server(&made.topology, 98e6, StepCosts { overhead: 1e-3, sigma: 1e-4 });
    // The server's own rack, its pod, the core, and so on: 15 copies reach the server.
    assert_eq!(server.first().map(|upgrade| upgrade.count), Some(15));
    // The core switch is in none of the regions, but it only passes on what is summed.
    assert_eq!(server.last().map(|upgrade| upgrade.count), Some(3));
    assert!(server.windows(2).any(|pair| pair[1].gain < pair[0].gain * 1.001), "a plateau");
}

#[test]
fn on_a_fat_tree_all_switches_of_the_tree_are_needed() {
    let made = fat_tree(4, Rate::gbit(10)).expect("k is even");
    let none = Occupation::on_graph(&made.network, 0, |_| false);
    let workers: usize = none.switches.iter().map(|switch| switch.workers).sum();
    assert_eq!(workers, 15, "all but the server's own");
    assert!((none.throughput() - 1e10 / 15.0).abs() < 1.0);
    let all = Occupation::on_graph(&made.network, 0, |_| true);
    assert!((all.throughput() - 1e10).abs() < 1.0);
    assert!(none.switches.iter().enumerate().all(|(i, s)| s.parent.is_none_or(|p| p < i)));
}
