//! What goes over the wire: a header as long as xdp-agg's, then lanes.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use xdp_agg_protocol::worker::rank_bit;

/// Bytes of the header, as many as of xdp-agg's.
pub const HEADER_LEN: usize = xdp_agg_common::wire::HEADER_LEN;

/// The bit of the first byte that says that a packet was sent before.
const AGAIN: u8 = 0x80;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lanes of the ranks in the header: of a worker, or a sum of the switch.
    Fragment,
    /// The sum of all, for the ranks in the header.
    Result,
    /// The server has the fragment of the ranks in the header and waits for others.
    Pending,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Fragment => 1,
            Self::Result => 2,
            Self::Pending => 3,
        }
    }
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// A worker has sent this block before.
    pub again: bool,
    /// Workers of the job, 1 to 64.
    pub world: u8,
    /// Which job.
    pub job: u32,
    /// Number of the block in the job's life.
    pub block: u64,
    /// Whose lanes these are, or whom it is for: a bit a rank.
    pub ranks: u64,
}

impl Packet {
    /// All ranks of its job.
    pub const fn all(&self) -> u64 {
        u64::MAX >> (64 - self.world as u32)
    }

    /// The slot of its block, of `slots`. A job's blocks go round all slots, in an order of its
    /// own. So blocks of one job meet in a slot only if they are `slots` apart.
    pub fn slot(&self, slots: usize) -> usize {
        let slots = slots as u64;
        let mut random = SplitMix64::seed_from_u64(u64::from(self.job));
        let (start, step) = (random.next_u64() % slots, random.next_u64() % slots);
        let step = (step..).find(|step| gcd(*step, slots) == 1).unwrap_or(1) % slots;
        ((start + step * (self.block % slots)) % slots) as usize
    }

    /// Writes the header.
    pub fn emit(&self, to: &mut [u8; HEADER_LEN]) {
        to[0] = self.kind.code() | if self.again { AGAIN } else { 0 };
        to[1] = self.world;
        to[2..6].copy_from_slice(&self.job.to_be_bytes());
        to[6..14].copy_from_slice(&self.block.to_be_bytes());
        to[14..22].copy_from_slice(&self.ranks.to_be_bytes());
    }

    /// Reads a header and what is behind it; `None` if it is no packet of ATP's.
    pub fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, lanes) = packet.split_first_chunk::<HEADER_LEN>()?;
        let kind = match header[0] & !AGAIN {
            1 => Kind::Fragment,
            2 => Kind::Result,
            3 => Kind::Pending,
            _ => return None,
        };
        let parsed = Self {
            kind,
            again: header[0] & AGAIN != 0,
            world: header[1],
            job: u32::from_be_bytes(header[2..6].try_into().ok()?),
            block: u64::from_be_bytes(header[6..14].try_into().ok()?),
            ranks: u64::from_be_bytes(header[14..22].try_into().ok()?),
        };
        let sane = (1..=64).contains(&parsed.world)
            && parsed.ranks != 0
            && parsed.ranks & !parsed.all() == 0
            && lanes.len().is_multiple_of(size_of::<u32>());
        sane.then_some((parsed, lanes))
    }

    /// The rank that a worker's fragment is of; `None` for sums.
    pub const fn rank(&self) -> Option<u8> {
        let rank = self.ranks.trailing_zeros() as u8;
        if self.ranks.is_power_of_two() { Some(rank) } else { None }
    }
}

/// The greatest common divisor.
const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The bit of a rank.
pub(crate) const fn bit(rank: u16) -> u64 {
    rank_bit(rank)
}

/// Reads lanes from a packet over what `to` held.
pub(super) fn store(to: &mut Vec<u32>, lanes: &[u8]) {
    to.clear();
    to.extend(lanes.as_chunks().0.iter().map(|lane| u32::from_le_bytes(*lane)));
}

/// Adds the lanes of a packet. Lanes wrap: their bias leaves room for a contribution of each rank.
pub(super) fn add(to: &mut [u32], lanes: &[u8]) {
    for (sum, lane) in to.iter_mut().zip(lanes.as_chunks().0) {
        *sum = sum.wrapping_add(u32::from_le_bytes(*lane));
    }
}

/// Writes lanes behind a header.
pub(super) fn write(lanes: &[u32], to: &mut [u8]) {
    for (to, lane) in to.as_chunks_mut().0.iter_mut().zip(lanes) {
        *to = lane.to_le_bytes();
    }
}
