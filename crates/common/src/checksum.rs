//! The UDP checksum of what the aggregator sends (RFC 768, RFC 1071).
//!
//! A result is one payload that leaves as many packets. So the checksum is made in two steps. The
//! first one, [`shared`], sums what all copies have in common, once. The second one,
//! [`completed`], adds a copy's rank, addresses and ports. In between, the packet's checksum field
//! holds the first step's sum. (This is RFC 1624's update of a sum whose changing fields are zero.)
//!
//! The payload's sum is worked out by whoever has the bytes; the kernel program asks the kernel.

use crate::frame::{PAYLOAD_OFFSET, UDP_LEN, UDP_OFFSET};
use crate::wire::{HEADER_LEN, Header};

/// A sum of 16-bit words in the one's complement of RFC 1071, not inverted: the bytes of each word
/// in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// A sum as a machine makes it that adds words of any even length in its own byte order, and
    /// adds what overflows to the lowest bit. The kernel's helper does so (`bpf_csum_diff`).
    #[inline(always)]
    #[must_use]
    pub const fn from_native(sum: u32) -> Self {
        Self(u16::from_be(fold(sum)))
    }

    /// The sum that stands in a checksum field between the two steps.
    #[inline(always)]
    #[must_use]
    pub const fn from_field(field: [u8; 2]) -> Self {
        Self(u16::from_be_bytes(field))
    }

    /// As it stands in a checksum field between the two steps.
    #[inline(always)]
    #[must_use]
    pub const fn to_field(self) -> [u8; 2] {
        self.0.to_be_bytes()
    }
}

/// A packet's sender and recipient: what differs between the copies of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Our address and port.
    pub from: (u32, u16),
    /// The recipient's.
    pub to: (u32, u16),
}

impl Ends {
    /// As the program of a worker's interface has it: sender, recipient, and their ports.
    #[must_use]
    pub const fn to_words(self) -> [u32; 4] {
        [self.from.0, self.to.0, self.from.1 as u32, self.to.1 as u32]
    }

    /// The same the other way.
    #[inline(always)]
    #[must_use]
    pub const fn from_words([from, to, from_port, to_port]: [u32; 4]) -> Self {
        Self { from: (from, from_port as u16), to: (to, to_port as u16) }
    }
}

/// Whether a whole packet of ours has a checksum, and the right one: `front` is all of its headers,
/// from the Ethernet header to ours. Its lengths must have been compared before.
#[inline(always)]
#[must_use]
pub const fn is_intact(front: &[u8; PAYLOAD_OFFSET], payload: Sum) -> bool {
    let field = UDP_OFFSET + 6;
    if front[field] == 0 && front[field + 1] == 0 {
        return false;
    }
    // The pseudo-header: both addresses, the protocol, and the length a second time.
    let mut sum = payload.0 as u32 + crate::frame::PROTOCOL_UDP as u32;
    sum += u16::from_be_bytes([front[UDP_OFFSET + 4], front[UDP_OFFSET + 5]]) as u32;
    let mut at = UDP_OFFSET - 8;
    while at < PAYLOAD_OFFSET {
        sum += u16::from_be_bytes([front[at], front[at + 1]]) as u32;
        at += 2;
    }
    fold(sum) == 0xffff
}

/// What all packets with this payload and header have in common, whatever the header's rank and
/// the packet's ends.
#[inline(always)]
#[must_use]
pub const fn shared(payload: Sum, payload_len: u16, header: &Header) -> Sum {
    let udp_len = ((UDP_LEN + HEADER_LEN) as u16).wrapping_add(payload_len) as u32;
    // The length stands in the UDP header and in the pseudo-header, which has the protocol, too.
    let network = 2 * udp_len + crate::frame::PROTOCOL_UDP as u32;
    Sum(fold(payload.0 as u32 + network + header.words_without_rank()))
}

/// The checksum of the packet to this recipient. It is never 0, which would say that there is none.
#[inline(always)]
#[must_use]
pub const fn completed(shared: Sum, rank: u16, ends: Ends) -> [u8; 2] {
    let Ends { from, to } = ends;
    // A rank is the lower byte of a word.
    let rank = rank as u32 & 0xff;
    let addresses = (from.0 >> 16) + (from.0 & 0xffff) + (to.0 >> 16) + (to.0 & 0xffff);
    let sum = shared.0 as u32 + rank + addresses + from.1 as u32 + to.1 as u32;
    let checksum = !fold(sum);
    let sent = if checksum == 0 { 0xffff } else { checksum };
    sent.to_be_bytes()
}

