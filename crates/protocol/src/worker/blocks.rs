//! The elements of a call as the blocks of one flow see them: where a block's input lies, and where
//! its result goes.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_quantize::{Element, Encoded, Format};

use super::block::DataBlock;
use super::buffer::Buffer;
use super::error::Error;
use super::report::Report;

/// What a call is, where it is more than an all-reduce.
#[derive(Clone, Debug, Default)]
pub struct Purpose {
    what: Option<Arc<str>>,
    root: Option<u16>,
    leaves_out: bool,
    wanted: Option<Range<usize>>,
}

impl Purpose {
    /// In words, on which the workers must agree.
    #[must_use]
    pub fn of(what: &Arc<str>) -> Self {
        Self { what: Some(Arc::clone(what)), ..Self::default() }
    }

    /// All get the elements of this worker; nobody else has any.
    #[must_use]
    pub fn with_root(self, root: Option<u16>) -> Self {
        Self { root, ..self }
    }

    /// Blocks whose result is not a number keep their input, for a caller that sums them in another
    /// way: see [`Blocks::left_out`].
    #[must_use]
    pub fn leaving_out(self) -> Self {
        Self { leaves_out: true, ..self }
    }

    /// This process needs these elements of the result alone; blocks without any of them may keep
    /// their input. The workers need not agree on it.
    #[must_use]
    pub fn wanting(self, elements: Range<usize>) -> Self {
        Self { wanted: Some(elements), ..self }
    }

    /// Whether this process needs some of these elements of the result: see [`Self::wanting`].
    #[must_use]
    pub fn wants(&self, elements: &Range<usize>) -> bool {
        let some =
            |wanted: &Range<usize>| wanted.start < elements.end && elements.start < wanted.end;
        self.wanted.as_ref().is_none_or(some)
    }

    /// See [`Self::leaving_out`].
    #[must_use]
    pub const fn leaves_out(&self) -> bool {
        self.leaves_out
    }

    /// See [`Self::of`].
    #[must_use]
    pub fn what(&self) -> Option<&str> {
        self.what.as_deref()
    }

    /// See [`Self::with_root`].
    #[must_use]
    pub const fn root(&self) -> Option<u16> {
        self.root
    }
}

/// A call's elements, cut into data blocks. Block `j` is the `j`-th of this flow, which need not be
/// the `j`-th of the vector: other flows may have the others.
pub trait Blocks: Any + Debug + Send {
    /// How its elements travel.
    fn format(&self) -> &Format;

    /// Elements of the whole vector, whichever flows and processes send them.
    fn vector_len(&self) -> usize;

    /// What the call is, where it is more than an all-reduce; the workers must agree on it.
    fn purpose(&self) -> Option<&str> {
        None
    }

    /// Which elements of the vector are its blocks, in words, where that does not follow from the
    /// blocks' size; the workers must agree on it.
    fn part(&self) -> Option<String> {
        None
    }

    /// The worker whose elements all get, where nobody else has any.
    fn root(&self) -> Option<u16> {
        None
    }

    /// Refuses values that cannot be summed over all workers, before anything is sent.
    ///
    /// # Errors
    /// Where and what.
    fn check(&self) -> Result<(), Error>;

    /// Cuts the elements into blocks of at most `chunks` chunks; how many blocks there are.
    ///
    /// # Errors
    /// They were cut already, and these blocks are longer.
    fn cut(&mut self, chunks: u16) -> Result<u64, Error>;

    /// Chunks of a block, if they were agreed upon before it was cut. The flows of a vector have
    /// blocks of one length, whatever each aggregator would take.
    fn agreed_chunks(&self) -> Option<u16> {
        None
    }

    /// Elements of a block.
    fn elements(&self, block: DataBlock) -> usize;

    /// The magnitudes of all blocks below this one are known; see [`Self::key`].
    fn scanned(&self) -> DataBlock;

    /// The input of all blocks below this one is in place.
    fn staged(&self) -> DataBlock;

    /// Most blocks whose input can be in place at once; the same at all workers.
    fn most_at_once(&self) -> u64 {
        u64::MAX
    }

    /// The key of the exponent that this worker's part of a block needs.
    fn key(&self, block: DataBlock) -> u16;

    /// Writes a block's lanes. `key`: what the workers have agreed on, if the format needs that.
    fn encode(&self, block: DataBlock, key: u16, lanes: &mut [u8]) -> Encoded;

