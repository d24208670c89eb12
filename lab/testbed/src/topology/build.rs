//! How a network is put together.

use std::thread;
use std::time::{Duration, Instant};

use super::{Builder, Direction, End, Link, Mode, Racks, Topology};
use crate::delay::DelayLine;
use crate::error::Error;
use crate::ethtool::{self, GRO, TSO, TX_CHECKSUM, UDP_GRO_FORWARDING, UDP_SEGMENTATION};
use crate::namespace::Namespace;
use crate::netlink::{Mac, VethEnd};
use crate::qdisc::Shape;
use crate::wire::Wire;

/// Prefix length of the network.
const PREFIX: u8 = 24;
/// Most bytes that receive offload merges: the kernel's default.
const SUPER_PACKET: u32 = 65536;
/// How long the kernel may take to notice that interfaces are up: usually a millisecond.
const UP_LIMIT: Duration = Duration::from_secs(10);

impl Topology {
    pub(super) fn build(wanted: &Builder) -> Result<Self, Error> {
        let aggregator = Namespace::new("agg")?;
        let switch = match wanted.mode {
            Mode::Ports => aggregator.clone(),
            Mode::OneNic => Namespace::new("switch")?,
        };
        let wires = if wanted.wire { Some(Namespace::new("wires")?) } else { None };
        let aggregator_links = usize::from(wanted.mode == Mode::OneNic);
        let links = wanted.workers + wanted.racks + wanted.pods + aggregator_links;
        let wire = match &wires {
            Some(namespace) => Some(Wire::load(namespace, 2 * links as u32)?),
            None => None,
        };
        let racks = match wanted.racks {
            0 => None,
            racks => {
                let size = wanted.workers / racks;
                Some(Racks::new(&aggregator, racks, size, wanted.pods)?)
            }
        };
        let mut topology = Self {
            mode: wanted.mode,
            mtu: wanted.mtu,
            offloads: wanted.offloads,
            shape: wanted.shape.or(wanted.rate.map(Shape::new)),
            workers: Vec::new(),
            aggregator,
            switch,
            wires,
            wire,
            delays: None,
            links: Vec::new(),
            racks,
        };
        topology.add_bridges()?;
        let cable = Cable {
            shape: topology.shape,
            to_host: true,
            xdp_at_host: wanted.xdp_on_hosts,
            xdp_at_port: wanted.mode == Mode::Ports,
        };
        for i in 0..wanted.workers {
            let worker = Namespace::new(format!("worker{i}"))?;
            let end = Station::Worker(i).end(&worker, "eth0");
            let switch = topology.switch_of(i).clone();
            topology.add_link(end, &switch, &i.to_string(), cable)?;
            worker.netlink().add_address("eth0", topology.worker_addr(i), PREFIX)?;
            topology.workers.push(worker);
        }
        if wanted.mode == Mode::OneNic {
            let end = Station::Aggregator.end(&topology.aggregator, "eth0");
            let switch = topology.switch.clone();
            topology.add_link(end, &switch, "a", Cable { xdp_at_host: true, ..cable })?;
        }
        topology.add_uplinks(wanted.uplink, wanted.shape)?;
        topology.add_pod_uplinks(wanted.pod_uplink, wanted.shape)?;
        topology.add_delays(wanted.delay)?;
        let (namespace, interface) = match wanted.mode {
            Mode::Ports => (&topology.switch, "br0"),
            Mode::OneNic => (&topology.aggregator, "eth0"),
        };
        namespace.netlink().add_address(interface, topology.aggregator_addr(), PREFIX)?;
        topology.introduce_neighbours()?;
        if !wanted.faults.is_none() {
            topology.set_all_faults(&wanted.faults)?;
        }
        for link in &topology.links {
            link.wait_until_up()?;
        }
        Ok(topology)
    }

    fn add_bridges(&self) -> Result<(), Error> {
        add_bridge(&self.switch, Station::Bridge.mac(), self.mtu)?;
        self.racks.as_ref().map_or(Ok(()), |racks| racks.add_bridges(self.mtu))
    }

