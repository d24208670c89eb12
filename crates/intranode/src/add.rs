//! Sums of numbers in bytes: the reduction that benchmarks and tests hand to the collectives.

/// A number that lies in bytes as the machine has it.
pub trait Number: Copy + sealed::Sealed {
    /// Bytes of it.
    const SIZE: usize;
    #[doc(hidden)]
    fn sum<const N: usize>(sources: [&[u8]; N], out: &mut [u8]);
    #[doc(hidden)]
    fn accumulate(source: &[u8], out: &mut [u8]);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! number {
    ($($type:ty, $add:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const SIZE: usize = size_of::<$type>();

            fn sum<const N: usize>(sources: [&[u8]; N], out: &mut [u8]) {
                let out = out.as_chunks_mut().0;
                // The same length for the compiler to see.
                let sources = sources.map(|source| &source.as_chunks().0[..out.len()]);
                for (i, out) in out.iter_mut().enumerate() {
                    let mut sum = <$type>::from_ne_bytes(sources[0][i]);
                    for source in &sources[1..] {
                        sum = $add(sum, <$type>::from_ne_bytes(source[i]));
                    }
                    *out = sum.to_ne_bytes();
                }
            }

            fn accumulate(source: &[u8], out: &mut [u8]) {
                let (source, out) = (source.as_chunks().0, out.as_chunks_mut().0);
                for (out, source) in out.iter_mut().zip(source) {
                    let sum = $add(<$type>::from_ne_bytes(*out), <$type>::from_ne_bytes(*source));
                    *out = sum.to_ne_bytes();
                }
            }
        }
    )*};
}

number! {
    f32, |a: f32, b: f32| a + b;
    f64, |a: f64, b: f64| a + b;
    i32, i32::wrapping_add;
    i64, i64::wrapping_add;
}

/// Bytes that are summed at a time where there are more than four sources: they stay in the cache.
const TILE: usize = 4096;

/// Sums the numbers of `sources`, in their order, into `out`.
///
/// # Panics
/// If `sources` is empty, or a source is shorter than `out`.
pub fn add<T: Number>(sources: &[&[u8]], out: &mut [u8]) {
    match *sources {
        [a, b] => T::sum([a, b], out),
        [a, b, c] => T::sum([a, b, c], out),
        [a, b, c, d] => T::sum([a, b, c, d], out),
        _ => {
            for (tile, out) in out.chunks_mut(TILE).enumerate() {
                let range = tile * TILE..tile * TILE + out.len();
                out.copy_from_slice(&sources[0][range.clone()]);
                for source in &sources[1..] {
                    T::accumulate(&source[range.clone()], out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_sources_of_any_length() {
        for n in 1..=6_i32 {
            for len in [0, 1, 7, 3000] {
                let source = |k: i32| -> Vec<u8> {
                    (0..len).flat_map(|i| (i * k + k).to_ne_bytes()).collect()
                };
                let sources: Vec<_> = (1..=n).map(source).collect();
                let sources: Vec<_> = sources.iter().map(Vec::as_slice).collect();
                let mut out = vec![9; len as usize * 4];
                add::<i32>(&sources, &mut out);
                assert_eq!(out, source(n * (n + 1) / 2), "{n} {len}");
            }
        }
    }
}
