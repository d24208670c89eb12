//! Every plan is a valid one, whatever the network, and RAT's is the least traffic.

#[path = "../src/sample.rs"]
mod sample;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::prelude::*;
use xdp_agg_topology::analysis::{Traffic, demands, least_crossing, shortfall, table1};
use xdp_agg_topology::flows::Scheme;
use xdp_agg_topology::graph::Network;
use xdp_agg_topology::model::equip;
use xdp_agg_topology::{
    Forest, Host, KnownCosts, PlanError, Rate, Region, Site, Strategy, Topology,
};

const FORESTS: [Strategy; 5] =
    [Strategy::Colocated, Strategy::Rat, Strategy::Rina, Strategy::Passing, Strategy::Atp];

/// What is drawn for a region: its parent, whether it is narrow, whether it has an aggregator.
type DrawnRegion = (usize, bool, bool);
/// What is drawn for a host: its region, whether it has a daemon.
type DrawnHost = (usize, bool);

fn network(regions: &[DrawnRegion], hosts: &[DrawnHost]) -> Topology {
    let mut topology = Topology {
        name: "drawn".into(),
        strategy: Strategy::Auto,
        regions: Vec::new(),
        hosts: Vec::new(),
        measured: None,
        costs: KnownCosts::default(),
    };
    for (index, &(parent, narrow, equipped)) in regions.iter().enumerate() {
        topology.regions.push(Region {
            name: format!("r{index}"),
            // One more than there are: the core.
            parent: Some(parent % (index + 1)).filter(|parent| *parent < index),
            uplink: narrow.then_some(Rate::nearest(1e6)),
            aggregator: None,
        });
        if equipped {
            equip(&mut topology, index);
        }
    }
    for (index, &(region, daemon)) in hosts.iter().enumerate() {
        let rank = u16::try_from(index).expect("a few hosts");
        let address = Ipv4Addr::new(10, 0, 1, u8::try_from(index).expect("a few hosts"));
        topology.hosts.push(Host {
            name: format!("h{index}"),
            rank,
            address,
            region: Some(region % (regions.len() + 1)).filter(|region| *region < regions.len()),
            rate: Rate::gbit(10),
            daemon: daemon.then_some(SocketAddrV4::new(address, 9870)),
            slots: None,
            interface: None,
        });
    }
    topology
}

/// What must hold of every plan.
fn check(topology: &Topology, forest: &Forest) -> Result<(), TestCaseError> {
    let all: Vec<_> = topology.hosts.iter().map(|host| host.rank).collect();
    prop_assert!(!forest.trees.is_empty());
    for tree in &forest.trees {
        prop_assert_eq!(tree.nodes[0].parent, None);
        for (index, node) in tree.nodes.iter().enumerate().skip(1) {
            prop_assert!(node.parent.is_some_and(|parent| parent < index), "parents come first");
        }
        prop_assert_eq!(tree.ranks_below(0), all.clone(), "every rank exactly once");
        prop_assert!(tree.nodes.iter().all(|node| node.ranks.is_sorted()));
        prop_assert!(tree.nodes[0].spares.is_empty(), "a root leads the job");
        for node in &tree.nodes {
            let spares: BTreeSet<_> = node.spares.iter().collect();
            prop_assert_eq!(spares.len(), node.spares.len(), "each once");
            let region = match node.site {
                Site::Region(region) => Some(region),
                Site::Host(host) => topology.hosts[host].region,
            };
            for spare in &node.spares {
                let Site::Host(host) = *spare else { panic!("{spare:?} is no host") };
                let beside = region.is_some_and(|region| topology.is_within(host, region));
                prop_assert!(beside, "{spare:?} is of another rack than {:?}", node.site);
                prop_assert!(topology.hosts[host].daemon.is_some());
                prop_assert!(
                    tree.nodes.iter().all(|other| other.site != *spare),
                    "it sums already"
                );
            }
        }
        let sites: BTreeSet<_> = tree.nodes.iter().map(|node| node.site).collect();
        prop_assert_eq!(sites.len(), tree.nodes.len(), "a site at most once in a tree");
        for site in sites {
            prop_assert!(topology.control_of(site).is_some(), "{site:?} aggregates");
        }
    }
    Ok(())
}

