//! The payload: unsigned little-endian lanes of 16, 32 or 64 bits, a 64-bit word of them at a time.
//!
//! Sums: a sender writes the integer `q` as the lane `q + bias`. With `N` workers every lane of `W`
//! bits is below `2^W / N`, so a sum of `N` lanes never carries into the next lane. One plain
//! 64-bit add sums all lanes of a word. The receiver takes `N * bias` off. [`Bias`] is the home of
//! these numbers for 32 bits.
//!
//! Smallest and largest: the lanes of a word are compared at once and without a branch
//! ([`extreme`]). So the verifier sees one path through a block, and time tells nothing.
//!
//! Lanes move in chunks of 64 bytes. A chunk's address in a frame need not be a multiple of eight,
//! so a [`Lane`] is a packed type. Its reads and writes are defined at any address, and compile to
//! one 8-byte access where the target allows that.

/// Bytes in a [`Chunk`]; payloads are whole chunks.
pub const CHUNK_LEN: usize = 64;
/// 32-bit lanes in a [`Chunk`]; twice as many of 16 bits, half as many of 64.
pub const CHUNK_LANES: usize = CHUNK_LEN / 4;
/// Most chunks of a block: what an XDP buffer of one page leaves behind the headers (3456 bytes).
pub const MAX_CHUNKS: usize = 54;
/// Most payload bytes of a block.
pub const MAX_PAYLOAD: usize = MAX_CHUNKS * CHUNK_LEN;

/// A word of neighbouring lanes, little-endian, at any address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed)]
pub struct Lane(u64);

/// 64 bytes of payload.
pub type Chunk = [Lane; CHUNK_LEN / 8];

impl Lane {
    /// A word from its bits as a little-endian machine loads them.
    #[inline(always)]
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits.to_le())
    }

    /// The bits of the word: the first lane is in the lowest.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        u64::from_le(self.0)
    }
}

/// First contribution: the slot takes the packet's lanes, whatever it held before.
#[inline(always)]
pub fn store(slot: &mut Chunk, packet: &Chunk) {
    // Lane by lane: a copy of the whole would be one of unaligned bytes to the BPF compiler.
    let [a, b, c, d, e, f, g, h] = *packet;
    *slot = [a, b, c, d, e, f, g, h];
}

/// A further contribution: the slot's lanes grow by the packet's.
#[inline(always)]
pub fn add(slot: &mut Chunk, packet: &Chunk) {
    for i in 0..slot.len() {
        slot[i] = Lane::new(slot[i].bits().wrapping_add(packet[i].bits()));
    }
}

/// The last contribution: as [`add`], and the packet leaves with the sum.
#[inline(always)]
pub fn add_and_return(slot: &mut Chunk, packet: &mut Chunk) {
    for i in 0..slot.len() {
        let sum = Lane::new(slot[i].bits().wrapping_add(packet[i].bits()));
        slot[i] = sum;
        packet[i] = sum;
    }
}

/// What [`extreme`] picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Set where the larger lane is wanted.
    flip: u64,
}

impl Pick {
    /// The larger of two lanes.
    pub const MAX: Self = Self { flip: u64::MAX };
    /// The smaller of two lanes.
    pub const MIN: Self = Self { flip: 0 };
}

/// The larger or smaller of each pair of lanes of `BITS` bits (16, 32 or 64) in two words.
///
/// Without branches: a lane of `a` is above one of `b` where `a + !b` carries out of the lane. Half
/// of that sum has room in a lane, and has the carry as its top bit. The bit is spread over its
/// lane and selects. The select is `b ^ (a ^ b) & mask`, written with the words that are at hand.
#[inline(always)]
#[must_use]
pub const fn extreme<const BITS: u32>(a: u64, b: u64, pick: Pick) -> u64 {
    const { assert!(BITS == 16 || BITS == 32 || BITS == 64) };
    let lane = u64::MAX >> (64 - BITS);
    // One bit a lane: the lowest.
    let low = u64::MAX / lane;
    let not_b = !b;
    let alike = a ^ not_b;
    let half = (a & not_b).wrapping_add(alike >> 1 & !(low << (BITS - 1)));
    let above = if BITS == 32 {
        // Signs, which are spread without constants that would take registers.
        ((half as i64 >> 63) as u64) << 32 | (half as i32 >> 31) as u32 as u64
    } else {
        (half >> (BITS - 1) & low).wrapping_mul(lane)
    };
    not_b ^ (alike | above ^ pick.flip)
}

