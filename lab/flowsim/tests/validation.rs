//! Predictions beside what was measured in real namespaces
//! (docs/measurements/flowsim.md), within 15 %.

use xdp_agg_flowsim::fabric::{Costs, Framing};
use xdp_agg_flowsim::predict::{Question, predict};
use xdp_agg_flowsim::strategy::Way;
use xdp_agg_topology::Topology;
use xdp_agg_topology::graph::Network;

/// Four workers and an aggregator, 500 Mbit/s a link; `{}` is the aggregator's own rate, if it has
/// one interface for all workers.
fn topology(aggregator_rate: &str) -> Topology {
    let hosts: String = (0..4)
        .map(|rank| {
            format!(
                "[[host]]\nname = \"w{rank}\"\nrank = {rank}\naddress = \"10.0.0.{}\"\n\
                 region = \"lab\"\n",
                rank + 1
            )
        })
        .collect();
    let text = format!(
        "name = \"bench links\"\n[defaults]\nrate = \"500mbit\"\n[[region]]\nname = \"lab\"\n\
         aggregator = \"10.0.0.254\"\n{aggregator_rate}\n{hosts}"
    );
    Topology::parse(&text).expect("a topology")
}

/// Two racks of four hosts, links and uplinks of 200 Mbit/s (over-subscribed 4:1), an aggregator in
/// each rack's switch.
fn racks() -> Topology {
    let region = |name: &str, last: u8| {
        format!(
            "[[region]]\nname = \"{name}\"\nuplink = \"200mbit\"\naggregator = \"10.0.1.{last}\"\n"
        )
    };
    let host = |rank: u8| {
        let rack = if rank < 4 { "a" } else { "b" };
        format!(
            "[[host]]\nname = \"w{rank}\"\nrank = {rank}\naddress = \"10.0.0.{}\"\n\
             region = \"{rack}\"\n",
            rank + 1
        )
    };
    let hosts: String = (0..8).map(host).collect();
    let (a, b) = (region("a", 1), region("b", 2));
    let text = format!("name = \"bench racks\"\n[defaults]\nrate = \"200mbit\"\n{a}{b}{hosts}");
    Topology::parse(&text).expect("a topology")
}

/// Fails if the simulated time is not within 15 % of the measured one.
fn check(topology: &Topology, way: Way, bytes: f64, measured_ms: f64) {
    let costs = Costs {
        aggregated: Framing::xdp(1500),
        streamed: Framing::tcp(1500),
        // A short call of the ring takes 70 us for its 6 steps, one of xdp-agg 28 us.
        step: 12e-6,
        hop: 14e-6,
        ..Costs::IDEAL
    };
    let question = Question { costs, ..Question::ideal(way, bytes) };
    let network = Network::of(topology);
    let outcome = predict(&network, topology, &question, &mut |_| {}).expect("it ends");
    let off = outcome.seconds * 1e3 / measured_ms - 1.0;
    println!("{way}: {:.1} ms, measured {measured_ms} ms", outcome.seconds * 1e3);
    assert!(off.abs() < 0.15, "{way}: {:.1} % off", off * 100.0);
}

const MIB: f64 = 1024.0 * 1024.0;

/// "Long vectors" of docs/measurements/links.md: system, the aggregator's own link, bytes,
/// milliseconds.
#[test]
fn one_switch_is_predicted() {
    let own_link = "aggregator_rate = \"500mbit\"";
    for (way, aggregator, bytes, measured_ms) in [
        (Way::Passing, "", 97.0 * MIB, 1701.0),
        (Way::Ring, "", 97.0 * MIB, 2566.0),
        (Way::Passing, own_link, 4.0 * MIB, 284.1),
    ] {
        check(&topology(aggregator), way, bytes, measured_ms);
    }
}

/// "Two racks of four" of docs/measurements/topology.md.
#[test]
fn racks_are_predicted() {
    let topology = racks();
    for (way, measured_ms) in [
        (Way::Rat, 740.0),
        (Way::Rina, 732.0),
        (Way::Ring, 1240.0),
        (Way::Colocated, 3032.0),
        (Way::Servers, 3042.0),
    ] {
        check(&topology, way, 16.0 * MIB, measured_ms);
    }
}
