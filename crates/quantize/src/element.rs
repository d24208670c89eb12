//! What can be all-reduced.

use std::fmt::Debug;

use half::{bf16, f16};

use crate::types::ElementType;

/// An element type as a Rust type: `f32`, [`struct@f16`], [`struct@bf16`], `f64`, `i32` or `i64`.
pub trait Element:
    sealed::Kernels + bytemuck::Pod + Copy + Debug + PartialEq + Send + Sync + 'static
{
    /// Which one.
    const TYPE: ElementType;
    /// Zero.
    const ZERO: Self;
    /// What elements of a block become in which some worker had a NaN or, in a sum, an infinity.
    /// Integers have no such value.
    const NAN: Option<Self>;

    /// Fills the elements of such a block. Integers, which cannot be in one, stay as they are.
    fn fill_nan(elements: &mut [Self]) {
        if let Some(nan) = Self::NAN {
            elements.fill(nan);
        }
    }

    /// It is a NaN.
    #[expect(clippy::eq_op, reason = "nothing else is unlike itself")]
    fn is_nan(&self) -> bool {
        self != self
    }

    /// It is neither infinite nor a NaN.
    fn is_number(&self) -> bool;
}

macro_rules! element {
    ($($element:ty: $name:ident, $zero:expr, $nan:expr, $is_number:expr;)*) => {$(
        impl Element for $element {
            const TYPE: ElementType = ElementType::$name;
            const ZERO: Self = $zero;
            const NAN: Option<Self> = $nan;

            fn is_number(&self) -> bool {
                $is_number(*self)
            }
        }
    )*};
}

element! {
    f32: F32, 0.0, Some(f32::NAN), f32::is_finite;
    f16: F16, f16::ZERO, Some(f16::NAN), f16::is_finite;
    bf16: Bf16, bf16::ZERO, Some(bf16::NAN), bf16::is_finite;
    f64: F64, 0.0, Some(f64::NAN), f64::is_finite;
    i32: I32, 0, None, |_| true;
    i64: I64, 0, None, |_| true;
}

/// What happened while a block was encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Finite elements that did not fit and were clamped. 0 with
    /// [`Block`](crate::Scaling::Block) and
    /// the right key.
    pub saturated: u32,
    /// A NaN was among the elements; in sums, a NaN or an infinity, or the host's own sum became
    /// one. The block has to come back as NaN at every worker ([`Element::fill_nan`]).
    pub non_finite: bool,
}

/// What [`crate::Format`] does with elements of a type; nothing for other crates.
pub(crate) mod sealed {
    use super::Encoded;
    use crate::format::Format;

    pub trait Kernels: Sized {
        /// Largest finite magnitude.
        fn peak(format: &Format, part: &[Self]) -> f64;
        fn encode(format: &Format, key: u16, sources: &[&[Self]], to: &mut [u8]) -> Encoded;
        fn decode(format: &Format, key: u16, from: &[u8], by: [u32; 2], to: &mut [Self]);
        fn reduce(format: &Format, sources: &[&[Self]], to: &mut [Self]);
        /// The value, where the type is an integer.
        fn integer(self) -> Option<i64>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_types() {
        fn size<T: Element>() -> (usize, usize) {
            (T::TYPE.size(), size_of::<T>())
        }
        for (said, is) in
            [size::<f32>(), size::<f16>(), size::<bf16>(), size::<f64>(), size::<i32>()]
        {
            assert_eq!(said, is);
        }
        assert_eq!(size::<i64>(), (8, 8));
    }

    #[test]
    fn nan_fills_floats_alone() {
        let (mut floats, mut integers) = ([1.0_f32, 2.0], [1, 2]);
        f32::fill_nan(&mut floats);
        i32::fill_nan(&mut integers);
        assert!(floats.iter().all(|x| x.is_nan()));
        assert_eq!(integers, [1, 2]);
    }
}