/// A further contribution whose lanes are compared: the slot holds what was picked.
#[inline(always)]
pub fn pick<const BITS: u32>(slot: &mut Chunk, packet: &Chunk, pick: Pick) {
    for i in 0..slot.len() {
        slot[i] = Lane::new(extreme::<BITS>(slot[i].bits(), packet[i].bits(), pick));
    }
}

/// The last contribution: as [`pick`], and the packet leaves with what was picked.
#[inline(always)]
pub fn pick_and_return<const BITS: u32>(slot: &mut Chunk, packet: &mut Chunk, pick: Pick) {
    for i in 0..slot.len() {
        let picked = Lane::new(extreme::<BITS>(slot[i].bits(), packet[i].bits(), pick));
        slot[i] = picked;
        packet[i] = picked;
    }
}

/// The bias of a world size, and the integers that it leaves room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bias {
    bias: u32,
    workers: u32,
}

impl Bias {
    /// The bias for `workers` contributions (1 to [`crate::wire::MAX_WORKERS`]; 0 counts as 1).
    #[must_use]
    pub const fn for_workers(workers: u16) -> Self {
        let workers = if workers == 0 { 1 } else { workers as u32 };
        Self { bias: ((1_u64 << 32) / workers as u64 / 2) as u32, workers }
    }

    /// Largest integer that a lane can carry; the smallest is `-max() - 1`.
    #[must_use]
    pub const fn max(self) -> i32 {
        (self.bias - 1) as i32
    }

    /// Smallest integer that a lane can carry.
    #[must_use]
    pub const fn min(self) -> i32 {
        (self.bias as i32).wrapping_neg()
    }

    /// The lane of an integer between [`Self::min`] and [`Self::max`].
    #[inline(always)]
    #[must_use]
    pub const fn encode(self, q: i32) -> u32 {
        (q as u32).wrapping_add(self.bias)
    }

    /// The sum of the integers behind a sum of one lane of every worker.
    #[inline(always)]
    #[must_use]
    pub const fn decode_sum(self, lane: u32) -> i32 {
        self.decode_sum_of(lane, self.workers)
    }

