//! Bytes as lanes of which the aggregator keeps the largest.
//!
//! A lane of a maximum of 64-bit integers is the integer with its highest bit flipped, so that
//! lanes have the integers' order. Eight bytes flipped the same way are an integer whose lane is
//! those very bytes; the least integer's lane is zero.

use std::ops::Range;

/// Flips the bit that lanes flip.
const FLIP: i64 = i64::MIN;
const WORD: usize = size_of::<i64>();

/// Bytes in words: each part begins with a word of its own, so that no word has two owners.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<i64>);

impl Words {
    /// Writes this rank's parts of `bytes`, and nothing for the others'.
    pub(crate) fn fill(&mut self, bytes: &[u8], parts: &[(u16, Range<usize>)], rank: u16) {
        self.0.clear();
        for (owner, part) in parts {
            let words = part.len().div_ceil(WORD);
            if *owner != rank {
                self.0.resize(self.0.len() + words, FLIP);
                continue;
            }
            let (whole, rest) = bytes[part.clone()].as_chunks::<WORD>();
            self.0.extend(whole.iter().map(|word| i64::from_le_bytes(*word) ^ FLIP));
            if !rest.is_empty() {
                let mut last = [0; WORD];
                last[..rest.len()].copy_from_slice(rest);
                self.0.push(i64::from_le_bytes(last) ^ FLIP);
            }
        }
    }

    /// Writes the others' parts into `bytes`.
    pub(crate) fn take(&self, bytes: &mut [u8], parts: &[(u16, Range<usize>)], rank: u16) {
        let mut words = &self.0[..];
        for (owner, part) in parts {
            let (own, others) = words.split_at(part.len().div_ceil(WORD));
            words = others;
            if *owner == rank {
                continue;
            }
            for (to, word) in bytes[part.clone()].chunks_mut(WORD).zip(own) {
                let word = (word ^ FLIP).to_le_bytes();
                to.copy_from_slice(&word[..to.len()]);
            }
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [i64] {
        &mut self.0
    }

    pub(crate) fn into_inner(self) -> Vec<i64> {
        self.0
    }
}

impl From<Vec<i64>> for Words {
    fn from(words: Vec<i64>) -> Self {
        Self(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

    #[test]
    fn the_lanes_of_words_are_the_bytes() {
        let format = Format::new(ElementType::I64, Op::Max, Scaling::Block, None, 3);
        let format = format.expect("it makes sense");
        let bytes: Vec<u8> = (0..64_u8).map(|i| i.wrapping_mul(37).wrapping_add(130)).collect();
        let mut words = Words::default();
        let mut lanes = vec![0xee; 64];
        words.fill(&bytes, &[(1, 0..64)], 1);
        format.encode(0, &[words.as_mut_slice()], &mut lanes);
        assert_eq!(lanes, bytes);
        words.fill(&bytes, &[(1, 0..64)], 0);
        format.encode(0, &[words.as_mut_slice()], &mut lanes);
        assert_eq!(lanes, [0; 64]);
    }

    proptest! {
        /// Whatever the parts, all ranks end with every owner's bytes.
        #[test]
        fn parts_come_to_everybody(
            lens in prop::collection::vec(0..40_usize, 1..6),
            seed in any::<u8>(),
        ) {
            let mut end = 0;
            let parts: Vec<(u16, Range<usize>)> = lens
                .iter()
                .enumerate()
                .map(|(rank, len)| {
                    end += len;
                    (rank as u16, end - len..end)
                })
                .collect();
            let of = |rank: u16| -> Vec<u8> {
                (0..end).map(|i| (i as u8).wrapping_mul(97) ^ seed ^ rank as u8).collect()
            };
            let ranks = lens.len() as u16;
            let filled: Vec<Vec<i64>> = (0..ranks)
                .map(|rank| {
                    let mut words = Words::default();
                    words.fill(&of(rank), &parts, rank);
                    words.0
                })
                .collect();
            let largest = |i: usize| filled.iter().map(|words| words[i]).max().unwrap_or(0);
            let words = Words((0..filled[0].len()).map(largest).collect());
            for rank in 0..ranks {
                let mut bytes = of(rank);
                words.take(&mut bytes, &parts, rank);
                for (owner, part) in &parts {
                    prop_assert_eq!(&bytes[part.clone()], &of(*owner)[part.clone()]);
                }
            }
        }
    }
}
