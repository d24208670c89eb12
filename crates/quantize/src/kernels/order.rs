//! Minima and maxima: elements travel as unsigned keys in their order, nothing is lost. And the
//! scan for the largest magnitude.

use super::convert::Ordered;
use super::lane::{Lane, decode_lanes};
use super::tiles::{fold, zip_map};
use crate::element::Encoded;
use crate::simd::Simd;
use crate::types::Op;

#[inline(always)]
fn better<K: Ord>(op: Op) -> impl Fn(K, K) -> K {
    move |a: K, b: K| if (op == Op::Min) == (a < b) { a } else { b }
}

/// The key that changes no minimum, or no maximum.
#[inline(always)]
fn neutral<K: Lane>(op: Op) -> K {
    if op == Op::Min { K::MAX } else { K::ZERO }
}

/// The largest magnitude.
fn largest<T: Ordered>(simd: Simd, part: &[T]) -> T::Key {
    simd.plain(
        #[inline(always)]
        move || fold(part, T::ZERO, T::Key::ZERO, T::magnitude, Ord::max),
    )
}

/// The largest finite magnitude.
pub(crate) fn peak<T: Ordered>(simd: Simd, part: &[T]) -> f64 {
    let largest = largest(simd, part);
    if largest < T::INFINITE {
        return T::magnitude_value(largest);
    }
    let finite = part.iter().map(|x| x.magnitude()).filter(|magnitude| *magnitude < T::INFINITE);
    T::magnitude_value(finite.max().unwrap_or(T::Key::ZERO))
}

/// Encodes the minimum or maximum of the sources.
pub(crate) fn encode<T: Ordered>(simd: Simd, op: Op, sources: &[&[T]], to: &mut [u8]) -> Encoded {
    simd.plain(
        #[inline(always)]
        move || {
            let (used, rest) = T::Key::split_mut(to).split_at_mut(sources[0].len());
            // One loop for each operation: none decides for each element.
            if op == Op::Min {
                zip_map(sources, used, T::ZERO, T::to_key, better(Op::Min), T::Key::to_bytes);
            } else {
                zip_map(sources, used, T::ZERO, T::to_key, better(Op::Max), T::Key::to_bytes);
            }
            rest.fill(neutral::<T::Key>(op).to_bytes());
        },
    );
    let is_nan = |source: &&[T]| T::NAN.is_some() && largest(simd, source) > T::INFINITE;
    Encoded { saturated: 0, non_finite: sources.iter().any(is_nan) }
}

/// Decodes minima or maxima.
pub(crate) fn decode<T: Ordered>(simd: Simd, from: &[u8], to: &mut [T]) {
    simd.plain(
        #[inline(always)]
        move || decode_lanes::<T, T::Key>(from, to, T::from_key),
    );
}

/// The minimum or maximum of the sources, as elements.
pub(crate) fn reduce<T: Ordered>(simd: Simd, op: Op, sources: &[&[T]], to: &mut [T]) {
    // Beside the key, whether it came from a NaN.
    let map = |x: T| (x.to_key(), T::NAN.is_some() & (x.magnitude() > T::INFINITE));
    let better = better(op);
    let join = move |a: (T::Key, bool), b: (T::Key, bool)| (better(a.0, b.0), a.1 | b.1);
    let element = |(key, nan)| if nan { T::NAN.unwrap_or(T::ZERO) } else { T::from_key(key) };
    simd.plain(
        #[inline(always)]
        move || zip_map(sources, to, T::ZERO, map, join, element),
    );
}
