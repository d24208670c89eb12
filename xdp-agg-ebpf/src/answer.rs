//! Turns a packet into its answer, in place.

use aya_ebpf::bindings::xdp_action;
use xdp_agg_common::answer::Reaction;
use xdp_agg_common::checksum::{self, Ends, Sum};
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
        Reaction::Nothing => return Some(xdp_action::XDP_DROP),
        Reaction::Pending | Reaction::Mismatch => tell(packet, word)?,
        Reaction::Resend | Reaction::All | Reaction::Parent | Reaction::Member => {}
    }
    // At one place for all: the verifier follows each by itself.
    let sum = packet.payload_sum();
    match reaction {
        Reaction::Nothing => None,
        Reaction::Resend => {
            to_sender(packet, ifindex, sum, &Header { kind: Kind::Result, ..*header })
        }
        Reaction::Pending => {
            to_sender(packet, ifindex, sum, &Header { kind: Kind::Pending, flags: 0, ..*header })
        }
        Reaction::Mismatch => {
            to_sender(packet, ifindex, sum, &Header { kind: Kind::Mismatch, flags: 0, ..*header })
        }
        Reaction::All => to_all(packet, conf, sum, header),
        Reaction::Parent => {
            let uplink = UPLINKS.get(header.job.into())?;
            let (kind, job, rank) = (Kind::Contribution, uplink.job, uplink.rank);
            let way = Way::to_parent(uplink, conf);
            to_one(packet, (conf, &way), sum, &Header { kind, job, rank, ..*header })
        }
        Reaction::Member => {
            let member = MEMBERS.get(member_index(header.job, header.rank))?;
            to_one(packet, (conf, &Way::to_member(member, conf)), sum, header)
        }
    }
}

/// Makes the payload one chunk with one number in it.
#[inline(always)]
fn tell(packet: &mut Packet<'_>, word: u64) -> Option<()> {
    packet.fit((IP_OVERHEAD + CHUNK_LEN) as u16).ok()?;
    const ZERO: Lane = Lane::new(0);
    let payload = [Lane::new(word), ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO];
    lanes::store(packet.payload().chunk(0)?, &payload);
    Some(())
}

/// An answer to the sender alone, with the payload as it is in the packet, whose sum this is.
#[inline(always)]
pub fn to_sender(packet: &mut Packet<'_>, ifindex: u32, sum: Sum, header: &Header) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let network = &mut headers.network;
    (network.mac_from, network.mac_to) = (network.mac_to, network.mac_from);
    let from = (network.ip.destination(), u16::from_be_bytes(network.port_to));
    let to = (network.ip.source(), u16::from_be_bytes(network.port_from));
    let shared = checksum::shared(sum, payload_len, header);
    address(network, Ends { from, to }, payload_len, (shared, header.rank));
    header.emit(&mut headers.ours);
    Some(back_out(ifindex))
}

/// The packet holds a sum: a copy to every member, or one to the job's group.
#[inline(always)]
fn to_all(packet: &mut Packet<'_>, conf: &JobConf, sum: Sum, header: &Header) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let mut result = Header { kind: Kind::Result, rank: UNADDRESSED, ..*header };
    let shared = checksum::shared(sum, payload_len, &result);
    let network = &mut headers.network;
    // The program that each copy passes on its way out (`copy_out`) fills the recipient in, and
    // completes the checksum.
    network.udp_sum = shared.to_field();
    if conf.mode == ResultMode::Multicast as u16 {
        result.rank = EVERYBODY;
        let [_, a, b, c] = conf.group.to_be_bytes();
        network.mac_from = network.mac_to;
        network.mac_to = [0x01, 0x00, 0x5e, a & 0x7f, b, c].into(); // RFC 1112
        let (from, to) = ((conf.addr, conf.port), (conf.group, conf.group_port));
        address(network, Ends { from, to }, payload_len, (shared, EVERYBODY));
    }
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
/// payload as it is in the packet, whose sum this is.
#[inline(always)]
fn to_one(
    packet: &mut Packet<'_>,
    (conf, way): (&JobConf, &Way),
    sum: Sum,
    header: &Header,
) -> Option<u32> {
    let payload_len = packet.payload_len();
    let headers = packet.headers()?;
    let network = &mut headers.network;
    network.mac_to = way.mac.into();
    network.mac_from = way.local_mac.into();
    let ends = Ends { from: (way.from, conf.port), to: (way.addr, way.port) };
    let shared = checksum::shared(sum, payload_len, header);
    address(network, ends, payload_len, (shared, header.rank));
    header.emit(&mut headers.ours);
    Some(redirect_back(way.ifindex))
}

/// Writes the addresses, lengths and checksum of an answer to this rank.
#[inline(always)]
pub fn address(network: &mut Network, ends: Ends, payload_len: u16, (shared, rank): (Sum, u16)) {
    network.ip = Ipv4::answer(ends.from.0, ends.to.0, payload_len);
    network.port_from = ends.from.1.to_be_bytes();
    network.port_to = ends.to.1.to_be_bytes();
    network.udp_len = (network.ip.total_len() - IP_LEN as u16).to_be_bytes();
    network.udp_sum = checksum::completed(shared, rank, ends);
}

#[inline(always)]
fn back_out(ifindex: u32) -> u32 {
    // The local interface is a veth whatever the others are.
    let redirect = Settings::redirect_back() || Settings::is_local(ifindex);
    if redirect { redirect_back(ifindex) } else { xdp_action::XDP_TX }
}
