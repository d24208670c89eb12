//! Sums of `f32` into 32-bit lanes by a power of two, which is how most data travels: computed in
//! 32 bits all through, with a path's own instructions. Same bits as [`super::float`].

use super::tiles::each_tile;
use crate::element::Element;
use crate::format::Format;
use crate::scale::Scale;
use crate::simd::{Kernel, Path, Peaks};
use crate::types::ElementType;
use crate::types::LaneWidth;

/// Most sources for which there is a loop.
const MOST: usize = 4;

struct Encode<'a> {
    sources: &'a [&'a [f32]],
    to: &'a mut [[u8; 4]],
    up: f32,
    bias: u32,
}

impl Kernel for Encode<'_> {
    /// The largest magnitude of a sum, or none where this path, or this number of sources, has to
    /// go the general way.
    type Output = Option<f32>;

    #[inline(always)]
    fn run<P: Path>(self) -> Option<f32> {
        let Self { sources, to, up, bias } = self;
        let mut peaks = Peaks::default();
        macro_rules! tiles {
            ($($source:ident)*) => {
                each_tile([$($source),*], to, 0.0, |tiles, to| {
                    P::quantize(tiles, up, bias, to, &mut peaks);
                })
            };
        }
        match *sources {
            _ if !P::QUANTISES || to.is_empty() => return None,
            [a] => tiles!(a),
            [a, b] => tiles!(a b),
            [a, b, c] => tiles!(a b c),
            [a, b, c, d] => tiles!(a b c d),
            _ => return None,
        }
        Some(f32::from_bits(peaks.into_iter().max().unwrap_or(0)))
    }
}

/// Encodes the sums, and gives the largest magnitude of one; or does nothing, where it is not for
/// these elements, lanes, scale or CPU.
pub(super) fn encode<T: Element>(
    format: &Format,
    scale: &Scale,
    sources: &[&[T]],
    to: &mut [u8],
) -> Option<f64> {
    let up = scale.up_f32()?;
    if T::TYPE != ElementType::F32 || format.width() != LaneWidth::W32 || sources.len() > MOST {
        return None;
    }
    let mut singles: [&[f32]; MOST] = [&[]; MOST];
    for (single, source) in singles.iter_mut().zip(sources) {
        *single = bytemuck::cast_slice(source);
    }
    let (used, rest) = to.as_chunks_mut().0.split_at_mut(sources[0].len());
    let bias = format.bias().bias as u32;
    let sources = &singles[..sources.len()];
    let peak = format.simd().run(Encode { sources, to: used, up, bias })?;
    rest.fill(bias.to_le_bytes());
    Some(f64::from(peak))
}
