//! Random numbers that are the same on every machine and in every release.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixing function.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// A sequence of its own for every pair of seed and purpose.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let start = SplitMix64::seed_from_u64(seed).next_u64();
        Self(SplitMix64::seed_from_u64(start ^ purpose))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Evenly from -1 (included) to 1 (excluded), in steps of 2^-23.
    pub fn symmetric(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }

    /// Brings `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            // The bias of taking 64 bits modulo a small number is below 2^-50.
            let other = (self.bits() % (end as u64 + 1)) as usize;
            items.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_paper() {
        let mut random = Random(SplitMix64::seed_from_u64(1_234_567));
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..1000).collect();
        Random::new(1, 2).shuffle(&mut items);
        assert_ne!(items[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        items.sort_unstable();
        assert!(items.iter().zip(0..).all(|(a, b)| *a == b));
    }
}
