//! Arithmetic on elements that lie in byte buffers.
//!
//! Payload comes and goes as bytes; a region of memory is borrowed as bytes for a whole call, and
//! these loops, which compile to vector instructions, read and write elements in it.

use xdp_agg_common::lanes::{Pick, extreme};
use xdp_agg_common::wire::Reduction;
use xdp_agg_numbers::{ElementType, Op, bf16, f16};

/// An element type that a ring can reduce.
pub trait Element: sealed::Sealed + Copy {
    /// Its name on the wire.
    const TYPE: ElementType;
}

/// What becomes of the elements of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A caller's elements.
    Elements(ElementType, Op),
    /// Words of an aggregator's lanes.
    Words(Reduction),
}

pub(super) mod sealed {
    use super::What;

    /// What a transfer does with received bytes. Only this crate's types have it: they have no
    /// padding, and every bit pattern is a value.
    pub trait Sealed: Sized {
        /// `into = into (what) from`; both hold whole elements, equally many.
        fn combine(what: What, into: &mut [u8], from: &[u8]);
        /// What is left to do when all ranks' elements are in.
        fn finish(_what: What, _values: &mut [u8], _world: u16) {}
    }
}

use sealed::Sealed;

/// `combine` for each element: `into` and `from` are lent as values.
macro_rules! each {
    ($type:ty, $into:expr, $from:expr, $combine:expr) => {
        for (into, from) in $into.as_chunks_mut().0.iter_mut().zip($from.as_chunks().0) {
            let combined: $type =
                $combine(<$type>::from_ne_bytes(*into), <$type>::from_ne_bytes(*from));
            *into = combined.to_ne_bytes();
        }
    };
}

macro_rules! element {
    ($type:ty, $name:ident, $add:expr, $min:expr, $max:expr, $divide:expr) => {
        impl Sealed for $type {
            fn combine(what: What, into: &mut [u8], from: &[u8]) {
                match what {
                    What::Elements(_, Op::Min) => each!($type, into, from, $min),
                    What::Elements(_, Op::Max) => each!($type, into, from, $max),
                    _ => each!($type, into, from, $add),
                }
            }

            fn finish(what: What, values: &mut [u8], world: u16) {
                if let What::Elements(_, Op::Average) = what {
                    for value in values.as_chunks_mut().0 {
                        let divided: $type = $divide(<$type>::from_ne_bytes(*value), world);
                        *value = divided.to_ne_bytes();
                    }
                }
            }
        }

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
        }
    };
}

macro_rules! float {
    ($type:ident, $name:ident) => {
        element!(
            $type,
            $name,
            |a: $type, b: $type| a + b,
            // A NaN stays one, unlike with `min` of the standard library.
            |a: $type, b: $type| if a.is_nan() || a < b { a } else { b },
            |a: $type, b: $type| if a.is_nan() || a > b { a } else { b },
            |value: $type, world: u16| value / $type::from(world)
        );
    };
}

macro_rules! half {
    ($type:ident, $name:ident) => {
        element!(
            $type,
            $name,
            |a: $type, b: $type| $type::from_f32(a.to_f32() + b.to_f32()),
            |a: $type, b: $type| if a.is_nan() || a < b { a } else { b },
            |a: $type, b: $type| if a.is_nan() || a > b { a } else { b },
            |value: $type, world: u16| $type::from_f32(value.to_f32() / f32::from(world))
        );
    };
}

macro_rules! integer {
    ($type:ident, $name:ident) => {
        element!($type, $name, $type::wrapping_add, $type::min, $type::max, |value, world: u16| {
            value / $type::from(world)
        });
    };
}

float!(f32, F32);
float!(f64, F64);
half!(f16, F16);
half!(bf16, Bf16);
// An average divides by the world size, which has 16 bits.
integer!(i32, I32);
integer!(i64, I64);

/// Eight bytes of an aggregator's lanes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Word(u64);

