//! Strategies against closed forms and against the planner's own count of bytes.

use xdp_agg_flowsim::engine::{Options, Pauses};
use xdp_agg_flowsim::fabric::{Costs, Fabric, Framing};
use xdp_agg_flowsim::generate::{Dragonfly, Generated, SpineLeaf, fat_tree};
use xdp_agg_flowsim::predict::{Question, predict};
use xdp_agg_flowsim::strategy::{Coupling, Job, Servers, Way, schedule};
use xdp_agg_topology::analysis::Traffic;
use xdp_agg_topology::flows::Scheme;
use xdp_agg_topology::graph::Network;
use xdp_agg_topology::plan::ring_order;
use xdp_agg_topology::{Rate, Strategy};

const BYTES: f64 = 97e6;
/// Bytes a second of the links here.
const B: f64 = 10e9 / 8.0;
/// Closed forms leave out latencies of some microseconds.
const CLOSE: f64 = 0.01;

fn star(hosts: usize) -> Generated {
    racks(1, hosts, 1.0)
}

fn racks(count: usize, hosts: usize, ratio: f64) -> Generated {
    let network = SpineLeaf::oversubscribed((1, count, hosts), Rate::gbit(10), ratio);
    network.generate().expect("a network")
}

fn equipped(mut generated: Generated, racks: usize) -> Generated {
    let with_hosts: std::collections::BTreeSet<usize> =
        generated.topology.hosts.iter().filter_map(|host| host.region).collect();
    for region in with_hosts.into_iter().take(racks) {
        generated.equip(region);
    }
    generated
}

fn seconds(generated: &Generated, question: &Question) -> f64 {
    let outcome = predict(&generated.network, &generated.topology, question, &mut |_| {});
    outcome.expect("it ends").seconds
}

fn ideal(generated: &Generated, way: Way) -> f64 {
    seconds(generated, &Question::ideal(way, BYTES))
}

fn assert_close(what: &str, seconds: f64, expected: f64) {
    let off = (seconds / expected - 1.0).abs();
    assert!(off <= CLOSE, "{what}: {seconds} s, {expected} s by the closed form");
}

#[test]
fn on_a_star_every_strategy_takes_its_closed_form() {
    for hosts in [2, 4, 16, 64] {
        let n = hosts as f64;
        let star = star(hosts);
        let with = equipped(star.clone(), 1);
        let bandwidth = 2.0 * (n - 1.0) / n * BYTES / B;
        assert_close("ring", ideal(&star, Way::Ring), bandwidth);
        assert_close("colocated", ideal(&star, Way::Colocated), bandwidth);
        assert_close("rat", ideal(&star, Way::Rat), bandwidth);
        assert_close("ps", ideal(&star, Way::Servers), bandwidth);
        assert_close("halving-doubling", ideal(&star, Way::HalvingDoubling), bandwidth);
        // Incast: all others' gradients through the server's one link.
        assert_close("ps-one", ideal(&star, Way::OneServer), (n - 1.0) * BYTES / B);
        // The switch sums: one copy each way.
        assert_close("passing", ideal(&with, Way::Passing), BYTES / B);
        assert_close("atp", ideal(&with, Way::Atp), BYTES / B);
        assert_close("atp-one", ideal(&with, Way::OneAtp), BYTES / B);
        // Without an aggregator they are parameter servers.
        assert_close("atp", ideal(&star, Way::Atp), bandwidth);
    }
}

#[test]
fn steps_and_processes_cost_what_they_should() {
    let star = star(16);
    let costs = Costs { step: 1e-3, ..Costs::IDEAL };
    let ring = Question { costs, ..Question::ideal(Way::Ring, BYTES) };
    let expected = 30.0 * (BYTES / 16.0 / B + 1e-3);
    assert_close("ring with steps", seconds(&star, &ring), expected);
    let halving = Question { way: Way::HalvingDoubling, ..ring.clone() };
    let expected = 2.0 * 15.0 / 16.0 * BYTES / B + 8.0 * 1e-3;
    assert_close("halving with steps", seconds(&star, &halving), expected);
    let with = equipped(star, 1);
    let switchml = Question { processes: 4, ..Question::ideal(Way::SwitchMl, BYTES) };
    assert_close("switchml", seconds(&with, &switchml), 4.0 * BYTES / B);
}

#[test]
fn headers_slots_and_hosts_limit() {
    let with = equipped(star(4), 1);
    let ask = |costs| seconds(&with, &Question { costs, ..Question::ideal(Way::Passing, BYTES) });
    let headers = Costs { aggregated: Framing::xdp(1500), ..Costs::IDEAL };
    assert_close("headers", ask(headers), BYTES * 1472.0 / 1408.0 / B);
    let host = Costs { host: B / 4.0, ..Costs::IDEAL };
    assert_close("a slow host", ask(host), 4.0 * BYTES / B);
    let aggregator = Costs { aggregator: B / 3.0, ..Costs::IDEAL };
    assert_close("a slow aggregator", ask(aggregator), 3.0 * BYTES / B);
    // 16 packets in 2 us of latency and 20 us of hops: 16 * 1472 bytes each 22 us.
    let slots = Costs { slots: Some(16), hop: 10e-6, ..headers };
    let window = 16.0 * 1472.0 / 22e-6;
    assert_close("few slots", ask(slots), BYTES * 1472.0 / 1408.0 / window);
}

