//! What travels, and how two of it become one.
//!
//! Payload comes and goes as bytes, whose memory need not be aligned. These loops compile to vector
//! instructions.

use std::fmt::Debug;

use xdp_agg_common::lanes::{Pick, extreme};
use xdp_agg_common::wire::Reduction;
use xdp_agg_quantize::{ElementType, Op, bf16, f16};

/// Names of what travels; its number on the wire is its place here.
const NAMES: [&str; 11] =
    ["words", "u8", "u16", "u32", "u64", "i32", "i64", "f32", "f64", "f16", "bf16"];
/// The number of words of an aggregator's lanes.
pub(crate) const WORDS: u8 = 0;

/// An element as it travels: plain bytes with a name.
pub trait Datum: bytemuck::Pod + Debug + Send + Sync + 'static {
    /// The name in messages.
    const NAME: &'static str;
}

macro_rules! data {
    ($($element:ident)*) => {$(
        impl Datum for $element {
            const NAME: &'static str = stringify!($element);
        }
    )*};
}

data! { u8 u16 u32 u64 i32 i64 f32 f64 f16 bf16 }

/// The number of a name on the wire.
pub(crate) fn code(name: &str) -> u8 {
    NAMES.iter().position(|one| *one == name).unwrap_or(NAMES.len()) as u8
}

/// The name behind a number.
pub(crate) fn name(code: u8) -> &'static str {
    NAMES.get(usize::from(code)).unwrap_or(&"unknown elements")
}

/// What a reduction does with whole elements that lie in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    /// `into = into (operation) from`, element by element; both are equally long.
    pub(crate) combine: fn(&mut [u8], &[u8]),
    /// What is left to do when the elements of that number of ranks are in.
    pub(crate) finish: Option<fn(&mut [u8], u16)>,
}

/// A loop over the elements of two vectors.
macro_rules! each {
    ($type:ty, $combine:expr) => {
        |into: &mut [u8], from: &[u8]| {
            for (into, from) in into.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                let (a, b) = (<$type>::from_ne_bytes(*into), <$type>::from_ne_bytes(*from));
                *into = <$type>::to_ne_bytes($combine(a, b));
            }
        }
    };
}

macro_rules! arithmetic {
    ($op:expr, $type:ty, $add:expr, $min:expr, $max:expr, $divide:expr) => {
        Arithmetic {
            combine: match $op {
                Op::Sum | Op::Average => each!($type, $add),
                Op::Min => each!($type, $min),
                Op::Max => each!($type, $max),
            },
            finish: ($op == Op::Average).then_some(|values: &mut [u8], ranks: u16| {
                for value in values.as_chunks_mut().0 {
                    *value = <$type>::to_ne_bytes($divide(<$type>::from_ne_bytes(*value), ranks));
                }
            }),
        }
    };
}

macro_rules! float {
    ($op:expr, $type:ty, $add:expr, $divide:expr) => {
        arithmetic!(
            $op,
            $type,
            $add,
            // A NaN stays one, unlike with `min` of the standard library.
            |a: $type, b: $type| if a.is_nan() || a < b { a } else { b },
            |a: $type, b: $type| if a.is_nan() || a > b { a } else { b },
            $divide
        )
    };
}

/// Sums wrap; an average is divided towards zero.
macro_rules! integer {
    ($op:expr, $type:ident) => {
        arithmetic!(
            $op,
            $type,
            $type::wrapping_add,
            |a: $type, b: $type| a.min(b),
            |a: $type, b: $type| a.max(b),
            |sum: $type, ranks: u16| sum / $type::from(ranks)
        )
    };
}