impl Sealed for Word {
    fn combine(what: What, into: &mut [u8], from: &[u8]) {
        let (max, min) = (Pick::MAX, Pick::MIN);
        let What::Words(reduction) = what else { return };
        match reduction {
            // A copy is one worker's, and the others' words are zero.
            Reduction::Add | Reduction::Copy => each!(u64, into, from, u64::wrapping_add),
            Reduction::Min16 => each!(u64, into, from, |a, b| extreme::<16>(a, b, min)),
            Reduction::Min32 => each!(u64, into, from, |a, b| extreme::<32>(a, b, min)),
            Reduction::Min64 => each!(u64, into, from, |a, b| extreme::<64>(a, b, min)),
            Reduction::Max16 => each!(u64, into, from, |a, b| extreme::<16>(a, b, max)),
            Reduction::Max32 => each!(u64, into, from, |a, b| extreme::<32>(a, b, max)),
            Reduction::Max64 => each!(u64, into, from, |a, b| extreme::<64>(a, b, max)),
        }
    }
}

/// Words, seen as words of lanes. They are little-endian, as the machines that add them.
pub(super) fn as_words(words: &mut [u64]) -> &mut [Word] {
    #[expect(unsafe_code, reason = "a view of integers as a type that has nothing but one")]
    // SAFETY: `Word` is transparent over u64.
    unsafe {
        std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<Word>(), words.len())
    }
}

/// The memory of `values` as bytes.
#[expect(unsafe_code, reason = "a view of plain integers or floats as bytes")]
pub(super) fn as_bytes<T: Sealed>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: `Sealed` is this crate's: its types have no padding, and every bit pattern is valid,
    // so bytes may be read and written at will. Length and lifetime are those of `values`, which
    // stays mutably borrowed; u8 has no alignment.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVERAGE: What = What::Elements(ElementType::F32, Op::Average);

    #[test]
    fn integers_wrap_and_divide_towards_zero() {
        let mut values = [i32::MAX, -7, 7, i32::MIN];
        let mut other = [1, 0, 0, 0];
        i32::combine(AVERAGE, as_bytes(&mut values), as_bytes(&mut other));
        assert_eq!(values, [i32::MIN, -7, 7, i32::MIN]);
        i32::finish(AVERAGE, as_bytes(&mut values), 2);
        assert_eq!(values, [i32::MIN / 2, -3, 3, i32::MIN / 2]);
    }

    #[test]
    fn floats_add_and_divide() {
        let mut values = [1.5_f32, -2.0, f32::NAN];
        let mut other = [0.5_f32, 1.0, 1.0];
        f32::combine(AVERAGE, as_bytes(&mut values), as_bytes(&mut other));
        f32::finish(AVERAGE, as_bytes(&mut values), 4);
        assert_eq!(values[..2], [0.5, -0.25]);
        assert!(values[2].is_nan());
    }

    #[test]
    fn the_smaller_and_the_larger_keep_what_is_no_number() {
        for op in [Op::Min, Op::Max] {
            let mut values = [1.0_f64, f64::NAN, 3.0, 4.0];
            let mut other = [2.0, 0.0, f64::NAN, -4.0];
            let what = What::Elements(ElementType::F64, op);
            f64::combine(what, as_bytes(&mut values), as_bytes(&mut other));
            let ends = if op == Op::Min { [1.0, -4.0] } else { [2.0, 4.0] };
            assert_eq!([values[0], values[3]], ends);
            assert!(values[1].is_nan() && values[2].is_nan());
        }
    }

    #[test]
    fn words_are_reduced_lane_by_lane() {
        let mut words = [0x0001_0002_0003_0004, u64::MAX];
        let mut other = [0x0004_0003_0002_0001, 1];
        let (words, other) = (as_words(&mut words), as_words(&mut other));
        Word::combine(What::Words(Reduction::Max16), as_bytes(words), as_bytes(other));
        assert_eq!(words[0].0, 0x0004_0003_0003_0004);
        Word::combine(What::Words(Reduction::Add), as_bytes(words), as_bytes(other));
        assert_eq!(words[0].0, 0x0008_0006_0005_0005);
        assert_eq!(words[1].0, 0, "from lane to lane as the aggregator does");
    }
}
