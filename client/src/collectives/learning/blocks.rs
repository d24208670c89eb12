//! The blocks of a vector on their way among the workers.

use std::marker::PhantomData;
use std::ops::Range;

use xdp_agg_common::wire::Reduction;
use xdp_agg_mesh::Reducer;
use xdp_agg_quantize::{Element, Format, LaneWidth};

/// Bytes of a word of lanes.
pub(super) const WORD: usize = size_of::<u64>();

/// A vector as blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) format: Format,
    /// Elements of a block.
    pub(super) block: usize,
    /// 48 bits on which the workers must agree.
    pub(super) tag: u64,
    /// Blocks in which some worker has what is no number keep this worker's elements: see
    /// [`Purpose::leaving_out`](xdp_agg_protocol::worker::Purpose::leaving_out). Of formats with
    /// exponents alone.
    pub(super) leaves_out: bool,
}

/// The key of a block that is left out. No key of numbers is as large.
pub(super) const LEFT_OUT: u16 = u16::MAX;

/// What has become of the blocks here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    pub(super) saturated: u64,
    pub(super) non_finite: u64,
}

/// The blocks of a vector of elements that become lanes, and elements again, in their own place.
pub(super) struct Blocks<'a, T> {
    cut: &'a Cut,
    contributors: u32,
    keys: &'a [u16],
    /// The lanes of a block, padded.
    pub(super) lanes: &'a mut Vec<u64>,
    pub(super) marked: Marked,
    /// This worker's elements are lanes already.
    pub(super) is_ready: bool,
    /// What comes in the end is elements, and not lanes.
    pub(super) comes_finished: bool,
    pub(super) account: Account,
    element: PhantomData<T>,
}

impl<'a, T: Element> Blocks<'a, T> {
    /// `keys`: of the blocks, or none.
    pub(super) fn new(
        cut: &'a Cut,
        contributors: u32,
        keys: &'a [u16],
        lanes: &'a mut Vec<u64>,
    ) -> Self {
        Self {
            cut,
            contributors,
            keys,
            lanes,
            marked: Marked::new::<T>(&cut.format, cut.block),
            is_ready: false,
            comes_finished: true,
            account: Account::default(),
            element: PhantomData,
        }
    }

    fn key(&self, index: usize) -> u16 {
        self.keys.get(index).copied().unwrap_or_default()
    }

    /// A block's lanes come into [`Self::lanes`]; marked, where it has what is no number.
    pub(super) fn encode(&mut self, index: usize, block: &[T]) {
        let (format, key) = (&self.cut.format, self.key(index));
        self.lanes.resize(format.payload(block.len()) / WORD, 0);
        let lanes: &mut [u8] = bytemuck::cast_slice_mut(self.lanes);
        if key == LEFT_OUT {
            return self.marked.mark(lanes);
        }
        let encoded = format.encode(key, &[block], lanes);
        self.account.saturated += u64::from(encoded.saturated);
        if encoded.non_finite {
            self.marked.mark(lanes);
        }
    }

    /// Lanes of all workers become elements.
    pub(super) fn decode(&mut self, index: usize, lanes: &[u8], to: &mut [T]) {
        if self.marked.is_marked(lanes) {
            self.account.non_finite += 1;
            return T::fill_nan(to);
        }
        let (key, contributors) = (self.key(index), self.contributors);
        self.cut.format.decode(key, lanes, contributors, contributors, to);
    }
}

/// Blocks of that many elements, with their numbers, in bytes that begin at this one.
fn blocks_of<T: Element>(
    block: usize,
    at: usize,
    bytes: &mut [u8],
) -> impl Iterator<Item = (usize, &mut [T])> {
    let first = at / (block * size_of::<T>());
    let elements: &mut [T] = bytemuck::cast_slice_mut(bytes);
    elements.chunks_mut(block).enumerate().map(move |(index, block)| (first + index, block))
}

impl<T: Element> Reducer for Blocks<'_, T> {
    fn makes_ready(&self) -> bool {
        !self.is_ready
    }

    fn make_ready(&mut self, at: usize, own: &mut [u8]) {
        for (index, block) in blocks_of(self.cut.block, at, own) {
            self.encode(index, block);
            let bytes = bytemuck::cast_slice_mut::<T, u8>(block);
            bytes.copy_from_slice(&bytemuck::cast_slice(self.lanes)[..bytes.len()]);
        }
    }

    fn join(&mut self, at: usize, own: &mut [u8], theirs: &[u8]) {
        if self.is_ready {
            return self.marked.join(at, own, theirs);
        }
        let theirs = theirs.chunks(self.cut.block * size_of::<T>());
        for ((index, block), theirs) in blocks_of(self.cut.block, at, own).zip(theirs) {
            self.encode(index, block);
            let own = bytemuck::cast_slice_mut(block);
            self.marked.sum(own, &bytemuck::cast_slice(self.lanes)[..theirs.len()], theirs);
        }
    }

    fn finish(&mut self, at: usize, all: &mut [u8]) {
        for (index, block) in blocks_of(self.cut.block, at, all) {
            let mut lanes = std::mem::take(self.lanes);
            lanes.resize(self.cut.format.payload(block.len()) / WORD, 0);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lanes);
            bytes[..size_of_val(block)].copy_from_slice(bytemuck::cast_slice(block));
            self.decode(index, bytes, block);
            *self.lanes = lanes;
        }
    }

    /// Counts the blocks that are no numbers, by the first element of each: once its last byte is
    /// there.
    fn came(&mut self, bytes: Range<usize>, vector: &[u8]) {
        if T::NAN.is_none() || !self.comes_finished {
            return;
        }
        let (size, unit) = (size_of::<T>(), self.cut.block * size_of::<T>());
        let first = (bytes.start + 1).saturating_sub(size).next_multiple_of(unit);
        for start in (first..).step_by(unit).take_while(|start| start + size <= bytes.end) {
            let first: T = bytemuck::pod_read_unaligned(&vector[start..start + size]);
            self.account.non_finite += u64::from(first.is_nan());
        }
    }
}

