//! Where the header lies in an Ethernet/IPv4/UDP frame, and what an answer changes there.
//!
//! An answer is made in place, in the buffer of the packet that it answers: see [`Ipv4::answer`].

use crate::wire::HEADER_LEN;

/// Length of an untagged Ethernet header.
pub const ETH_LEN: usize = 14;
/// Length of an IPv4 header without options, the only kind that is ours.
pub const IP_LEN: usize = 20;
/// Length of a UDP header.
pub const UDP_LEN: usize = 8;
/// Offset of the IPv4 header in the frame.
pub const IP_OFFSET: usize = ETH_LEN;
/// Offset of the UDP header in the frame.
pub const UDP_OFFSET: usize = IP_OFFSET + IP_LEN;
/// Offset of our header in the frame.
pub const HEADER_OFFSET: usize = UDP_OFFSET + UDP_LEN;
/// Offset of the payload in the frame: a multiple of 64, which the lane adds want.
pub const PAYLOAD_OFFSET: usize = HEADER_OFFSET + HEADER_LEN;
/// What an IP packet of ours holds besides the payload: MTU minus this is room for lanes.
pub const IP_OVERHEAD: usize = IP_LEN + UDP_LEN + HEADER_LEN;
/// Length of a VLAN tag (802.1Q) with the EtherType in front of it.
pub const TAG_LEN: usize = 4;
/// EtherType of a VLAN tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// The bits of a tag that are the VLAN's number; the others are priority.
pub const VLAN_MASK: u16 = 0x0fff;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// IPv4 protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const _: () = assert!(PAYLOAD_OFFSET.is_multiple_of(64));

/// Chunks of payload that fit one packet at this MTU: 22 at 1500, capped at
/// [`crate::lanes::MAX_CHUNKS`]; 0 where not even one fits.
#[must_use]
pub const fn chunks_for_mtu(mtu: u32) -> u16 {
    let room = (mtu as usize).saturating_sub(IP_OVERHEAD) / crate::lanes::CHUNK_LEN;
    if room > crate::lanes::MAX_CHUNKS { crate::lanes::MAX_CHUNKS as u16 } else { room as u16 }
}

/// Bytes on the wire of a packet with this many chunks, from the Ethernet header to the payload's
/// end: what a rate limiter of Linux counts.
#[must_use]
pub const fn frame_len(chunks: u16) -> usize {
    PAYLOAD_OFFSET + chunks as usize * crate::lanes::CHUNK_LEN
}

/// Whether answers may be sent to the link-layer address that a packet of a member, or of the
/// parent, came from. The packet has passed all checks by its cookie and its addresses. A group is
/// nobody's own address: answers to one would reach every host.
#[inline(always)]
#[must_use]
pub const fn may_be_learned(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0
}

/// An IPv4 header without options, as bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ipv4(pub [u8; IP_LEN]);

impl Ipv4 {
    /// True for version 4, no options, not a fragment, UDP: what may carry one of our packets.
    #[inline(always)]
    #[must_use]
    pub const fn is_plain_udp(&self) -> bool {
        let fragment = u16::from_be_bytes([self.0[6], self.0[7]]) & 0x3fff;
        self.0[0] == 0x45 && fragment == 0 && self.0[9] == PROTOCOL_UDP
    }

    /// Source address, in host byte order.
    #[inline(always)]
    #[must_use]
    pub const fn source(&self) -> u32 {
        u32::from_be_bytes([self.0[12], self.0[13], self.0[14], self.0[15]])
    }

    /// Destination address, in host byte order.
    #[inline(always)]
    #[must_use]
    pub const fn destination(&self) -> u32 {
        u32::from_be_bytes([self.0[16], self.0[17], self.0[18], self.0[19]])
    }

    /// Length of the IP packet, in bytes, as the header claims it.
    #[inline(always)]
    #[must_use]
    pub const fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// The header of a packet that the aggregator sends: `payload_len` bytes behind our header, a
    /// fresh hop limit, no fragmentation (RFC 791; the checksum is RFC 1071's).
    #[inline(always)]
    #[must_use]
    pub const fn answer(source: u32, destination: u32, payload_len: u16) -> Self {
        let len = (IP_OVERHEAD as u16).wrapping_add(payload_len).to_be_bytes();
        let s = source.to_be_bytes();
        let d = destination.to_be_bytes();
        let mut header = Self([
            0x45,
            0,
            len[0],
            len[1],
            0,
            0,
            0x40,
            0,
            64,
            PROTOCOL_UDP,
            0,
            0,
            s[0],
            s[1],
            s[2],
            s[3],
            d[0],
            d[1],
            d[2],
            d[3],
        ]);
        let sum = header.checksum().to_be_bytes();
        header.0[10] = sum[0];
        header.0[11] = sum[1];
        header
    }

    /// The checksum of this header with its checksum field counted as it stands. Where the field is
    /// zero, it is the value that belongs there; for an intact header it is zero.
    #[inline(always)]
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        let h = &self.0;
        let sum = word(h[0], h[1])
            + word(h[2], h[3])
            + word(h[4], h[5])
            + word(h[6], h[7])
            + word(h[8], h[9])
            + word(h[10], h[11])
            + word(h[12], h[13])
            + word(h[14], h[15])
            + word(h[16], h[17])
            + word(h[18], h[19]);
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }
}

#[inline(always)]
const fn word(high: u8, low: u8) -> u32 {
    (high as u32) << 8 | low as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ipv4Header, Ipv4HeaderSlice};
    use proptest::prelude::*;

    #[test]
    fn block_sizes_follow_the_mtu() {
        assert_eq!(chunks_for_mtu(1500), 22); // 352 lanes of 32 bits
        assert_eq!(chunks_for_mtu(3506), 54); // the most that veth takes without frags
        assert_eq!(chunks_for_mtu(9000), 54);
        assert_eq!(chunks_for_mtu(113), 0);
        assert_eq!(chunks_for_mtu(114), 1);
        assert_eq!(frame_len(22), 1472);
    }

    #[test]
    fn options_fragments_and_tcp_are_not_ours() {
        let good = Ipv4::answer(1, 2, 64);
        assert!(good.is_plain_udp());
        for (at, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (7, 1), (9, 6)] {
            let mut other = good;
            other.0[at] = value;
            assert!(!other.is_plain_udp(), "byte {at} = {value:#x}");
        }
    }

    proptest! {
        #[test]
        fn answers_decode_elsewhere(source: u32, destination: u32, chunks in 0_u16..=54) {
            let header = Ipv4::answer(source, destination, chunks * 64);
            let slice = Ipv4HeaderSlice::from_slice(&header.0).expect("etherparse takes it");
            prop_assert_eq!(u32::from(slice.source_addr()), source);
            prop_assert_eq!(u32::from(slice.destination_addr()), destination);
            prop_assert_eq!(slice.total_len(), 50 + chunks * 64);
            let theirs: Ipv4Header = slice.to_header();
            prop_assert_eq!(theirs.calc_header_checksum(), slice.header_checksum());
            prop_assert_eq!(header.checksum(), 0);
        }
    }
}