fn regions() -> impl proptest::strategy::Strategy<Value = Vec<DrawnRegion>> {
    prop::collection::vec((0_usize..8, any::<bool>(), any::<bool>()), 0..8)
}

fn hosts() -> impl proptest::strategy::Strategy<Value = Vec<DrawnHost>> {
    prop::collection::vec((0_usize..9, prop::bool::weighted(0.8)), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_plan_is_valid(regions in regions(), hosts in hosts()) {
        let topology = network(&regions, &hosts);
        for strategy in FORESTS {
            match Forest::plan(&topology, strategy) {
                Ok(forest) => {
                    check(&topology, &forest)?;
                    let again = Forest::plan(&topology, strategy);
                    prop_assert_eq!(again, Ok(forest), "the same again");
                }
                Err(error) => prop_assert_eq!(error, PlanError::NoAggregator(strategy)),
            }
        }
        for other in [Strategy::Ring, Strategy::HAr, Strategy::Ps] {
            prop_assert_eq!(Forest::plan(&topology, other), Err(PlanError::NoTrees(other)));
            prop_assert!(Scheme::of(&topology, other).is_ok());
        }
    }

    /// No scheme sends less across regions than the least, and rat sends just that.
    #[test]
    fn rat_sends_the_least_across_regions(
        racks in 1_usize..6, hosts in 2_usize..6, pods in 1_usize..4
    ) {
        let topology = pods_of_racks(pods, racks, hosts);
        let least = least_crossing(&topology, 1000.0);
        let narrow = topology.oversubscribed();
        let nodes = 2.0 * 1000.0 * ((pods * racks - 1) as f64 + (pods as f64 - 1.0));
        prop_assert!((least - nodes).abs() < 1e-6, "a tree over racks, and one over pods");
        for row in table1(&topology, 1000.0) {
            prop_assert!(row.crossing >= least - 1e-6, "{row:?}");
            prop_assert!(row.scheme != "rat" || row.is_least(), "{row:?}");
        }
        let scheme = Scheme::of(&topology, Strategy::Rat).expect("there are daemons");
        let traffic = Traffic::of(&topology, &scheme, 1000.0);
        let levels = usize::from(narrow.first() == Some(&true)) + 1;
        prop_assert!(traffic.chain <= 2 * (levels + 1), "2(l+1)");
    }

    /// Racks of the same size: every host's link carries the same, in both directions.
    #[test]
    fn rat_loads_all_hosts_alike(racks in 1_usize..7, hosts in 2_usize..7) {
        let topology = sample::racks(racks, hosts, 4.0);
        let forest = Forest::plan(&topology, Strategy::Rat).expect("there are daemons");
        let trees: BTreeSet<_> =
            demands(&topology, &forest, 1).into_iter().map(|demand| demand.trees).collect();
        // Root of one tree, and once for each other rack.
        prop_assert_eq!(trees, BTreeSet::from([racks]));
        let scheme = Scheme::Forest(forest);
        let traffic = Traffic::of(&topology, &scheme, 1000.0);
        let world = (racks * hosts) as f64;
        for cable in &traffic.cables[racks..] {
            let bound = 2.0 * (world - 1.0) / world * 1000.0;
            prop_assert!((cable.up - bound).abs() < 1e-6 && (cable.down - bound).abs() < 1e-6);
        }
    }
}

/// Pods of racks of hosts, everything over-subscribed.
fn pods_of_racks(pods: usize, racks: usize, hosts: usize) -> Topology {
    // The parent `index` of region `index` stands for the core.
    let mut regions: Vec<DrawnRegion> = (0..pods).map(|index| (index, true, false)).collect();
    let mut drawn = Vec::new();
    for pod in 0..pods {
        for _ in 0..racks {
            let region = regions.len();
            regions.push((pod, true, false));
            drawn.extend(std::iter::repeat_n((region, true), hosts));
        }
    }
    network(&regions, &drawn)
}

fn two_racks() -> Topology {
    sample::racks(2, 4, 4.0)
}

fn sites(forest: &Forest, tree: usize) -> Vec<Site> {
    forest.trees[tree].nodes.iter().map(|node| node.site).collect()
}

#[test]
fn rat_is_the_papers_figure_5() {
    let forest = Forest::plan(&two_racks(), Strategy::Rat).expect("there are daemons");
    assert_eq!(forest.trees.len(), 8, "one rooted at each worker");
    for host in 0..8 {
        // The other rack is aggregated by the host that corresponds.
        assert_eq!(sites(&forest, host), [Site::Host(host), Site::Host((host + 4) % 8)]);
    }
    assert_eq!(forest.trees[0].nodes[0].ranks, [0, 1, 2, 3]);
    assert_eq!(forest.trees[0].nodes[1].ranks, [4, 5, 6, 7]);
}

#[test]
fn rat_uses_the_aggregators_of_regions() {
    let mut topology = two_racks();
    equip(&mut topology, 0);
    equip(&mut topology, 1);
    let forest = Forest::plan(&topology, Strategy::Rat).expect("there are aggregators");
    assert_eq!(forest.trees.len(), 2, "one rooted at each");
    assert_eq!(sites(&forest, 0), [Site::Region(0), Site::Region(1)]);
    assert_eq!(sites(&forest, 1), [Site::Region(1), Site::Region(0)]);
    let traffic = Traffic::of(&topology, &Scheme::Forest(forest), 1000.0);
    assert!(traffic.cables.iter().all(|cable| (cable.up, cable.down) == (1000.0, 1000.0)));
}

#[test]
fn rina_has_a_path_of_groups_for_each_group() {
    let mut topology = two_racks();
    equip(&mut topology, 0);
    let forest = Forest::plan(&topology, Strategy::Rina).expect("there are aggregators");
    // Rack 0 is abstracted, and the four workers of rack 1 are autonomous.
    assert_eq!(forest.trees.len(), 5);
    let ring = [Site::Region(0), Site::Host(4), Site::Host(5), Site::Host(6), Site::Host(7)];
    for first in 0..5 {
        // Sums start at group `first`; the root is the one before it.
        let path: Vec<_> = (1..=5).map(|step| ring[(first + 5 - step) % 5]).collect();
        assert_eq!(sites(&forest, first), path);
        let parents: Vec<_> = forest.trees[first].nodes.iter().map(|node| node.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(3)]);
    }
    assert_eq!(forest.trees[0].nodes[4].ranks, [0, 1, 2, 3]);
}

