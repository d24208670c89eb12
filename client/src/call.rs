//! One all-reduce in flight: its elements, its blocks, what is left of it.

use std::ops::Range;

use serde::Serialize;
use xdp_agg_common::control::{self, Held};
use xdp_agg_common::lanes::{CHUNK_LANES, CHUNK_LEN};
use xdp_agg_common::wire::flags;

use crate::buffer::Buffer;
use crate::collective::Op;
use crate::quantise::{Numbers, payload_for};

/// Over what a call's blocks were summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The aggregator.
    #[default]
    Aggregator,
    /// A TCP ring of the workers, because no aggregator could be reached.
    Ring,
    /// Some blocks over the one, some over the other.
    Mixed,
}

/// What became of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Blocks that the call was cut into.
    pub blocks: u64,
    /// Elements of this worker that did not fit the fixed-point numbers and were clamped. Choose a
    /// smaller scale if this is not zero.
    pub saturated: u64,
    /// Blocks in which some worker had a NaN or an infinity; they hold NaN now.
    pub non_finite_blocks: u64,
    /// Bit `r`: rank `r`'s contribution is in every block.
    pub contributors: u64,
    /// Bit `r`: rank `r`'s contribution is in some blocks and not in others: it was lost, or came
    /// back, while the call was under way.
    pub partial: u64,
    /// How often the job got a new epoch while the call was under way.
    pub reforms: u32,
    /// Over what its blocks were summed.
    pub path: Path,
}

impl Report {
    /// The ranks of a world of this size whose contribution is missing in at least one block, in
    /// ascending order.
    pub fn missing_ranks(&self, world_size: u16) -> impl Iterator<Item = u16> + use<> {
        let contributors = self.contributors;
        (0..world_size).filter(move |rank| rank_bit(*rank) & contributors == 0)
    }
}

/// The bit of a rank in a bitmap of members.
pub(crate) const fn rank_bit(rank: u16) -> u64 {
    1 << (rank & 63)
}

/// The elements of a call, by type.
#[derive(Debug)]
pub enum Elements {
    /// 32-bit floats.
    F32(Buffer<f32>),
    /// 32-bit integers.
    I32(Buffer<i32>),
}

impl Elements {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(buffer) => buffer.as_slice().len(),
            Self::I32(buffer) => buffer.as_slice().len(),
        }
    }

    /// True for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::F32(_) => "f32",
            Self::I32(_) => "i32",
        }
    }
}

impl From<Vec<f32>> for Elements {
    fn from(elements: Vec<f32>) -> Self {
        Self::F32(Buffer::owned(elements))
    }
}

impl From<Vec<i32>> for Elements {
    fn from(elements: Vec<i32>) -> Self {
        Self::I32(Buffer::owned(elements))
    }
}

/// A call in flight, or just finished.
///
/// It is cut into blocks when the job lets it begin (`Self::begin`), because block numbers and
/// sizes are the job's. Its blocks go by their numbers in the job's life.
#[derive(Debug)]
pub struct Call {
    pub(crate) sequence: u64,
    pub(crate) first_block: u64,
    pub(crate) tag: u16,
    pub(crate) report: Report,
    /// Nobody waits for it: it is dropped when it is done.
    pub(crate) abandoned: bool,
    elements: Elements,
    op: Op,
    numbers: Numbers,
    scale: f64,
    /// Elements of a full block; 0 before the call began.
    block_len: usize,
    left: u64,
    /// One past the last block whose clamped elements were counted.
    counted: u64,
    /// Whose contributions are in the first block that was finished.
    usual: u64,
    /// Finished blocks with other contributors, as far as neighbours come one after the other.
    unusual: Vec<Held>,
}

impl Call {
    /// A call that has not begun.
    pub(crate) fn new(sequence: u64, elements: Elements, op: Op, workers: u16, scale: f64) -> Self {
        let scale = if matches!(elements, Elements::I32(_)) { 1.0 } else { scale };
        let mut call = Self {
            sequence,
            first_block: 0,
            tag: 0,
            report: Report::default(),
            abandoned: false,
            elements,
            op,
            numbers: Numbers::new(workers, scale),
            scale,
            block_len: 0,
            left: 0,
            counted: 0,
            usual: 0,
            unusual: Vec::new(),
        };
        call.tag = digest(&call.describe());
        call
    }

