//! The XDP engine on real interfaces: packets of sockets in, results out of interfaces, in network
//! namespaces of this test. Needs root; without it every test here says so and passes.

mod network;
mod pinned;
mod stress;
mod workers;

use network::{AGGREGATOR, Mode, Network};
use workers::all_reduce;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, EngineConfig, EngineError, EngineKind, LocalAddr, XdpMode};
use xdp_agg::link::Links;
use xdp_agg::link::features::SwitchedOff;
use xdp_agg_common::maps::ResultMode;

const PORT: u16 = 0xBEE0;

fn config(network: &Network, xdp_mode: XdpMode) -> EngineConfig {
    EngineConfig { interfaces: network.served(), ..config_of(xdp_mode) }
}

/// All but the interfaces.
fn config_of(xdp_mode: XdpMode) -> EngineConfig {
    EngineConfig {
        kind: EngineKind::Xdp,
        xdp_mode,
        interfaces: Vec::new(),
        data_addr: Some(AGGREGATOR),
        local_addr: LocalAddr::Off,
        data_port: PORT,
        slots: 64,
        mtu: None,
        pin: None,
        fresh: false,
        vlan: None,
    }
}

/// Sums in this shape of network, attached in this mode; what the engine chose.
fn sums(
    shape: Mode,
    workers: u16,
    xdp_mode: XdpMode,
    wanted: Option<ResultMode>,
) -> Option<ResultMode> {
    let network = Network::new(shape, workers)?;
    let mut engine =
        network.inside(|| XdpEngine::open(&config(&network, xdp_mode))).expect("it opens");
    let expected = if xdp_mode == XdpMode::Generic { "xdp (generic)" } else { "xdp (native)" };
    assert_eq!(engine.describe(), expected);
    assert_eq!(engine.max_chunks(), 22, "MTU 1500");
    let mode = all_reduce(&network, &mut engine, wanted);
    // The host and its bridge go on as if nothing were attached.
    network.check_plain_traffic();
    Some(mode)
}

#[test]
fn a_port_for_each_worker() {
    let Some(mode) = sums(Mode::Ports, 3, XdpMode::Native, None) else { return };
    assert_eq!(mode, ResultMode::Ports);
}

#[test]
fn several_workers_behind_one_interface() {
    let Some(mode) = sums(Mode::OneNic, 4, XdpMode::Auto, None) else { return };
    assert_eq!(mode, ResultMode::Fanout);
}

#[test]
fn one_packet_to_a_group() {
    let wanted = Some(ResultMode::Multicast);
    for shape in [Mode::OneNic, Mode::Ports] {
        let Some(mode) = sums(shape, 3, XdpMode::Native, wanted) else { return };
        assert_eq!(mode, ResultMode::Multicast);
    }
}

/// An interface whose program somebody has detached gets it again.
#[test]
fn a_program_that_was_detached_is_attached_again() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let Some(network) = Network::new(Mode::Ports, 2) else { return };
        let mut engine = network.inside(|| XdpEngine::open(&config(&network, mode))).expect("open");
        engine.detach(0).expect("it was attached");
        assert_eq!(network.inside(|| engine.tend()), []);
        all_reduce(&network, &mut engine, None);
    }
}

#[test]
fn generic_mode_sums_too() {
    for shape in [Mode::OneNic, Mode::Ports] {
        let Some(mode) = sums(shape, 3, XdpMode::Generic, None) else { return };
        assert_eq!(mode, ResultMode::Multicast);
        let mode = sums(shape, 1, XdpMode::Generic, None);
        assert_eq!(mode, Some(ResultMode::Ports), "a single copy needs no group");
    }
}

#[test]
fn what_cannot_be_attached_is_told_apart() {
    let Some(network) = Network::new(Mode::Ports, 2) else { return };
    let open = |config: &EngineConfig| network.inside(|| XdpEngine::open(config));
    let config = config(&network, XdpMode::Auto);

    let missing = EngineConfig { interfaces: vec!["no-such-if0".into()], ..config.clone() };
    let error = open(&missing).err().expect("there is no such interface");
    assert!(matches!(&error, EngineError::NoInterface(name) if name == "no-such-if0"), "{error}");

    let first = open(&config).expect("it opens");
    let error = open(&config).err().expect("the interface is taken");
    assert!(
        matches!(&error, EngineError::InterfaceBusy { interface } if interface == "p0"),
        "{error}"
    );
    let generic = EngineConfig { xdp_mode: XdpMode::Generic, ..config.clone() };
    let error = open(&generic).err().expect("the interface is taken in the other mode");
    assert!(matches!(&error, EngineError::InterfaceBusy { .. }), "{error}");
    // What an engine held is free at once when it is gone.
    drop(first);
    drop(open(&config).expect("nothing is left behind"));

    // A peer's jumbo frames are no reason to refuse.
    network.set_worker_mtu(1, 9000);
    let jumbo = open(&config).expect("packets may have several buffers");
    assert_eq!(jumbo.max_chunks(), 22, "our own MTU is 1500");
}

#[test]
fn what_an_offload_was_comes_back() {
    let Some(network) = Network::new(Mode::Ports, 1) else { return };
    network.inside(|| {
        let links = Links::open().expect("a socket");
        let on = || links.features_on("p0", &["rx-gro", "rx-lro"]).expect("it tells");
        assert_eq!(on(), ["rx-gro"], "a veth has no LRO");
        for keep in [true, false] {
            let mut off = SwitchedOff::default();
            links.set_gro("p0", false).expect("it can");
            off.note("p0", vec!["rx-gro"]);
            off.keep = keep;
            drop(off);
            assert_eq!(on().is_empty(), keep);
        }
    });
}