#[test]
fn atp_takes_one_sum_from_equipped_racks_and_all_from_others() {
    let mut topology = two_racks();
    let tree = |topology: &Topology, host: usize| {
        let forest = Forest::plan(topology, Strategy::Atp).expect("all hosts have daemons");
        assert_eq!(forest.trees.len(), 8, "a server on each host");
        forest.trees[host].clone()
    };
    assert_eq!(tree(&topology, 3).nodes[0].ranks, (0..8).collect::<Vec<_>>());
    equip(&mut topology, 0);
    let half = tree(&topology, 3);
    assert_eq!(half.nodes[0].site, Site::Host(3));
    assert_eq!(half.nodes[0].ranks, [4, 5, 6, 7]);
    assert_eq!((half.nodes[1].site, half.nodes[1].parent), (Site::Region(0), Some(0)));
    assert_eq!(half.nodes[1].ranks, [0, 1, 2, 3], "the server's own worker, too");
    equip(&mut topology, 1);
    let full = tree(&topology, 3);
    assert_eq!(full.nodes[0].ranks, [0_u16; 0]);
    assert_eq!(full.nodes.len(), 3);
}

#[test]
fn a_worker_of_rina_without_daemon_joins_a_neighbour() {
    let mut topology = two_racks();
    equip(&mut topology, 0);
    topology.hosts[5].daemon = None;
    let forest = Forest::plan(&topology, Strategy::Rina).expect("there are aggregators");
    let groups: Vec<_> =
        forest.trees[0].nodes.iter().rev().map(|node| node.ranks.clone()).collect();
    assert_eq!(groups, [vec![0, 1, 2, 3], vec![4, 5], vec![6], vec![7]]);
}