    /// Connects a host's interface to a switch's port `p<name>`.
    pub(super) fn add_link(
        &mut self,
        host_end: (End, Mac),
        switch: &Namespace,
        name: &str,
        cable: Cable,
    ) -> Result<(), Error> {
        let number = self.links.len();
        let Cable { shape, xdp_at_host: shape_up_in_middle, .. } = cable;
        let port_end = Station::Port(number).end(switch, &format!("p{name}"));
        let link = match (&self.wires, &self.wire) {
            (Some(wires), Some(wire)) => {
                let x = Station::Middle(2 * number).end(wires, &format!("x{name}"));
                let y = Station::Middle(2 * number + 1).end(wires, &format!("y{name}"));
                self.add_pair(&host_end, &x)?;
                self.add_pair(&port_end, &y)?;
                wire.connect((&x.0.name, x.0.index), y.0.index)?;
                wire.connect((&y.0.name, y.0.index), x.0.index)?;
                let middle = Some((x.0, y.0));
                let (host, port) = (host_end.0, port_end.0);
                Link { host, port, middle, shape_up_in_middle, shape }
            }
            _ => {
                self.add_pair(&host_end, &port_end)?;
                let (host, port) = (host_end.0, port_end.0);
                Link { host, port, middle: None, shape_up_in_middle: false, shape }
            }
        };
        switch.netlink().set_bridge(&link.port.name, "br0")?;
        self.prepare(&link, cable)?;
        self.links.push(link);
        Ok(())
    }

    /// Has both directions of all links take `delay`.
    fn add_delays(&mut self, delay: Duration) -> Result<(), Error> {
        let (Some(wires), Some(wire)) = (&self.wires, &self.wire) else { return Ok(()) };
        if delay.is_zero() {
            return Ok(());
        }
        let middles = self.links.iter().filter_map(|link| link.middle.as_ref());
        let ends: Vec<&End> = middles.flat_map(|(x, y)| [x, y]).collect();
        let delays = DelayLine::start(wires, ends.len(), self.mtu, delay)?;
        for (end, device) in ends.into_iter().zip(delays.devices()) {
            let index = wires.netlink().index(device)?;
            wire.detour(end.index, (device, index))?;
        }
        self.delays = Some(delays);
        Ok(())
    }

    fn add_pair(
        &self,
        (one, mac): &(End, Mac),
        (other, other_mac): &(End, Mac),
    ) -> Result<(), Error> {
        let here = VethEnd { name: &one.name, mac: *mac, index: one.index };
        let there = VethEnd { name: &other.name, mac: *other_mac, index: other.index };
        one.namespace.netlink().add_veth(&here, (&other.namespace, &there), self.mtu)
    }

    /// Offloads and rates of a link, then brings it up.
    fn prepare(&self, link: &Link, cable: Cable) -> Result<(), Error> {
        let mut ends = vec![&link.host, &link.port];
        for end in [&link.host, &link.port] {
            let on = self.offloads;
            // A host merges what a cable brings: that is done by software, on any card.
            let merges = on || (cable.to_host && end.name == link.host.name);
            let features = [(GRO, merges), (TSO, on), (UDP_SEGMENTATION, on), (TX_CHECKSUM, on)];
            ethtool::set_features(&end.namespace, &end.name, &features)?;
        }
        if let Some((x, y)) = &link.middle {
            ends.extend([x, y]);
            if !self.offloads {
                // A veth leaves receive offload out where its other end could send super-packets.
                ethtool::set_features(&x.namespace, &x.name, &[(TSO, false)])?;
            }
            // Frames that XDP redirects into a veth are lost if the other end has no receive queue
            // of its own, which GRO gives it.
            let behind = [(x, cable.xdp_at_host), (y, cable.xdp_at_port)];
            for (end, _) in behind.into_iter().filter(|(_, xdp)| *xdp) {
                take_from_xdp(end, self.offloads)?;
            }
        }
        for end in ends {
            end.namespace.netlink().set_up(&end.name)?;
        }
        if let Some(shape) = &link.shape {
            for direction in Direction::BOTH {
                let end = link.shaper(direction);
                end.namespace.netlink().set_shape(end.index, shape)?;
            }
        }
        Ok(())
    }

    /// Lets an XDP program send from a worker's host, for an aggregator that runs there. A rate
    /// does not hold for what it sends.
    ///
    /// # Errors
    /// No such worker, or the system's.
    pub fn serve_on_worker(&self, worker: usize) -> Result<(), Error> {
        match &self.link(worker)?.middle {
            Some((x, _)) => take_from_xdp(x, self.offloads),
            None => Ok(()),
        }
    }

    /// Every host knows every other one's link-layer address, and the switch knows its ports. So no
    /// packet is lost, delayed or flooded because an address is being asked for.
    fn introduce_neighbours(&self) -> Result<(), Error> {
        if let Some(racks) = &self.racks {
            return self.introduce_racks(racks);
        }
        let aggregator_mac = match self.mode {
            Mode::Ports => Station::Bridge.mac(),
            Mode::OneNic => Station::Aggregator.mac(),
        };
        let aggregator = (self.aggregator_addr(), aggregator_mac);
        let workers = (0..self.workers.len())
            .map(|i| (self.worker_addr(i), Station::Worker(i).mac()))
            .collect::<Vec<_>>();
        for (i, worker) in self.workers.iter().enumerate() {
            let mut netlink = worker.netlink();
            let index = self.links[i].host.index;
            for (other, &(address, mac)) in workers.iter().enumerate() {
                if other != i {
                    netlink.add_neighbour(index, address, mac)?;
                }
            }
            netlink.add_neighbour(index, aggregator.0, aggregator.1)?;
        }
        let interface = self.aggregator_stack_interface();
        let mut netlink = self.aggregator.netlink();
        let index = netlink.index(interface)?;
        for &(address, mac) in &workers {
            netlink.add_neighbour(index, address, mac)?;
        }
        drop(netlink);
        let mut netlink = self.switch.netlink();
        for (link, &(_, mac)) in self.links.iter().zip(workers.iter().chain([&aggregator])) {
            netlink.add_station(link.port.index, mac)?;
        }
        Ok(())
    }
}

