//! The longest packet that a route takes, as this host's administrator has set it.
//!
//! A socket's `IP_MTU` is not used: for ten minutes it follows ICMP packets, which anybody can
//! send. The settings of the interface and of the route are asked for instead.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Bytes of the longest IP packet on the way from this address of the host to that one.
///
/// # Errors
/// There is no such route, or the system does not tell.
pub(crate) fn mtu(from: Ipv4Addr, to: Ipv4Addr) -> io::Result<u32> {
    let mut netlink = Netlink::open()?;
    let interface = netlink.interface(from, to)?;
    let link = netlink.link(interface)?;
    // The entry of the routing table, and not the cached one, which knows what ICMP packets said.
    let entry = netlink.route(from, to, RouteFlags::FibMatch)?;
    Ok(set_by_route(&entry).map_or(link, |route| route.min(link)))
}

/// The number of the interface that packets from this address of the host to that one leave by.
///
/// # Errors
/// There is no such route, or the system does not tell.
pub(crate) fn interface(from: Ipv4Addr, to: Ipv4Addr) -> io::Result<u32> {
    Netlink::open()?.interface(from, to)
}

/// What `ip route … mtu N` has set.
fn set_by_route(entry: &RouteMessage) -> Option<u32> {
    let metrics = entry.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    });
    metrics.flatten().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}

fn untold(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the kernel does not tell {what}"))
}

/// A netlink socket in the namespace in which it was opened.
struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let mut socket = xdp_agg_forks::own(|| Socket::new(NETLINK_ROUTE))?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    fn route(
        &mut self,
        from: Ipv4Addr,
        to: Ipv4Addr,
        flags: RouteFlags,
    ) -> io::Result<RouteMessage> {
        let mut question = RouteMessage::default();
        question.header.address_family = AddressFamily::Inet;
        question.header.destination_prefix_length = 32;
        question.header.source_prefix_length = 32;
        question.header.flags = flags;
        question.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet(to)),
            RouteAttribute::Source(RouteAddress::Inet(from)),
        ];
        match self.ask(Message::GetRoute(question))? {
            Message::NewRoute(route) => Ok(route),
            _ => Err(untold("the route")),
        }
    }

    fn interface(&mut self, from: Ipv4Addr, to: Ipv4Addr) -> io::Result<u32> {
        let route = self.route(from, to, RouteFlags::empty())?;
        let interface = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        interface.ok_or_else(|| untold("its interface"))
    }

    fn link(&mut self, index: u32) -> io::Result<u32> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        let Message::NewLink(link) = self.ask(Message::GetLink(question))? else {
            return Err(untold("the interface"));
        };
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        mtu.ok_or_else(|| untold("an interface's MTU"))
    }

    /// The one message of an answer.
    fn ask(&mut self, question: Message) -> io::Result<Message> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(question);
        // With an acknowledgement, so that every answer has an end.
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = None;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let packet: NetlinkMessage<Message> = NetlinkMessage::deserialize(rest)
                    .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
                let len = (packet.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(len..).unwrap_or_default();
                if packet.header.sequence_number != self.sequence {
                    continue;
                }
                match packet.payload {
                    NetlinkPayload::InnerMessage(message) => answer = Some(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => {
                        return answer.ok_or_else(|| untold("anything"));
                    }
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_takes_long_packets() {
        let lo = Ipv4Addr::LOCALHOST;
        assert!(mtu(lo, lo).expect("a route") >= 65_000);
    }
}