#[test]
fn hosts_of_its_rack_stand_in_for_an_agent() {
    let mut topology = sample::racks(3, 4, 4.0);
    for rack in 0..3 {
        equip(&mut topology, rack);
    }
    topology.hosts[6].daemon = None;
    for strategy in [Strategy::Rat, Strategy::Rina] {
        let forest = Forest::plan(&topology, strategy).expect("there are aggregators");
        let spares = |tree: usize, rack: usize| {
            let mut nodes = forest.trees[tree].nodes.iter();
            let node = nodes.find(|node| node.site == Site::Region(rack));
            node.expect("each rack has a node").spares.clone()
        };
        let hosts = |hosts: [usize; 3]| hosts.map(Site::Host);
        // The trees begin with different hosts.
        let begin: BTreeSet<_> =
            (0..3).filter_map(|tree| spares(tree, 0).first().copied()).collect();
        assert_eq!(begin.len(), 2, "{strategy}: as many as trees that rack 0 is not the root of");
        // Rack 1 has three hosts with daemons.
        let own = (0..3).map(|tree| spares(tree, 1)).find(|spares| !spares.is_empty());
        let mut own = own.expect("it is no root of some tree");
        own.sort_unstable();
        assert_eq!(own, hosts([4, 5, 7]), "{strategy}");
    }
    // A host's own daemon is replaced by its neighbours'; an autonomous worker's is not.
    let topology = two_racks();
    let rat = Forest::plan(&topology, Strategy::Rat).expect("there are daemons");
    assert_eq!(rat.trees[1].nodes[1].site, Site::Host(5));
    assert_eq!(rat.trees[1].nodes[1].spares, [6, 7, 4].map(Site::Host));
    let rina = Forest::plan(&topology, Strategy::Rina).expect("there are daemons");
    assert!(rina.trees.iter().flat_map(|tree| &tree.nodes).all(|node| node.spares.is_empty()));
}

/// A rack in which nothing aggregates is part of the group before it in the ring: m copies leave
/// it, and the others' paths are as they were.
#[test]
fn a_rack_without_daemon_joins_the_group_before_it() {
    let mut topology = sample::racks(3, 4, 4.0);
    for rack in [0, 2] {
        equip(&mut topology, rack);
    }
    for host in 4..8 {
        topology.hosts[host].daemon = None;
    }
    let forest = Forest::plan(&topology, Strategy::Rina).expect("there are aggregators");
    assert_eq!(forest.trees.len(), 2);
    for (tree, path) in [[2, 0], [0, 2]].into_iter().enumerate() {
        assert_eq!(sites(&forest, tree), path.map(Site::Region));
        let nodes = &forest.trees[tree].nodes;
        let group = nodes.iter().find(|node| node.site == Site::Region(0));
        assert_eq!(group.expect("rack 0 is a group").ranks, (0..8).collect::<Vec<_>>());
    }
    let bare = topology.bare_racks(Strategy::Rina);
    assert_eq!(
        bare.iter().map(|bare| (&*bare.region, bare.workers)).collect::<Vec<_>>(),
        [("rack1", 4)]
    );
    let up = |topology: &Topology| {
        let scheme = Scheme::of(topology, Strategy::Rina).expect("there are aggregators");
        Traffic::of(topology, &scheme, 1000.0).cables[1].up
    };
    assert!((up(&topology) - 4000.0).abs() < 1e-6, "a copy a worker");
    // With one daemon on one host of it, a sum goes up and a result goes on: 2(G-1)/G, G = 3.
    topology.hosts[5].daemon = Some(SocketAddrV4::new(topology.hosts[5].address, 9870));
    assert!((up(&topology) - 4000.0 / 3.0).abs() < 1e-6, "{}", up(&topology));
    assert!(topology.bare_racks(Strategy::Rina).is_empty());
    // The first rack's group before it is the last one's.
    let mut first = sample::racks(3, 2, 4.0);
    equip(&mut first, 1);
    equip(&mut first, 2);
    first.hosts[0].daemon = None;
    first.hosts[1].daemon = None;
    let forest = Forest::plan(&first, Strategy::Rina).expect("there are aggregators");
    let node = forest.trees[0].nodes.iter().find(|node| node.site == Site::Region(2));
    assert_eq!(node.expect("rack 2 is a group").ranks, [0, 1, 4, 5]);
}