    /// Cuts the call into blocks of `chunks` chunks, numbered from `first_block`. `members` are
    /// those of the epoch.
    pub(crate) fn begin(&mut self, first_block: u64, chunks: u16, members: u64) {
        self.block_len = usize::from(chunks) * CHUNK_LANES;
        self.first_block = first_block;
        self.report.blocks = self.elements.len().div_ceil(self.block_len) as u64;
        self.report.contributors = members;
        self.left = self.report.blocks;
    }

    /// Number of the call in the job's life, from 0.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What became of it.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Number of its first block in the job's life; its blocks follow each other.
    #[must_use]
    pub const fn first_block(&self) -> u64 {
        self.first_block
    }

    /// Whose contributions are in which blocks: all blocks of a finished call, in ascending order.
    #[must_use]
    pub fn contributors(&self) -> Vec<Held> {
        let mut unusual = self.unusual.clone();
        unusual.sort_unstable_by_key(|held| held.from);
        let mut runs: Vec<Held> = Vec::new();
        let mut at = self.first_block;
        let mut push = |from: u64, len: u64, members: u64| match runs.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.members == members => last.len += len,
            _ => runs.push(Held { from, len, members }),
        };
        for held in unusual {
            push(at, held.from - at, self.usual);
            push(held.from, held.len, held.members);
            at = held.from + held.len;
        }
        push(at, self.end() - at, self.usual);
        runs
    }

    /// The arguments that must agree between workers.
    pub(crate) fn describe(&self) -> control::Call {
        control::Call {
            sequence: self.sequence,
            count: self.elements.len() as u64,
            element: self.elements.name().into(),
            operation: self.op.name().into(),
            scale: self.scale,
        }
    }

    /// True when all its blocks are finished.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.has_begun() && self.left == 0
    }

    pub(crate) const fn has_begun(&self) -> bool {
        self.block_len > 0
    }

    pub(crate) const fn holds(&self, block: u64) -> bool {
        block >= self.first_block && block - self.first_block < self.report.blocks
    }

    /// One past its last block.
    pub(crate) const fn end(&self) -> u64 {
        self.first_block + self.report.blocks
    }

    /// Its elements: the result, where it is done.
    #[must_use]
    pub fn into_elements(self) -> Elements {
        self.elements
    }

    /// Payload bytes of a block.
    pub(crate) fn payload_len(&self, block: u64) -> usize {
        payload_for(self.range(block).len())
    }

    /// Writes a block's payload and returns the flags of its header. The result is the same at
    /// every transmission: the elements change only when the block's result is here.
    pub(crate) fn encode(&mut self, block: u64, first_time: bool, payload: &mut [u8]) -> u8 {
        let range = self.range(block);
        match &self.elements {
            Elements::F32(buffer) => {
                let encoded = self.numbers.encode_f32(&buffer.as_slice()[range], payload);
                // A block that is summed again in a later epoch has been counted.
                if first_time && block >= self.counted {
                    self.counted = block + 1;
                    self.report.saturated += u64::from(encoded.saturated);
                }
                if encoded.non_finite { flags::NON_FINITE } else { 0 }
            }
            Elements::I32(buffer) => {
                self.numbers.encode_i32(&buffer.as_slice()[range], payload);
                0
            }
        }
    }

    /// Takes in the sum of a block over these members: `payload` has the length of
    /// [`Self::payload_len`].
    pub(crate) fn decode(&mut self, block: u64, result_flags: u8, payload: &[u8], members: u64) {
        let range = self.range(block);
        self.note_contributors(block, members);
        self.left -= 1;
        match &mut self.elements {
            Elements::F32(buffer) => {
                let to = &mut buffer.as_mut_slice()[range];
                if result_flags & flags::NON_FINITE != 0 {
                    self.report.non_finite_blocks += 1;
                    to.fill(f32::NAN);
                } else {
                    self.numbers.decode_f32(payload, self.op, members.count_ones(), to);
                }
            }
            Elements::I32(buffer) => {
                let to = &mut buffer.as_mut_slice()[range];
                self.numbers.decode_i32(payload, self.op, members.count_ones(), to);
            }
        }
    }

    /// The block that is finished next is summed over a ring.
    pub(crate) const fn goes_over_ring(&mut self) {
        if self.left == self.report.blocks {
            self.report.path = Path::Ring;
        } else if matches!(self.report.path, Path::Aggregator) {
            self.report.path = Path::Mixed;
        }
    }

    fn note_contributors(&mut self, block: u64, members: u64) {
        if self.left == self.report.blocks {
            self.usual = members;
            self.report.contributors = members;
        }
        if members == self.usual {
            return;
        }
        let report = &mut self.report;
        let any = report.contributors | report.partial | members;
        report.contributors &= members;
        report.partial = any & !report.contributors;
        match self.unusual.last_mut() {
            Some(last) if last.members == members && last.from + last.len == block => last.len += 1,
            _ => self.unusual.push(Held { from: block, len: 1, members }),
        }
    }

    fn range(&self, block: u64) -> Range<usize> {
        let from = (block - self.first_block) as usize * self.block_len;
        from..(from + self.block_len).min(self.elements.len())
    }
}

