//! Interfaces, addresses and routes through netlink, one request at a time.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    BridgeStpState, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, State,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use netlink_packet_route::stats::{StatsAttribute, StatsFilterMask, StatsMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::error::Error;
use crate::namespace::Namespace;

/// An address of the link layer.
pub type Mac = [u8; 6];

/// What an interface has carried, as its driver counts: a super-packet is one packet with one set
/// of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that came and were dropped.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that should have been sent and were dropped.
    pub tx_dropped: u64,
}

/// One end of a veth pair that is to be made.
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
    /// The index that it shall have. 0: any.
    pub(crate) index: u32,
}

/// A netlink socket in the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok::<_, std::io::Error>(socket)
        };
        let socket = open().map_err(Error::os("opening a netlink socket"))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and collects the messages of its answer.
    pub(crate) fn request(
        &mut self,
        what: impl FnOnce() -> String,
        message: Message,
        flags: u16,
    ) -> Result<Vec<Message>, Error> {
        self.exchange(message, flags).map_err(|source| Error::os(what())(source))
    }

    fn exchange(&mut self, message: Message, flags: u16) -> std::io::Result<Vec<Message>> {
        use std::io::{Error as IoError, ErrorKind};
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let invalid = |error| IoError::new(ErrorKind::InvalidData, format!("{error}"));
        let mut answers = Vec::new();
        // The kernel ends every answer with an error, an acknowledgement or "done".
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let packet: NetlinkMessage<Message> =
                    NetlinkMessage::deserialize(rest).map_err(invalid)?;
                let len = (packet.header.length as usize).next_multiple_of(4);
                rest = rest.get(len..).unwrap_or_default();
                if packet.header.sequence_number != self.sequence {
                    continue;
                }
                match packet.payload {
                    NetlinkPayload::Error(error) => match error.code {
                        None => return Ok(answers),
                        Some(code) => return Err(IoError::from_raw_os_error(code.get().abs())),
                    },
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    _ => {}
                }
            }
        }
    }

    fn create(&mut self, what: impl FnOnce() -> String, message: Message) -> Result<(), Error> {
        self.request(what, message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    fn link(&mut self, name: &str) -> Result<LinkMessage, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let what = || format!("looking for interface {name}");
        let answers = self.request(what, Message::GetLink(message), NLM_F_ACK)?;
        let found = answers.into_iter().find_map(|answer| match answer {
            Message::NewLink(link) => Some(link),
            _ => None,
        });
        found.ok_or_else(|| Error::Config(format!("there is no interface {name}")))
    }

    /// The index of an interface.
    pub(crate) fn index(&mut self, name: &str) -> Result<u32, Error> {
        Ok(self.link(name)?.header.index)
    }

    /// True if an interface works: one that is up takes a moment until its queue and the bridge
    /// that it belongs to know it, and packets are lost until then.
    pub(crate) fn works(&mut self, name: &str) -> Result<bool, Error> {
        let up = LinkAttribute::OperState(State::Up);
        Ok(self.link(name)?.attributes.contains(&up))
    }

    /// Names of all interfaces.
    pub(crate) fn interfaces(&mut self) -> Result<Vec<String>, Error> {
        let what = || "listing the interfaces".to_owned();
        let answers = self.request(what, Message::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        let names = answers.into_iter().filter_map(|answer| match answer {
            Message::NewLink(link) => link.attributes.into_iter().find_map(|a| match a {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            }),
            _ => None,
        });
        Ok(names.collect())
    }

    /// Makes a veth pair with one end here and the other in another namespace.
    pub(crate) fn add_veth(
        &mut self,
        here: &VethEnd<'_>,
        other: (&Namespace, &VethEnd<'_>),
        mtu: u32,
    ) -> Result<(), Error> {
        let end = |end: &VethEnd<'_>| {
            let mut message = LinkMessage::default();
            message.header.index = end.index;
            message.attributes = vec![
                LinkAttribute::IfName(end.name.into()),
                LinkAttribute::Address(end.mac.to_vec()),
                LinkAttribute::Mtu(mtu),
            ];
            message
        };
        let (namespace, peer) = other;
        let mut peer_message = end(peer);
        peer_message.attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
        let mut message = end(here);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_message))),
        ]));
        let what = || {
            let (name, peer, label) = (here.name, peer.name, namespace.label());
            format!("making the veth pair {name} - {peer} in {label}, MTU {mtu}")
        };
        self.create(what, Message::NewLink(message))
    }

    /// Makes a bridge that forwards at once and floods multicast.
    pub(crate) fn add_bridge(&mut self, name: &str, mac: Mac, mtu: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    InfoBridge::StpState(BridgeStpState::Disabled),
                    InfoBridge::ForwardDelay(0),
                    InfoBridge::MulticastSnooping(false),
                ])),
            ]),
        ];
        self.create(|| format!("making bridge {name}"), Message::NewLink(message))
    }

    fn change(
        &mut self,
        name: &str,
        what: &str,
        edit: impl FnOnce(&mut LinkMessage),
    ) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        edit(&mut message);
        let what = || format!("{what} of interface {name}");
        self.request(what, Message::SetLink(message), NLM_F_ACK).map(drop)
    }

    /// Brings an interface up.
    pub(crate) fn set_up(&mut self, name: &str) -> Result<(), Error> {
        self.change(name, "bringing up", |message| {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Takes an interface down: packets to it are lost until it is up again.
    pub(crate) fn set_down(&mut self, name: &str) -> Result<(), Error> {
        self.change(name, "taking down", |message| {
            message.header.flags = LinkFlags::empty();
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Removes an interface, and a veth's other end with it.
    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        let what = || format!("removing interface {name}");
        self.request(what, Message::DelLink(message), NLM_F_ACK).map(drop)
    }

    /// Makes an interface a port of a bridge.
    pub(crate) fn set_bridge(&mut self, name: &str, bridge: &str) -> Result<(), Error> {
        let bridge = self.index(bridge)?;
        self.change(name, "setting the bridge", |message| {
            message.attributes.push(LinkAttribute::Controller(bridge));
        })
    }

    /// Sets the MTU of an interface.
    pub(crate) fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), Error> {
        self.change(name, &format!("setting the MTU ({mtu})"), |message| {
            message.attributes.push(LinkAttribute::Mtu(mtu));
        })
    }

    /// Sets how many packets may wait in an interface.
    pub(crate) fn set_queue_length(&mut self, name: &str, packets: u32) -> Result<(), Error> {
        self.change(name, "setting the queue length", |message| {
            message.attributes.push(LinkAttribute::TxQueueLen(packets));
        })
    }

    /// Sets how large a packet generic receive offload may make. 1: it merges nothing.
    pub(crate) fn set_gro_max_size(&mut self, name: &str, bytes: u32) -> Result<(), Error> {
        self.change(name, "limiting what GRO merges", |message| {
            message.attributes.push(LinkAttribute::GroMaxSize(bytes));
        })
    }

    /// Gives an interface an address, and a route to its network that uses cubic: the machine's
    /// default may be one that does badly between namespaces.
    pub(crate) fn add_address(
        &mut self,
        name: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<(), Error> {
        let index = self.index(name)?;
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.attributes = vec![
            AddressAttribute::Local(address.into()),
            AddressAttribute::Address(address.into()),
        ];
        let what = || format!("giving {name} the address {address}/{prefix}");
        self.create(what, Message::NewAddress(message))?;
        let network = Ipv4Addr::from(u32::from(address) & u32::MAX << (32 - u32::from(prefix)));
        let mut route = RouteMessage::default();
        route.header = RouteHeader {
            address_family: AddressFamily::Inet,
            destination_prefix_length: prefix,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Kernel,
            scope: RouteScope::Link,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        route.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet(network)),
            RouteAttribute::PrefSource(RouteAddress::Inet(address)),
            RouteAttribute::Oif(index),
            RouteAttribute::Metrics(vec![RouteMetric::CcAlgo("cubic".into())]),
        ];
        let what = || format!("routing {network}/{prefix} through {name} with cubic");
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(what, Message::NewRoute(route), flags).map(drop)
    }

    /// Tells an interface a neighbour's link-layer address for good.
    pub(crate) fn add_neighbour(
        &mut self,
        index: u32,
        address: Ipv4Addr,
        mac: Mac,
    ) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let what = || format!("adding the neighbour {address}");
        self.create(what, Message::NewNeighbour(message))
    }

    /// Tells a bridge for good which port an address lives behind.
    pub(crate) fn add_station(&mut self, port: u32, mac: Mac) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = port;
        message.header.state = NeighbourState::Noarp;
        message.header.flags = NeighbourFlags::Controller;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
        let what = || "adding a station to the bridge".to_owned();
        self.create(what, Message::NewNeighbour(message))
    }

    /// Counters of every interface, by index.
    pub(crate) fn counters(&mut self) -> Result<Vec<(u32, InterfaceCounters)>, Error> {
        let mut message = StatsMessage::default();
        message.header.filter_mask = StatsFilterMask::Link64;
        let what = || "reading the interfaces' counters".to_owned();
        let answers = self.request(what, Message::GetStats(message), NLM_F_DUMP)?;
        let read = answers.into_iter().filter_map(|answer| {
            let Message::NewStats(stats) = answer else { return None };
            stats.attributes.iter().find_map(|attribute| match attribute {
                StatsAttribute::Link64(s) => Some((
                    stats.header.ifindex,
                    InterfaceCounters {
                        rx_packets: s.rx_packets,
                        rx_bytes: s.rx_bytes,
                        rx_dropped: s.rx_dropped,
                        tx_packets: s.tx_packets,
                        tx_bytes: s.tx_bytes,
                        tx_dropped: s.tx_dropped,
                    },
                )),
                _ => None,
            })
        });
        Ok(read.collect())
    }
}
