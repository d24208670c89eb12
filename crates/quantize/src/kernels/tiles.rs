//! The one loop that all kernels are: some slices, element by element, into another.
//!
//! It goes by tiles of a fixed length, which compilers turn into vectors without a remainder. The
//! last tile may overlap the one before, so some elements are computed twice; slices shorter than a
//! tile are copied into a padded one.

use crate::simd::{will_read, will_write};

/// Elements of a tile: few enough that a short block's last tile is cheap, and enough that the loop
/// is not unrolled. Single elements would not become vectors again.
pub(crate) const TILE: usize = 64;

/// Bytes that a cache has at a time.
const LINE: usize = 64;

/// How far ahead of the loop its sources are fetched, in bytes. Blocks follow each other in memory,
/// but each is a call of its own, and the hardware's prefetching begins anew at each page. Without
/// this, reading from memory is a quarter slower (docs/measurements/numerics.md).
const READ_AHEAD: usize = 2048;

/// The same for what is written: it has to be there before it can be overwritten.
const WRITE_AHEAD: usize = 512;

/// Joins the sources, each mapped, in their order, and makes an output of each value. All slices
/// are of one length. `make` may be called twice for an element, and for `pad`.
#[inline(always)]
pub(crate) fn zip_map<I: Copy, A: Copy, O: Copy>(
    sources: &[&[I]],
    to: &mut [O],
    pad: I,
    map: impl Fn(I) -> A,
    join: impl Fn(A, A) -> A,
    mut make: impl FnMut(A) -> O,
) {
    // For each number of sources a loop of its own, over single elements: with a loop over sources
    // within, it would not become vectors.
    macro_rules! tiles {
        ($first:ident $(, $more:ident)*) => {
            each_tile([$first $(, $more)*], to, pad, |[$first $(, $more)*], to| {
                for i in 0..TILE {
                    let value = map($first[i]);
                    $(let value = join(value, map($more[i]));)*
                    to[i] = make(value);
                }
            })
        };
    }
    match *sources {
        _ if to.is_empty() => (),
        [a] => tiles!(a),
        [a, b] => tiles!(a, b),
        [a, b, c] => tiles!(a, b, c),
        [a, b, c, d] => tiles!(a, b, c, d),
        _ => zip_map_many(sources, to, map, join, make),
    }
}

/// Runs `step` on each tile of slices of one length, which is not 0. The last tile may overlap the
/// one before.
#[inline(always)]
pub(crate) fn each_tile<I: Copy, O: Copy, const N: usize>(
    sources: [&[I]; N],
    to: &mut [O],
    pad: I,
    mut step: impl FnMut([&[I; TILE]; N], &mut [O; TILE]),
) {
    let len = to.len();
    assert!(sources.iter().all(|source| source.len() == len), "slices of one length");
    if len >= TILE {
        let mut start = 0;
        loop {
            let tiles = sources.map(|source| tile(source, start));
            let to = tile_mut(to, start);
            for tile in tiles {
                for line in tile.chunks_exact(LINE / size_of::<I>()) {
                    will_read(&line[0], READ_AHEAD);
                }
            }
            for line in to.chunks_exact(LINE / size_of::<O>()) {
                will_write(&line[0], WRITE_AHEAD);
            }
            step(tiles, to);
            if start + TILE == len {
                break;
            }
            start = (start + TILE).min(len - TILE);
        }
    } else {
        let padded = sources.map(|source| padded(source, pad));
        let mut short = [to[0]; TILE];
        step(padded.each_ref(), &mut short);
        to.copy_from_slice(&short[..len]);
    }
}

/// As [`zip_map`] for any number of sources: their values are kept in a tile of their own. `make`
/// is called once for each element.
#[inline(always)]
pub(crate) fn zip_map_many<I: Copy, A: Copy, O: Copy>(
    sources: &[&[I]],
    to: &mut [O],
    map: impl Fn(I) -> A,
    join: impl Fn(A, A) -> A,
    mut make: impl FnMut(A) -> O,
) {
    let Some(first) = sources[0].first() else {
        return;
    };
    let mut values = [map(*first); TILE];
    for (t, to) in to.chunks_mut(TILE).enumerate() {
        let first = &sources[0][t * TILE..][..to.len()];
        for (value, x) in values.iter_mut().zip(first) {
            *value = map(*x);
        }
        for source in &sources[1..] {
            let source = &source[t * TILE..][..to.len()];
            for (value, x) in values.iter_mut().zip(source) {
                *value = join(*value, map(*x));
            }
        }
        for (to, value) in to.iter_mut().zip(&values) {
            *to = make(*value);
        }
    }
}

#[inline(always)]
fn tile<I>(source: &[I], start: usize) -> &[I; TILE] {
    source[start..].first_chunk().expect("the last tile starts a tile before the end")
}

#[inline(always)]
fn tile_mut<I>(to: &mut [I], start: usize) -> &mut [I; TILE] {
    to[start..].first_chunk_mut().expect("the last tile starts a tile before the end")
}

/// A short source, and `pad` behind it.
#[inline(always)]
fn padded<I: Copy>(source: &[I], pad: I) -> [I; TILE] {
    let mut tile = [pad; TILE];
    tile[..source.len()].copy_from_slice(source);
    tile
}

/// Joins all elements, each mapped; joining one twice must change nothing.
#[inline(always)]
pub(crate) fn fold<I: Copy, A: Copy>(
    source: &[I],
    pad: I,
    start: A,
    map: impl Fn(I) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    let mut value = start;
    if source.len() < TILE {
        for x in padded(source, pad) {
            value = join(value, map(x));
        }
        return value;
    }
    for tile in source.as_chunks::<TILE>().0 {
        for x in tile {
            value = join(value, map(*x));
        }
    }
    for x in tile(source, source.len() - TILE) {
        value = join(value, map(*x));
    }
    value
}
