//! Networks of workers and an aggregator.

mod build;
mod builder;
mod hold;
mod pods;
mod racks;

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

pub use builder::Builder;
use racks::Racks;

use crate::delay::{DelayLine, DelayReport};
use crate::error::Error;
use crate::ethtool::{self, TSO, TX_VLAN, UDP_SEGMENTATION};
use crate::layout::{Counters, Seen};
use crate::meter::LinkMeter;
use crate::namespace::Namespace;
use crate::netlink::InterfaceCounters;
use crate::qdisc::{QueueCounters, Shape};
use crate::wire::{Faults, Probe, Wire};

/// Most workers of one network: the addresses and the kernel program's tables end there.
pub const MAX_WORKERS: usize = 64;
/// Largest MTU of a link whose other end runs an XDP program without fragments (on a veth).
pub const MAX_XDP_MTU: u32 = 3506;

/// What every IPv4 link must carry, and what a veth can.
const MIN_MTU: u32 = 68;
const MAX_MTU: u32 = 65_535;
/// Most racks: their switches' addresses end there.
const MAX_RACKS: usize = 16;

/// Where the aggregator sits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It is the switch: its host has a port per worker, bridged.
    #[default]
    Ports,
    /// It is one more host, with one interface, on a switch.
    OneNic,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the host into the network.
    Up,
    /// From the network to the host.
    Down,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];
}

/// One end of a veth pair.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    pub(crate) index: u32,
}

/// The cable between a host and the switch.
#[derive(Debug)]
pub(crate) struct Link {
    /// The host's interface.
    pub(crate) host: End,
    /// The switch's port.
    pub(crate) port: End,
    /// The two ends in the namespace of the links, towards the host and towards the switch.
    pub(crate) middle: Option<(End, End)>,
    /// What the host sends by XDP passes no shaper of the host.
    shape_up_in_middle: bool,
    /// What both directions carry at most.
    pub(crate) shape: Option<Shape>,
}

impl Link {
    /// The interface whose queue shapes a direction. What has left it has been through the shaper
    /// or around it.
    pub(crate) fn shaper(&self, direction: Direction) -> &End {
        match (direction, &self.middle) {
            (Direction::Up, Some((_, y))) if self.shape_up_in_middle => y,
            (Direction::Up, _) => &self.host,
            (Direction::Down, Some((x, _))) => x,
            (Direction::Down, None) => &self.port,
        }
    }

    /// The interface that receives what the shaper's has sent.
    pub(crate) fn behind_shaper(&self, direction: Direction) -> &End {
        match (direction, &self.middle) {
            (Direction::Up, Some((x, _))) if !self.shape_up_in_middle => x,
            (Direction::Up, _) => &self.port,
            (Direction::Down, _) => &self.host,
        }
    }

    /// Where the kernel program meets a direction's packets, and the end that sends them there.
    fn entrance(&self, direction: Direction) -> Result<(&End, &End), Error> {
        let (x, y) = self.middle.as_ref().ok_or_else(|| {
            Error::Config("this network was built without the kernel program of its links".into())
        })?;
        Ok(match direction {
            Direction::Up => (x, &self.host),
            Direction::Down => (y, &self.port),
        })
    }
}

/// A network: workers, an aggregator, and a switch between them. It is gone when this is dropped,
/// or when the process ends in whatever way, once no process runs in it.
#[derive(Debug)]
pub struct Topology {
    mode: Mode,
    mtu: u32,
    offloads: bool,
    shape: Option<Shape>,
    workers: Vec<Namespace>,
    aggregator: Namespace,
    switch: Namespace,
    wires: Option<Namespace>,
    wire: Option<Wire>,
    /// Where links take their time.
    delays: Option<DelayLine>,
    links: Vec<Link>,
    /// Where there are racks: their switches, and the one in the middle.
    racks: Option<Racks>,
}

impl Topology {
    /// Where the aggregator sits.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// MTU of every interface.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The rate of every link and how it is kept.
    pub fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// The aggregator's host.
    pub fn aggregator(&self) -> &Namespace {
        &self.aggregator
    }

    /// The aggregator's address.
    pub fn aggregator_addr(&self) -> Ipv4Addr {
        if self.racks.is_some() {
            return self.rack_addr(0);
        }
        Ipv4Addr::new(10, 88, 0, 254)
    }

    /// The interfaces that the aggregator serves: its ports, or its one interface.
    pub fn aggregator_interfaces(&self) -> Vec<String> {
        match self.mode {
            Mode::Ports if self.racks.is_some() => self.rack_interfaces(0),
            Mode::Ports => self.links.iter().map(|link| link.port.name.clone()).collect(),
            Mode::OneNic => vec!["eth0".into()],
        }
    }

