//! What the workers call, and the exact results: plain arithmetic that shares nothing with the code
//! under test.
//!
//! Every element is a hash of the job, the *life* of the worker that contributes it, the call and
//! the index. A life is a process: a worker that was restarted contributes other numbers. So
//! whatever is counted twice, left out, or taken from another call, epoch or life changes the
//! result.

mod layout;
mod numbers;
mod seal;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use xdp_agg_common::lanes::{CHUNK_LANES, CHUNK_LEN};
use xdp_agg_common::wire::Reduction;
use xdp_agg_quantize::Op;

use crate::scenario::JobPlan;
pub(crate) use layout::{Content, Layout};
pub(crate) use numbers::{
    SCALE, Scale, bias, combine, float_of_order, integer_of, integer_of_order, key_of,
    ordered_float, ordered_integer,
};
pub(crate) use seal::{Seal, seal};

/// Most that the integer of a float has: sums of all workers stay in range.
const FLOAT_MAX: u64 = 1 << 20;
/// Data blocks of a long call, at least: more than the groups have whose keys come first.
const LONG: u64 = 1100;

/// What all members call as the `sequence`-th call of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) len: usize,
    pub(crate) float: bool,
    pub(crate) op: Op,
    /// Sums of floats have a scale for each block.
    pub(crate) block: bool,
    /// Some elements are NaN or infinite.
    pub(crate) odd: bool,
    /// All get the integers of this rank; the others have the smallest ones.
    pub(crate) root: Option<u16>,
}

/// A job's name.
pub(crate) fn job_name(job: usize) -> String {
    format!("job {job}")
}

/// Mixes bits.
pub(crate) fn mix(value: u64) -> u64 {
    SplitMix64::seed_from_u64(value).next_u64()
}

impl Shape {
    pub(crate) fn new(key: u64, plan: &JobPlan, sequence: u64) -> Self {
        let bits = mix(key ^ mix(sequence));
        let long = plan.long && sequence == 0;
        let block = usize::from(plan.chunks) * CHUNK_LANES;
        let blocks = if long { LONG + (bits & 0x7f) } else { 1 + (bits & 0xffff) % plan.blocks };
        let short = (bits >> 16 & 0xffff) as usize % block;
        let len = blocks as usize * block - short;
        let ops = [Op::Sum, Op::Sum, Op::Sum, Op::Average, Op::Average, Op::Average];
        let extreme = if bits >> 53 & 1 == 0 { Op::Min } else { Op::Max };
        let adding = if long { bits >> 50 & 3 } else { bits >> 50 & 7 };
        let root = (bits >> 58) as u16 % plan.world;
        let rarely = if plan.has_copies() { 1 } else { 3 };
        if !long && bits >> 54 & rarely == 0 {
            // Broadcasts of bytes are the largest of integers, too.
            let (float, block, odd) = (false, false, false);
            return Self { len, float, op: Op::Max, block, odd, root: Some(root) };
        }
        Self {
            // A call of nothing is a call, too.
            len: if !long && bits >> 32 & 0x3f == 0 { 0 } else { len },
            float: long || plan.floats && bits >> 40 & 3 != 0,
            op: ops.get(adding as usize).copied().unwrap_or(extreme),
            block: long || bits >> 44 & 3 != 0,
            odd: bits >> 42 & 1 == 0,
            root: None,
        }
    }

    pub(crate) const fn averages(&self) -> bool {
        matches!(self.op, Op::Average)
    }

    const fn adds(&self) -> bool {
        matches!(self.op, Op::Sum | Op::Average)
    }

    /// Keys are agreed upon ahead of the data.
    pub(crate) const fn has_keys(&self) -> bool {
        self.float && self.block && self.adds()
    }

    pub(crate) fn layout(&self, chunks: u16) -> Layout {
        let data = self.len.div_ceil(usize::from(chunks) * CHUNK_LANES);
        let layout = Layout::new(data as u64, self.has_keys(), chunks);
        if layout.blocks() >= 4 {
            return layout;
        }
        let parts = (0..layout.blocks()).map(|index| layout.part(index));
        let lengths: Vec<usize> = parts.map(|part| self.payload(&layout, part, chunks)).collect();
        layout.with(Seal::new(self.has_keys(), &lengths, usize::from(chunks) * CHUNK_LEN))
    }

    /// How contributions to a block become one.
    pub(crate) const fn rule(&self, part: Content) -> Reduction {
        match (part, self.op) {
            (Content::Keys(_), _) => Reduction::Max16,
            (_, Op::Min) => Reduction::Min32,
            (_, Op::Max) => Reduction::Max32,
            (_, _) => Reduction::Add,
        }
    }

    /// Elements of a data block of this call: from, and to.
    pub(crate) fn range(&self, data: u64, chunks: u16) -> (usize, usize) {
        let block = usize::from(chunks) * CHUNK_LANES;
        let from = data as usize * block;
        (from, (from + block).min(self.len))
    }