    /// Takes in a block's result, over the lanes of `contributors` workers. None: it is not a
    /// number.
    fn decode(&mut self, block: DataBlock, key: u16, lanes: Option<&[u8]>, contributors: u32);

    /// All blocks of this flow have their result, and this became of them.
    fn all_reduced(&mut self, _report: &Report) {}

    /// Does a piece of what is to be done besides sending and receiving. False: there is nothing
    /// now.
    ///
    /// # Errors
    /// The call cannot end well.
    fn work(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Nothing is left to be done besides.
    fn finished(&self) -> bool {
        true
    }

    /// Adds to a finished call's report what only the blocks know.
    fn complete(&self, _report: &mut Report) {}

    /// [`Self::complete`] has said whose contributions are in the result, also where this flow had
    /// none of the blocks.
    fn knows_contributors(&self) -> bool {
        false
    }

    /// Elements of the vector whose result is not a number and which still are the input, as the
    /// caller wanted it. Complete when the call is.
    fn left_out(&self) -> &[Range<usize>] {
        &[]
    }

    /// The call has failed here.
    fn abort(&mut self, _error: &Error) {}

    /// Processes of this host that owe it something of their own, by their local ranks.
    fn awaited(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The caller has waited this time for the call and gives up: the error, where processes of
    /// this host are to blame.
    fn overdue(&self, _waited: Duration) -> Option<Error> {
        None
    }
}

/// Which blocks of a vector a flow has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// This flow's number.
    pub index: u64,
    /// Number of flows.
    pub of: u64,
}

impl Share {
    /// All of them.
    pub const ALL: Self = Self { index: 0, of: 1 };

    /// For people, who count from 1. None: all of them.
    #[must_use]
    pub fn in_words(self) -> Option<String> {
        (self.of > 1).then(|| format!("part {} of {}", self.index + 1, self.of))
    }

    /// How many of `blocks` blocks.
    #[must_use]
    pub const fn count(self, blocks: u64) -> u64 {
        (blocks + self.of - 1 - self.index) / self.of
    }

    /// The flow's `block`-th block by its place in the vector. The hash that PASSING's Algorithm 1
    /// leaves open: block `j` of a vector goes to aggregator `j mod p`, so that all have equally
    /// much at any time.
    #[must_use]
    pub const fn place(self, block: DataBlock) -> u64 {
        self.index + block.0 * self.of
    }

    /// The flow's blocks below this one lie below this place in the vector.
    #[must_use]
    pub const fn below(self, place: u64) -> DataBlock {
        DataBlock(if place <= self.index { 0 } else { (place - self.index).div_ceil(self.of) })
    }
}

/// Elements in this process's own memory: input and output in one place.
#[derive(Debug)]
pub struct Local<T: Element> {
    buffer: Buffer<T>,
    format: Format,
    share: Share,
    /// Chunks of a block, if it was agreed upon before.
    chunks: Option<u16>,
    /// Elements of a block; 0 before they are cut.
    block_len: usize,
    purpose: Purpose,
    left_out: Vec<Range<usize>>,
}

impl<T: Element> Local<T> {
    /// A whole vector.
    #[must_use]
    pub fn new(buffer: Buffer<T>, format: Format) -> Self {
        Self::cut_as(buffer, format, Share::ALL, None)
    }

    const fn cut_as(buffer: Buffer<T>, format: Format, share: Share, chunks: Option<u16>) -> Self {
        let purpose = Purpose { what: None, root: None, leaves_out: false, wanted: None };
        Self { buffer, format, share, chunks, block_len: 0, purpose, left_out: Vec::new() }
    }

    /// The same as a broadcast: all get the elements of `root`, and nobody else has any. The
    /// others' elements must be ones that change nothing, in a format without exponents.
    #[must_use]
    pub fn with_root(mut self, root: u16) -> Self {
        self.purpose.root = Some(root);
        self
    }

    /// The same as a part of something that is more than an all-reduce.
    #[must_use]
    pub fn with_purpose(mut self, purpose: &Purpose) -> Self {
        self.purpose = purpose.clone();
        self
    }

    /// Some blocks of a vector, each of `chunks` chunks.
    #[must_use]
    pub const fn part(buffer: Buffer<T>, format: Format, share: Share, chunks: u16) -> Self {
        Self::cut_as(buffer, format, share, Some(chunks))
    }

    /// The elements: the result, once the call is done.
    #[must_use]
    pub fn into_buffer(self) -> Buffer<T> {
        self.buffer
    }

