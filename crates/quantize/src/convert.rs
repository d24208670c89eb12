//! 16-bit floats without branches, so that loops over them become vector instructions.

use half::{bf16, f16};

/// 2^112: what is between the exponents of a 16-bit float that stands in the bits of a 32-bit one,
/// and its own. A multiplication by it makes subnormals right, too.
const F16_REBIAS: f32 = f32::from_bits((254 - 15) << 23);
/// 2^-14: the smallest normal f16.
const F16_NORMAL: u32 = (127 - 14) << 23;
/// 0.5: has the last bit of subnormal f16, 2^-24, as its own.
const F16_SUBNORMAL: u32 = 126 << 23;

/// Exact.
#[inline(always)]
pub(crate) fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let scaled = (f32::from_bits(magnitude) * F16_REBIAS).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | (bits & 0x8000) << 16)
}

/// Exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to nearest, ties to even; too large is infinite. A NaN becomes [`f16::NAN`].
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> f16 {
    let sign = x.to_bits() >> 16 & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let small = (f32::from_bits(magnitude) + f32::from_bits(F16_SUBNORMAL)).to_bits();
    let small = small.wrapping_sub(F16_SUBNORMAL);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < F16_NORMAL { small } else { normal };
    let bits = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
    let bits = if magnitude > 0x7f80_0000 { 0x7e00 } else { bits | sign };
    f16::from_bits(bits as u16)
}

/// Rounds to nearest, ties to even; too large is infinite. A NaN becomes [`bf16::NAN`].
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if nan { 0x7fc0 } else { rounded as u16 })
}

/// Rounds to 32 bits *to odd*: cuts off, and sets the last bit where something was cut off. What is
/// rounded again, to 21 bits or fewer, comes out as if it had been rounded once.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let cut = near.to_bits().wrapping_sub(u32::from(back.abs() > x.abs()));
    f32::from_bits(cut | u32::from(back != x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_16_bit_floats_are_read_as_they_are() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            if f.is_nan() {
                assert!(f16_to_f32(f).is_nan());
            } else {
                assert_eq!(f16_to_f32(f).to_bits(), f.to_f32().to_bits(), "{bits:x}");
                assert_eq!(f32_to_f16(f16_to_f32(f)).to_bits(), bits);
            }
            if b.is_nan() {
                assert!(bf16_to_f32(b).is_nan());
            } else {
                assert_eq!(bf16_to_f32(b).to_bits(), b.to_f32().to_bits());
                assert_eq!(f32_to_bf16(bf16_to_f32(b)).to_bits(), bits);
            }
        }
        assert_eq!(f32_to_f16(-f32::NAN).to_bits(), f16::NAN.to_bits());
        assert_eq!(f32_to_bf16(-f32::NAN).to_bits(), bf16::NAN.to_bits());
    }

    /// Between all neighbours: the middle goes to the even one, and what is next to it to its side,
    /// also where only a 64-bit float can tell.
    #[test]
    fn the_middle_between_neighbours_goes_to_the_even_one() {
        for bits in 0..0x7c00_u16 {
            let low = f16_to_f32(f16::from_bits(bits));
            let high = if bits == 0x7bff { 65536.0 } else { f16_to_f32(f16::from_bits(bits + 1)) };
            between(bits, low, high, |x| f32_to_f16(f64_to_f32_odd(x)).to_bits());
        }
        for bits in 0..0x7f80_u16 {
            let low = bf16_to_f32(bf16::from_bits(bits));
            let high = bf16_to_f32(bf16::from_bits(bits + 1));
            if high.is_finite() {
                between(bits, low, high, |x| f32_to_bf16(f64_to_f32_odd(x)).to_bits());
            }
        }
    }

    fn between(bits: u16, low: f32, high: f32, round: impl Fn(f64) -> u16) {
        let middle = (f64::from(low) + f64::from(high)) / 2.0;
        let even = bits + bits % 2;
        assert_eq!(round(middle), even, "{bits:x}");
        assert_eq!(round(-middle), even | 0x8000);
        assert_eq!(round(middle.next_down()), bits, "{bits:x}");
        assert_eq!(round(middle.next_up()), bits + 1, "{bits:x}");
        assert_eq!(round(f64::from(low)), bits);
    }

    #[test]
    fn what_is_too_large_is_infinite() {
        assert_eq!(f32_to_f16(f64_to_f32_odd(65519.999)), f16::MAX);
        assert_eq!(f32_to_f16(f64_to_f32_odd(1e300)), f16::INFINITY);
        assert_eq!(f32_to_f16(f64_to_f32_odd(-1e300)), f16::NEG_INFINITY);
        assert_eq!(f32_to_bf16(f64_to_f32_odd(3.4e38)), bf16::INFINITY);
        assert_eq!(f32_to_bf16(f64_to_f32_odd(-1e300)), bf16::NEG_INFINITY);
    }

    proptest! {
        #[test]
        fn agrees_with_the_crate_half(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                prop_assert_eq!(f32_to_f16(x).to_bits(), f16::from_f32(x).to_bits());
                prop_assert_eq!(f32_to_bf16(x).to_bits(), bf16::from_f32(x).to_bits());
            }
        }
    }
}
