//! Arithmetic on elements that lie in byte buffers.
//!
//! Payload comes and goes as bytes; a region of memory is borrowed as bytes for a whole call, and
//! these loops, which compile to vector instructions, read and write elements in it.

use crate::collective::{ElementType, Op};

use super::plan::ELEMENT;

/// An element type that a ring can reduce.
pub trait Element: sealed::Sealed + Copy {
    /// Its name on the wire.
    const TYPE: ElementType;
}

mod sealed {
    /// What a transfer does with received bytes. Only this crate's types have it: their size is
    /// four bytes without padding, and every bit pattern is a value.
    pub trait Sealed {
        /// `into += from`; both hold whole elements, equally many.
        fn add(into: &mut [u8], from: &[u8]);
        /// `values /= world`.
        fn divide(values: &mut [u8], world: u16);
    }
}

use sealed::Sealed;

impl Sealed for f32 {
    fn add(into: &mut [u8], from: &[u8]) {
        for (into, from) in elements_mut(into).iter_mut().zip(elements(from)) {
            *into = (Self::from_ne_bytes(*into) + Self::from_ne_bytes(*from)).to_ne_bytes();
        }
    }

    fn divide(values: &mut [u8], world: u16) {
        let world = Self::from(world);
        for value in elements_mut(values) {
            *value = (Self::from_ne_bytes(*value) / world).to_ne_bytes();
        }
    }
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}

impl Sealed for i32 {
    fn add(into: &mut [u8], from: &[u8]) {
        for (into, from) in elements_mut(into).iter_mut().zip(elements(from)) {
            let sum = Self::from_ne_bytes(*into).wrapping_add(Self::from_ne_bytes(*from));
            *into = sum.to_ne_bytes();
        }
    }

    fn divide(values: &mut [u8], world: u16) {
        let world = Self::from(world);
        for value in elements_mut(values) {
            *value = (Self::from_ne_bytes(*value) / world).to_ne_bytes();
        }
    }
}

impl Element for i32 {
    const TYPE: ElementType = ElementType::I32;
}

/// `into += from`, element by element.
pub(super) fn add<T: Element>(into: &mut [u8], from: &[u8]) {
    T::add(into, from);
}

/// What `op` still has to do to a sum.
pub(super) fn finish<T: Element>(values: &mut [u8], op: Op, world: u16) {
    match op {
        Op::Sum => {}
        Op::Average => T::divide(values, world),
    }
}

fn elements(bytes: &[u8]) -> &[[u8; ELEMENT]] {
    bytes.as_chunks().0
}

fn elements_mut(bytes: &mut [u8]) -> &mut [[u8; ELEMENT]] {
    bytes.as_chunks_mut().0
}

/// The memory of `values` as bytes.
#[expect(unsafe_code, reason = "a view of plain integers or floats as bytes")]
pub(super) fn as_bytes<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: `Element` is sealed: its types have four bytes, no padding, and every bit pattern is
    // valid, so bytes may be read and written at will. Length and lifetime are those of `values`,
    // which stays mutably borrowed; u8 has no alignment.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_divide_towards_zero() {
        let mut values = [i32::MAX, -7, 7, i32::MIN];
        let mut other = [1, 0, 0, 0];
        i32::add(as_bytes(&mut values), as_bytes(&mut other));
        assert_eq!(values, [i32::MIN, -7, 7, i32::MIN]);
        finish::<i32>(as_bytes(&mut values), Op::Average, 2);
        assert_eq!(values, [i32::MIN / 2, -3, 3, i32::MIN / 2]);
    }

    #[test]
    fn floats_add_and_divide() {
        let mut values = [1.5_f32, -2.0, f32::NAN];
        let mut other = [0.5_f32, 1.0, 1.0];
        f32::add(as_bytes(&mut values), as_bytes(&mut other));
        finish::<f32>(as_bytes(&mut values), Op::Average, 4);
        assert_eq!(values[..2], [0.5, -0.25]);
        assert!(values[2].is_nan());
    }
}