    /// Bytes of a block without its seal: whole chunks.
    pub(crate) fn payload(&self, layout: &Layout, part: Content, chunks: u16) -> usize {
        let used = match part {
            Content::Seal => 0,
            Content::Keys(group) => {
                let (from, to) = layout.group(group);
                (to - from) as usize * size_of::<u16>()
            }
            Content::Data(data) => {
                let (from, to) = self.range(data, chunks);
                (to - from) * size_of::<u32>()
            }
        };
        used.next_multiple_of(CHUNK_LEN)
    }

    /// How this call's floats become integers, in a block of this key.
    pub(crate) fn scale(&self, key: u16, world: u16) -> Scale {
        if self.block { Scale::of_block(key, world) } else { Scale::FIXED }
    }

    /// An integer of the result.
    pub(crate) fn integer(&self, lane: u32, world: u16, contributors: u32) -> i32 {
        if self.adds() {
            integer_of(lane, world, contributors, self.averages())
        } else {
            integer_of_order(lane)
        }
    }

    /// A float of the result.
    pub(crate) fn float(&self, lane: u32, world: u16, contributors: u32, scale: Scale) -> f32 {
        if self.adds() {
            scale.float(lane, world, contributors, self.averages())
        } else {
            float_of_order(lane)
        }
    }
}

/// One worker's numbers in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    key: u64,
    sequence: u64,
    shape: Shape,
    world: u16,
    /// Another worker's broadcast: this one has nothing to say.
    silent: bool,
}

impl Inputs {
    pub(crate) fn new(life: usize, world: u16, sequence: u64, shape: Shape) -> Self {
        let key = mix(mix(life as u64) ^ sequence << 20);
        Self { key, sequence, shape, world, silent: false }
    }

    /// The same, as a worker of this rank has them.
    pub(crate) fn of(self, rank: u16) -> Self {
        Self { silent: self.shape.root.is_some_and(|root| root != rank), ..self }
    }

    pub(crate) fn integers(&self) -> Vec<i32> {
        (0..self.shape.len).map(|index| self.integer(index)).collect()
    }

    pub(crate) fn floats(&self) -> Vec<f32> {
        (0..self.shape.len).map(|index| self.float(index)).collect()
    }

    /// An element that is an integer.
    fn integer(&self, index: usize) -> i32 {
        let bits = mix(self.key ^ index as u64);
        if self.silent {
            return i32::MIN;
        }
        if !self.shape.adds() {
            return bits as i32;
        }
        let bias = bias(self.world);
        // All of the range, and its ends more often than chance would have them.
        match bits >> 60 {
            0 => (bias - 1) as i32,
            1 => (bias as i32).wrapping_neg(),
            _ => ((bits % (2 * u64::from(bias))) as i64 - i64::from(bias)) as i32,
        }
    }

    /// An element that is a float.
    fn float(&self, index: usize) -> f32 {
        self.odd(index).unwrap_or_else(|| self.number(index))
    }

    /// What an element is instead of a number, if it is NaN or infinite.
    fn odd(&self, index: usize) -> Option<f32> {
        if !self.shape.odd {
            return None;
        }
        match mix(self.key ^ !(index as u64)) % 1000 {
            0 => Some(f32::NAN),
            1 => Some(f32::INFINITY),
            2 => Some(f32::NEG_INFINITY),
            _ => None,
        }
    }

    fn number(&self, index: usize) -> f32 {
        let bits = mix(self.key ^ index as u64);
        if !self.shape.adds() {
            return match bits >> 60 {
                0 => 0.0,
                1 => -0.0,
                _ => Some(f32::from_bits(bits as u32)).filter(|x| x.is_finite()).unwrap_or(-1.5),
            };
        }
        if !self.shape.block {
            let integer = (bits % (2 * FLOAT_MAX)) as i64 - FLOAT_MAX as i64;
            return (integer as f64 / SCALE) as f32;
        }
        let mantissa = (bits & 0x1ff_ffff) as i32 - 0x100_0000;
        (f64::from(mantissa) * 2_f64.powi(self.exponent(index / CHUNK_LANES))) as f32
    }

    /// Magnitudes of some elements that follow each other: roughly the same at all workers, so that
    /// each counts, but not the same, so that keys differ; now and then there are only zeros.
    fn exponent(&self, chunk: usize) -> i32 {
        let common = mix(mix(self.sequence) ^ chunk as u64);
        let own = mix(self.key ^ mix(chunk as u64));
        if common.is_multiple_of(16) || own.is_multiple_of(8) {
            return -1000; // nothing is left of them
        }
        // Within what floats have: the mantissa has 24 bits, and sums must not become infinite.
        let wide = common >> 8 & 3 == 0;
        let middle = if wide { (common >> 16) % 220 } else { 100 + (common >> 16) % 30 };
        middle as i32 - 140 + (own >> 16 & 7) as i32
    }

    /// The key that this worker's part of a data block wants: of its largest number.
    fn wanted_key(&self, data: u64, chunks: u16) -> u16 {
        let (from, to) = self.shape.range(data, chunks);
        let finite = (from..to).map(|index| self.float(index)).filter(|value| value.is_finite());
        key_of(finite.fold(0.0, |most, value| f64::from(value.abs()).max(most)))
    }

