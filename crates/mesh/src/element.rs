//! What travels, and how two of it become one.

use std::fmt::Debug;

/// An element as it travels: plain bytes with a name.
pub trait Datum: bytemuck::Pod + Debug + Send + Sync + 'static {
    /// The name in messages.
    const NAME: &'static str;
    /// Its number on the wire.
    const CODE: u8;
}

macro_rules! data {
    ($($element:ty: $code:literal;)*) => {$(
        impl Datum for $element {
            const NAME: &'static str = stringify!($element);
            const CODE: u8 = $code;
        }
    )*};
}

data! { u8: 1; u16: 2; u32: 3; u64: 4; i32: 5; i64: 6; f32: 7; f64: 8; }

/// How a reduction makes one element of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The sum; integers wrap.
    Sum,
    /// The smaller; a NaN, if there is one.
    Min,
    /// The larger; a NaN, if there is one.
    Max,
}

impl Op {
    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Min => 2,
            Self::Max => 3,
        }
    }
}

/// An element that can be reduced.
pub trait Number: Datum {
    /// One of two.
    #[must_use]
    fn combine(self, other: Self, op: Op) -> Self;
}

macro_rules! integers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            #[inline]
            fn combine(self, other: Self, op: Op) -> Self {
                match op {
                    Op::Sum => self.wrapping_add(other),
                    Op::Min => self.min(other),
                    Op::Max => self.max(other),
                }
            }
        }
    )*};
}

macro_rules! floats {
    ($($number:ty)*) => {$(
        impl Number for $number {
            #[inline]
            fn combine(self, other: Self, op: Op) -> Self {
                match op {
                    Op::Sum => self + other,
                    // Whichever side it is on, a NaN stays.
                    Op::Min if self < other || self.is_nan() => self,
                    Op::Max if self > other || self.is_nan() => self,
                    Op::Min | Op::Max => other,
                }
            }
        }
    )*};
}

integers! { i32 i64 }
floats! { f32 f64 }

/// Combines the elements of `from` into those of `into`: both whole elements, equally many. The
/// bytes need no alignment.
pub(crate) type Combine = fn(Op, &mut [u8], &[u8]);

pub(crate) fn combine<T: Number>(op: Op, into: &mut [u8], from: &[u8]) {
    /// One loop for each operation: none decides for each element.
    #[inline]
    fn each<T: Number>(op: Op, into: &mut [u8], from: &[u8]) {
        let size = size_of::<T>();
        for (to, from) in into.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
            let (a, b): (T, T) =
                (bytemuck::pod_read_unaligned(to), bytemuck::pod_read_unaligned(from));
            to.copy_from_slice(bytemuck::bytes_of(&a.combine(b, op)));
        }
    }
    match op {
        Op::Sum => each::<T>(Op::Sum, into, from),
        Op::Min => each::<T>(Op::Min, into, from),
        Op::Max => each::<T>(Op::Max, into, from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_combined_one_by_one() {
        let mut sums = [1_i32, i32::MAX, -5];
        combine::<i32>(
            Op::Sum,
            bytemuck::cast_slice_mut(&mut sums),
            bytemuck::cast_slice(&[2_i32, 1, 5]),
        );
        assert_eq!(sums, [3, i32::MIN, 0]);
        let mut least = [1.0_f64, f64::NAN, 2.0];
        let other = [0.5_f64, 1.0, f64::NAN];
        combine::<f64>(Op::Min, bytemuck::cast_slice_mut(&mut least), bytemuck::cast_slice(&other));
        assert_eq!(least[0], 0.5);
        assert!(least[1].is_nan() && least[2].is_nan());
        assert_eq!(7_i64.combine(9, Op::Max), 9);
        assert_eq!((-1.0_f32).combine(-2.0, Op::Max), -1.0);
    }
}