/// Adds what is above 16 bits to what is below.
#[inline(always)]
const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Kind, Reduction};
    use etherparse::{PacketBuilder, UdpHeaderSlice};
    use proptest::prelude::*;

    /// The sum of a payload, eight bytes at a time in this machine's byte order.
    fn sum_of(payload: &[u8]) -> Sum {
        let words = payload.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let sum = words.fold(0_u128, |sum, word| sum + u128::from(word));
        // Modulo 2^32 - 1, which is a multiple of 2^16 - 1.
        let modulo = u128::from(u32::MAX);
        let rest = (sum % modulo) as u32;
        Sum::from_native(if rest == 0 && sum != 0 { u32::MAX } else { rest })
    }

    /// What another implementation puts into the packet.
    fn theirs(header: &Header, ends: Ends, payload: &[u8]) -> [u8; 2] {
        let frame = their_frame(header, ends, payload);
        UdpHeaderSlice::from_slice(&frame[34..]).expect("a header").checksum().to_be_bytes()
    }

    fn their_frame(header: &Header, ends: Ends, payload: &[u8]) -> Vec<u8> {
        let mut ours = [0; HEADER_LEN];
        header.emit(&mut ours);
        let builder = PacketBuilder::ethernet2([0; 6], [0; 6])
            .ipv4(ends.from.0.to_be_bytes(), ends.to.0.to_be_bytes(), 64)
            .udp(ends.from.1, ends.to.1);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[&ours, payload].concat()).expect("it fits a vector");
        assert_eq!(frame.len(), PAYLOAD_OFFSET + payload.len());
        frame
    }

    fn intact(frame: &[u8]) -> bool {
        let (front, payload) = frame.split_first_chunk().expect("headers");
        is_intact(front, sum_of(payload))
    }

    fn ours(header: &Header, ends: Ends, payload: &[u8]) -> [u8; 2] {
        let shared = shared(sum_of(payload), payload.len() as u16, header);
        completed(Sum::from_field(shared.to_field()), header.rank, ends)
    }

    const HEADER: Header = Header {
        kind: Kind::Result,
        flags: 1,
        reduction: Reduction::Max16,
        job: 0xf1,
        rank: 0xfe,
        cookie: u64::MAX,
        epoch: 0xffff,
        block: (1 << 48) - 1,
        tag: 0xfffe,
    };

    proptest! {
        #[test]
        fn checksums_are_those_of_another_implementation(
            (rank, job) in (0_u16..256, 0_u16..256),
            (cookie, block) in (any::<u64>(), 0_u64..1 << 48),
            (epoch, tag) in any::<(u16, u16)>(),
            (from, to) in any::<((u32, u16), (u32, u16))>(),
            payload in prop::collection::vec(any::<[u8; 64]>(), 1..=54),
        ) {
            let header = Header { rank, job, cookie, block, epoch, tag, ..HEADER };
            let ends = Ends { from, to };
            let payload = payload.concat();
            prop_assert_eq!(ours(&header, ends, &payload), theirs(&header, ends, &payload));
        }
    }

    proptest! {
        /// From the addresses on, any one bit; and a checksum that was left out or not completed.
        #[test]
        fn what_is_not_intact_is_found(
            (from, to) in any::<((u32, u16), (u32, u16))>(),
            payload in prop::collection::vec(any::<[u8; 64]>(), 0..=54),
            (byte, bit) in (any::<prop::sample::Index>(), 0..8),
        ) {
            let frame = their_frame(&HEADER, Ends { from, to }, &payload.concat());
            prop_assert!(intact(&frame));
            let mut damaged = frame.clone();
            damaged[26 + byte.index(frame.len() - 26)] ^= 1_u8 << bit;
            prop_assert!(!intact(&damaged));
            let mut without = frame.clone();
            without[40..42].fill(0);
            prop_assert!(!intact(&without));
            // As a stack leaves it to a card: the sum of the pseudo-header, not inverted.
            let mut open = frame;
            let word = |at: usize| u32::from(u16::from_be_bytes([open[at], open[at + 1]]));
            let addresses = word(26) + word(28) + word(30) + word(32);
            let sum = fold(addresses + word(38) + 17);
            prop_assume!(open[40..42] != sum.to_be_bytes());
            open[40..42].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(!intact(&open));
        }
    }

    #[test]
    fn ends_survive_their_words() {
        let ends = Ends { from: (u32::MAX, 1), to: (2, u16::MAX) };
        assert_eq!(Ends::from_words(ends.to_words()), ends);
    }

    /// Sums that overflow as often as they can, and a sum of which nothing is left.
    #[test]
    fn the_edges_hold() {
        let ends = Ends { from: (u32::MAX, u16::MAX), to: (u32::MAX, u16::MAX) };
        for chunks in [1, 22, 54] {
            for byte in [0, 0xff] {
                let payload = vec![byte; chunks * 64];
                assert_eq!(ours(&HEADER, ends, &payload), theirs(&HEADER, ends, &payload));
            }
        }
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_ones() {
        let ends = Ends { from: (0, 0), to: (0, 0) };
        let payload = [0_u8; 64];
        let header = Header { tag: 0, ..HEADER };
        let [high, low] = ours(&header, ends, &payload);
        // The tag that takes the rest of the sum.
        let header = Header { tag: u16::from_be_bytes([high, low]), ..header };
        assert_eq!(ours(&header, ends, &payload), [0xff; 2]);
        assert_eq!(theirs(&header, ends, &payload), [0xff; 2]);
    }
}