/// 16 bits of FNV-1a over a call's arguments.
fn digest(call: &control::Call) -> u16 {
    let control::Call { sequence, count, element, operation, scale } = call;
    let bytes = sequence
        .to_be_bytes()
        .into_iter()
        .chain(count.to_be_bytes())
        .chain(scale.to_bits().to_be_bytes())
        .chain(element.bytes())
        .chain(operation.bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

const _: () = assert!(CHUNK_LEN == CHUNK_LANES * 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn call(len: usize) -> Call {
        let mut call = Call::new(0, vec![1.0_f32; len].into(), Op::Sum, 2, 1e6);
        assert!(!call.is_done());
        call.begin(0, 22, 0b11);
        call
    }

    #[test]
    fn blocks_cover_the_elements_once() {
        for (len, blocks, last) in
            [(0, 0, 0), (1, 1, 64), (351, 1, 1408), (352, 1, 1408), (353, 2, 64), (704, 2, 1408)]
        {
            let call = call(len);
            assert_eq!(call.report.blocks, blocks, "{len}");
            assert_eq!(call.is_done(), len == 0);
            if blocks > 0 {
                assert_eq!(call.payload_len(blocks - 1), last, "{len}");
                let covered: usize = (0..blocks).map(|block| call.range(block).len()).sum();
                assert_eq!(covered, len);
            }
        }
    }

    #[test]
    fn contributors_are_told_by_block() {
        let mut call = call(352 * 5);
        let payload = vec![0; 1408];
        for (block, members) in [(1, 0b11), (3, 0b01), (4, 0b01), (0, 0b11), (2, 0b01)] {
            call.decode(block, 0, &payload, members);
        }
        assert!(call.is_done());
        let runs = [Held { from: 0, len: 2, members: 0b11 }, Held { from: 2, len: 3, members: 1 }];
        assert_eq!(call.contributors(), runs);
        assert_eq!((call.report.contributors, call.report.partial), (0b01, 0b10));
        assert_eq!(call.report.missing_ranks(2).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn every_argument_changes_the_tag() {
        let make = |sequence, len, op, scale| {
            Call::new(sequence, vec![0.0_f32; len].into(), op, 2, scale).tag
        };
        let tags = [
            make(0, 10, Op::Sum, 1.0),
            make(1, 10, Op::Sum, 1.0),
            make(0, 11, Op::Sum, 1.0),
            make(0, 10, Op::Average, 1.0),
            make(0, 10, Op::Sum, 2.0),
            Call::new(0, vec![0_i32; 10].into(), Op::Sum, 2, 1.0).tag,
        ];
        for (i, tag) in tags.iter().enumerate() {
            assert!(!tags[..i].contains(tag), "{i}");
        }
    }

    /// What the aggregator does with the blocks of some workers of a world, as each gets it back.
    fn all_reduce(inputs: &[Vec<f32>], world: u16, op: Op, scale: f64) -> Vec<(Report, Vec<f32>)> {
        let members = (1_u64 << inputs.len()) - 1;
        let mut calls: Vec<_> = inputs
            .iter()
            .map(|input| {
                let mut call = Call::new(0, input.clone().into(), op, world, scale);
                call.begin(0, 1, members);
                call
            })
            .collect();
        for block in 0..calls[0].report.blocks {
            let mut sum = [0_u8; 64];
            let mut flags = 0;
            for call in &mut calls {
                let mut payload = vec![0xee; call.payload_len(block)];
                flags |= call.encode(block, true, &mut payload);
                for (sum, lane) in sum.as_chunks_mut().0.iter_mut().zip(payload.as_chunks().0) {
                    let total = u32::from_le_bytes(*sum).wrapping_add(u32::from_le_bytes(*lane));
                    *sum = total.to_le_bytes();
                }
            }
            for call in &mut calls {
                let len = call.payload_len(block);
                call.decode(block, flags, &sum[..len], members);
            }
        }
        let ended = calls.into_iter().map(|call| {
            let report = call.report;
            let Elements::F32(elements) = call.into_elements() else { panic!("floats went in") };
            (report, elements.into_owned())
        });
        ended.collect()
    }

    const WORLDS: [(u16, usize); 6] = [(1, 1), (2, 2), (3, 2), (8, 8), (64, 5), (64, 63)];

    /// Invariant 6: a NaN or an infinity of any worker makes its block NaN at every worker, and no
    /// other block; also where not all of the world contribute.
    #[test]
    fn non_finite_values_reach_every_worker() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for ((world, members), op) in
                WORLDS.into_iter().flat_map(|w| [(w, Op::Sum), (w, Op::Average)])
            {
                for (at, of) in [(0, 0), (15, members / 2), (33, members - 1)] {
                    let mut inputs = vec![vec![0.5_f32; 34]; members];
                    inputs[of][at] = odd;
                    for (report, output) in all_reduce(&inputs, world, op, 1024.0) {
                        assert_eq!(report.non_finite_blocks, 1);
                        for (i, value) in output.iter().enumerate() {
                            assert_eq!(value.is_nan(), i / 16 == at / 16, "{odd} {world} {op:?}");
                        }
                    }
                }
            }
        }
    }

    /// What is finite stays finite: what is too small becomes (positive) zero, what is too large
    /// the nearest number that fits, and is counted at its owner.
    #[test]
    fn extreme_finite_values_are_rounded_or_clamped() {
        let tiny = [0.0, -0.0, f32::from_bits(1), -f32::from_bits(1), f32::MIN_POSITIVE / 2.0];
        for ((world, members), op) in
            WORLDS.into_iter().flat_map(|w| [(w, Op::Sum), (w, Op::Average)])
        {
            for scale in [1.0, 1e7, 1e30] {
                let inputs = vec![tiny.to_vec(); members];
                for (report, output) in all_reduce(&inputs, world, op, scale) {
                    assert_eq!((report.saturated, report.non_finite_blocks), (0, 0));
                    assert_eq!(output.iter().map(|x| x.to_bits()).max(), Some(0), "{output:?}");
                }
                let mut inputs = vec![vec![0.0, 0.0]; members];
                inputs[0] = vec![f32::MAX, f32::MIN];
                let limit = Numbers::new(world, scale).float_limit();
                let share = if op == Op::Average { members as f64 } else { 1.0 };
                let all = all_reduce(&inputs, world, op, scale);
                assert!(all.iter().all(|(_, output)| *output == all[0].1));
                let [most, least] = all[0].1[..] else { panic!("two went in") };
                let near = |got: f32, want: f64| (f64::from(got) / want - 1.0).abs() < 1e-6;
                assert!(near(most, limit / share) && near(least, -limit / share), "{most} {least}");
                assert_eq!(all[0].0.saturated, 2);
                assert!(all[1..].iter().all(|(report, _)| report.saturated == 0));
            }
        }
    }
}