impl Link {
    /// Waits until every interface of the link works, and so every queue and bridge port there.
    pub(super) fn wait_until_up(&self) -> Result<(), Error> {
        let deadline = Instant::now() + UP_LIMIT;
        let middle = self.middle.iter().flat_map(|(x, y)| [x, y]);
        for end in [&self.host, &self.port].into_iter().chain(middle) {
            while !end.namespace.netlink().works(&end.name)? {
                if Instant::now() > deadline {
                    let (name, label) = (&end.name, end.namespace.label());
                    let text = format!("interface {name} of {label} is not up after {UP_LIMIT:?}");
                    return Err(Error::Config(text));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// What a link is made for.
#[derive(Clone, Copy)]
pub(super) struct Cable {
    pub(super) shape: Option<Shape>,
    /// A worker or the aggregator is at the host's end, and no switch.
    pub(super) to_host: bool,
    /// An XDP program sends at the host's end, at the switch's end.
    pub(super) xdp_at_host: bool,
    pub(super) xdp_at_port: bool,
}

pub(super) fn add_bridge(namespace: &Namespace, mac: Mac, mtu: u32) -> Result<(), Error> {
    let mut netlink = namespace.netlink();
    netlink.add_bridge("br0", mac, mtu)?;
    netlink.set_up("br0")
}

/// Whose interface is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Station {
    Bridge,
    Aggregator,
    Worker(usize),
    Port(usize),
    Middle(usize),
    /// The bridge of a rack's switch besides the first.
    Rack(usize),
    /// The link of a rack's switch to the one in the middle.
    Uplink(usize),
    /// The bridge of a pod's switch.
    Pod(usize),
    /// Its link to the middle.
    PodUplink(usize),
}

impl Station {
    /// An address that a person can tell from others in a capture.
    pub(super) fn mac(self) -> Mac {
        let (kind, number) = match self {
            Self::Bridge => (0, 0),
            Self::Aggregator => (1, 0),
            Self::Worker(i) => (2, i),
            Self::Port(i) => (3, i),
            Self::Middle(i) => (4, i),
            Self::Rack(i) => (5, i),
            Self::Uplink(i) => (6, i),
            Self::Pod(i) => (7, i),
            Self::PodUplink(i) => (8, i),
        };
        [0x02, 0x88, 0, 0, kind, number as u8]
    }

    /// The index of an interface that is one end of a veth pair. No two ends of a pair have the
    /// same: the kernel would take such an interface for one that stands alone, and be in no hurry
    /// (up to a second) to notice that it is up.
    fn index(self) -> u32 {
        match self {
            Self::Bridge | Self::Rack(_) | Self::Pod(_) | Self::Aggregator | Self::Worker(_) => 2,
            Self::Middle(i) => 10 + i as u32,
            Self::Port(i) => 200 + i as u32,
            Self::Uplink(i) | Self::PodUplink(i) => 300 + i as u32,
        }
    }

    pub(super) fn end(self, namespace: &Namespace, name: &str) -> (End, Mac) {
        let end = End { namespace: namespace.clone(), name: name.into(), index: self.index() };
        (end, self.mac())
    }
}

/// Lets a veth's end receive what XDP redirects into the other one, and merge it or not.
fn take_from_xdp(end: &End, merge: bool) -> Result<(), Error> {
    ethtool::set_features(&end.namespace, &end.name, &[(GRO, true)])?;
    set_merging(end, merge)
}

/// Whether an end with receive offload makes trains of the UDP packets that XDP sent one by one.
/// With them they cross the rest of the link whole, as what a stack sends does. Without, it merges
/// nothing, and packets meet faults one by one.
pub(super) fn set_merging(end: &End, on: bool) -> Result<(), Error> {
    ethtool::set_features(&end.namespace, &end.name, &[(UDP_GRO_FORWARDING, on)])?;
    let bytes = if on { SUPER_PACKET } else { 1 };
    end.namespace.netlink().set_gro_max_size(&end.name, bytes)
}
