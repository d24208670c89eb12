//! The factors of a block, and the bias of its lanes.

use crate::keys::parts_of;
use crate::types::LaneWidth;

/// Largest power of two that one factor has; more is left to the second one.
const ONE_FACTOR: i32 = 1000;

/// Factors to the integers of a block and back.
///
/// Exponents of 64-bit floats reach further than one factor's own can. So there are two of each,
/// applied one after the other. Both steps are exact, or the last one alone rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Into integers.
    pub(crate) up: [f64; 2],
    /// Out of them.
    pub(crate) down: [f64; 2],
}

impl Scale {
    /// A factor for all blocks.
    pub(crate) fn fixed(scale: f64) -> Self {
        Self { up: [scale, 1.0], down: [1.0 / scale, 1.0] }
    }

    /// A power of two.
    pub(crate) fn power(exponent: i32) -> Self {
        let first = exponent.clamp(-ONE_FACTOR, ONE_FACTOR);
        let rest = exponent - first;
        Self { up: [power(first), power(rest)], down: [power(-first), power(-rest)] }
    }

    /// As [`Self::power`], where one factor is enough: exponents of 32-bit floats. Only key 0 asks
    /// for more, whose elements are all zero.
    pub(crate) fn single_power(exponent: i32) -> Self {
        Self::power(exponent.min(ONE_FACTOR))
    }

    /// Results divided by `processes`, too: by the first factor, so that the sum itself may be too
    /// large for a float.
    pub(crate) fn divided_by(mut self, processes: u32) -> Self {
        self.down[0] /= f64::from(processes.max(1));
        self
    }

    /// The factor out of integers, if a product with it in f32 is exact: a power of two, with which
    /// no integer but zero becomes subnormal. The conversion of the integer is then the only thing
    /// that rounds, as the conversion of a 64-bit product is.
    #[inline(always)]
    pub(crate) fn down_f32(&self) -> Option<f32> {
        power_in_f32(self.down)
    }

    /// The factor into integers, if products with it in f32 round as those in f64 do: a power of
    /// two. Such a product is exact, or subnormal (which is zero as an integer, as the exact one
    /// is), or overflows (which no element does that fits into a lane).
    #[inline(always)]
    pub(crate) fn up_f32(&self) -> Option<f32> {
        power_in_f32(self.up)
    }

    /// As [`Self::divided_by`] for a scale that is not a power of two: one rounding less than two
    /// factors have.
    pub(crate) fn fixed_divided_by(scale: f64, processes: u32) -> Self {
        let divisor = scale * f64::from(processes.max(1));
        Self { up: [scale, 1.0], down: [1.0 / divisor, 1.0] }
    }
}

/// The product of two factors as an f32, if it is a power of two within its normal range.
#[inline(always)]
fn power_in_f32(factors: [f64; 2]) -> Option<f32> {
    let bits = factors[0].to_bits();
    let (exponent, mantissa) = ((bits >> 52) as i32 - 1023, bits << 12);
    let exact = mantissa == 0 && (-126..=126).contains(&exponent) && factors[1] == 1.0;
    exact.then_some(factors[0] as f32)
}

/// 2 to an exponent from -1022 to 1023.
const fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The power of two for a block of this key: the largest with which no element exceeds `max`.
///
/// The bound is `m * 2^e` and `max = n * 2^f`, both with mantissas from 1 to 2. `m * 2^e * 2^p` is
/// at most `n * 2^f` for `p = f - e`, or one less where `m > n`. Key 0 is treated as key 1.
pub(crate) fn exponent_for(key: u16, max: f64) -> i32 {
    let (m, e) = parts_of(key.max(1));
    let bits = max.to_bits();
    let f = (bits >> 52) as i32 - 1023;
    let n = f64::from_bits(bits & ((1 << 52) - 1) | 1.0_f64.to_bits());
    f - e - i32::from(m > n)
}

/// What is added to the integers of a lane so that they are unsigned, and what it leaves room for:
/// as [`xdp_agg_common::lanes::Bias`], for lanes of every width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneBias {
    /// `2^(bits - 1) / contributors`, rounded down.
    pub(crate) bias: u64,
}

impl LaneBias {
    pub(crate) fn new(width: LaneWidth, contributors: u16) -> Self {
        Self { bias: (1_u64 << (width.bits() - 1)) / u64::from(contributors.max(1)) }
    }

    /// Largest integer; the smallest is `-max - 1`.
    pub(crate) fn max(self) -> i64 {
        (self.bias - 1) as i64
    }

    /// Smallest integer.
    pub(crate) fn min(self) -> i64 {
        (self.bias as i64).wrapping_neg()
    }

    /// [`Self::max`] as a float, or the next one below.
    pub(crate) fn max_float(self) -> f64 {
        let max = self.max() as u64;
        // What a mantissa of 53 bits cannot hold is cut off.
        let excess = (64 - max.leading_zeros()).saturating_sub(53);
        (max >> excess << excess) as f64
    }

    /// [`Self::min`] as a float, or the next one above.
    pub(crate) fn min_float(self) -> f64 {
        let magnitude = self.bias;
        let excess = (64 - magnitude.leading_zeros()).saturating_sub(53);
        -((magnitude >> excess << excess) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::key_of;
    use xdp_agg_common::lanes::Bias;

    #[test]
    fn the_bias_of_32_bits_is_that_of_the_wire() {
        for workers in 1..=64 {
            let (ours, wire) = (LaneBias::new(LaneWidth::W32, workers), Bias::for_workers(workers));
            assert_eq!(ours.max(), i64::from(wire.max()));
            assert_eq!(ours.min(), i64::from(wire.min()));
            assert_eq!(ours.bias, u64::from(wire.encode(0)));
        }
    }

    #[test]
    fn limits_as_floats_are_within_the_limits() {
        for width in [LaneWidth::W16, LaneWidth::W32, LaneWidth::W64] {
            for workers in 1..=64 {
                let bias = LaneBias::new(width, workers);
                let (max, min) = (bias.max_float(), bias.min_float());
                assert!(max as i128 <= i128::from(bias.max()), "{width} {workers}");
                assert!(min as i128 >= i128::from(bias.min()), "{width} {workers}");
                assert!(max.next_up().ceil() as i128 > i128::from(bias.max()));
            }
        }
    }

    /// All keys: no element exceeds the limit, and with twice the factor one could.
    #[test]
    fn powers_are_the_largest_that_fit() {
        for width in [LaneWidth::W16, LaneWidth::W32, LaneWidth::W64] {
            for workers in [1, 2, 3, 7, 8, 63, 64] {
                let max = LaneBias::new(width, workers).max_float();
                for key in 1..=u16::MAX {
                    let exponent = exponent_for(key, max);
                    let (m, e) = parts_of(key);
                    let largest = m * 2_f64.powi(e + exponent);
                    assert!(largest <= max && 2.0 * largest > max, "{width} {workers} {key}");
                }
            }
        }
    }

    #[test]
    fn factors_undo_each_other() {
        for exponent in [-1100, -1001, -967, 0, 31, 179, 1000, 1001, 1091] {
            let Scale { up, down } = Scale::power(exponent);
            assert_eq!((up[0] * down[0], up[1] * down[1]), (1.0, 1.0), "{exponent}");
        }
        assert_eq!(Scale::single_power(1091), Scale::power(1000));
        assert!(exponent_for(key_of(f64::MAX), LaneBias::new(LaneWidth::W64, 64).max_float()) < 0);
        assert_eq!(Scale::fixed(8.0).divided_by(4).down[0], 1.0 / 32.0);
    }
}