    /// What this worker sends as a block, without its seal, given the agreed key of a data block,
    /// and whether it has to mark that as not being of numbers.
    ///
    /// # Errors
    /// An element does not fit its lane with that key.
    pub(crate) fn payload(
        &self,
        part: Content,
        chunks: u16,
        key: u16,
    ) -> Result<(Vec<u8>, bool), String> {
        let (mut payload, mut odd) = (Vec::new(), false);
        let layout = self.shape.layout(chunks);
        let len = self.shape.payload(&layout, part, chunks);
        match part {
            Content::Seal => {}
            Content::Keys(group) => {
                let (from, to) = layout.group(group);
                let keys = (from..to).flat_map(|d| self.wanted_key(d, chunks).to_le_bytes());
                payload.extend(keys);
                payload.resize(len, 0);
            }
            Content::Data(data) => {
                let (from, to) = self.shape.range(data, chunks);
                let scale = self.shape.scale(key, self.world);
                for index in from..to {
                    odd |= self.is_odd(index);
                    payload.extend(self.lane(index, scale)?.to_le_bytes());
                }
                while payload.len() < len {
                    payload.extend(self.nothing().to_le_bytes());
                }
            }
        }
        Ok((payload, odd))
    }

    /// Whether this element makes its block one that is not of numbers.
    fn is_odd(&self, index: usize) -> bool {
        // An infinity may be the largest number, but there is no sum with it.
        let odd = self.shape.float.then(|| self.odd(index)).flatten();
        odd.is_some_and(|odd| odd.is_nan() || self.shape.adds())
    }

    fn lane(&self, index: usize, scale: Scale) -> Result<u32, String> {
        let biased = |integer: i32| (integer as u32).wrapping_add(bias(self.world));
        if !self.shape.float {
            let integer = self.integer(index);
            return Ok(if self.shape.adds() { biased(integer) } else { ordered_integer(integer) });
        }
        let value = self.float(index);
        if !self.shape.adds() {
            return Ok(ordered_float(value));
        }
        let finite = if value.is_finite() { value } else { 0.0 };
        let integer = scale.integer(finite, self.world);
        integer.map(biased).ok_or_else(|| format!("element {index}, {value}, does not fit"))
    }

    /// A lane behind the last element.
    const fn nothing(&self) -> u32 {
        match self.shape.op {
            Op::Min => u32::MAX,
            Op::Max => 0,
            Op::Sum | Op::Average => bias(self.world),
        }
    }

    /// A float's exact value; 0 where it is NaN or infinite.
    pub(crate) fn exact(&self, index: usize) -> f64 {
        let value = self.float(index);
        if value.is_finite() { f64::from(value) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes_of(all: &[Inputs], part: Content, key: u16, rule: Reduction) -> Vec<u32> {
        let payload = |inputs: &Inputs| inputs.payload(part, 1, key).expect("all fit").0;
        let mut sum = payload(&all[0]);
        for inputs in &all[1..] {
            combine(rule, &mut sum, &payload(inputs));
        }
        sum.as_chunks().0.iter().map(|lane| u32::from_le_bytes(*lane)).collect()
    }

    #[test]
    fn lanes_sum_to_the_sum_of_the_elements() {
        let shape =
            Shape { len: 30, float: false, op: Op::Sum, block: false, odd: false, root: None };
        let all: Vec<_> = (0..3).map(|life| Inputs::new(life, 3, 5, shape)).collect();
        let lanes = lanes_of(&all, Content::Data(1), 0, Reduction::Add);
        assert_eq!(lanes.len(), 16);
        for index in 16..30 {
            let exact: i64 = all.iter().map(|inputs| i64::from(inputs.integer(index))).sum();
            assert_eq!(i64::from(integer_of(lanes[index - 16], 3, 3, false)), exact);
        }
    }

    #[test]
    fn sums_with_agreed_keys_are_near() {
        let shape =
            Shape { len: 16 * 50, float: true, op: Op::Sum, block: true, odd: false, root: None };
        let all: Vec<_> = (0..3).map(|life| Inputs::new(life, 3, 5, shape)).collect();
        let keys = lanes_of(&all, Content::Keys(0), 0, Reduction::Max16);
        let keys: Vec<u16> =
            keys.iter().flat_map(|two| [*two as u16, (*two >> 16) as u16]).collect();
        assert_eq!(keys.len(), 32);
        for (data, key) in (0..).zip(keys) {
            let lanes = lanes_of(&all, Content::Data(data), key, Reduction::Add);
            let scale = shape.scale(key, 3);
            for (lane, index) in lanes.iter().zip(16 * data as usize..) {
                let exact: f64 = all.iter().map(|inputs| inputs.exact(index)).sum();
                let error = (f64::from(shape.float(*lane, 3, 3, scale)) - exact).abs();
                let rounding = exact.abs() * 2_f64.powi(-24);
                assert!(error <= 1.5 * scale.step() + rounding, "{index}: {error}");
            }
        }
    }
}