    /// The interface that holds the aggregator's address.
    pub fn aggregator_stack_interface(&self) -> &'static str {
        match self.mode {
            Mode::Ports => "br0",
            Mode::OneNic => "eth0",
        }
    }

    /// All workers' hosts.
    pub fn workers(&self) -> &[Namespace] {
        &self.workers
    }

    /// One worker's host. Its interface is `eth0`.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn worker(&self, i: usize) -> &Namespace {
        &self.workers[i]
    }

    /// The address of a worker.
    pub fn worker_addr(&self, i: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, u8::try_from(i + 1).unwrap_or(u8::MAX))
    }

    /// Number of links. Link `i` is worker `i`'s; in [`Mode::OneNic`] the last one is the
    /// aggregator's. Those of racks come behind the workers', and those of pods behind these.
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    /// The number of the aggregator's link, if it has one of its own.
    pub fn aggregator_link(&self) -> Option<usize> {
        (self.mode == Mode::OneNic).then_some(self.workers.len())
    }

    pub(crate) fn links(&self) -> &[Link] {
        &self.links
    }

    fn link(&self, link: usize) -> Result<&Link, Error> {
        let count = self.links.len();
        self.links.get(link).ok_or_else(|| {
            Error::Config(format!("there is no link {link}: links are numbered 0 to {}", count - 1))
        })
    }

    fn kernel_program(&self) -> Result<&Wire, Error> {
        self.wire.as_ref().ok_or_else(|| {
            Error::Config("this needs a network built with `wire(true)`, which needs root".into())
        })
    }

    /// Changes the faults of one direction of a link, from the next packet on.
    ///
    /// While there are any, what crosses that direction is cut into single packets before it meets
    /// them: UDP trains, and TCP super-packets unless the faults are for one UDP port.
    ///
    /// # Errors
    /// No such link, a chance outside 0 to 1, or a network without the kernel program.
    pub fn set_faults(
        &self,
        link: usize,
        direction: Direction,
        faults: &Faults,
    ) -> Result<(), Error> {
        let (entrance, sender) = self.link(link)?.entrance(direction)?;
        if self.offloads {
            let whole_udp = faults.is_none();
            let whole_tcp = whole_udp || faults.udp_port.is_some();
            let features = [(UDP_SEGMENTATION, whole_udp), (TSO, whole_tcp)];
            ethtool::set_features(&sender.namespace, &sender.name, &features)?;
            build::set_merging(entrance, whole_udp)?;
        }
        self.kernel_program()?.set_faults(entrance.index, faults)
    }

    /// Has UDP packets to this port leave a link tagged with a VLAN towards the switch, and tagged
    /// ones come out untagged at the host: the host's end is in the VLAN, the switch's end a trunk.
    /// `in_frame`: the tag stands in the frame, as on a cable, and not beside it, as veth has it.
    ///
    /// # Errors
    /// No such link, or a network without the kernel program.
    pub fn set_vlan(&self, link: usize, vlan: (u16, u16), in_frame: bool) -> Result<(), Error> {
        let wire = self.kernel_program()?;
        let Some((x, y)) = &self.link(link)?.middle else { return Ok(()) };
        for end in [x, y] {
            wire.set_vlan(end.index, vlan)?;
        }
        ethtool::set_features(&y.namespace, &y.name, &[(TX_VLAN, !in_frame)])
    }

    /// The same for both directions of all links.
    ///
    /// # Errors
    /// As [`Topology::set_faults`].
    pub fn set_all_faults(&self, faults: &Faults) -> Result<(), Error> {
        for link in 0..self.links.len() {
            for direction in Direction::BOTH {
                self.set_faults(link, direction, faults)?;
            }
        }
        Ok(())
    }

    /// What crossed one direction of a link, and the faults that it met.
    ///
    /// # Errors
    /// No such link, or a network without the kernel program.
    pub fn fault_counters(&self, link: usize, direction: Direction) -> Result<Counters, Error> {
        let (entrance, _) = self.link(link)?.entrance(direction)?;
        self.kernel_program()?.counters(entrance.index)
    }

    /// How well the links' delay was kept so far; `None`: they have none.
    ///
    /// # Errors
    /// What delays packets has failed: the links are broken since.
    pub fn delays(&self) -> Result<Option<DelayReport>, Error> {
        self.delays.as_ref().map(DelayLine::report).transpose()
    }

    /// What the shaper of one direction of a link has sent and dropped; `None` without a rate.
    ///
    /// # Errors
    /// No such link, or netlink's.
    pub fn queue_counters(
        &self,
        link: usize,
        direction: Direction,
    ) -> Result<Option<QueueCounters>, Error> {
        let link = self.link(link)?;
        let end = link.shaper(direction);
        if link.shape.is_none() {
            return Ok(None);
        }
        let all = end.namespace.netlink().queue_counters()?;
        Ok(all.into_iter().find(|(index, _)| *index == end.index).map(|(_, counters)| counters))
    }

    /// What a host's interface has carried.
    ///
    /// # Errors
    /// No such link, or netlink's.
    pub fn host_counters(&self, link: usize) -> Result<InterfaceCounters, Error> {
        counters_of(&self.link(link)?.host)
    }

    /// What the switch's port of a link has carried.
    ///
    /// # Errors
    /// No such link, or netlink's.
    pub fn port_counters(&self, link: usize) -> Result<InterfaceCounters, Error> {
        counters_of(&self.link(link)?.port)
    }

    /// Pulls the plug of a link, or puts it back in: both ends lose their carrier and keep their
    /// settings. Without the kernel program it is the switch's port that goes down.
    ///
    /// # Errors
    /// No such link, or netlink's.
    pub fn set_link_up(&self, link: usize, up: bool) -> Result<(), Error> {
        let link = self.link(link)?;
        let ends = match &link.middle {
            Some((x, y)) => vec![x, y],
            None => vec![&link.port],
        };
        for end in ends {
            let mut netlink = end.namespace.netlink();
            if up { netlink.set_up(&end.name)? } else { netlink.set_down(&end.name)? }
        }
        if up { link.wait_until_up() } else { Ok(()) }
    }

    /// Takes away a worker's interface, as when its namespace is deleted: no host has its address,
    /// and what runs there reaches no other host. It does not come back.
    ///
    /// # Errors
    /// No such worker, or netlink's.
    pub fn remove_host(&self, worker: usize) -> Result<(), Error> {
        let end = &self.link(worker)?.host;
        end.namespace.netlink().delete(&end.name)
    }

    /// Starts to measure what the links carry, against the rate that they were built with.
    ///
    /// # Errors
    /// A network without a rate, or netlink's.
    pub fn meter(&self) -> Result<LinkMeter<'_>, Error> {
        if self.shape.is_none() {
            let text = "this network has no rate that its links could keep";
            return Err(Error::Config(text.into()));
        }
        LinkMeter::start(self, None)
    }

    /// The same against any rate.
    pub fn meter_against(&self, shape: Shape) -> Result<LinkMeter<'_>, Error> {
        LinkMeter::start(self, Some(shape))
    }

    /// Attaches a probe where the aggregator's program would sit, on the first interface, or on
    /// all of [`Topology::aggregator_interfaces`], until the network goes.
    ///
    /// # Errors
    /// No such interface, an MTU that is too large, or a network without the kernel program.
    pub fn attach_probe(&self, interface: &str, probe: Probe) -> Result<(), Error> {
        self.kernel_program()?.attach_probe(&self.aggregator, interface, probe)
    }

    /// What the probe on one of the aggregator's interfaces has seen.
    ///
    /// # Errors
    /// No such interface, or a network without the kernel program.
    pub fn probe_seen(&self, interface: &str) -> Result<Seen, Error> {
        let index = self.aggregator.netlink().index(interface)?;
        self.kernel_program()?.seen(index)
    }

    /// Damages what comes down a link from now on ([`Probe::Damage`]), as a switch with bad memory
    /// does. Only what XDP sends has a checksum that tells: a stack leaves it out
    /// between namespaces.
    ///
    /// # Errors
    /// No such link, or a network without the kernel program.
    pub fn damage(&self, link: usize) -> Result<(), Error> {
        let (entrance, _) = self.link(link)?.entrance(Direction::Down)?;
        self.kernel_program()?.attach_probe(&entrance.namespace, &entrance.name, Probe::Damage)
    }

    /// Packets that were damaged on their way down a link.
    ///
    /// # Errors
    /// As [`Self::damage`].
    pub fn damaged(&self, link: usize) -> Result<u64, Error> {
        let (entrance, _) = self.link(link)?.entrance(Direction::Down)?;
        Ok(self.kernel_program()?.seen(entrance.index)?.packets)
    }

    /// For people: which host is where, and how to get a shell there.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut line = |namespace: &Namespace, what: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:9} {what:28} {}", namespace.label(), namespace.nsenter());
        };
        let interface = self.aggregator_stack_interface();
        line(&self.aggregator, format!("{} on {interface}", self.aggregator_addr()));
        if self.mode == Mode::OneNic {
            line(&self.switch, "br0, a port per host".into());
        }
        if let Some(racks) = &self.racks {
            for rack in 1..racks.tors.len() {
                line(&racks.tors[rack], format!("{} on br0", self.rack_addr(rack)));
            }
            for (pod, switch) in racks.pods.iter().enumerate() {
                line(switch, format!("{} on br0", self.pod_addr(pod)));
            }
            line(&racks.middle, "br0, a port per rack".into());
        }
        for (i, worker) in self.workers.iter().enumerate() {
            line(worker, format!("{} on eth0", self.worker_addr(i)));
        }
        if let Some(wires) = &self.wires {
            line(wires, "x<i> to hosts, y<i> to ports".into());
        }
        text
    }
}

fn counters_of(end: &End) -> Result<InterfaceCounters, Error> {
    let all = end.namespace.netlink().counters()?;
    let found = all.into_iter().find(|(index, _)| *index == end.index);
    found
        .map(|(_, counters)| counters)
        .ok_or_else(|| Error::Config(format!("interface {} is gone", end.name)))
}
