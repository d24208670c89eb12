//! Frames, built and read by `etherparse`, so that not only we understand what we send.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::{
    Ipv4Header, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, UdpHeader,
    UdpSlice,
};
use xdp_agg_common::lanes::{Chunk, Lane};
use xdp_agg_common::maps::UNADDRESSED;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use crate::setup::{AGGREGATOR, PORT, worker};

/// The aggregator's link-layer address.
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

/// A frame on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
}

/// What a frame of ours holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) mac_from: [u8; 6],
    pub(crate) mac_to: [u8; 6],
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// A worker's link-layer address.
pub(crate) const fn worker_mac(rank: u16) -> [u8; 6] {
    [2, 0, 0, 0, 1, rank as u8]
}

/// The payload that a worker contributes to a block: lanes that differ in everything.
pub(crate) fn payload(rank: u16, block: u64, chunks: u16) -> Vec<u8> {
    (0..u32::from(chunks) * 16)
        .map(|lane| (lane.wrapping_mul(2_654_435_761) ^ (block as u32) << 8 ^ u32::from(rank)) >> 6)
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// As [`payload`], with all bits in use: sums carry, and every bit may decide which is larger.
pub(crate) fn noise(rank: u16, block: u64, chunks: u16) -> Vec<u8> {
    let seed = (block as u32).wrapping_mul(31) ^ u32::from(rank);
    (0..u32::from(chunks) * 16)
        .map(|lane| (lane.wrapping_mul(97) ^ seed).wrapping_mul(2_654_435_761).rotate_left(13))
        .map(|lane| lane.wrapping_mul(2_246_822_519) ^ lane >> 15)
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// A payload's chunks.
pub(crate) fn chunks_of(bytes: &[u8]) -> Vec<Chunk> {
    let lane = |bytes: &[u8; 8]| Lane::new(u64::from_le_bytes(*bytes));
    bytes
        .as_chunks::<64>()
        .0
        .iter()
        .map(|chunk| {
            let mut lanes = chunk.as_chunks::<8>().0.iter().map(lane);
            std::array::from_fn(|_| lanes.next().expect("64 bytes are eight lanes"))
        })
        .collect()
}

/// The bytes of chunks, as they are sent.
pub(crate) fn bytes_of(chunks: &[Chunk]) -> Vec<u8> {
    chunks.iter().flatten().flat_map(|lane| lane.bits().to_le_bytes()).collect()
}

impl Frame {
    /// What worker `rank` sends with this header: `chunks` chunks of [`payload`].
    pub(crate) fn from_worker(rank: u16, header: &Header, chunks: u16) -> Self {
        let payload = payload(rank, header.block, chunks);
        Self::new(
            worker_mac(rank),
            worker(rank),
            SocketAddrV4::new(AGGREGATOR, PORT),
            header,
            &payload,
        )
    }

    /// A frame to the aggregator's link-layer address.
    pub(crate) fn new(
        mac: [u8; 6],
        from: SocketAddrV4,
        to: SocketAddrV4,
        header: &Header,
        payload: &[u8],
    ) -> Self {
        let mut ours = [0; HEADER_LEN];
        header.emit(&mut ours);
        Self::udp(mac, from, to, &[&ours, payload].concat())
    }

    /// A UDP packet to the aggregator's link-layer address.
    pub(crate) fn udp(mac: [u8; 6], from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Self {
        let builder = PacketBuilder::ethernet2(mac, OUR_MAC)
            .ipv4(from.ip().octets(), to.ip().octets(), 61)
            .udp(from.port(), to.port());
        let mut bytes = Vec::with_capacity(builder.size(data.len()));
        builder.write(&mut bytes, data).expect("it fits a vector");
        Self { bytes }
    }

    /// Reads a frame, and checks what every receiver checks.
    pub(crate) fn decode(&self) -> Decoded {
        let packet = SlicedPacket::from_ethernet(&self.bytes).expect("etherparse reads it");
        let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { panic!("not Ethernet") };
        let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("not IPv4: {packet:?}") };
        let ip = ip.header().to_header();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum(), "IP checksum");
        assert_eq!(usize::from(ip.total_len), self.bytes.len() - 14, "length of the IP packet");
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("not UDP") };
        assert_eq!(usize::from(udp.length()), self.bytes.len() - 34, "length of the UDP packet");
        let (ours, payload) =
            udp.payload().split_first_chunk::<HEADER_LEN>().expect("a header of ours");
        let header = Header::parse(ours).expect("a header of ours");
        assert_eq!(udp.checksum(), checksum(&ip, udp, &header), "UDP checksum of {header:?}");
        Decoded {
            mac_from: ethernet.source(),
            mac_to: ethernet.destination(),
            from: SocketAddrV4::new(Ipv4Addr::from(ip.source), udp.source_port()),
            to: SocketAddrV4::new(Ipv4Addr::from(ip.destination), udp.destination_port()),
            header,
            payload: payload.to_vec(),
        }
    }
}

/// What the field of the UDP checksum should hold. A result without a recipient has no checksum
/// yet, but the sum of what one is made of: all but addresses, ports and rank.
fn checksum(ip: &Ipv4Header, udp: &UdpSlice<'_>, header: &Header) -> u16 {
    let mut data = udp.payload().to_vec();
    let of = |udp: UdpHeader, source, destination, data: &[u8]| {
        udp.calc_checksum_ipv4_raw(source, destination, data).expect("it is short enough")
    };
    if (header.kind, header.rank) != (Kind::Result, UNADDRESSED) {
        return of(udp.to_header(), ip.source, ip.destination, &data);
    }
    data[3] = 0;
    let nobody = UdpHeader { source_port: 0, destination_port: 0, ..udp.to_header() };
    !of(nobody, [0; 4], [0; 4], &data)
}
