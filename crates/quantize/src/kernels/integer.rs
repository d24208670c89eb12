//! Sums of integers: exact.

use super::convert::{Integer, Ordered};
use super::lane::{Lane, decode_lanes};
use super::order;
use super::tiles::zip_map;
use crate::element::Encoded;
use crate::element::{Element, sealed};
use crate::format::Format;
use crate::simd::{Kernel, Path};
use crate::types::Op;

struct Encode<'a, T> {
    bias: u64,
    sources: &'a [&'a [T]],
    to: &'a mut [u8],
}

impl<T: Integer> Kernel for Encode<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<P: Path>(self) {
        let Self { bias, sources, to } = self;
        let (used, rest) = T::Key::split_mut(to).split_at_mut(sources[0].len());
        let lane = |sum: T| sum.to_lane(bias).to_bytes();
        zip_map(sources, used, T::ZERO, |x| x, T::add, lane);
        rest.fill(lane(T::ZERO));
    }
}

struct Decode<'a, T> {
    biases: u64,
    divisor: u32,
    from: &'a [u8],
    to: &'a mut [T],
}

impl<T: Integer> Kernel for Decode<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<P: Path>(self) {
        let Self { biases, divisor, from, to } = self;
        if divisor == 1 {
            decode_lanes::<T, T::Key>(from, to, |lane| T::from_lane(lane, biases));
        } else {
            decode_lanes::<T, T::Key>(from, to, |lane| T::from_lane(lane, biases).divide(divisor));
        }
    }
}

struct Reduce<'a, T> {
    divisor: u32,
    sources: &'a [&'a [T]],
    to: &'a mut [T],
}

impl<T: Integer> Kernel for Reduce<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<P: Path>(self) {
        let Self { divisor, sources, to } = self;
        if divisor == 1 {
            zip_map(sources, to, T::ZERO, |x| x, T::add, |sum| sum);
        } else {
            let divide = |sum: T| sum.divide(divisor);
            zip_map(sources, to, T::ZERO, |x| x, T::add, divide);
        }
    }
}

macro_rules! kernels {
    ($($integer:ty;)*) => {$(
        impl sealed::Kernels for $integer {
            fn peak(format: &Format, part: &[Self]) -> f64 {
                order::peak(format.simd(), part)
            }

            fn encode(format: &Format, _: u16, sources: &[&[Self]], to: &mut [u8]) -> Encoded {
                let (simd, op, bias) = (format.simd(), format.op(), format.bias().bias);
                if !op.adds() {
                    return order::encode(simd, op, sources, to);
                }
                simd.run(Encode { bias, sources, to });
                Encoded::default()
            }

            fn decode(format: &Format, _: u16, from: &[u8], by: [u32; 2], to: &mut [Self]) {
                let [contributors, processes] = by;
                if !format.op().adds() {
                    return order::decode(format.simd(), from, to);
                }
                let biases = format.bias().bias.wrapping_mul(u64::from(contributors));
                let divisor = if format.op() == Op::Average { processes.max(1) } else { 1 };
                format.simd().run(Decode { biases, divisor, from, to });
            }

            fn reduce(format: &Format, sources: &[&[Self]], to: &mut [Self]) {
                if !format.op().adds() {
                    return order::reduce(format.simd(), format.op(), sources, to);
                }
                let average = format.op() == Op::Average;
                let divisor = if average { sources.len() as u32 } else { 1 };
                format.simd().run(Reduce { divisor, sources, to });
            }

            fn integer(self) -> Option<i64> {
                Some(self.to_i64())
            }
        }
    )*};
}

kernels! {
    i32;
    i64;
}

const _: () = {
    // What the kernels rely on: keys are as wide as elements.
    assert!(size_of::<<i32 as Ordered>::Key>() == <i32 as Element>::TYPE.size());
    assert!(size_of::<<i64 as Ordered>::Key>() == <i64 as Element>::TYPE.size());
};
