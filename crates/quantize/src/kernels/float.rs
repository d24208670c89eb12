//! Sums of floats: summed as floats within a host, then scaled, rounded and biased into lanes.

use std::marker::PhantomData;
use std::ops::Add;

use half::{bf16, f16};

use super::convert::{Float, Ordered, Sum};
use super::lane::{Lane, decode_lanes};
use super::tiles::{zip_map, zip_map_many};
use super::{order, single};
use crate::element::Encoded;
use crate::element::sealed;
use crate::format::Format;
use crate::scale::{LaneBias, Scale};
use crate::simd::{Kernel, Path};
use crate::types::ElementType;
use crate::types::{LaneWidth, Op};

/// 1.5 * 2^52: adding it to a 64-bit float below 2^51 leaves the nearest integer (ties to even) in
/// the low bits of the sum. A conversion instruction would not vectorise.
const ROUND: f64 = 6_755_399_441_055_744.0;
const TWO_32: f64 = 4_294_967_296.0;

/// How a sum becomes an integer, and the sum of integers a float.
pub(crate) trait Quantize<L>: Sum {
    /// The scaled value.
    fn scaled(self, scale: &Scale) -> f64;
    /// The nearest integer (ties to even) of a scaled value within the limits of a lane.
    fn nearest(scaled: f64) -> L;
    /// Adds the bias.
    fn biased(integer: L, bias: u64) -> L;
    /// The value of a sum of lanes, without the biases.
    fn value(lane: L, biases: u64, scale: &Scale) -> f64;
    /// As [`Self::value`], rounded to this type, where [`Scale::down_f32`] says that this is right.
    fn short_value(lane: L, biases: u64, down: f32) -> Self;
}

macro_rules! quantize_f32 {
    ($($lane:ty: $signed:ty;)*) => {$(
        impl Quantize<$lane> for f32 {
            #[inline(always)]
            fn scaled(self, scale: &Scale) -> f64 {
                f64::from(self) * scale.up[0]
            }
            #[inline(always)]
            fn nearest(scaled: f64) -> $lane {
                (scaled + ROUND).to_bits() as $lane
            }
            #[inline(always)]
            fn biased(integer: $lane, bias: u64) -> $lane {
                integer.wrapping_add(bias as $lane)
            }
            #[inline(always)]
            fn value(lane: $lane, biases: u64, scale: &Scale) -> f64 {
                f64::from(lane.wrapping_sub(biases as $lane) as $signed) * scale.down[0]
            }
            #[inline(always)]
            fn short_value(lane: $lane, biases: u64, down: f32) -> f32 {
                lane.wrapping_sub(biases as $lane) as $signed as f32 * down
            }
        }
    )*};
}

quantize_f32! {
    u16: i16;
    u32: i32;
}

impl Quantize<u64> for f64 {
    #[inline(always)]
    fn scaled(self, scale: &Scale) -> f64 {
        self * scale.up[0] * scale.up[1]
    }

    /// In two halves, each within the reach of [`ROUND`]. The upper one is a multiple of 2^32, so
    /// it takes no part in the rounding, and the difference is exact.
    #[inline(always)]
    fn nearest(scaled: f64) -> u64 {
        let high = scaled * (1.0 / TWO_32) + ROUND;
        let low = (scaled - (high - ROUND) * TWO_32) + ROUND;
        let integer = |rounded: f64| rounded.to_bits().wrapping_sub(ROUND.to_bits());
        (integer(high) << 32).wrapping_add(integer(low))
    }

    #[inline(always)]
    fn biased(integer: u64, bias: u64) -> u64 {
        integer.wrapping_add(bias)
    }

    #[inline(always)]
    fn value(lane: u64, biases: u64, scale: &Scale) -> f64 {
        lane.wrapping_sub(biases) as i64 as f64 * scale.down[0] * scale.down[1]
    }

    #[inline(always)]
    fn short_value(lane: u64, biases: u64, down: f32) -> f64 {
        lane.wrapping_sub(biases) as i64 as f64 * f64::from(down)
    }
}

/// The fused loop: sums the sources, scales, rounds, adds the bias. Gives the largest magnitude of
/// a sum, which tells whether all of that was right.
#[inline(always)]
fn fused<T, L>(sources: &[&[T]], to: &mut [u8], scale: Scale, bias: u64) -> <T::Sum as Ordered>::Key
where
    T: Float<Sum: Quantize<L>>,
    L: Lane,
{
    // Magnitudes of floats are ordered as their bits are, and those of NaN and infinity lie above
    // all others: one maximum tells whether any element needs a closer look.
    let mut peak = <T::Sum as Ordered>::Key::ZERO;
    encode_by::<T, L>(
        sources,
        to,
        #[inline(always)]
        |sum| {
            peak = peak.max(sum.magnitude());
            T::Sum::biased(T::Sum::nearest(sum.scaled(&scale)), bias)
        },
    );
    peak
}

#[inline(always)]
fn encode_by<T: Float, L: Lane>(
    sources: &[&[T]],
    to: &mut [u8],
    mut lane: impl FnMut(T::Sum) -> L,
) {
    let (used, rest) = L::split_mut(to).split_at_mut(sources[0].len());
    zip_map(
        sources,
        used,
        T::ZERO,
        T::widen,
        T::Sum::add,
        #[inline(always)]
        |sum| lane(sum).to_bytes(),
    );
    rest.fill(lane(T::ZERO.widen()).to_bytes());
}

