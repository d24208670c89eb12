//! Networks of several racks: a switch for each, and one in the middle.
//!
//! All hosts are on one Ethernet and one subnet. Switch `r` is a namespace with a bridge whose
//! ports lead to the rack's workers and, by `up`, to the switch in the middle. Where there are
//! pods, `up` leads to the pod's switch instead, and that one's `up` to the middle.

use std::net::Ipv4Addr;
use std::ops::Range;

use super::build::{Cable, Station, add_bridge};
use super::{Topology, counters_of};
use crate::error::Error;
use crate::namespace::Namespace;
use crate::netlink::{InterfaceCounters, Mac};
use crate::qdisc::Shape;

/// The switches of a network with racks.
#[derive(Debug)]
pub(super) struct Racks {
    /// The first one is the network's aggregator.
    pub(super) tors: Vec<Namespace>,
    pub(super) middle: Namespace,
    /// The pods' switches, if there are pods.
    pub(super) pods: Vec<Namespace>,
    /// Workers of a rack.
    size: usize,
}

impl Racks {
    pub(super) fn new(
        first: &Namespace,
        racks: usize,
        size: usize,
        pods: usize,
    ) -> Result<Self, Error> {
        let others = (1..racks).map(|rack| Namespace::new(format!("tor{rack}")));
        let tors = std::iter::once(Ok(first.clone())).chain(others).collect::<Result<_, _>>()?;
        let pods = (0..pods).map(|pod| Namespace::new(format!("pod{pod}")));
        let pods = pods.collect::<Result<_, _>>()?;
        Ok(Self { tors, middle: Namespace::new("middle")?, pods, size })
    }

    /// The bridges of all switches but the first.
    pub(super) fn add_bridges(&self, mtu: u32) -> Result<(), Error> {
        for (rack, tor) in self.tors.iter().enumerate().skip(1) {
            add_bridge(tor, bridge_mac(rack), mtu)?;
        }
        for (pod, switch) in self.pods.iter().enumerate() {
            add_bridge(switch, Station::Pod(pod).mac(), mtu)?;
        }
        add_bridge(&self.middle, Station::Rack(255).mac(), mtu)
    }

    const fn rack_of(&self, worker: usize) -> usize {
        worker / self.size
    }

    /// The pod of a rack; `None`: there are none.
    pub(super) fn pod_of(&self, rack: usize) -> Option<usize> {
        (!self.pods.is_empty()).then(|| rack * self.pods.len() / self.tors.len())
    }
}

/// The address that a rack's aggregator answers to.
fn bridge_mac(rack: usize) -> Mac {
    match rack {
        0 => Station::Bridge.mac(),
        rack => Station::Rack(rack).mac(),
    }
}

/// A shape of this rate. A burst and a queue of choice are those of all links.
pub(super) fn shape_like(rate: u64, like: Option<Shape>) -> Shape {
    like.map_or_else(|| Shape::new(rate), |shape| Shape { rate, ..shape })
}

impl Topology {
    /// Number of racks; 0: one switch for all.
    pub fn rack_count(&self) -> usize {
        self.racks.as_ref().map_or(0, |racks| racks.tors.len())
    }

    /// The workers of a rack.
    pub fn rack_workers(&self, rack: usize) -> Range<usize> {
        let size = self.racks.as_ref().map_or(self.workers.len(), |racks| racks.size);
        rack * size..(rack + 1) * size
    }

    /// The host of a rack's aggregator: its switch.
    ///
    /// # Panics
    /// There is no such rack.
    pub fn rack(&self, rack: usize) -> &Namespace {
        &self.racks.as_ref().expect("a network with racks").tors[rack]
    }

