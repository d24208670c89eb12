//! How a call of few blocks says what it is (docs/reliability.md, "Calls that differ"): its last 64
//! bytes are a seal, which holds a digest of the call.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::Reduction;

use super::{SCALE, Shape};

/// Blocks whose tags say a whole digest.
const ENOUGH: u64 = 4;

/// Where a call's seal stands, among the blocks that it has besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// The call has blocks enough, or none.
    None,
    /// At the end of this block.
    Behind(u64),
    /// In a block of its own, the last one.
    Alone,
}

impl Seal {
    /// Of a call with keys or without, whose blocks have these lengths.
    pub(crate) fn new(keys: bool, lengths: &[usize], full: usize) -> Self {
        let usual = if keys { 0 } else { lengths.len().saturating_sub(1) };
        match lengths.get(usual) {
            Some(_) if lengths.len() as u64 >= ENOUGH => Self::None,
            Some(len) if *len < full => Self::Behind(usual as u64),
            Some(_) => Self::Alone,
            None => Self::None,
        }
    }
}

/// What a worker of a job adds to a sealed block that is made one in this way.
pub(crate) fn seal(job: usize, sequence: u64, shape: &Shape, rule: Reduction) -> Vec<u8> {
    let digest = digest(job, sequence, shape);
    let words: Vec<u64> = match rule {
        // A byte in each word: sums of 64 workers' stay apart.
        Reduction::Add => (0..8).map(|byte| digest >> (8 * byte) & 0xff).collect(),
        // What is more at one worker is less in the other word.
        _ => vec![digest, !digest],
    };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(CHUNK_LEN, 0);
    bytes
}

fn digest(job: usize, sequence: u64, shape: &Shape) -> u64 {
    let numbers = match (shape.float && shape.adds(), shape.block) {
        (false, _) => "as 32-bit integers".to_owned(),
        (true, true) => "block in 32-bit lanes".to_owned(),
        (true, false) => format!("fixed:{SCALE:e} in 32-bit lanes"),
    };
    let name = super::job_name(job);
    let element = if shape.float { "f32" } else { "i32" };
    let mut bytes = Vec::new();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend((shape.len as u64).to_le_bytes());
    let run = "";
    for text in [&name, run, element, shape.op.name(), &numbers] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    let mut hasher = SipHasher24::new();
    hasher.write(&bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_blocks_have_a_seal() {
        let cases: [(bool, &[usize], Seal); 7] = [
            (false, &[], Seal::None),
            (false, &[64], Seal::Behind(0)),
            (false, &[128], Seal::Alone),
            (false, &[128, 64], Seal::Behind(1)),
            (true, &[64, 128, 128], Seal::Behind(0)),
            (true, &[128, 128], Seal::Alone),
            (true, &[64, 128, 128, 64], Seal::None),
        ];
        for (keys, lengths, seal) in cases {
            assert_eq!(Seal::new(keys, lengths, 128), seal, "{lengths:?}");
        }
    }
}
