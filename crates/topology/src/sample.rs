//! Networks for tests, those in `tests/` included.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::{Host, KnownCosts, Rate, Region, Strategy, Topology};

/// Racks of hosts at 10 Gbit/s, with a daemon on each host. A rack's hosts can send `ratio` times
/// what its uplink carries.
pub(crate) fn racks(racks: usize, hosts: usize, ratio: f64) -> Topology {
    let rate = Rate::gbit(10);
    let uplink = Some(Rate::nearest(rate.bits() as f64 * hosts as f64 / ratio));
    let region =
        |rack| Region { name: format!("rack{rack}"), parent: None, uplink, aggregator: None };
    let host = |index: usize| {
        let [.., a, b] = (index + 1).to_be_bytes();
        let address = Ipv4Addr::new(10, 16, a, b);
        Host {
            name: format!("h{index}"),
            rank: index as u16,
            address,
            region: Some(index / hosts),
            rate,
            daemon: Some(SocketAddrV4::new(address, 9870)),
            slots: None,
            interface: None,
        }
    };
    Topology {
        name: "racks".into(),
        strategy: Strategy::Auto,
        regions: (0..racks).map(region).collect(),
        hosts: (0..racks * hosts).map(host).collect(),
        measured: None,
        costs: KnownCosts::default(),
    }
}
