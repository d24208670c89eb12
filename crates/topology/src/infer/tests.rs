use proptest::prelude::*;

use super::*;
use crate::graph::Network;
use crate::sample::racks as spine_leaf;

/// What a probe would see: the max-min fair rates of all pairs at the same time.
fn probe(topology: &Topology) -> Measured {
    let network = Network::of(topology);
    let count = topology.hosts.len();
    let mut open: Vec<(usize, usize, Vec<usize>)> = Vec::new();
    for i in 0..count {
        for j in (0..count).filter(|j| *j != i) {
            let mut links = Vec::new();
            network.route(network.hosts()[i], network.hosts()[j], 0, |link| links.push(link));
            open.push((i, j, links));
        }
    }
    let mut left: Vec<_> =
        network.links().iter().map(|link| link.capacity.bits() as f64 / 1e6).collect();
    let mut mbit = vec![vec![0.0; count]; count];
    while !open.is_empty() {
        let mut users = vec![0; left.len()];
        open.iter().flat_map(|(.., links)| links).for_each(|&link| users[link] += 1);
        let full = |link: &usize| left[*link] / f64::from(users[*link]);
        let used = (0..left.len()).filter(|link| users[*link] > 0);
        let tight = used.min_by(|a, b| full(a).total_cmp(&full(b))).expect("flows are open");
        let share = full(&tight);
        let (done, rest) = open.into_iter().partition(|(.., links)| links.contains(&tight));
        open = rest;
        for (i, j, links) in done {
            mbit[i][j] = share;
            links.iter().for_each(|&link| left[link] = (left[link] - share).max(0.0));
        }
    }
    Measured { hosts: topology.hosts.iter().map(|host| host.name.clone()).collect(), mbit }
}

#[test]
fn racks_and_their_uplinks_are_found() {
    for (racks, hosts, ratio) in [(2, 4, 4.0), (4, 4, 2.0), (2, 2, 4.0), (3, 5, 8.0), (8, 8, 32.0)]
    {
        let topology = spine_leaf(racks, hosts, ratio);
        let found = infer(&probe(&topology));
        assert_eq!(found.regions.len(), racks, "{racks} x {hosts}, {ratio}:1: {found:?}");
        for (index, region) in found.regions.iter().enumerate() {
            assert_eq!(region.parent, None);
            assert!(region.hosts.iter().all(|host| topology.hosts[*host].region == Some(index)));
            assert_eq!(region.hosts.len(), hosts);
            let uplink = topology.regions[index].uplink.expect("given").bits() as f64 / 1e6;
            assert!((region.uplink_mbit / uplink - 1.0).abs() < 0.01, "{}", region.uplink_mbit);
        }
        assert!(found.host_mbit.iter().all(|rate| (rate / 1e4 - 1.0).abs() < 0.01));
    }
}

#[test]
fn a_network_without_narrow_uplinks_has_no_regions() {
    assert!(infer(&probe(&spine_leaf(2, 4, 1.0))).regions.is_empty());
    assert!(infer(&probe(&spine_leaf(1, 8, 1.0))).regions.is_empty());
    let none = Measured { hosts: Vec::new(), mbit: Vec::new() };
    assert_eq!(infer(&none), Inferred::default());
    let short = Measured { hosts: vec!["a".into(), "b".into()], mbit: vec![vec![0.0]] };
    assert!(infer(&short).regions.is_empty());
}

#[test]
fn racks_within_pods_are_found() {
    let mut topology = spine_leaf(4, 4, 4.0);
    let pod = |name: &str, uplink| Region {
        name: name.into(),
        parent: None,
        uplink: Some(uplink),
        aggregator: None,
    };
    for (index, region) in topology.regions.iter_mut().enumerate() {
        region.parent = Some(index / 2);
    }
    topology.regions.insert(0, pod("left", Rate::gbit(4)));
    topology.regions.insert(1, pod("right", Rate::gbit(4)));
    for host in &mut topology.hosts {
        host.region = host.region.map(|region| region + 2);
    }
    let found = infer(&probe(&topology));
    let shape: Vec<_> =
        found.regions.iter().map(|region| (region.parent, region.hosts.len())).collect();
    let rack = |pod| (Some(pod), 4);
    assert_eq!(shape, [(None, 0), rack(0), rack(0), (None, 0), rack(3), rack(3)]);
    assert!((found.regions[0].uplink_mbit / 4e3 - 1.0).abs() < 0.01);
}

#[test]
fn a_measured_file_gets_regions_and_one_with_regions_keeps_them() {
    let given = spine_leaf(2, 4, 4.0);
    let measured = Some(probe(&given));
    let mut flat = Topology { measured, ..given.clone() };
    assert_eq!(flat.clone().inferred(), flat, "it names its regions");
    flat.regions.clear();
    flat.hosts.iter_mut().for_each(|host| host.region = None);
    let inferred = flat.inferred();
    let regions: Vec<_> = inferred.hosts.iter().map(|host| host.region).collect();
    assert_eq!(regions, given.hosts.iter().map(|host| host.region).collect::<Vec<_>>());
    assert_eq!(inferred.regions[1].name, "measured1");
    assert_eq!(inferred.oversubscribed(), [true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// TCP does not share evenly, and a probe measures for a short time.
    #[test]
    fn rates_may_be_off_by_a_tenth(
        racks in 2_usize..5, hosts in 3_usize..6, noise in prop::collection::vec(0.9_f64..1.1, 625)
    ) {
        let topology = spine_leaf(racks, hosts, 4.0);
        let mut measured = probe(&topology);
        let rates = measured.mbit.iter_mut().flatten();
        rates.zip(&noise).for_each(|(rate, noise)| *rate *= noise);
        let found = infer(&measured);
        prop_assert_eq!(found.regions.len(), racks);
        for (index, region) in found.regions.iter().enumerate() {
            let inside = |host: &usize| topology.hosts[*host].region == Some(index);
            prop_assert!(region.hosts.iter().all(inside));
        }
    }
}
