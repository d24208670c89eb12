//! Hosts and cables of a test.

use std::net::Ipv4Addr;

use xdp_agg_testbed::ethtool::{TSO, set_features};
use xdp_agg_testbed::traffic::tcp_transfer;
pub(crate) use xdp_agg_testbed::{Mode, Topology};

/// The aggregator's address.
pub(crate) const AGGREGATOR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 254);

/// The hosts.
pub(crate) struct Network {
    topology: Topology,
    pub(crate) workers: u16,
}

impl Network {
    /// Builds it; None, with a message, where this process may not.
    pub(crate) fn new(mode: Mode, workers: u16) -> Option<Self> {
        xdp_agg_testbed::need_root!(None);
        let topology = Topology::builder().workers(workers.into()).mode(mode).wire(false);
        let topology = topology.build().expect("a network");
        assert_eq!(topology.aggregator_addr(), AGGREGATOR);
        let ours = topology.aggregator_interfaces();
        let ours = ours.iter().map(|name| (topology.aggregator(), &**name));
        // They do not hand on more than one packet at a time, as generic XDP wants it.
        for (host, name) in ours.chain(topology.workers().iter().map(|host| (host, "eth0"))) {
            set_features(host, name, &[(TSO, false)]).expect("a feature");
        }
        Some(Self { topology, workers })
    }

    /// Interfaces that the aggregator serves.
    pub(crate) fn served(&self) -> Vec<String> {
        self.topology.aggregator_interfaces()
    }

    pub(crate) fn set_worker_mtu(&self, worker: usize, mtu: u32) {
        self.topology.worker(worker).set_mtu("eth0", mtu).expect("it takes that MTU");
    }

    /// Runs `work` on the aggregator's host.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.topology.aggregator().run(work).expect("entering the namespace")
    }

    /// Runs `work` on a worker's host.
    pub(crate) fn on_worker<T: Send>(&self, worker: u16, work: impl FnOnce() -> T + Send) -> T {
        self.topology.worker(worker.into()).run(work).expect("entering the namespace")
    }

    /// TCP between a worker and the aggregator's host, and between two workers.
    pub(crate) fn check_plain_traffic(&self) {
        let from = self.topology.worker(0);
        tcp_transfer(from, (self.topology.aggregator(), AGGREGATOR), 100_000).expect("it passes");
        if self.workers > 1 {
            let to = (self.topology.worker(1), address(1));
            tcp_transfer(from, to, 100_000).expect("it passes");
        }
    }
}

/// A worker's address.
pub(crate) fn address(worker: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, 1 + worker as u8)
}
