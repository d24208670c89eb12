//! Elements as what the kernels compute with: keys in their order, floats to sum, integers.

use std::ops::Add;

use half::{bf16, f16};

use super::lane::Lane;
use crate::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd};
use crate::element::Element;

/// An element's place in the order of its type, as an unsigned number.
///
/// Of floats: the bits, with the sign turned over for positive ones and all of them for negative
/// ones. -0.0 comes just before 0.0, and NaNs lie beyond the infinities.
pub(crate) trait Ordered: Element {
    type Key: Lane;
    fn to_key(self) -> Self::Key;
    fn from_key(key: Self::Key) -> Self;
    /// The bits without the sign: ordered as magnitudes are. 0 for integers.
    fn magnitude(self) -> Self::Key;
    /// The magnitude of infinity: NaNs' are larger.
    const INFINITE: Self::Key;
    fn magnitude_value(magnitude: Self::Key) -> f64;
}

macro_rules! ordered_float {
    ($($float:ty: $bits:ty, $signed:ty, $to:expr;)*) => {$(
        impl Ordered for $float {
            type Key = $bits;
            const INFINITE: $bits = <$float>::INFINITY.to_bits();
            #[inline(always)]
            fn to_key(self) -> $bits {
                let bits = self.to_bits();
                // All ones for negative numbers.
                let negative = (bits as $signed >> (<$bits>::BITS - 1)) as $bits;
                bits ^ (negative | 1 << (<$bits>::BITS - 1))
            }
            #[inline(always)]
            fn from_key(key: $bits) -> Self {
                let positive = (key as $signed >> (<$bits>::BITS - 1)) as $bits;
                <$float>::from_bits(key ^ (!positive | 1 << (<$bits>::BITS - 1)))
            }
            #[inline(always)]
            fn magnitude(self) -> $bits {
                self.to_bits() & !(1 << (<$bits>::BITS - 1))
            }
            #[inline(always)]
            fn magnitude_value(magnitude: $bits) -> f64 {
                $to(<$float>::from_bits(magnitude))
            }
        }
    )*};
}

ordered_float! {
    f32: u32, i32, f64::from;
    f64: u64, i64, f64::from;
    f16: u16, i16, f16::to_f64;
    bf16: u16, i16, bf16::to_f64;
}

/// An integer, and its lane.
pub(crate) trait Integer: Ordered {
    fn add(self, other: Self) -> Self;
    /// The lane, with the bias.
    fn to_lane(self, bias: u64) -> Self::Key;
    /// The sum in a lane, without the biases in it.
    fn from_lane(lane: Self::Key, biases: u64) -> Self;
    /// Towards zero.
    fn divide(self, divisor: u32) -> Self;
    fn to_i64(self) -> i64;
}

macro_rules! integer {
    ($($integer:ty: $bits:ty;)*) => {$(
        impl Ordered for $integer {
            type Key = $bits;
            const INFINITE: $bits = <$bits>::MAX;
            #[inline(always)]
            fn to_key(self) -> $bits {
                self as $bits ^ 1 << (<$bits>::BITS - 1)
            }
            #[inline(always)]
            fn from_key(key: $bits) -> Self {
                (key ^ 1 << (<$bits>::BITS - 1)) as $integer
            }
            #[inline(always)]
            fn magnitude(self) -> $bits {
                self.unsigned_abs()
            }
            #[inline(always)]
            fn magnitude_value(magnitude: $bits) -> f64 {
                magnitude as f64
            }
        }

        impl Integer for $integer {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn to_lane(self, bias: u64) -> $bits {
                (self as $bits).wrapping_add(bias as $bits)
            }
            #[inline(always)]
            fn from_lane(lane: $bits, biases: u64) -> Self {
                lane.wrapping_sub(biases as $bits) as Self
            }
            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                (i64::from(self) / i64::from(divisor)) as Self
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                i64::from(self)
            }
        }
    )*};
}

integer! {
    i32: u32;
    i64: u64;
}

/// A float that is summed in its own type, or as f32.
pub(crate) trait Float: Ordered {
    /// What sums are made in.
    type Sum: Sum;
    /// Exact.
    fn widen(self) -> Self::Sum;
    /// Rounded once, ties to even.
    fn narrow(value: f64) -> Self;
    /// Rounded once, ties to even; a NaN becomes [`Element::NAN`].
    fn from_sum(sum: Self::Sum) -> Self;
}

/// What floats are summed in: f32 or f64.
pub(crate) trait Sum: Float + Add<Output = Self> + Into<f64> {}

macro_rules! summed_as_they_are {
    ($($float:ty)*) => {$(
        impl Sum for $float {}

        impl Float for $float {
            type Sum = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(value: f64) -> Self {
                value as Self
            }
            #[inline(always)]
            fn from_sum(sum: Self) -> Self {
                if sum.is_nan() { Self::NAN } else { sum }
            }
        }
    )*};
}

summed_as_they_are!(f32 f64);

macro_rules! summed_as_f32 {
    ($($float:ty: $widen:ident, $narrow:ident;)*) => {$(
        impl Float for $float {
            type Sum = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(value: f64) -> Self {
                $narrow(f64_to_f32_odd(value))
            }
            #[inline(always)]
            fn from_sum(sum: f32) -> Self {
                $narrow(sum)
            }
        }
    )*};
}

summed_as_f32! {
    f16: f16_to_f32, f32_to_f16;
    bf16: bf16_to_f32, f32_to_bf16;
}
