//! Minima and maxima: elements travel as unsigned keys in their order, nothing is lost. And the
//! scan for the largest magnitude.

use std::array;
use std::marker::PhantomData;

use super::convert::Ordered;
use super::lane::Lane;
use super::tiles::{for_each_tile, from_lanes, into_elements, into_lanes};
use crate::format::Encoded;
use crate::simd::{Kernel, Simd};
use crate::types::Op;

#[inline(always)]
fn better<K: Ord>(op: Op) -> impl Fn(K, K) -> K {
    move |a: K, b: K| if (op == Op::Min) == (a < b) { a } else { b }
}

/// What changes no minimum, or no maximum.
#[inline(always)]
fn neutral<K: Lane>(op: Op) -> K {
    if op == Op::Min { K::MAX } else { K::ZERO }
}

/// The largest magnitude.
struct Largest<'a, T, const LANES: usize>(&'a [T]);

impl<T: Ordered, const LANES: usize> Kernel for Largest<'_, T, LANES> {
    type Output = T::Key;

    #[inline(always)]
    fn run(self) -> T::Key {
        let mut largest = [T::Key::ZERO; LANES];
        let source = [self.0];
        let first = |a, _| a;
        for_each_tile::<T, T::Key, LANES>(
            &source,
            T::Key::ZERO,
            T::magnitude,
            first,
            #[inline(always)]
            |_, values| largest = array::from_fn(|i| largest[i].max(values[i])),
        );
        largest.into_iter().max().unwrap_or(T::Key::ZERO)
    }
}

fn largest<T: Ordered>(simd: Simd, part: &[T]) -> T::Key {
    match size_of::<T>() {
        2 => simd.run(Largest::<T, 32>(part)),
        4 => simd.run(Largest::<T, 16>(part)),
        _ => simd.run(Largest::<T, 8>(part)),
    }
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

struct Encode<'a, T, const LANES: usize> {
    op: Op,
    sources: &'a [&'a [T]],
    to: &'a mut [u8],
}

impl<T: Ordered, const LANES: usize> Kernel for Encode<'_, T, LANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // One loop for each operation: none decides for each element.
        let Self { op, sources, to } = self;
        if op == Op::Min {
            encode_by::<T, LANES>(sources, to, neutral(op), better(Op::Min));
        } else {
            encode_by::<T, LANES>(sources, to, neutral(op), better(Op::Max));
        }
    }
}

#[inline(always)]
fn encode_by<T: Ordered, const LANES: usize>(
    sources: &[&[T]],
    to: &mut [u8],
    neutral: T::Key,
    better: impl Fn(T::Key, T::Key) -> T::Key,
) {
    into_lanes::<T, T::Key, T::Key, LANES>(sources, to, neutral, T::to_key, better, |_, key| key);
}

/// Encodes the minimum or maximum of the sources.
pub(crate) fn encode<T: Ordered>(simd: Simd, op: Op, sources: &[&[T]], to: &mut [u8]) -> Encoded {
    match size_of::<T>() {
        2 => simd.run(Encode::<T, 32> { op, sources, to }),
        4 => simd.run(Encode::<T, 16> { op, sources, to }),
        _ => simd.run(Encode::<T, 8> { op, sources, to }),
    }
    let is_nan = |source: &&[T]| T::NAN.is_some() && largest(simd, source) > T::INFINITE;
    Encoded { saturated: 0, non_finite: sources.iter().any(is_nan) }
}

struct Decode<'a, T, const LANES: usize> {
    from: &'a [u8],
    to: &'a mut [T],
    element: PhantomData<T>,
}

impl<T: Ordered, const LANES: usize> Kernel for Decode<'_, T, LANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        from_lanes::<T, T::Key, LANES>(self.from, self.to, T::from_key);
    }
}

/// Decodes minima or maxima.
pub(crate) fn decode<T: Ordered>(simd: Simd, from: &[u8], to: &mut [T]) {
    let element = PhantomData;
    match size_of::<T>() {
        2 => simd.run(Decode::<T, 32> { from, to, element }),
        4 => simd.run(Decode::<T, 16> { from, to, element }),
        _ => simd.run(Decode::<T, 8> { from, to, element }),
    }
}

struct Reduce<'a, T> {
    op: Op,
    sources: &'a [&'a [T]],
    to: &'a mut [T],
}

impl<T: Ordered> Kernel for Reduce<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { op, sources, to } = self;
        // Beside the key, whether it came from a NaN.
        let map = |x: T| (x.to_key(), T::NAN.is_some() & (x.magnitude() > T::INFINITE));
        let better = better(op);
        let join = |a: (T::Key, bool), b: (T::Key, bool)| (better(a.0, b.0), a.1 | b.1);
        let element = |(key, nan)| T::NAN.filter(|_| nan).unwrap_or(T::from_key(key));
        into_elements::<T, _, 16>(sources, to, (neutral(op), false), map, join, element);
    }
}

/// The minimum or maximum of the sources, as elements.
pub(crate) fn reduce<T: Ordered>(simd: Simd, op: Op, sources: &[&[T]], to: &mut [T]) {
    simd.run(Reduce { op, sources, to });
}
