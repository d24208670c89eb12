//! What travels, and what it stands for: the rules of `docs/numerics.md`, one number at a time.

use xdp_agg_common::wire::Reduction;

/// Scale of floats with one scale: a power of two, so that the floats made here are exact.
pub(crate) const SCALE: f64 = 1024.0;

/// Half of what the 32-bit lanes of a world of this size leave to each worker: what is added to
/// each number so that none is below zero.
pub(crate) const fn bias(world: u16) -> u32 {
    ((1_u64 << 32) / world as u64 / 2) as u32
}

/// The key of a magnitude: the upper 16 bits of a 64-bit float, without its sign, rounded up.
pub(crate) fn key_of(magnitude: f64) -> u16 {
    let bits = magnitude.to_bits();
    let (upper, lower) = (bits >> 47, bits & ((1 << 47) - 1));
    (upper + u64::from(lower != 0)) as u16
}

/// What no number of a block with this key exceeds.
fn bound_of(key: u16) -> f64 {
    f64::from_bits(u64::from(key) << 47)
}

/// The exponent of a block's scale: the largest power of two with which the bound stays within
/// what a lane has room for. A block of zeros wants none.
fn exponent_of(key: u16, world: u16) -> i32 {
    let (bound, most) = (bound_of(key), f64::from(bias(world) - 1));
    if key == 0 {
        return 0;
    }
    let mut exponent = (most / bound).log2() as i32;
    while bound * two_to(exponent) > most {
        exponent -= 1;
    }
    while bound * two_to(exponent + 1) <= most {
        exponent += 1;
    }
    exponent
}

fn two_to(exponent: i32) -> f64 {
    2_f64.powi(exponent)
}

/// How floats become integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale(f64);

impl Scale {
    /// All blocks have the same.
    pub(crate) const FIXED: Self = Self(SCALE);

    /// That of a block whose workers agreed on this key.
    pub(crate) fn of_block(key: u16, world: u16) -> Self {
        Self(two_to(exponent_of(key, world)))
    }

    /// What one more in a lane stands for.
    pub(crate) fn step(self) -> f64 {
        1.0 / self.0
    }

    /// The nearest integer. None: it does not fit.
    pub(crate) fn integer(self, value: f32, world: u16) -> Option<i32> {
        let nearest = (f64::from(value) * self.0).round_ties_even();
        (nearest.abs() <= f64::from(bias(world) - 1)).then_some(nearest as i32)
    }

    /// What a sum of lanes stands for.
    pub(crate) fn sum(self, lane: u32, world: u16, contributors: u32) -> f64 {
        f64::from(integer_of(lane, world, contributors, false)) / self.0
    }

    /// An element of a result: rounded once.
    pub(crate) fn float(self, lane: u32, world: u16, contributors: u32, average: bool) -> f32 {
        let sum = integer_of(lane, world, contributors, false);
        let divisor = if average { f64::from(contributors) } else { 1.0 };
        // Multiplied by the reciprocal, as the library documents it.
        (f64::from(sum) * (1.0 / (self.0 * divisor))) as f32
    }
}

/// An integer of a result, from the sum of `contributors` lanes.
pub(crate) fn integer_of(lane: u32, world: u16, contributors: u32, average: bool) -> i32 {
    let sum = lane.wrapping_sub(bias(world).wrapping_mul(contributors)) as i32;
    if average { sum / contributors as i32 } else { sum }
}

/// A float as an unsigned number in the floats' order, -0 below +0.
pub(crate) const fn ordered_float(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

/// The float that such a number stands for.
pub(crate) const fn float_of_order(lane: u32) -> f32 {
    f32::from_bits(if lane >> 31 == 1 { lane & !(1 << 31) } else { !lane })
}

/// An integer as an unsigned number in the integers' order.
pub(crate) const fn ordered_integer(value: i32) -> u32 {
    (value as i64 - i32::MIN as i64) as u32
}

/// The integer that such a number stands for.
pub(crate) const fn integer_of_order(lane: u32) -> i32 {
    (lane as i64 + i32::MIN as i64) as i32
}

/// Makes one payload of two.
///
/// # Panics
/// A reduction that no call here has.
pub(crate) fn combine(rule: Reduction, all: &mut [u8], one: &[u8]) {
    let by_32 = |all: &mut [u8], of: fn(u32, u32) -> u32| {
        for (all, one) in all.as_chunks_mut::<4>().0.iter_mut().zip(one.as_chunks::<4>().0) {
            *all = of(u32::from_le_bytes(*all), u32::from_le_bytes(*one)).to_le_bytes();
        }
    };
    match rule {
        Reduction::Add => by_32(all, u32::wrapping_add),
        Reduction::Min32 => by_32(all, Ord::min),
        Reduction::Max32 => by_32(all, Ord::max),
        Reduction::Max16 => {
            for (all, one) in all.as_chunks_mut::<2>().0.iter_mut().zip(one.as_chunks::<2>().0) {
                *all = u16::from_le_bytes(*all).max(u16::from_le_bytes(*one)).to_le_bytes();
            }
        }
        Reduction::Min16 | Reduction::Min64 | Reduction::Max64 | Reduction::Copy => {
            panic!("no call has {rule:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_the_largest_that_fit() {
        for world in 1..=6 {
            for magnitude in [1e-45_f32, 1e-20, 0.99, 1.0, 1.01, 3.0, 1e30] {
                let key = key_of(f64::from(magnitude));
                let Scale(scale) = Scale::of_block(key, world);
                let most = f64::from(bias(world) - 1);
                assert!(bound_of(key) >= f64::from(magnitude) && bound_of(key) * scale <= most);
                assert!(bound_of(key) * scale * 2.0 > most, "{world} {magnitude}");
                assert!(Scale(scale).integer(magnitude, world).is_some());
            }
        }
        assert_eq!((key_of(0.0), key_of(1.0), key_of(1.01)), (0, 0x7fe0, 0x7fe1));
    }

    #[test]
    fn orders_are_those_of_the_numbers() {
        let floats = [f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, f32::INFINITY];
        assert!(floats.is_sorted_by_key(|value| ordered_float(*value)));
        for value in floats {
            assert_eq!(float_of_order(ordered_float(value)).to_bits(), value.to_bits());
        }
        let integers = [i32::MIN, -1, 0, 1, i32::MAX];
        assert!(integers.is_sorted_by_key(|value| ordered_integer(*value)));
        assert!(integers.iter().all(|value| integer_of_order(ordered_integer(*value)) == *value));
    }
}
