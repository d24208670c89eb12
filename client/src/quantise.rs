//! Floats to biased fixed-point lanes and back (PASSING, section 3.2: one scale for all blocks).
//!
//! `q = round(x * scale)`, ties to even, is clamped to what the world size leaves room for
//! ([`Bias`]); every clamped element is counted. A block with a NaN or an infinity is marked and
//! comes back as NaN at every worker. The sum of integers is exact and independent of the order of
//! arrival, so all workers get the same bits. Going back, `x = sum * (1 / scale)`, and an average
//! multiplies by `1 / (scale * C)`: both in 64-bit floats, rounded once to 32 bits. `C` is the
//! number of workers whose contribution is in the block; the bias is always that of the world.

use xdp_agg_common::lanes::{Bias, CHUNK_LANES, CHUNK_LEN};

use crate::collective::Op;

/// 1.5 * 2^52: adding it to a 64-bit float below 2^51 leaves the nearest integer (ties to even) in
/// the low bits of the sum, with no conversion instruction that would not vectorise.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// How the integers of one call stand for its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    bias: Bias,
    scale: f64,
}

/// What happened while a block was encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Elements that did not fit and were clamped.
    pub saturated: u32,
    /// A NaN or an infinity was among them.
    pub non_finite: bool,
}

impl Numbers {
    /// Numbers for a world of `workers` with this scale (positive and finite: the caller checked).
    #[must_use]
    pub const fn new(workers: u16, scale: f64) -> Self {
        Self { bias: Bias::for_workers(workers), scale }
    }

    /// Largest magnitude that an element may have without being clamped.
    #[must_use]
    pub fn float_limit(&self) -> f64 {
        f64::from(self.bias.max()) / self.scale
    }

    /// Smallest and largest integer element.
    #[must_use]
    pub const fn int_range(&self) -> (i32, i32) {
        (self.bias.min(), self.bias.max())
    }

    /// Encodes up to a block of floats; lanes behind the last element count as zero.
    pub fn encode_f32(&self, from: &[f32], to: &mut [u8]) -> Encoded {
        // Magnitudes of floats are ordered as their bits are, and those of NaN and infinity lie
        // above all others: one integer maximum tells whether any element needs a closer look.
        let mut peak = 0;
        self.encode_with(from, to, &mut |x: f32| {
            peak = peak.max(x.to_bits() as i32 & i32::MAX);
            let scaled = f64::from(x) * self.scale;
            self.bias.encode((scaled + ROUND).to_bits() as i32)
        });
        let peak = f64::from(f32::from_bits(peak as u32));
        if peak * self.scale <= f64::from(self.bias.max()) {
            return Encoded::default();
        }
        self.encode_with_care(from, to)
    }

    /// As [`Self::encode_f32`], for blocks with elements that do not fit.
    #[cold]
    fn encode_with_care(&self, from: &[f32], to: &mut [u8]) -> Encoded {
        let (min, max) = (f64::from(self.bias.min()), f64::from(self.bias.max()));
        let mut encoded = Encoded::default();
        self.encode_with(from, to, &mut |x: f32| {
            encoded.non_finite |= !x.is_finite();
            let scaled = f64::from(x) * self.scale;
            let clamped = scaled.max(min).min(max);
            // Half a step over the edge still rounds into the range.
            encoded.saturated += u32::from((scaled - clamped).abs() > 0.5);
            self.bias.encode((clamped + ROUND).to_bits() as i32)
        });
        encoded
    }

    /// Encodes up to a block of integers that are all in [`Self::int_range`].
    pub fn encode_i32(&self, from: &[i32], to: &mut [u8]) {
        self.encode_with(from, to, &mut |q| self.bias.encode(q));
    }

    #[inline(always)]
    fn encode_with<T: Copy>(&self, from: &[T], to: &mut [u8], encode: &mut impl FnMut(T) -> u32) {
        let (lanes, _) = to.as_chunks_mut::<4>();
        let (used, rest) = lanes.split_at_mut(from.len());
        for (lane, value) in used.iter_mut().zip(from) {
            *lane = encode(*value).to_le_bytes();
        }
        rest.fill(self.bias.encode(0).to_le_bytes());
    }

    /// Decodes the sum of so many workers' blocks (at least 1) into floats.
    pub fn decode_f32(&self, from: &[u8], op: Op, contributors: u32, to: &mut [f32]) {
        let factor = match op {
            Op::Sum => 1.0 / self.scale,
            Op::Average => 1.0 / (self.scale * f64::from(contributors)),
        };
        for (lane, value) in from.as_chunks::<4>().0.iter().zip(to) {
            let sum = self.bias.decode_sum_of(u32::from_le_bytes(*lane), contributors);
            *value = (f64::from(sum) * factor) as f32;
        }
    }

    /// Decodes the sum of so many workers' blocks (at least 1) into integers; an average is divided
    /// towards zero.
    pub fn decode_i32(&self, from: &[u8], op: Op, contributors: u32, to: &mut [i32]) {
        let divisor = match op {
            Op::Sum => 1,
            Op::Average => contributors.max(1) as i32,
        };
        for (lane, value) in from.as_chunks::<4>().0.iter().zip(to) {
            *value = self.bias.decode_sum_of(u32::from_le_bytes(*lane), contributors) / divisor;
        }
    }
}

