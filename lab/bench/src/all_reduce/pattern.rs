//! Vectors whose sums are known, exactly, without a second copy of them.
//!
//! Element `i` of rank `r` is `(r + 1) · (i mod 127)`. Over all ranks the sum is
//! `N (N + 1) / 2 · (i mod 127)`, at most 262 080 for 64 workers: exact in f32 as in i32, and, as
//! whole numbers, in 16-bit lanes of 16 workers.

use xdp_agg_baselines::{BoxError, Collective};
use xdp_agg_client::Op;

/// The period of the values: a prime, so that they drift against blocks and pages.
const PERIOD: usize = 127;

/// Scale of the fixed-point numbers in which the pattern is exact. Its values are whole numbers, so
/// it may be any power of two whose largest product fits a biased lane of that world size. The
/// largest product is rank 63's: 64 · 126 · 512.
pub(crate) const EXACT_SCALE: f64 = 512.0;

/// An element type of the benchmark.
pub(crate) trait Element: xdp_agg_client::Element {
    /// The element of this value.
    fn from_u32(value: u32) -> Self;

    /// Sums in place.
    fn all_reduce(collective: &mut dyn Collective, data: &mut [Self]) -> Result<(), BoxError>;
}

macro_rules! element {
    ($type:ty, $all_reduce:ident) => {
        impl Element for $type {
            fn from_u32(value: u32) -> Self {
                value as Self
            }

            fn all_reduce(over: &mut dyn Collective, data: &mut [Self]) -> Result<(), BoxError> {
                over.$all_reduce(data, Op::Sum)
            }
        }
    };
}

element!(f32, all_reduce_f32);
element!(i32, all_reduce_i32);

/// Fills the vector of one rank.
pub(crate) fn fill<E: Element>(data: &mut [E], rank: u16) {
    let factor = u32::from(rank) + 1;
    for chunk in data.chunks_mut(PERIOD) {
        for (element, i) in chunk.iter_mut().zip(0_u32..) {
            *element = E::from_u32(factor * i);
        }
    }
}

/// Elements that are not the sum of what all ranks filled in.
pub(crate) fn count_wrong<E: Element>(data: &[E], world_size: u16) -> u64 {
    let workers = u32::from(world_size);
    let factor = workers * (workers + 1) / 2;
    let wrong = |chunk: &[E]| {
        let expected = (0_u32..).map(|i| E::from_u32(factor * i));
        chunk.iter().zip(expected).filter(|(got, expected)| *got != expected).count()
    };
    data.chunks(PERIOD).map(wrong).sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdp_agg_common::lanes::Bias;

    #[test]
    fn the_pattern_is_exact_in_fixed_point_at_every_world_size() {
        for world_size in 1..=64_u16 {
            let largest = f64::from(world_size) * (PERIOD - 1) as f64;
            let room = f64::from(Bias::for_workers(world_size).max());
            assert!(largest * EXACT_SCALE <= room, "{world_size} workers");
        }
    }

    #[test]
    fn a_single_wrong_element_is_counted() {
        let mut sum = vec![0.0_f32; 3000];
        for rank in 0..3 {
            let mut one = vec![0.0_f32; 3000];
            fill(&mut one, rank);
            for (total, value) in sum.iter_mut().zip(&one) {
                *total += value;
            }
        }
        assert_eq!(count_wrong(&sum, 3), 0);
        assert_eq!(sum[126], 6.0 * 126.0);
        sum[2000] += 1.0;
        assert_eq!(count_wrong(&sum, 3), 1);
        assert!(count_wrong(&sum, 4) > 2900);
    }
}