    /// The address of a rack's aggregator.
    pub fn rack_addr(&self, rack: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, 201 + rack as u8)
    }

    /// The interfaces that a rack's aggregator serves: its workers' ports, and the link to the
    /// other racks.
    pub fn rack_interfaces(&self, rack: usize) -> Vec<String> {
        let ports = self.rack_workers(rack).map(|worker| self.links[worker].port.name.clone());
        ports.chain(["up".into()]).collect()
    }

    /// What a rack's link to the middle carries, in bits a second; None: it has no cap.
    pub fn rack_rate(&self, rack: usize) -> Option<u64> {
        self.links.get(self.rack_link(rack))?.shape.map(|shape| shape.rate)
    }

    /// The number of a rack's link to the switch in the middle.
    pub fn rack_link(&self, rack: usize) -> usize {
        self.workers.len() + rack
    }

    /// What a rack's end of its link to the middle has carried.
    pub fn rack_counters(&self, rack: usize) -> Result<InterfaceCounters, Error> {
        counters_of(&self.link(self.rack_link(rack))?.host)
    }

    /// The switch that a worker is on.
    pub(super) fn switch_of(&self, worker: usize) -> &Namespace {
        self.racks.as_ref().map_or(&self.switch, |racks| &racks.tors[racks.rack_of(worker)])
    }

    /// Connects all racks to the middle.
    pub(super) fn add_uplinks(
        &mut self,
        rate: Option<u64>,
        like: Option<Shape>,
    ) -> Result<(), Error> {
        let Some(racks) = &self.racks else {
            return Ok(());
        };
        let tors = racks.tors.clone();
        let above = |rack: usize| match racks.pod_of(rack) {
            Some(pod) => racks.pods[pod].clone(),
            None => racks.middle.clone(),
        };
        let above: Vec<Namespace> = (0..tors.len()).map(above).collect();
        let in_pods = !racks.pods.is_empty();
        let shape = rate.map(|rate| shape_like(rate, like)).or(self.shape);
        for (rack, tor) in tors.iter().enumerate() {
            let end = Station::Uplink(rack).end(tor, "up");
            let cable = Cable { shape, to_host: false, xdp_at_host: true, xdp_at_port: in_pods };
            self.add_link(end, &above[rack], &format!("r{rack}"), cable)?;
            tor.netlink().set_bridge("up", "br0")?;
            if rack > 0 {
                tor.netlink().add_address("br0", self.rack_addr(rack), 24)?;
            }
        }
        Ok(())
    }

    /// Every host knows every other one's link-layer address, and each switch the port to it.
    pub(super) fn introduce_racks(&self, racks: &Racks) -> Result<(), Error> {
        let workers = (0..self.workers.len())
            .map(|i| (self.worker_addr(i), Station::Worker(i).mac(), racks.rack_of(i), Some(i)));
        let tors = (0..racks.tors.len()).map(|r| (self.rack_addr(r), bridge_mac(r), r, None));
        let all: Vec<_> = workers.chain(tors).collect();
        let pods: Vec<_> =
            (0..racks.pods.len()).map(|p| (self.pod_addr(p), Station::Pod(p).mac(), p)).collect();
        for (i, worker) in self.workers.iter().enumerate() {
            let mut netlink = worker.netlink();
            for (addr, mac, ..) in all.iter().filter(|(addr, ..)| *addr != self.worker_addr(i)) {
                netlink.add_neighbour(self.links[i].host.index, *addr, *mac)?;
            }
            for (addr, mac, _) in &pods {
                netlink.add_neighbour(self.links[i].host.index, *addr, *mac)?;
            }
        }
        for (rack, tor) in racks.tors.iter().enumerate() {
            let mut netlink = tor.netlink();
            let bridge = netlink.index("br0")?;
            let up = &self.links[self.rack_link(rack)];
            for (addr, mac, at, worker) in &all {
                if *addr != self.rack_addr(rack) {
                    netlink.add_neighbour(bridge, *addr, *mac)?;
                }
                match worker {
                    Some(worker) if *at == rack => {
                        netlink.add_station(self.links[*worker].port.index, *mac)?;
                    }
                    _ if *at != rack => netlink.add_station(up.host.index, *mac)?,
                    _ => {}
                }
            }
            for (addr, mac, _) in &pods {
                netlink.add_neighbour(bridge, *addr, *mac)?;
                netlink.add_station(up.host.index, *mac)?;
            }
        }
        let stations: Vec<(Ipv4Addr, Mac, usize)> =
            all.iter().map(|(addr, mac, at, _)| (*addr, *mac, *at)).collect();
        self.introduce_pods(racks, &stations, &pods)?;
        let mut netlink = racks.middle.netlink();
        for (_, mac, at) in &stations {
            let link = racks.pod_of(*at).map_or(self.rack_link(*at), |pod| self.pod_link(pod));
            netlink.add_station(self.links[link].port.index, *mac)?;
        }
        for (_, mac, pod) in &pods {
            netlink.add_station(self.links[self.pod_link(*pod)].port.index, *mac)?;
        }
        Ok(())
    }
}
