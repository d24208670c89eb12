//! Walks over sources and lanes in tiles of one chunk.

use std::array;

use super::lane::Lane;

/// One value of each element of a tile: of the first source mapped, joined with the further
/// sources' in their order.
#[inline(always)]
fn gather<T: Copy, A: Copy, const LANES: usize>(
    sources: &[&[T]],
    start: usize,
    map: impl Fn(T) -> A,
    join: impl Fn(A, A) -> A,
) -> [A; LANES] {
    let tile = |source: &[T]| -> [T; LANES] {
        *source[start..].first_chunk().expect("sources of one length, walked to its last tile")
    };
    let first = tile(sources[0]);
    let mut values = array::from_fn(|i| map(first[i]));
    for source in &sources[1..] {
        let more = tile(source);
        values = array::from_fn(|i| join(values[i], map(more[i])));
    }
    values
}

/// As [`gather`], for the elements behind the last whole tile; `pad` behind these.
#[inline(always)]
fn gather_rest<T: Copy, A: Copy, const LANES: usize>(
    sources: &[&[T]],
    start: usize,
    pad: A,
    map: impl Fn(T) -> A,
    join: impl Fn(A, A) -> A,
) -> [A; LANES] {
    array::from_fn(|i| {
        let Some(first) = sources[0].get(start + i) else {
            return pad;
        };
        let rest = sources[1..].iter().filter_map(|source| source.get(start + i));
        rest.fold(map(*first), |sum, more| join(sum, map(*more)))
    })
}

/// Calls `each` for all tiles of the sources in their order, with the tile's number and values; the
/// last one may hold `pad` behind the last element.
#[inline(always)]
pub(crate) fn for_each_tile<T: Copy, A: Copy, const LANES: usize>(
    sources: &[&[T]],
    pad: A,
    map: impl Fn(T) -> A,
    join: impl Fn(A, A) -> A,
    mut each: impl FnMut(usize, [A; LANES]),
) {
    let len = sources[0].len();
    let whole = len / LANES;
    for tile in 0..whole {
        each(tile, gather(sources, tile * LANES, &map, &join));
    }
    if whole * LANES < len {
        each(whole, gather_rest(sources, whole * LANES, pad, &map, &join));
    }
}

/// Reduces sources straight into lanes: `lane` makes one of each value. Chunks that no element
/// reaches are filled with the lane of `pad`.
#[inline(always)]
pub(crate) fn into_lanes<T: Copy, A: Copy, L: Lane, const LANES: usize>(
    sources: &[&[T]],
    to: &mut [u8],
    pad: A,
    map: impl Fn(T) -> A,
    join: impl Fn(A, A) -> A,
    mut lane: impl FnMut(usize, A) -> L,
) {
    let chunks = L::split_mut(to).as_chunks_mut::<LANES>().0;
    let used = sources[0].len().div_ceil(LANES);
    let (chunks, rest) = chunks.split_at_mut(used);
    for_each_tile::<T, A, LANES>(sources, pad, map, join, |tile, values| {
        chunks[tile] = array::from_fn(|i| lane(i, values[i]).to_bytes());
    });
    for chunk in rest {
        *chunk = array::from_fn(|i| lane(i, pad).to_bytes());
    }
}

/// Makes an element of each lane, as many as `to` holds.
#[inline(always)]
pub(crate) fn from_lanes<T: Copy, L: Lane, const LANES: usize>(
    from: &[u8],
    to: &mut [T],
    element: impl Fn(L) -> T,
) {
    let lanes = &L::split(from)[..to.len()];
    let (tiles, rest) = to.as_chunks_mut::<LANES>();
    let (chunks, last) = lanes.as_chunks::<LANES>();
    for (tile, chunk) in tiles.iter_mut().zip(chunks) {
        *tile = array::from_fn(|i| element(L::from_bytes(chunk[i])));
    }
    for (element_, lane) in rest.iter_mut().zip(last) {
        *element_ = element(L::from_bytes(*lane));
    }
}

/// Reduces sources into elements.
#[inline(always)]
pub(crate) fn into_elements<T: Copy, A: Copy, const LANES: usize>(
    sources: &[&[T]],
    to: &mut [T],
    pad: A,
    map: impl Fn(T) -> A,
    join: impl Fn(A, A) -> A,
    element: impl Fn(A) -> T,
) {
    let (tiles, rest) = to.as_chunks_mut::<LANES>();
    for_each_tile::<T, A, LANES>(sources, pad, map, join, |tile, values| {
        match tiles.get_mut(tile) {
            Some(tile) => *tile = array::from_fn(|i| element(values[i])),
            None => rest.iter_mut().zip(values).for_each(|(to, value)| *to = element(value)),
        }
    });
}