#[test]
fn a_rack_of_rat_without_aggregator_is_aggregated_by_its_hosts() {
    let mut topology = two_racks();
    equip(&mut topology, 0);
    let forest = Forest::plan(&topology, Strategy::Rat).expect("there are aggregators");
    assert_eq!(forest.trees.len(), 8, "as many as workers, though four have the same root");
    for tree in 0..4 {
        assert_eq!(sites(&forest, tree), [Site::Region(0), Site::Host(4 + tree)]);
        assert_eq!(sites(&forest, 4 + tree), [Site::Host(4 + tree), Site::Region(0)]);
    }
}

#[test]
fn a_rack_with_one_worker_is_part_of_what_is_around_it() {
    let mut topology = two_racks();
    equip(&mut topology, 0);
    topology.hosts.drain(1..4);
    for (rank, host) in (0..).zip(&mut topology.hosts) {
        host.rank = rank;
    }
    for strategy in [Strategy::Rat, Strategy::Rina] {
        let forest = Forest::plan(&topology, strategy).expect("there are daemons");
        assert_eq!(forest.trees.len(), 5, "{strategy}: rank 0 counts for itself");
        let used = forest.trees.iter().flat_map(|tree| &tree.nodes);
        assert!(used.into_iter().all(|node| node.site != Site::Region(0)), "{strategy}");
    }
}

#[test]
fn a_tree_knows_who_is_below() {
    let forest = Forest::plan(&pods_of_racks(2, 2, 2), Strategy::Rat).expect("there are daemons");
    let tree = &forest.trees[0];
    assert_eq!(tree.ranks_below(0), (0..8).collect::<Vec<_>>());
    assert_eq!(tree.depth(), 3);
    let pod = tree.children(0).find(|&child| tree.ranks_below(child).len() == 4);
    let pod = pod.expect("the other pod has one aggregator");
    assert_eq!(tree.ranks_below(pod), [4, 5, 6, 7]);
    assert_eq!(tree.node_of(4), Some(pod));
    assert_eq!(tree.node_of(8), None);
}

#[test]
fn four_thousand_workers_are_planned_in_a_moment() {
    let topology = sample::racks(64, 64, 4.0);
    let forest = Forest::plan(&topology, Strategy::Rat).expect("there are daemons");
    assert_eq!(forest.trees.len(), 4096);
    assert!(forest.trees.iter().all(|tree| tree.nodes.len() == 64));
    let ring = Scheme::of(&topology, Strategy::Ring).expect("a ring needs nothing");
    let seconds = Traffic::of(&topology, &ring, 97e6).seconds;
    assert!((seconds / (2.0 * 4095.0 / 4096.0 * 97e6 / 1.25e9) - 1.0).abs() < 1e-6);
    assert_eq!(Network::of(&topology).hosts().len(), 4096);
}

#[test]
fn slots_and_jobs_that_are_missing_are_counted() {
    let mut topology = two_racks();
    topology.hosts[3].slots = Some(1500);
    let forest = Forest::plan(&topology, Strategy::Rat).expect("there are daemons");
    let missing: Vec<_> = demands(&topology, &forest, 1024)
        .into_iter()
        .filter(|demand| demand.missing() > 0)
        .map(|demand| (demand.name.clone(), demand.slots, demand.missing()))
        .collect();
    assert_eq!(missing, [("h3".to_owned(), 2048, 548)]);
    let said = shortfall(&demands(&topology, &forest, 1024), 1024, "XDP_AGG_JOB_SLOTS");
    let said = said.expect("548 are missing");
    assert!(
        said.contains("with 1024 slots a tree; h3: 548 slots are missing of 2048. G"),
        "{said}"
    );
    assert!(
        said.contains("each tree fewer (XDP_AGG_JOB_SLOTS)") && !said.contains("jobs"),
        "{said}"
    );
    assert_eq!(shortfall(&demands(&topology, &forest, 16), 16, "--slots"), None);
    let topology = sample::racks(1, 52, 1.0);
    let forest = Forest::plan(&topology, Strategy::Rina).expect("there are daemons");
    let demands = demands(&topology, &forest, 1);
    assert!(demands.iter().all(|demand| demand.jobs_missing() == 4));
    let said = shortfall(&demands[..1], 1, "--slots").expect("52 jobs");
    assert!(
        said.contains("; h0: 52 jobs are needed, a daemon holds 48. Slots do not help"),
        "{said}"
    );
    assert!(!said.contains("missing") && !said.contains("--slots"), "{said}");
}