#[test]
fn over_subscribed_racks_take_their_closed_forms() {
    let (count, hosts, ratio) = (4, 8, 8.0);
    let racks = racks(count, hosts, ratio);
    let others = 0.75 * BYTES * hosts as f64;
    let uplink = B * hosts as f64 / ratio;
    // All that a rack's hosts send to servers in other racks, and the results.
    assert_close("ps", ideal(&racks, Way::Servers), 2.0 * others / uplink);
    // The ring's one copy out of each rack.
    let ring = 2.0 * 31.0 / 32.0 * BYTES / B;
    assert_close("ring", ideal(&racks, Way::Ring), ring);
    // Hierarchical: 7/8 in the rack, then 3/4 of the vector twice over the uplink, then 7/8.
    let across = 2.0 * 0.75 * BYTES / uplink;
    let hierarchical = 2.0 * 7.0 / 8.0 * BYTES / B + across;
    assert_close("h-ar", ideal(&racks, Way::HierarchicalRing), hierarchical);
    assert!(ideal(&racks, Way::Rat) <= 2.0 * BYTES / B * (1.0 + CLOSE));
}

/// Two racks of four, uplinks 4:1. One rack has an aggregator: its uplink takes one copy to each
/// server of the other rack, and the results of its own servers to each of the others' four.
/// (2.68 vectors with headers were measured: `--equipped 1` in docs/measurements/topology.md.)
#[test]
fn atp_with_one_rack_equipped_takes_its_closed_form() {
    let half = equipped(racks(2, 4, 4.0), 1);
    assert_close("atp", ideal(&half, Way::Atp), 2.5 * BYTES / B);
    assert_close("atp-one", ideal(&half, Way::OneAtp), 4.0 * BYTES / B);
    // All shares cross the uplinks on their own.
    assert_close("ps", ideal(&half, Way::Servers), 4.0 * BYTES / B);
}

/// With a server on every host each tree takes another way, so that all links carry alike.
#[test]
fn servers_on_all_hosts_use_all_links_of_a_fat_tree() {
    let generated = fat_tree(4, Rate::gbit(10)).expect("a network");
    let servers = Servers::everywhere(&generated.network);
    let busiest = servers.occupation(&std::collections::BTreeSet::new()).busiest;
    assert!((busiest - 2.0 * 15.0 / 16.0).abs() < 1e-9, "{busiest}: the hosts' links");
}

/// What passes each cable is what the planner counts, for forests and rings alike.
#[test]
fn bytes_on_every_link_are_the_planners() {
    let racks = racks(4, 4, 4.0);
    for (generated, strategy, way) in [
        (racks.clone(), Strategy::Colocated, Way::Colocated),
        (racks.clone(), Strategy::Rat, Way::Rat),
        (racks.clone(), Strategy::Ring, Way::Ring),
        (racks.clone(), Strategy::HAr, Way::HierarchicalRing),
        (equipped(racks.clone(), 2), Strategy::Rina, Way::Rina),
        (equipped(racks.clone(), 4), Strategy::Rina, Way::Rina),
        (equipped(racks, 1), Strategy::Passing, Way::Passing),
    ] {
        let topology = &generated.topology;
        let network = Network::of(topology);
        let couplings = [Coupling::Lockstep, Coupling::Buffered(3)];
        for coupling in couplings {
            let question = Question { coupling, ..Question::ideal(way, BYTES) };
            let outcome = predict(&network, topology, &question, &mut |_| {}).expect("it ends");
            let fabric = Fabric::new(&network, Costs::IDEAL);
            let job = Job { topology, bytes: BYTES, processes: 1, coupling };
            let plan = schedule(&fabric, way, &job).expect("a schedule");
            let planned = plan.planned_bytes(fabric.capacities().len());
            let scheme = Scheme::of(topology, strategy).expect("a plan");
            let mut counted = Vec::new();
            for cable in Traffic::of(topology, &scheme, BYTES).cables {
                counted.extend([cable.up, cable.down]);
            }
            let mut simulated: Vec<f64> = outcome.bytes[..network.links().len()].to_vec();
            for (simulated, planned) in simulated.iter().zip(&planned) {
                assert!((simulated - planned).abs() <= 1.0, "{way}: {simulated}, not {planned}");
            }
            counted.sort_by(f64::total_cmp);
            simulated.sort_by(f64::total_cmp);
            // The planner lists no cable that can never be the narrowest.
            simulated.retain(|&bytes| bytes > 1.0);
            counted.retain(|&bytes| bytes > 1.0);
            assert_eq!(simulated.len(), counted.len(), "{way}");
            for (simulated, counted) in simulated.iter().zip(&counted) {
                let off = (simulated / counted - 1.0).abs();
                assert!(off < 1e-6, "{way}: {simulated} bytes, {counted} by the planner");
            }
        }
    }
}

