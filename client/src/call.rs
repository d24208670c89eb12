//! One all-reduce in flight: its elements, its blocks, what is left of it.

use std::ops::Range;

use serde::Serialize;
use xdp_agg_common::control;
use xdp_agg_common::lanes::{CHUNK_LANES, CHUNK_LEN};
use xdp_agg_common::wire::flags;

use crate::buffer::Buffer;
use crate::collective::Op;
use crate::quantise::{Numbers, payload_for};

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
}

/// The elements of a call, by type.
#[derive(Debug)]
pub(crate) enum Elements {
    F32(Buffer<f32>),
    I32(Buffer<i32>),
}

impl Elements {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(buffer) => buffer.as_slice().len(),
            Self::I32(buffer) => buffer.as_slice().len(),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::F32(_) => "f32",
            Self::I32(_) => "i32",
        }
    }
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Call {
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
    /// Elements of a full block.
    block_len: usize,
    left: u64,
}

impl Call {
    /// A call whose blocks hold `chunks` chunks.
    pub(crate) fn new(
        sequence: u64,
        elements: Elements,
        op: Op,
        workers: u16,
        scale: f64,
        chunks: u16,
    ) -> Self {
        let block_len = usize::from(chunks) * CHUNK_LANES;
        let blocks = elements.len().div_ceil(block_len) as u64;
        let scale = if matches!(elements, Elements::I32(_)) { 1.0 } else { scale };
        let mut call = Self {
            sequence,
            first_block: 0,
            tag: 0,
            report: Report { blocks, ..Report::default() },
            abandoned: false,
            elements,
            op,
            numbers: Numbers::new(workers, scale),
            scale,
            block_len,
            left: blocks,
        };
        call.tag = digest(&call.describe());
        call
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

    pub(crate) const fn is_done(&self) -> bool {
        self.left == 0
    }

    pub(crate) const fn holds(&self, block: u64) -> bool {
        block >= self.first_block && block - self.first_block < self.report.blocks
    }

    pub(crate) fn into_elements(self) -> Elements {
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
                if first_time {
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

    /// Takes in a block's sum: `payload` has the length of [`Self::payload_len`].
    pub(crate) fn decode(&mut self, block: u64, result_flags: u8, payload: &[u8]) {
        let range = self.range(block);
        self.left -= 1;
        match &mut self.elements {
            Elements::F32(buffer) => {
                let to = &mut buffer.as_mut_slice()[range];
                if result_flags & flags::NON_FINITE != 0 {
                    self.report.non_finite_blocks += 1;
                    to.fill(f32::NAN);
                } else {
                    self.numbers.decode_f32(payload, self.op, to);
                }
            }
            Elements::I32(buffer) => {
                self.numbers.decode_i32(payload, self.op, &mut buffer.as_mut_slice()[range]);
            }
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
        let elements = Elements::F32(Buffer::Owned(vec![1.0; len]));
        Call::new(0, elements, Op::Sum, 2, 1e6, 22)
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
    fn every_argument_changes_the_tag() {
        let make = |sequence, len, op, scale| {
            Call::new(sequence, Elements::F32(Buffer::Owned(vec![0.0; len])), op, 2, scale, 22).tag
        };
        let tags = [
            make(0, 10, Op::Sum, 1.0),
            make(1, 10, Op::Sum, 1.0),
            make(0, 11, Op::Sum, 1.0),
            make(0, 10, Op::Average, 1.0),
            make(0, 10, Op::Sum, 2.0),
            Call::new(0, Elements::I32(Buffer::Owned(vec![0; 10])), Op::Sum, 2, 1.0, 22).tag,
        ];
        for (i, tag) in tags.iter().enumerate() {
            assert!(!tags[..i].contains(tag), "{i}");
        }
    }
}
