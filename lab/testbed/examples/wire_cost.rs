//! What a packet costs there and back through the test network, in processor time of the whole
//! machine, the workers' own sending and receiving included. Needs root.
//!
//! `cargo run --release -p xdp-agg-testbed --example wire_cost`

use std::time::Duration;

use xdp_agg_testbed::echo::{Until, Way, echo};
use xdp_agg_testbed::{CpuMeter, Probe, Topology, at_once};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const WORKERS: usize = 4;
    for rate in [None, Some(500_000_000)] {
        let net = Topology::builder().workers(WORKERS).rate(rate).build()?;
        for interface in net.aggregator_interfaces() {
            net.attach_probe(&interface, Probe::Reflect)?;
        }
        let cpu = CpuMeter::start()?;
        let until = Until::Over(Duration::from_secs(2));
        let turn = |i| echo(&net, i, 1430, Way::OURS, until).map_or(0, |echoed| echoed.back);
        let packets: u64 = at_once(0..WORKERS, turn).into_iter().sum();
        let used = cpu.elapsed()?;
        let per_packet = |time: Duration| time.as_secs_f64() * 1e9 / packets as f64;
        println!(
            "rate {rate:?}: {:.0} packets a second and link there and back, {:.0} ns each \
             ({:.0} in soft interrupts), {:.2} processors busy",
            packets as f64 / used.wall.as_secs_f64() / WORKERS as f64,
            per_packet(used.busy),
            per_packet(used.softirq),
            used.busy.as_secs_f64() / used.wall.as_secs_f64()
        );
    }
    Ok(())
}