impl Arithmetic {
    pub(crate) fn of_elements(element: ElementType, op: Op) -> Self {
        match element {
            ElementType::F32 => {
                float!(op, f32, |a: f32, b| a + b, |sum: f32, ranks| sum / f32::from(ranks))
            }
            ElementType::F64 => {
                float!(op, f64, |a: f64, b| a + b, |sum: f64, ranks| sum / f64::from(ranks))
            }
            ElementType::F16 => float!(
                op,
                f16,
                |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32()),
                |sum: f16, ranks| f16::from_f32(sum.to_f32() / f32::from(ranks))
            ),
            ElementType::Bf16 => float!(
                op,
                bf16,
                |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32()),
                |sum: bf16, ranks| bf16::from_f32(sum.to_f32() / f32::from(ranks))
            ),
            ElementType::I32 => integer!(op, i32),
            ElementType::I64 => integer!(op, i64),
        }
    }

    /// Of eight bytes of an aggregator's lanes. They are little-endian, as the machines that add
    /// them.
    pub(crate) fn of_words(reduction: Reduction) -> Self {
        const MIN: Pick = Pick::MIN;
        const MAX: Pick = Pick::MAX;
        let combine: fn(&mut [u8], &[u8]) = match reduction {
            // A copy is one worker's, and the others' words are zero.
            Reduction::Add | Reduction::Copy => each!(u64, u64::wrapping_add),
            Reduction::Min16 => each!(u64, |a, b| extreme::<16>(a, b, MIN)),
            Reduction::Min32 => each!(u64, |a, b| extreme::<32>(a, b, MIN)),
            Reduction::Min64 => each!(u64, |a, b| extreme::<64>(a, b, MIN)),
            Reduction::Max16 => each!(u64, |a, b| extreme::<16>(a, b, MAX)),
            Reduction::Max32 => each!(u64, |a, b| extreme::<32>(a, b, MAX)),
            Reduction::Max64 => each!(u64, |a, b| extreme::<64>(a, b, MAX)),
        };
        Self { combine, finish: None }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::{cast_slice, cast_slice_mut};
    use xdp_agg_quantize::Element;

    use super::*;

    /// Two ranks' elements, made one.
    fn reduced<T: Element, const N: usize>(op: Op, mut into: [T; N], from: [T; N]) -> [T; N] {
        let Arithmetic { combine, finish } = Arithmetic::of_elements(T::TYPE, op);
        combine(cast_slice_mut(&mut into), cast_slice(&from));
        if let Some(finish) = finish {
            finish(cast_slice_mut(&mut into), 2);
        }
        into
    }

    #[test]
    fn integers_wrap_and_divide_towards_zero() {
        let (ours, theirs) = ([i32::MAX, -7, 7, i32::MIN], [1, 0, 0, 0]);
        assert_eq!(reduced(Op::Sum, ours, theirs), [i32::MIN, -7, 7, i32::MIN]);
        assert_eq!(reduced(Op::Average, ours, theirs), [i32::MIN / 2, -3, 3, i32::MIN / 2]);
        assert_eq!(reduced(Op::Max, [7_i64, -1], [9, -2]), [9, -1]);
    }

    #[test]
    fn floats_add_and_divide() {
        let values = reduced(Op::Average, [1.5_f32, -2.0, f32::NAN], [0.5, 1.0, 1.0]);
        assert_eq!(values[..2], [1.0, -0.5]);
        assert!(values[2].is_nan());
        let half = f16::from_f32;
        assert_eq!(reduced(Op::Sum, [half(1.5)], [half(2.0)]), [half(3.5)]);
        let short = bf16::from_f32;
        assert_eq!(reduced(Op::Average, [short(1.0)], [short(2.0)]), [short(1.5)]);
    }

    #[test]
    fn the_smaller_and_the_larger_keep_what_is_no_number() {
        for op in [Op::Min, Op::Max] {
            let values = reduced(op, [1.0, f64::NAN, 3.0, 4.0], [2.0, 0.0, f64::NAN, -4.0]);
            let ends = if op == Op::Min { [1.0, -4.0] } else { [2.0, 4.0] };
            assert_eq!([values[0], values[3]], ends);
            assert!(values[1].is_nan() && values[2].is_nan());
        }
    }

    #[test]
    fn words_are_reduced_lane_by_lane() {
        let mut words = [0x0001_0002_0003_0004, u64::MAX];
        let other = [0x0004_0003_0002_0001_u64, 1];
        let mut reduce = |reduction| {
            let combine = Arithmetic::of_words(reduction).combine;
            combine(cast_slice_mut(&mut words), cast_slice(&other));
            words
        };
        assert_eq!(reduce(Reduction::Max16)[0], 0x0004_0003_0003_0004);
        // From lane to lane, as the aggregator does.
        assert_eq!(reduce(Reduction::Add), [0x0008_0006_0005_0005, 0]);
    }

    #[test]
    fn all_elements_have_names() {
        for element in ElementType::ALL {
            assert_eq!(name(code(element.name())), element.name());
        }
        assert_eq!((name(code(u8::NAME)), name(WORDS)), ("u8", "words"));
    }
}
