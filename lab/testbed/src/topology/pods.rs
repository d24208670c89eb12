//! Pods: racks whose links to the middle go by a switch of the pod's own, over one more uplink.

use std::net::Ipv4Addr;
use std::ops::Range;

use super::build::{Cable, Station};
use super::racks::{Racks, shape_like};
use super::{Topology, counters_of};
use crate::error::Error;
use crate::namespace::Namespace;
use crate::netlink::{InterfaceCounters, Mac};
use crate::qdisc::Shape;

impl Topology {
    /// Number of pods; 0: racks lead to the middle.
    pub fn pod_count(&self) -> usize {
        self.racks.as_ref().map_or(0, |racks| racks.pods.len())
    }

    /// The pod of a rack; None: there are no pods.
    pub fn pod_of(&self, rack: usize) -> Option<usize> {
        self.racks.as_ref()?.pod_of(rack)
    }

    /// The racks of a pod.
    pub fn pod_racks(&self, pod: usize) -> Range<usize> {
        let size = self.rack_count() / self.pod_count().max(1);
        pod * size..(pod + 1) * size
    }

    /// The host of a pod's aggregator: its switch.
    ///
    /// # Panics
    /// There is no such pod.
    pub fn pod(&self, pod: usize) -> &Namespace {
        &self.racks.as_ref().expect("a network with racks").pods[pod]
    }

    /// The address of a pod's aggregator.
    pub fn pod_addr(&self, pod: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, 231 + pod as u8)
    }

    /// The interfaces that a pod's aggregator serves: its racks' ports, and the link to the middle.
    pub fn pod_interfaces(&self, pod: usize) -> Vec<String> {
        let port = |rack| self.links[self.rack_link(rack)].port.name.clone();
        self.pod_racks(pod).map(port).chain(["up".into()]).collect()
    }

    /// The number of a pod's link to the middle.
    pub fn pod_link(&self, pod: usize) -> usize {
        self.workers.len() + self.rack_count() + pod
    }

    /// What a pod's link to the middle carries, in bits a second; None: it has no cap.
    pub fn pod_rate(&self, pod: usize) -> Option<u64> {
        self.links.get(self.pod_link(pod))?.shape.map(|shape| shape.rate)
    }

    /// What a pod's end of its link to the middle has carried.
    ///
    /// # Errors
    /// No such pod, or netlink's.
    pub fn pod_counters(&self, pod: usize) -> Result<InterfaceCounters, Error> {
        counters_of(&self.link(self.pod_link(pod))?.host)
    }

    /// Connects all pods to the middle.
    pub(super) fn add_pod_uplinks(
        &mut self,
        rate: Option<u64>,
        like: Option<Shape>,
    ) -> Result<(), Error> {
        let Some(racks) = &self.racks else { return Ok(()) };
        let (pods, middle) = (racks.pods.clone(), racks.middle.clone());
        let shape = rate.map(|rate| shape_like(rate, like)).or(self.shape);
        for (pod, switch) in pods.iter().enumerate() {
            let end = Station::PodUplink(pod).end(switch, "up");
            let cable = Cable { shape, to_host: false, xdp_at_host: true, xdp_at_port: false };
            self.add_link(end, &middle, &format!("d{pod}"), cable)?;
            switch.netlink().set_bridge("up", "br0")?;
            switch.netlink().add_address("br0", self.pod_addr(pod), 24)?;
        }
        Ok(())
    }

    /// Every pod's switch knows the port to each host, and every host's address. `stations` are
    /// hosts and racks' switches, each with its rack; `pods` the pods' switches.
    pub(super) fn introduce_pods(
        &self,
        racks: &Racks,
        stations: &[(Ipv4Addr, Mac, usize)],
        pods: &[(Ipv4Addr, Mac, usize)],
    ) -> Result<(), Error> {
        for (pod, switch) in racks.pods.iter().enumerate() {
            let mut netlink = switch.netlink();
            let bridge = netlink.index("br0")?;
            let up = self.links[self.pod_link(pod)].host.index;
            for (addr, mac, rack) in stations {
                let inside = racks.pod_of(*rack) == Some(pod);
                let port = self.links[self.rack_link(*rack)].port.index;
                netlink.add_neighbour(bridge, *addr, *mac)?;
                netlink.add_station(if inside { port } else { up }, *mac)?;
            }
            for (addr, mac, other) in pods {
                if *other != pod {
                    netlink.add_neighbour(bridge, *addr, *mac)?;
                    netlink.add_station(up, *mac)?;
                }
            }
        }
        Ok(())
    }
}
