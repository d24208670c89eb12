//! The payload: 32-bit lanes, biased to unsigned, added two at a time.
//!
//! A sender writes the integer `q` as the lane `q + bias`. With `N` workers every lane is below
//! `2^32 / N`, so a sum of `N` lanes never carries into the next lane, and one plain 64-bit add
//! sums two of them. The receiver takes `N * bias` off. [`Bias`] is the one home of these numbers.
//!
//! Lanes move in chunks of 64 bytes. A chunk's address in a frame need not be a multiple of eight,
//! so a [`Lane`] is a packed type: its reads and writes are defined at any address, and compile to
//! one 8-byte access where the target allows that.

/// Bytes in a [`Chunk`]; payloads are whole chunks.
pub const CHUNK_LEN: usize = 64;
/// 32-bit lanes in a [`Chunk`].
pub const CHUNK_LANES: usize = CHUNK_LEN / 4;
/// Most chunks of a block: what an XDP buffer of one page leaves behind the headers (3456 bytes).
pub const MAX_CHUNKS: usize = 54;
/// Most payload bytes of a block.
pub const MAX_PAYLOAD: usize = MAX_CHUNKS * CHUNK_LEN;

/// Two neighbouring 32-bit lanes, little-endian, at any address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed)]
pub struct Lane(u64);

/// 64 bytes of payload: sixteen 32-bit lanes.
pub type Chunk = [Lane; CHUNK_LEN / 8];

impl Lane {
    /// Two lanes from their bits as a little-endian machine loads them.
    #[inline(always)]
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits.to_le())
    }

    /// The bits of the two lanes.
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

    proptest! {
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