/// As [`fused`], for blocks with elements that do not fit.
#[cold]
fn encode_with_care<T, L>(sources: &[&[T]], to: &mut [u8], scale: &Scale, bias: LaneBias) -> Encoded
where
    T: Float<Sum: Quantize<L>>,
    L: Lane,
{
    let (min, max) = (bias.min_float(), bias.max_float());
    let mut encoded = Encoded::default();
    let mut clamp = |sum: T::Sum| {
        let finite = sum.magnitude() < T::Sum::INFINITE;
        encoded.non_finite |= !finite;
        // The block will be NaN at every worker; what stands here only must not carry.
        let scaled = if finite { sum.scaled(scale) } else { 0.0 };
        let clamped = scaled.max(min).min(max);
        // Half a step over the edge still rounds into the range.
        encoded.saturated += u32::from((scaled - clamped).abs() > 0.5);
        T::Sum::biased(T::Sum::nearest(clamped), bias.bias)
    };
    let (used, rest) = L::split_mut(to).split_at_mut(sources[0].len());
    zip_map_many(sources, used, T::widen, T::Sum::add, |sum| clamp(sum).to_bytes());
    rest.fill(T::Sum::biased(T::Sum::nearest(0.0), bias.bias).to_bytes());
    encoded
}

fn encode<T, L>(format: &Format, key: u16, sources: &[&[T]], to: &mut [u8]) -> Encoded
where
    T: Float<Sum: Quantize<L>>,
    L: Lane,
{
    let (simd, scale, bias) = (format.simd(), format.scale(key), format.bias());
    let peak = single::encode(format, &scale, sources, to).unwrap_or_else(|| {
        let to = &mut *to;
        T::Sum::magnitude_value(simd.plain(
            #[inline(always)]
            move || fused::<T, L>(sources, to, scale, bias.bias),
        ))
    });
    // NaN and infinity are not below anything.
    let fits = peak * scale.up[0] * scale.up[1] <= bias.max_float();
    if fits { Encoded::default() } else { encode_with_care::<T, L>(sources, to, &scale, bias) }
}

struct Decode<'a, T, L> {
    from: &'a [u8],
    to: &'a mut [T],
    scale: Scale,
    biases: u64,
    lane: PhantomData<L>,
}

impl<T, L> Kernel for Decode<'_, T, L>
where
    T: Float<Sum: Quantize<L>>,
    L: Lane,
{
    type Output = ();

    #[inline(always)]
    fn run<P: Path>(self) {
        let Self { from, to, scale, biases, .. } = self;
        match scale.down_f32() {
            // 16-bit floats would be rounded twice.
            Some(down) if T::TYPE == ElementType::F32 => decode_lanes::<T, L>(from, to, |lane| {
                T::from_sum(T::Sum::short_value(lane, biases, down))
            }),
            _ => decode_lanes::<T, L>(from, to, |lane| {
                T::narrow(T::Sum::value(lane, biases, &scale))
            }),
        }
    }
}

fn decode<T, L>(
    format: &Format,
    key: u16,
    from: &[u8],
    [contributors, processes]: [u32; 2],
    to: &mut [T],
) where
    T: Float<Sum: Quantize<L>>,
    L: Lane,
{
    let scale = format.result_scale(key, processes);
    let biases = format.bias().bias.wrapping_mul(u64::from(contributors));
    let lane = PhantomData;
    format.simd().run(Decode::<T, L> { from, to, scale, biases, lane });
}

fn reduce<T: Float>(format: &Format, sources: &[&[T]], to: &mut [T]) {
    let divisor = (format.op() == Op::Average).then_some(sources.len() as f64);
    format.simd().plain(
        #[inline(always)]
        move || match divisor {
            None => zip_map(sources, to, T::ZERO, T::widen, T::Sum::add, T::from_sum),
            Some(divisor) => zip_map(sources, to, T::ZERO, T::widen, T::Sum::add, move |sum| {
                let finite = sum.magnitude() < T::Sum::INFINITE;
                let mean = T::narrow(sum.into() / divisor);
                if finite { mean } else { T::from_sum(sum) }
            }),
        },
    );
}

macro_rules! kernels {
    ($($float:ty { $($width:ident: $lane:ty;)* })*) => {$(
        impl sealed::Kernels for $float {
            fn peak(format: &Format, part: &[Self]) -> f64 {
                order::peak(format.simd(), part)
            }

            fn encode(format: &Format, key: u16, sources: &[&[Self]], to: &mut [u8]) -> Encoded {
                match format.width() {
                    _ if !format.op().adds() => {
                        order::encode(format.simd(), format.op(), sources, to)
                    }
                    $(LaneWidth::$width => encode::<Self, $lane>(format, key, sources, to),)*
                    width => unreachable!("no format has {width}-bit lanes for these"),
                }
            }

            fn decode(format: &Format, key: u16, from: &[u8], by: [u32; 2], to: &mut [Self]) {
                match format.width() {
                    _ if !format.op().adds() => order::decode(format.simd(), from, to),
                    $(LaneWidth::$width => decode::<Self, $lane>(format, key, from, by, to),)*
                    width => unreachable!("no format has {width}-bit lanes for these"),
                }
            }

            fn reduce(format: &Format, sources: &[&[Self]], to: &mut [Self]) {
                if !format.op().adds() {
                    return order::reduce(format.simd(), format.op(), sources, to);
                }
                reduce(format, sources, to);
            }

            fn integer(self) -> Option<i64> {
                None
            }
        }
    )*};
}

kernels! {
    f32 { W16: u16; W32: u32; }
    f16 { W16: u16; W32: u32; }
    bf16 { W16: u16; W32: u32; }
    f64 { W64: u64; }
}
