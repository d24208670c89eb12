//! What can be added, and how the parts of a piece are.

use std::ops::Div;

pub use xdp_agg_quantize::ElementType;

/// An element type that a parameter server can add: `f32`, `f64` and `i32`.
pub trait Element:
    xdp_agg_quantize::Element + Div<Output = Self> + From<u16> + sealed::Sealed
{
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($type:ty)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {}
    )*};
}

element!(f32 f64 i32);

/// Their numbers in frames are their places here, from 1 on.
const TYPES: [ElementType; 3] = [ElementType::F32, ElementType::F64, ElementType::I32];

/// The type with this number.
pub(crate) fn of_number(number: u8) -> Option<ElementType> {
    usize::from(number).checked_sub(1).and_then(|at| TYPES.get(at)).copied()
}

/// The number of a type; 0 of none.
pub(crate) fn number(element: Option<ElementType>) -> u8 {
    TYPES.iter().position(|one| Some(*one) == element).map_or(0, |at| at as u8 + 1)
}

/// Divides sums by the number of workers.
pub(crate) fn average<T: Element>(values: &mut [T], workers: u16) {
    values.iter_mut().for_each(|value| *value = *value / T::from(workers));
}

/// A sum of integers that `i32` does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

/// Bytes of a part that are added before the next strip's: sum and parts stay in the first cache.
const STRIP: usize = 4096;

macro_rules! add_floats {
    ($float:ty, $sum:expr, $part:expr) => {
        for (sum, part) in $sum.as_chunks_mut().0.iter_mut().zip($part.as_chunks().0) {
            *sum = (<$float>::from_le_bytes(*sum) + <$float>::from_le_bytes(*part)).to_le_bytes();
        }
    };
}

/// Adds all parts to the first, in their order; all are equally long, whole elements.
pub(crate) fn add_all(
    element: ElementType,
    sum: &mut [u8],
    others: &[Vec<u8>],
) -> Result<(), Overflow> {
    let mut at = 0;
    while at < sum.len() {
        let end = sum.len().min(at + STRIP);
        let strip = &mut sum[at..end];
        let others = others.iter().map(|part| &part[at..end]);
        match element {
            ElementType::F32 => others.for_each(|part| add_floats!(f32, strip, part)),
            ElementType::F64 => others.for_each(|part| add_floats!(f64, strip, part)),
            ElementType::I32 => add_i32(strip, others)?,
            other => unreachable!("no frame carries {other}"),
        }
        at = end;
    }
    Ok(())
}

/// In 64 bits, so that only the whole sum has to fit and not each step to it.
fn add_i32<'a>(sum: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) -> Result<(), Overflow> {
    let mut wide = [0_i64; STRIP / 4];
    let (sum, _) = sum.as_chunks_mut();
    for (wide, sum) in wide.iter_mut().zip(sum.iter()) {
        *wide = i32::from_le_bytes(*sum).into();
    }
    for part in parts {
        for (wide, part) in wide.iter_mut().zip(part.as_chunks().0) {
            *wide += i64::from(i32::from_le_bytes(*part));
        }
    }
    let mut fits = true;
    for (wide, sum) in wide.iter().zip(sum) {
        let value = *wide as i32;
        fits &= i64::from(value) == *wide;
        *sum = value.to_le_bytes();
    }
    if fits { Ok(()) } else { Err(Overflow) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_sum_may_leave_the_range_on_its_way_but_not_in_the_end() {
        let parts = [bytes(&[1, 1]), bytes(&[-5, 0])];
        let mut sum = bytes(&[i32::MAX, i32::MAX - 1]);
        assert_eq!(add_all(ElementType::I32, &mut sum, &parts), Ok(()));
        assert_eq!(sum, bytes(&[i32::MAX - 4, i32::MAX]));
        let mut sum = bytes(&[0, i32::MAX]);
        assert_eq!(add_all(ElementType::I32, &mut sum, &parts), Err(Overflow));
    }

    proptest! {
        #[test]
        fn floats_are_added_in_order(parts in prop::collection::vec(
            prop::collection::vec(-1e9_f32..1e9, 2500), 1..6,
        )) {
            let raw: Vec<Vec<u8>> =
                parts.iter().map(|p| p.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
            let mut sum = raw[0].clone();
            add_all(ElementType::F32, &mut sum, &raw[1..]).expect("floats do not overflow");
            for (i, sum) in sum.as_chunks().0.iter().enumerate() {
                let expected = parts[1..].iter().fold(parts[0][i], |sum, part| sum + part[i]);
                prop_assert_eq!(f32::from_le_bytes(*sum).to_bits(), expected.to_bits());
            }
        }
    }
}
