//! Floats taken apart, and put together.

use half::{bf16, f16};

use crate::element::Element;
use crate::types::ElementType;

/// What a float is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parts {
    /// `magnitude` times two to the power of `exponent`.
    Finite {
        negative: bool,
        magnitude: u64,
        exponent: i32,
    },
    Infinite {
        negative: bool,
    },
    Nan,
}

/// One past the highest and the lowest bit position of a type's finite values.
pub(super) const fn range(of: ElementType) -> (i32, i32) {
    match of {
        ElementType::F16 => (16, -24),
        ElementType::Bf16 => (128, -133),
        ElementType::F64 => (1024, -1074),
        // Integers are not floats: their sums need none of this.
        ElementType::F32 | ElementType::I32 | ElementType::I64 => (128, -149),
    }
}

/// Takes an element apart.
///
/// # Panics
/// It is an integer.
pub(super) fn decompose<T: Element>(element: T) -> Parts {
    let one = [element];
    match T::TYPE {
        ElementType::F32 => of_f32(bytemuck::cast_slice::<T, f32>(&one)[0]),
        ElementType::F16 => of_f32(bytemuck::cast_slice::<T, f16>(&one)[0].to_f32()),
        ElementType::Bf16 => of_f32(bytemuck::cast_slice::<T, bf16>(&one)[0].to_f32()),
        ElementType::F64 => of_f64(bytemuck::cast_slice::<T, f64>(&one)[0]),
        ElementType::I32 | ElementType::I64 => unreachable!("integers are not taken apart"),
    }
}

fn of_f32(value: f32) -> Parts {
    let bits = value.to_bits();
    let (negative, field) = (bits >> 31 != 0, (bits >> 23 & 0xff) as i32);
    let fraction = u64::from(bits & 0x7f_ffff);
    of_fields(negative, field, 0xff, fraction, 23)
}

fn of_f64(value: f64) -> Parts {
    let bits = value.to_bits();
    let (negative, field) = (bits >> 63 != 0, (bits >> 52 & 0x7ff) as i32);
    of_fields(negative, field, 0x7ff, bits & ((1 << 52) - 1), 52)
}

const fn of_fields(negative: bool, field: i32, last: i32, fraction: u64, width: i32) -> Parts {
    if field == last {
        return if fraction == 0 { Parts::Infinite { negative } } else { Parts::Nan };
    }
    let magnitude = if field == 0 { fraction } else { fraction | 1 << width };
    let exponent = if field == 0 { 1 } else { field } - last / 2 - width;
    Parts::Finite { negative, magnitude, exponent }
}

/// `value` times two to the power of `power`, divided by `by`.
pub(super) fn scaled(value: f64, power: i32, by: u32) -> f64 {
    let divided = if by > 1 { value / f64::from(by) } else { value };
    // In two steps: either factor is an ordinary float, and the first product is one, too.
    let half = power / 2;
    divided * power_of_two(half) * power_of_two(power - half)
}

/// Two to a power from -1022 to 1023.
const fn power_of_two(power: i32) -> f64 {
    f64::from_bits(((power + 1023) as u64) << 52)
}

/// The element that is next to a value.
///
/// # Panics
/// The type is an integer.
pub(super) fn compose<T: Element>(value: f64) -> T {
    match T::TYPE {
        ElementType::F32 => bytemuck::cast_slice::<f32, T>(&[value as f32])[0],
        ElementType::F16 => bytemuck::cast_slice::<f16, T>(&[f16::from_f64(value)])[0],
        ElementType::Bf16 => bytemuck::cast_slice::<bf16, T>(&[bf16::from_f64(value)])[0],
        ElementType::F64 => bytemuck::cast_slice::<f64, T>(&[value])[0],
        ElementType::I32 | ElementType::I64 => unreachable!("integers are not put together"),
    }
}
