//! What the workers call, and the exact sums: plain arithmetic that shares nothing with the code
//! under test.
//!
//! Every element is a hash of the job, the *life* of the worker that contributes it (a process: a
//! worker that was restarted contributes other numbers), the call and the index. So whatever is
//! counted twice, left out, or taken from another call, epoch or life changes the sum.

use xdp_agg_client::Op;
use xdp_agg_common::lanes::{CHUNK_LANES, CHUNK_LEN};

use crate::scenario::JobPlan;

/// Scale of floats: a power of two, so that the floats made here are exact fixed-point numbers.
pub(crate) const SCALE: f64 = 1024.0;
/// Most that a float's integer has: sums of all workers stay in range.
const FLOAT_MAX: u64 = 1 << 20;

/// What all members call as the `sequence`-th call of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) len: usize,
    pub(crate) float: bool,
    pub(crate) average: bool,
    /// Some elements are NaN or infinite.
    pub(crate) odd: bool,
}

/// Mixes bits (the finaliser of SplitMix64).
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

impl Shape {
    pub(crate) fn new(key: u64, plan: &JobPlan, sequence: u64) -> Self {
        let bits = mix(key ^ mix(sequence));
        let block = usize::from(plan.chunks) * CHUNK_LANES;
        let blocks = 1 + (bits & 0xffff) % plan.blocks;
        let short = (bits >> 16 & 0xffff) as usize % block;
        let len = blocks as usize * block - short;
        Self {
            // A call of nothing is a call, too.
            len: if bits >> 32 & 0x3f == 0 { 0 } else { len },
            float: plan.floats && bits >> 40 & 1 == 0,
            average: bits >> 41 & 1 == 0,
            odd: bits >> 42 & 1 == 0,
        }
    }

    pub(crate) const fn op(&self) -> Op {
        if self.average { Op::Average } else { Op::Sum }
    }

    pub(crate) const fn blocks(&self, chunks: u16) -> u64 {
        self.len.div_ceil(chunks as usize * CHUNK_LANES) as u64
    }

    /// Elements of a block of this call: from, and to.
    pub(crate) fn range(&self, index: u64, chunks: u16) -> (usize, usize) {
        let block = usize::from(chunks) * CHUNK_LANES;
        let from = index as usize * block;
        (from, (from + block).min(self.len))
    }
}

/// One worker's numbers in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    key: u64,
    shape: Shape,
    bias: u32,
}

/// Half of what the lanes of a world of this size leave to each worker.
pub(crate) const fn bias(world: u16) -> u32 {
    ((1_u64 << 32) / world as u64 / 2) as u32
}

impl Inputs {
    pub(crate) fn new(life: usize, world: u16, sequence: u64, shape: Shape) -> Self {
        Self { key: mix(mix(life as u64) ^ sequence << 20), shape, bias: bias(world) }
    }

    /// The integer that an element stands for.
    pub(crate) fn integer(&self, index: usize) -> i32 {
        let bits = mix(self.key ^ index as u64);
        if self.shape.float {
            return (bits % (2 * FLOAT_MAX)) as i32 - FLOAT_MAX as i32;
        }
        // All of the range, and its ends more often than chance would have them.
        match bits >> 60 {
            0 => (self.bias - 1) as i32,
            1 => (self.bias as i32).wrapping_neg(),
            _ => ((bits % (2 * u64::from(self.bias))) as i64 - i64::from(self.bias)) as i32,
        }
    }

    /// What this element is instead of a number, if it is none.
    pub(crate) fn odd(&self, index: usize) -> Option<f32> {
        if !self.shape.float || !self.shape.odd {
            return None;
        }
        match mix(self.key ^ !(index as u64)) % 1000 {
            0 => Some(f32::NAN),
            1 => Some(f32::INFINITY),
            2 => Some(f32::NEG_INFINITY),
            _ => None,
        }
    }

    pub(crate) fn floats(&self) -> Vec<f32> {
        let number = |index| (f64::from(self.integer(index)) / SCALE) as f32;
        (0..self.shape.len).map(|i| self.odd(i).unwrap_or_else(|| number(i))).collect()
    }

    pub(crate) fn integers(&self) -> Vec<i32> {
        (0..self.shape.len).map(|index| self.integer(index)).collect()
    }

    /// Adds this worker's lanes of a block to `lanes`; true if there is a NaN or an infinity.
    pub(crate) fn add_lanes(&self, index: u64, chunks: u16, lanes: &mut [u32]) -> bool {
        let (from, to) = self.shape.range(index, chunks);
        let mut odd = false;
        for (offset, lane) in lanes.iter_mut().enumerate() {
            let element = from + offset;
            let value = if element < to { self.integer(element) } else { 0 };
            odd |= element < to && self.odd(element).is_some();
            *lane = lane.wrapping_add((value as u32).wrapping_add(self.bias));
        }
        odd
    }
}

/// Lanes of a block: whole chunks.
pub(crate) fn lanes_of(shape: &Shape, index: u64, chunks: u16) -> usize {
    let (from, to) = shape.range(index, chunks);
    (to - from).div_ceil(CHUNK_LANES) * CHUNK_LANES
}

/// The bytes of lanes on the wire.
pub(crate) fn bytes_of(lanes: &[u32]) -> Vec<u8> {
    lanes.iter().flat_map(|lane| lane.to_le_bytes()).collect()
}

/// An element of the result, from the sum of `contributors` lanes.
pub(crate) fn integer_of(lane: u32, world: u16, contributors: u32, average: bool) -> i32 {
    let sum = lane.wrapping_sub(bias(world).wrapping_mul(contributors)) as i32;
    if average { sum / contributors as i32 } else { sum }
}

/// As [`integer_of`], for floats: rounded once.
pub(crate) fn float_of(lane: u32, world: u16, contributors: u32, average: bool) -> f32 {
    let sum = integer_of(lane, world, contributors, false);
    let divisor = if average { f64::from(contributors) } else { 1.0 };
    // Multiplied by the reciprocal, as the library documents it.
    (f64::from(sum) * (1.0 / (SCALE * divisor))) as f32
}

const _: () = assert!(CHUNK_LEN == 4 * CHUNK_LANES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_sum_to_the_sum_of_the_elements() {
        let shape = Shape { len: 30, float: false, average: false, odd: false };
        let all: Vec<_> = (0..3).map(|life| Inputs::new(life, 3, 5, shape)).collect();
        let mut lanes = vec![0; lanes_of(&shape, 1, 1)];
        for inputs in &all {
            inputs.add_lanes(1, 1, &mut lanes);
        }
        assert_eq!(lanes.len(), 16);
        for index in 16..30 {
            let exact: i64 = all.iter().map(|inputs| i64::from(inputs.integer(index))).sum();
            assert_eq!(i64::from(integer_of(lanes[index - 16], 3, 3, false)), exact);
        }
    }
}