    fn range(&self, block: DataBlock) -> Range<usize> {
        let from = self.share.place(block) as usize * self.block_len;
        from..(from + self.block_len).min(self.buffer.len())
    }

    const fn blocks(&self) -> u64 {
        if self.block_len == 0 {
            return 0;
        }
        self.share.count(self.buffer.len().div_ceil(self.block_len) as u64)
    }
}

impl<T: Element> Blocks for Local<T> {
    fn format(&self) -> &Format {
        &self.format
    }

    fn vector_len(&self) -> usize {
        self.buffer.len()
    }

    fn purpose(&self) -> Option<&str> {
        self.purpose.what()
    }

    fn part(&self) -> Option<String> {
        self.share.in_words()
    }

    fn root(&self) -> Option<u16> {
        self.purpose.root()
    }

    fn check(&self) -> Result<(), Error> {
        if self.share.of > 1 {
            // A part of a vector that was checked as a whole, before any part of it began: another
            // part's results may be in it already.
            return Ok(());
        }
        Ok(self.format.check(self.buffer.slice(0..self.buffer.len()), 1)?)
    }

    fn cut(&mut self, chunks: u16) -> Result<u64, Error> {
        self.block_len = block_len(&self.format, self.chunks, chunks)?;
        Ok(self.blocks())
    }

    fn agreed_chunks(&self) -> Option<u16> {
        self.chunks
    }

    fn elements(&self, block: DataBlock) -> usize {
        self.range(block).len()
    }

    fn scanned(&self) -> DataBlock {
        DataBlock(self.blocks())
    }

    fn staged(&self) -> DataBlock {
        DataBlock(self.blocks())
    }

    fn key(&self, block: DataBlock) -> u16 {
        let peak = self.format.peak(self.buffer.slice(self.range(block)));
        self.format.key(&[peak])
    }

    fn encode(&self, block: DataBlock, key: u16, lanes: &mut [u8]) -> Encoded {
        self.format.encode(key, &[self.buffer.slice(self.range(block))], lanes)
    }

    fn decode(&mut self, block: DataBlock, key: u16, lanes: Option<&[u8]>, contributors: u32) {
        let range = self.range(block);
        let Some(lanes) = lanes else {
            if self.purpose.leaves_out() {
                return self.left_out.push(range);
            }
            return T::fill_nan(self.buffer.slice_mut(range));
        };
        let to = self.buffer.slice_mut(range);
        self.format.decode(key, lanes, contributors, contributors, to);
    }

    fn left_out(&self) -> &[Range<usize>] {
        &self.left_out
    }
}

/// Elements of a block: of the chunks that were agreed upon, if any were.
///
/// # Errors
/// These are more than the path takes.
pub fn block_len(format: &Format, agreed: Option<u16>, chunks: u16) -> Result<usize, Error> {
    match agreed {
        Some(agreed) if agreed > chunks => Err(Error::Protocol(format!(
            "blocks of {chunks} chunks in a job of {agreed}; the MTU on the way has become smaller"
        ))),
        agreed => Ok(usize::from(agreed.unwrap_or(chunks)) * format.lanes_per_chunk()),
    }
}

#[cfg(test)]
mod tests {
    use xdp_agg_quantize::{Op, Scaling};

    use super::*;

    /// The results of one part may be there when another one begins.
    #[test]
    fn only_whole_vectors_are_checked() {
        let format = Format::new(i32::TYPE, Op::Sum, Scaling::Block, None, 2).expect("sums");
        let data = || Buffer::owned(vec![i32::MAX; 3]);
        assert!(Local::new(data(), format).check().is_err());
        let share = Share { index: 1, of: 2 };
        assert!(Local::part(data(), format, share, 1).check().is_ok());
    }

    #[test]
    fn shares_cover_all_blocks_once() {
        for (blocks, of) in [(0, 1), (1, 3), (10, 3), (12, 4), (7, 1)] {
            let mut all: Vec<u64> = (0..of)
                .flat_map(|index| {
                    let share = Share { index, of };
                    (0..share.count(blocks)).map(move |block| share.place(DataBlock(block)))
                })
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..blocks).collect::<Vec<_>>());
            for index in 0..of {
                let share = Share { index, of };
                for place in 0..=blocks {
                    let below =
                        (0..share.count(blocks)).filter(|b| share.place(DataBlock(*b)) < place);
                    assert_eq!(share.below(place).0, below.count() as u64);
                }
            }
        }
    }
}
