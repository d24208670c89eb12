//! Sums of integers: exact.

use super::convert::{Integer, Ordered};
use super::lane::{Lane, decode_lanes};
use super::order;
use super::tiles::zip_map;
use crate::element::Encoded;
use crate::element::{Element, sealed};
use crate::format::Format;
use crate::types::Op;

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
                simd.plain(
                    #[inline(always)]
                    move || {
                        let lanes = <Self as Ordered>::Key::split_mut(to);
                        let (used, rest) = lanes.split_at_mut(sources[0].len());
                        let lane = move |sum: Self| sum.to_lane(bias).to_bytes();
                        zip_map(sources, used, 0, |x| x, Integer::add, lane);
                        rest.fill(lane(0));
                    },
                );
                Encoded::default()
            }

            fn decode(format: &Format, _: u16, from: &[u8], by: [u32; 2], to: &mut [Self]) {
                let [contributors, processes] = by;
                if !format.op().adds() {
                    return order::decode(format.simd(), from, to);
                }
                let biases = format.bias().bias.wrapping_mul(u64::from(contributors));
                let divisor = if format.op() == Op::Average { processes.max(1) } else { 1 };
                let sum = move |lane| Self::from_lane(lane, biases);
                format.simd().plain(
                    #[inline(always)]
                    move || match divisor {
                        1 => decode_lanes(from, to, sum),
                        _ => decode_lanes(from, to, move |lane| sum(lane).divide(divisor)),
                    },
                );
            }

            fn reduce(format: &Format, sources: &[&[Self]], to: &mut [Self]) {
                if !format.op().adds() {
                    return order::reduce(format.simd(), format.op(), sources, to);
                }
                let average = format.op() == Op::Average;
                let divisor = if average { sources.len() as u32 } else { 1 };
                let mean = move |sum: Self| sum.divide(divisor);
                format.simd().plain(
                    #[inline(always)]
                    move || match divisor {
                        1 => zip_map(sources, to, 0, |x| x, Integer::add, |sum| sum),
                        _ => zip_map(sources, to, 0, |x| x, Integer::add, mean),
                    },
                );
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