/// Chunks that hold this many elements.
#[must_use]
pub const fn chunks_for(elements: usize) -> u16 {
    elements.div_ceil(CHUNK_LANES) as u16
}

/// Payload bytes that hold this many elements.
#[must_use]
pub const fn payload_for(elements: usize) -> usize {
    chunks_for(elements) as usize * CHUNK_LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the aggregator does, one lane at a time.
    fn sum(blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut total = vec![0_u8; blocks[0].len()];
        for block in blocks {
            for (t, b) in total.as_chunks_mut::<4>().0.iter_mut().zip(block.as_chunks::<4>().0) {
                *t = u32::from_le_bytes(*t).wrapping_add(u32::from_le_bytes(*b)).to_le_bytes();
            }
        }
        total
    }

    fn all_reduce(inputs: &[Vec<f32>], scale: f64, op: Op) -> (Vec<f32>, u32) {
        let numbers = Numbers::new(inputs.len() as u16, scale);
        let mut saturated = 0;
        let blocks: Vec<_> = inputs
            .iter()
            .map(|input| {
                let mut block = vec![0xee; payload_for(input.len())];
                saturated += numbers.encode_f32(input, &mut block).saturated;
                block
            })
            .collect();
        let mut output = vec![f32::NAN; inputs[0].len()];
        numbers.decode_f32(&sum(&blocks), op, inputs.len() as u32, &mut output);
        (output, saturated)
    }

    #[test]
    fn ties_go_to_even() {
        let (output, _) = all_reduce(&[vec![0.5, 1.5, 2.5, -0.5, -1.5, 1.49]], 1.0, Op::Sum);
        assert_eq!(output, [0.0, 2.0, 2.0, 0.0, -2.0, 1.0]);
    }

    #[test]
    fn what_does_not_fit_is_clamped_and_counted() {
        let numbers = Numbers::new(2, 1.0);
        let limit = numbers.float_limit() as f32;
        assert!((1.07e9..1.08e9).contains(&limit));
        let (output, saturated) =
            all_reduce(&[vec![2e9, -2e9, 1.0, 1e9], vec![0.0, 0.0, 1.0, 1e9]], 1.0, Op::Sum);
        assert_eq!(saturated, 2);
        assert_eq!(output, [numbers.bias.max() as f32, numbers.bias.min() as f32, 2.0, 2e9]);
    }

    #[test]
    fn non_finite_elements_are_seen() {
        let numbers = Numbers::new(3, 1e8);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut block = [0; 64];
            assert!(numbers.encode_f32(&[1.0, odd], &mut block).non_finite);
            assert!(!numbers.encode_f32(&[1.0, f32::MAX], &mut block).non_finite);
        }
    }

    #[test]
    fn averages_divide_after_the_sum() {
        let numbers = Numbers::new(4, 1.0);
        let mut block = [0; 64];
        numbers.encode_i32(&[7, -7], &mut block);
        let total = sum(&[block.to_vec(), block.to_vec(), block.to_vec(), block.to_vec()]);
        let mut out = [0; 2];
        numbers.decode_i32(&total, Op::Average, 4, &mut out);
        assert_eq!(out, [7, -7]);
        numbers.decode_i32(&total, Op::Sum, 4, &mut out);
        assert_eq!(out, [28, -28]);
    }

    proptest! {
        /// The error of a sum of N is at most N half steps of 1/scale, plus one rounding to f32.
        #[test]
        fn the_error_is_what_quantisation_explains(
            inputs in (1_usize..9, 1_usize..100).prop_flat_map(|(workers, len)| {
                prop::collection::vec(prop::collection::vec(-2.0_f32..2.0, len), workers)
            }),
        ) {
            let scale = f64::from(1 << 24);
            let (output, saturated) = all_reduce(&inputs, scale, Op::Sum);
            prop_assert_eq!(saturated, 0);
            for (i, got) in output.iter().enumerate() {
                let exact: f64 = inputs.iter().map(|v| f64::from(v[i])).sum();
                let bound = 0.5 * inputs.len() as f64 / scale + exact.abs() * 2_f64.powi(-24);
                prop_assert!((f64::from(*got) - exact).abs() <= bound);
            }
        }

        #[test]
        fn integers_come_through_exactly(
            inputs in (1_usize..9, 1_usize..100).prop_flat_map(|(workers, len)| {
                let one = prop::collection::vec(-200_000_000..200_000_000, len);
                prop::collection::vec(one, workers)
            }),
        ) {
            let numbers = Numbers::new(inputs.len() as u16, 1.0);
            let blocks: Vec<_> = inputs.iter().map(|input: &Vec<i32>| {
                let mut block = vec![0; payload_for(input.len())];
                numbers.encode_i32(input, &mut block);
                block
            }).collect();
            let mut output = vec![0; inputs[0].len()];
            numbers.decode_i32(&sum(&blocks), Op::Sum, inputs.len() as u32, &mut output);
            for (i, got) in output.iter().enumerate() {
                prop_assert_eq!(*got, inputs.iter().map(|v| v[i]).sum::<i32>());
            }
        }
    }
}
