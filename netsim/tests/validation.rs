//! Predictions beside what was measured in real namespaces (docs/performance.md), within 15 %.

use xdp_agg_netsim::fabric::{Costs, Framing};
use xdp_agg_netsim::predict::{Question, predict};
use xdp_agg_netsim::strategy::Way;
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

#[test]
fn measured_times_are_predicted() {
    let own_link = "aggregator_rate = \"500mbit\"";
    let mib = 1024.0 * 1024.0;
    // System, aggregator's link, bytes, measured milliseconds: "Results" of docs/performance.md.
    for (way, aggregator, bytes, measured_ms) in [
        (Way::Passing, "", 97.0 * mib, 1701.0),
        (Way::Ring, "", 97.0 * mib, 2566.0),
        (Way::Passing, own_link, 4.0 * mib, 284.1),
    ] {
        let topology = topology(aggregator);
        let network = Network::of(&topology);
        let costs = Costs {
            aggregated: Framing::XDP,
            streamed: Framing::TCP,
            // A short call of the ring takes 70 us for its 6 steps, one of xdp-agg 28 us.
            step: 12e-6,
            hop: 14e-6,
            ..Costs::IDEAL
        };
        let question = Question { costs, ..Question::ideal(way, bytes) };
        let outcome = predict(&network, &topology, &question, &mut |_| {}).expect("it ends");
        let off = outcome.seconds * 1e3 / measured_ms - 1.0;
        println!("{way}: {:.1} ms, measured {measured_ms} ms", outcome.seconds * 1e3);
        assert!(off.abs() < 0.15, "{way}: {:.1} % off", off * 100.0);
    }
}
