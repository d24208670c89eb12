//! Claims of paper 2 on networks whose regions are not alike, and about parameter servers.

#[path = "../src/sample.rs"]
mod sample;

use proptest::prelude::*;
use xdp_agg_topology::analysis::{Traffic, least_crossing};
use xdp_agg_topology::flows::Scheme;
use xdp_agg_topology::servers::{printed_slowdown, slowdown};
use xdp_agg_topology::{Host, KnownCosts, Rate, Region, Strategy, Topology};

const BYTES: f64 = 1000.0;

/// Pods of racks of hosts, all narrow: `pods[p][r]` hosts in rack `r` of pod `p`.
fn pods(pods: &[Vec<usize>]) -> Topology {
    let racks: usize = pods.iter().map(Vec::len).sum();
    let hosts: usize = pods.iter().flatten().sum();
    let mut topology = sample::racks(1, hosts, 4.0);
    topology.regions.clear();
    let region = |name: String, parent| Region {
        name,
        parent,
        // Less than any host's link: every region is over-subscribed.
        uplink: Some(Rate::nearest(1e6)),
        aggregator: None,
    };
    topology.regions.extend((0..pods.len()).map(|pod| region(format!("pod{pod}"), None)));
    let mut next = 0;
    for (pod, sizes) in pods.iter().enumerate() {
        for size in sizes {
            let rack = topology.regions.len();
            topology.regions.push(region(format!("rack{rack}"), Some(pod)));
            for host in &mut topology.hosts[next..next + size] {
                host.region = Some(rack);
            }
            next += size;
        }
    }
    assert_eq!((next, topology.regions.len()), (hosts, pods.len() + racks));
    topology
}

fn crossing(topology: &Topology, strategy: Strategy) -> f64 {
    let scheme = Scheme::of(topology, strategy).expect("there are daemons");
    Traffic::of(topology, &scheme, BYTES).crossing
}

proptest! {
    /// Pods of unlike numbers of racks of unlike sizes: RAT sends the least across regions that
    /// any tree can (paper 2, section 3.3). A worker alone in its rack sends its own copy.
    #[test]
    fn rat_sends_the_least_out_of_regions_that_are_not_alike(
        sizes in prop::collection::vec(prop::collection::vec(1_usize..6, 1..5), 1..4)
    ) {
        let topology = pods(&sizes);
        prop_assume!(topology.hosts.len() > 1);
        let least = least_crossing(&topology, BYTES);
        let rat = crossing(&topology, Strategy::Rat);
        prop_assert!((rat - least).abs() < 1e-6, "{rat} and {least}");
    }

    /// What over-subscription costs parameter servers is the ratio of the fullest uplink's time to
    /// the fullest host's link's (section 2.1).
    #[test]
    fn servers_are_slowed_down_by_what_leaves_their_racks(
        racks in 2_usize..6, hosts in 2_usize..6, o in 1_u32..33
    ) {
        let topology = sample::racks(racks, hosts, f64::from(o));
        let flat = sample::racks(racks, hosts, 1.0);
        let seconds = |topology: &Topology| {
            let scheme = Scheme::of(topology, Strategy::Ps).expect("servers need no daemons");
            Traffic::of(topology, &scheme, BYTES).seconds
        };
        let ratio = seconds(&topology) / seconds(&flat);
        let expected = slowdown(f64::from(o), racks * hosts, racks);
        prop_assert!((ratio / expected - 1.0).abs() < 1e-6, "{ratio} and {expected}");
        // The paper's is larger by the square of its fraction, wherever uplinks are the slower
        // ones.
        let printed = printed_slowdown(f64::from(o), racks * hosts, racks);
        let fraction = printed / f64::from(o);
        prop_assume!(expected > 1.0);
        prop_assert!((printed / expected - fraction * fraction).abs() < 1e-6);
    }

    /// Where servers stand in a rack does not matter to the uplinks (section 2.1): one server a
    /// rack, on any of its hosts.
    #[test]
    fn servers_may_stand_anywhere_in_a_rack(
        racks in 2_usize..5, hosts in 2_usize..6, places in prop::collection::vec(0_usize..6, 5)
    ) {
        let uplinks = |place: &dyn Fn(usize) -> usize| -> Vec<(f64, f64)> {
            let mut topology = sample::racks(racks, hosts, 4.0);
            for (index, host) in topology.hosts.iter_mut().enumerate() {
                // A daemon that sums alone for all workers is a server, as far as bytes go.
                if index % hosts != place(index / hosts) {
                    host.daemon = None;
                }
            }
            let scheme = Scheme::of(&topology, Strategy::Colocated).expect("there are daemons");
            let cables = Traffic::of(&topology, &scheme, BYTES).cables;
            cables[..racks].iter().map(|cable| (cable.up, cable.down)).collect()
        };
        let drawn = uplinks(&|rack| places[rack] % hosts);
        let first = uplinks(&|_| 0);
        prop_assert_eq!(&drawn, &first);
        let outside = (racks - 1) as f64 / racks as f64 * BYTES;
        let expected = outside * 2.0 * hosts as f64;
        prop_assert!((first[0].0 - expected).abs() < 1e-6, "{:?} and {}", first, expected);
    }
}