/// What `xdp-agg topology plan` and `auto` say by the fullest link of each phase is what the
/// simulator finds, also where phases cannot overlap.
#[test]
fn planned_times_are_the_simulators() {
    let pods = |uplink| {
        let mut pods = fat_tree(4, Rate::gbit(10)).expect("a fat-tree").topology;
        for region in pods.regions.iter_mut().filter(|region| region.parent.is_none()) {
            region.uplink = Some(Rate::gbit(uplink));
        }
        pods
    };
    let [one, two, narrow] = [(1, 8, 1.0), (2, 4, 4.0), (4, 8, 32.0)]
        .map(|(count, hosts, ratio)| racks(count, hosts, ratio));
    let equipped = equipped(two.clone(), 2).topology;
    let networks = [one.topology, two.topology, narrow.topology, equipped, pods(10), pods(3)];
    for topology in networks {
        let network = Network::of(&topology);
        let ranks = ring_order(&topology);
        let with = |strategy| Scheme::of(&topology, strategy);
        for (way, scheme) in [
            (Way::Servers, with(Strategy::Ps)),
            (Way::Ring, with(Strategy::Ring)),
            (Way::HierarchicalRing, with(Strategy::HAr)),
            (Way::HalvingDoubling, Ok(Scheme::HalvingDoubling(ranks))),
            (Way::Colocated, with(Strategy::Colocated)),
            (Way::Rat, with(Strategy::Rat)),
            (Way::Rina, with(Strategy::Rina)),
            (Way::Passing, with(Strategy::Passing)),
        ] {
            let Ok(scheme) = scheme else { continue };
            let planned = Traffic::of(&topology, &scheme, BYTES).seconds;
            let question = Question::ideal(way, BYTES);
            let outcome = predict(&network, &topology, &question, &mut |_| {}).expect("it ends");
            assert_close(&format!("{way} on {}", topology.name), planned, outcome.seconds);
        }
    }
}

#[test]
fn more_aggregating_racks_never_make_rina_slower() {
    let dragonfly = Dragonfly { a: 4, g: 9, h: 2, p: 2 };
    let networks = [
        (fat_tree(4, Rate::gbit(10)).expect("a fat-tree"), 8),
        (dragonfly.generate(Rate::gbit(10)).expect("a dragonfly"), 36),
        (racks(4, 4, 4.0), 4),
    ];
    for (generated, racks) in networks {
        let costs = Costs { step: 10e-6, hop: 10e-6, ..Costs::IDEAL };
        let question = Question { costs, ..Question::ideal(Way::Rina, BYTES) };
        let mut before = f64::INFINITY;
        for count in 0..=racks {
            let now = seconds(&equipped(generated.clone(), count), &question);
            let name = &generated.topology.name;
            assert!(now <= before * (1.0 + 1e-9), "{name}: {count} racks take {now}, not {before}");
            before = now;
        }
    }
}

#[test]
fn a_ring_suffers_more_from_pauses_than_rat() {
    let generated = racks(2, 16, 1.0);
    let senders = Fabric::new(&generated.network, Costs::IDEAL).uplinks();
    assert_eq!(senders.len(), 32);
    let ask = |way, count| {
        let pauses = Some(Pauses { senders: senders.clone(), count, period: 20e-3, seed: 7 });
        let options = Options { quantum: 0.2e-3, pauses, ..Options::default() };
        let coupling = Coupling::Buffered(1);
        seconds(&generated, &Question { coupling, options, ..Question::ideal(way, BYTES) })
    };
    let slower = |way| ask(way, 4) / ask(way, 0);
    let (ring, rat) = (slower(Way::Ring), slower(Way::Rat));
    assert!(rat > 1.0 && ring > 1.3 * rat, "ring {ring} times slower, RAT {rat} times");
}

#[test]
fn buffered_and_lockstep_trees_agree_where_nobody_pauses() {
    let generated = racks(4, 8, 4.0);
    for way in [Way::Colocated, Way::Rat] {
        let lockstep = ideal(&generated, way);
        let coupling = Coupling::Buffered(32);
        let question = Question { coupling, ..Question::ideal(way, BYTES) };
        let buffered = seconds(&generated, &question);
        let off = buffered / lockstep - 1.0;
        assert!((-0.01..0.1).contains(&off), "{way}: {buffered} s, {lockstep} s in lockstep");
    }
}

#[test]
fn what_does_not_fit_says_why() {
    let generated = star(6);
    let ask = |way| {
        let question = Question::ideal(way, BYTES);
        let result = predict(&generated.network, &generated.topology, &question, &mut |_| {});
        result.expect_err("it does not fit").to_string()
    };
    assert!(ask(Way::HalvingDoubling).contains("expects a power of two"));
    assert!(ask(Way::Passing).contains("no aggregator"), "{}", ask(Way::Passing));
    assert!("tree".parse::<Way>().expect_err("unknown").to_string().contains("ps-one, ps, ring"));
}