/// Blocks of lanes. One in which some worker has what is no number is marked: all its lanes have a
/// value that no other block's lanes have, and keep it.
///
/// Sums stay below the largest value of a lane, where there are two workers or more: each adds less
/// than its share of the lane's range. Among minima and maxima the value is that of a NaN.
#[derive(Clone, Copy)]
pub(super) struct Marked {
    /// Bytes of a block.
    unit: usize,
    width: LaneWidth,
    /// The bytes of a mark. None: all elements are numbers.
    mark: Option<u8>,
    sum: Sum,
}

/// `into = a + b`, or what else becomes of lanes; all three are equally long.
type Sum = fn(&mut [u8], &[u8], &[u8]);

impl Marked {
    /// Of blocks of that many elements.
    pub(super) fn new<T: Element>(format: &Format, block: usize) -> Self {
        let smallest =
            matches!(format.reduction(), Reduction::Min16 | Reduction::Min32 | Reduction::Min64);
        let mark = if smallest { 0 } else { u8::MAX };
        let in_place = format.width().bytes() == size_of::<T>();
        let unit = if in_place { block * size_of::<T>() } else { format.payload(block) };
        Self {
            unit,
            width: format.width(),
            mark: T::NAN.map(|_| mark),
            sum: sum_of(format.width(), format.reduction()),
        }
    }

    pub(super) fn mark(&self, block: &mut [u8]) {
        if let Some(mark) = self.mark {
            block.fill(mark);
        }
    }

    pub(super) fn is_marked(&self, block: &[u8]) -> bool {
        let first = &block[..self.width.bytes()];
        self.mark.is_some_and(|mark| first.iter().all(|byte| *byte == mark))
    }

    /// Makes one block of two.
    fn sum(&self, into: &mut [u8], a: &[u8], b: &[u8]) {
        if self.is_marked(a) || self.is_marked(b) {
            self.mark(into);
        } else {
            (self.sum)(into, a, b);
        }
    }
}

impl Reducer for Marked {
    fn join(&mut self, _at: usize, own: &mut [u8], theirs: &[u8]) {
        let mut here = [0; MOST_BYTES];
        for (own, theirs) in own.chunks_mut(self.unit).zip(theirs.chunks(self.unit)) {
            if self.is_marked(own) || self.is_marked(theirs) {
                self.mark(own);
                continue;
            }
            for (own, theirs) in own.chunks_mut(MOST_BYTES).zip(theirs.chunks(MOST_BYTES)) {
                let here = &mut here[..own.len()];
                here.copy_from_slice(own);
                (self.sum)(own, here, theirs);
            }
        }
    }
}

/// Bytes that are copied beside to be summed.
const MOST_BYTES: usize = 1024;

/// A loop over the lanes of blocks.
macro_rules! each {
    ($lane:ty, $join:expr) => {
        |into: &mut [u8], a: &[u8], b: &[u8]| {
            let lanes = a.as_chunks().0.iter().zip(b.as_chunks().0);
            for (into, (a, b)) in into.as_chunks_mut().0.iter_mut().zip(lanes) {
                let (a, b) = (<$lane>::from_le_bytes(*a), <$lane>::from_le_bytes(*b));
                *into = <$lane>::to_le_bytes($join(a, b));
            }
        }
    };
}

/// What becomes of lanes.
fn sum_of(width: LaneWidth, reduction: Reduction) -> Sum {
    use Reduction::{Add, Copy, Max16, Max32, Max64, Min16, Min32, Min64};
    match (reduction, width) {
        (Add | Copy, LaneWidth::W16) => each!(u16, u16::wrapping_add),
        (Add | Copy, LaneWidth::W32) => each!(u32, u32::wrapping_add),
        (Add | Copy, LaneWidth::W64) => each!(u64, u64::wrapping_add),
        (Min16, _) => each!(u16, u16::min),
        (Min32, _) => each!(u32, u32::min),
        (Min64, _) => each!(u64, u64::min),
        (Max16, _) => each!(u16, u16::max),
        (Max32, _) => each!(u32, u32::max),
        (Max64, _) => each!(u64, u64::max),
    }
}