    /// As [`Self::decode_sum`], for a sum of this many contributions: not all of the world were
    /// members of the epoch that summed them.
    #[inline(always)]
    #[must_use]
    pub const fn decode_sum_of(self, lane: u32, contributions: u32) -> i32 {
        lane.wrapping_sub(self.bias.wrapping_mul(contributions)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk_of(lanes: &[u32; 16]) -> Chunk {
        let mut chunk = Chunk::default();
        for (pair, lane) in lanes.as_chunks::<2>().0.iter().zip(&mut chunk) {
            *lane = Lane::new(u64::from(pair[1]) << 32 | u64::from(pair[0]));
        }
        chunk
    }

    fn lanes_of(chunk: &Chunk) -> [u32; 16] {
        let mut lanes = [0; 16];
        for (i, lane) in chunk.iter().enumerate() {
            lanes[2 * i] = lane.bits() as u32;
            lanes[2 * i + 1] = (lane.bits() >> 32) as u32;
        }
        lanes
    }

    /// Invariant 1, the arithmetic half: at the extremes of every world size nothing carries.
    #[test]
    fn extremes_do_not_carry_into_the_neighbour() {
        for workers in 1..=64_u16 {
            let bias = Bias::for_workers(workers);
            for (even, odd) in [
                (bias.max(), bias.min()),
                (bias.min(), bias.max()),
                (bias.max(), bias.max()),
                (bias.min(), bias.min()),
            ] {
                let mut lanes = [0; 16];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = bias.encode(if i % 2 == 0 { even } else { odd });
                }
                let packet = chunk_of(&lanes);
                let mut slot = Chunk::default();
                store(&mut slot, &packet);
                for _ in 1..workers {
                    add(&mut slot, &packet);
                }
                for (i, lane) in lanes_of(&slot).into_iter().enumerate() {
                    let one = i64::from(if i % 2 == 0 { even } else { odd });
                    assert_eq!(i64::from(bias.decode_sum(lane)), one * i64::from(workers));
                }
            }
        }
    }

    #[test]
    fn the_range_uses_nearly_all_bits_that_the_world_size_allows() {
        for workers in 1..=64_u16 {
            let room = i64::from(Bias::for_workers(workers).max()) * i64::from(workers);
            assert!(room <= i64::from(i32::MAX));
            assert!(room > i64::from(i32::MAX) - 2 * i64::from(workers), "{workers}: {room}");
        }
    }

    /// The lanes of two words, compared one by one.
    fn one_by_one(bits: u32, a: u64, b: u64, pick: Pick) -> u64 {
        let mask = u64::MAX >> (64 - bits);
        (0..64 / bits).fold(0, |word, lane| {
            let (a, b) = (a >> (lane * bits) & mask, b >> (lane * bits) & mask);
            word | if pick == Pick::MAX { a.max(b) } else { a.min(b) } << (lane * bits)
        })
    }

    fn check_extremes(a: u64, b: u64) {
        for pick in [Pick::MAX, Pick::MIN] {
            for (bits, found) in [
                (16, extreme::<16>(a, b, pick)),
                (32, extreme::<32>(a, b, pick)),
                (64, extreme::<64>(a, b, pick)),
            ] {
                let expected = one_by_one(bits, a, b, pick);
                assert_eq!(found, expected, "{pick:?} of {bits} bits: {a:016x} {b:016x}");
            }
        }
    }

    /// Lanes that only their ends tell apart, next to others that could lend or borrow.
    #[test]
    fn extremes_hold_at_the_edges() {
        let edges = [0, 1, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff_u64];
        let word = |i: usize| (0..4).fold(0, |w, lane| w << 16 | edges[i / 7_usize.pow(lane) % 7]);
        for a in 0..7_usize.pow(4) {
            check_extremes(word(a), word(a * 1001 % 2401));
            check_extremes(word(a), word(a * 3 % 2401));
        }
    }

    proptest! {
        #[test]
        fn extremes_are_those_of_each_lane(a: u64, b: u64, same: u64) {
            check_extremes(a, b);
            // Some bits alike, so that the lower ones decide.
            check_extremes(a, a & same | b & !same);
        }

        #[test]
        fn slot_and_packet_hold_what_was_picked(a: [u64; 8], b: [u64; 8]) {
            let (mut slot, mut packet) = (a.map(Lane::new), b.map(Lane::new));
            pick_and_return::<16>(&mut slot, &mut packet, Pick::MAX);
            prop_assert_eq!(slot, packet);
            for ((lane, a), b) in slot.iter().zip(a).zip(b) {
                prop_assert_eq!(lane.bits(), one_by_one(16, a, b, Pick::MAX));
            }
        }

        #[test]
        fn sums_are_exact(values in prop::collection::vec(any::<[i32; 16]>(), 1..=64)) {
            let bias = Bias::for_workers(values.len() as u16);
            let clamp = |q: i32| q.clamp(bias.min(), bias.max());
            let mut slot = Chunk::default();
            let mut out = Chunk::default();
            for (i, value) in values.iter().enumerate() {
                let mut packet = chunk_of(&value.map(|q| bias.encode(clamp(q))));
                match i {
                    0 => store(&mut slot, &packet),
                    _ if i + 1 == values.len() => add_and_return(&mut slot, &mut packet),
                    _ => add(&mut slot, &packet),
                }
                out = packet;
            }
            prop_assert_eq!(out, slot);
            for (i, lane) in lanes_of(&slot).into_iter().enumerate() {
                let expected: i64 = values.iter().map(|v| i64::from(clamp(v[i]))).sum();
                prop_assert_eq!(i64::from(bias.decode_sum(lane)), expected);
            }
        }
    }
}
