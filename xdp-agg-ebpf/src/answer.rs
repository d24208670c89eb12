//! Turns a packet into its answer, in place.

use aya_ebpf::bindings::xdp_action;
use xdp_agg_common::answer::Reaction;
use xdp_agg_common::frame::{IP_LEN, IP_OVERHEAD, Ipv4};
use xdp_agg_common::lanes::{self, CHUNK_LEN, Lane};
use xdp_agg_common::maps::{JobConf, Member, ResultMode, UNADDRESSED, Uplink, member_index};
use xdp_agg_common::slot::Payload as _;
use xdp_agg_common::wire::{EVERYBODY, Header, Kind};

use crate::maps::{MEMBERS, Settings, UPLINKS, broadcast, redirect_back};
use crate::packet::{Network, Packet};

/// Sends what goes out. The packet has the lanes of a result. The header has its flags, and the
/// rank of a member that is told something. `word` is what an answer of one chunk tells.
#[inline(always)]
pub fn send(
    packet: &mut Packet<'_>,
    ifindex: u32,
    conf: &JobConf,
    header: &Header,
    (reaction, word): (Reaction, u64),
) -> Option<u32> {
    match reaction {
        Reaction::Nothing => Some(xdp_action::XDP_DROP),
        Reaction::Resend => to_sender(packet, ifindex, &Header { kind: Kind::Result, ..*header }),
        Reaction::Pending => word_to_sender(packet, ifindex, header, (Kind::Pending, word)),
        Reaction::Mismatch => word_to_sender(packet, ifindex, header, (Kind::Mismatch, word)),
        Reaction::All => to_all(packet, conf, header),
        Reaction::Parent => {
            let uplink = UPLINKS.get(header.job.into())?;
            let (kind, job, rank) = (Kind::Contribution, uplink.job, uplink.rank);
            let way = Way::to_parent(uplink, conf);
            to_one(packet, conf, &way, &Header { kind, job, rank, ..*header })
        }
        Reaction::Member => {
            let member = MEMBERS.get(member_index(header.job, header.rank))?;
            to_one(packet, conf, &Way::to_member(member, conf), header)
        }
    }
}

/// An answer to the sender alone whose payload is one chunk with one number in it.
#[inline(always)]
fn word_to_sender(
    packet: &mut Packet<'_>,
    ifindex: u32,
    header: &Header,
    (kind, word): (Kind, u64),
) -> Option<u32> {
    packet.fit((IP_OVERHEAD + CHUNK_LEN) as u16).ok()?;
    const ZERO: Lane = Lane::new(0);
    let payload = [Lane::new(word), ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO];
    lanes::store(packet.payload().chunk(0)?, &payload);
    to_sender(packet, ifindex, &Header { kind, flags: 0, ..*header })
}

/// An answer to the sender alone, with the payload as it is in the packet.
#[inline(always)]
pub fn to_sender(packet: &mut Packet<'_>, ifindex: u32, header: &Header) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let network = &mut headers.network;
    (network.mac_from, network.mac_to) = (network.mac_to, network.mac_from);
    let from = (network.ip.destination(), u16::from_be_bytes(network.port_to));
    let to = (network.ip.source(), u16::from_be_bytes(network.port_from));
    address(network, from, to, payload_len);
    header.emit(&mut headers.ours);
    Some(back_out(ifindex))
}

/// The packet holds a sum: a copy to every member, or one to the job's group.
#[inline(always)]
fn to_all(packet: &mut Packet<'_>, conf: &JobConf, header: &Header) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let mut result = Header { kind: Kind::Result, rank: UNADDRESSED, ..*header };
    if conf.mode == ResultMode::Multicast as u16 {
        result.rank = EVERYBODY;
        let [_, a, b, c] = conf.group.to_be_bytes();
        let network = &mut headers.network;
        network.mac_from = network.mac_to;
        network.mac_to = [0x01, 0x00, 0x5e, a & 0x7f, b, c].into(); // RFC 1112
        address(network, (conf.addr, conf.port), (conf.group, conf.group_port), payload_len);
    }
    // The program that each copy passes on its way out (`copy_out`) fills the recipient in.
    result.emit(&mut headers.ours);
    Some(broadcast(header.job))
}

/// How a host is reached, as a probe showed.
struct Way {
    /// Our address for it.
    from: u32,
    addr: u32,
    port: u16,
    ifindex: u32,
    mac: [u8; 6],
    local_mac: [u8; 6],
}

impl Way {
    #[inline(always)]
    fn to_member(member: &Member, conf: &JobConf) -> Self {
        let Member { addr, port, ifindex, mac, local_mac, .. } = *member;
        let from = Settings::addr_behind(ifindex, conf);
        Self { from, addr, port, ifindex, mac, local_mac }
    }

    #[inline(always)]
    fn to_parent(uplink: &Uplink, conf: &JobConf) -> Self {
        let Uplink { addr, port, ifindex, mac, local_mac, .. } = *uplink;
        Self { from: conf.addr, addr, port, ifindex, mac, local_mac }
    }
}

/// A packet to one host, which need not be where the packet came from: with this header, and the
/// payload as it is in the packet.
#[inline(always)]
fn to_one(packet: &mut Packet<'_>, conf: &JobConf, way: &Way, header: &Header) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let network = &mut headers.network;
    network.mac_to = way.mac.into();
    network.mac_from = way.local_mac.into();
    address(network, (way.from, conf.port), (way.addr, way.port), payload_len);
    header.emit(&mut headers.ours);
    Some(redirect_back(way.ifindex))
}

/// Writes the addresses and lengths of an answer.
#[inline(always)]
pub fn address(network: &mut Network, from: (u32, u16), to: (u32, u16), payload_len: u16) {
    network.ip = Ipv4::answer(from.0, to.0, payload_len);
    network.port_from = from.1.to_be_bytes();
    network.port_to = to.1.to_be_bytes();
    network.udp_len = (network.ip.total_len() - IP_LEN as u16).to_be_bytes();
    network.udp_sum = [0; 2];
}

#[inline(always)]
fn back_out(ifindex: u32) -> u32 {
    // The local interface is a veth whatever the others are.
    let redirect = Settings::redirect_back() || Settings::is_local(ifindex);
    if redirect { redirect_back(ifindex) } else { xdp_action::XDP_TX }
}
