//! The one loop that all kernels are: some slices, element by element, into another.
//!
//! It goes by tiles of a fixed length, which compilers turn into vectors without a remainder. The
//! last tile may overlap the one before, so some elements are computed twice; slices shorter than a
//! tile are copied into a padded one.

/// Elements of a tile: few enough that a short block's last one is cheap, and so many that the loop
/// is not unrolled into single elements, which would not become vectors again.
const TILE: usize = 64;

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
        ($first:ident $(, $more:ident)*) => {{
            let (len, mut short) = (to.len(), [to[0]; TILE]);
            $(assert_eq!($more.len(), len);)*
            assert_eq!($first.len(), len);
            if len >= TILE {
                let mut start = 0;
                loop {
                    let $first: &[I; TILE] = tile($first, start);
                    $(let $more: &[I; TILE] = tile($more, start);)*
                    let to: &mut [O; TILE] = tile_mut(to, start);
                    for i in 0..TILE {
                        let value = map($first[i]);
                        $(let value = join(value, map($more[i]));)*
                        to[i] = make(value);
                    }
                    if start + TILE == len {
                        break;
                    }
                    start = (start + TILE).min(len - TILE);
                }
            } else {
                let $first = padded($first, pad);
                $(let $more = padded($more, pad);)*
                for i in 0..TILE {
                    let value = map($first[i]);
                    $(let value = join(value, map($more[i]));)*
                    short[i] = make(value);
                }
                to.copy_from_slice(&short[..len]);
            }
        }};
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
