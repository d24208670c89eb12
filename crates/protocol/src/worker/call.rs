//! One all-reduce in flight: its blocks, and what is left of it.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use xdp_agg_common::control::{self, Held};
use xdp_agg_common::lanes::{CHUNK_LEN, MAX_PAYLOAD};
use xdp_agg_common::wire::{Reduction, flags};
use xdp_agg_quantize::{Format, KEYS_PER_CHUNK, decode_keys, encode_keys};

use super::block::{DataBlock, JobBlock};
use super::blocks::Blocks;
use super::error::Error;
use super::layout::{Content, Layout, group_of};
use super::record::{Ending, Label, Record, Timeline};
use super::report::{Path, Report};

/// 16-bit tags that make a digest: a call of fewer blocks has a seal.
const TAGS: u64 = 4;
/// Blocks that a worker without others sums at once: about 200 KB at MTU 1500. Between them it
/// looks after what the processes of its host do.
const AT_ONCE: u64 = 128;

/// A call in flight, or just finished.
///
/// It is cut into blocks when the job lets it begin (`Self::begin`), because block numbers and
/// sizes are the job's. Its blocks go by their numbers in the job's life; `Layout` says what each
/// holds.
#[derive(Debug)]
pub struct Call {
    pub(crate) sequence: u64,
    /// The same among all calls of this worker, also those that do not go through the aggregator.
    pub(crate) position: u64,
    pub(crate) first_block: JobBlock,
    /// Of its arguments: see [`digest`].
    pub(crate) digest: u64,
    pub(crate) report: Report,
    /// When what of it happened.
    pub(crate) times: Timeline,
    /// Nobody waits for it: it is dropped when it is done.
    pub(crate) abandoned: bool,
    /// Its worker is the job's only one. Nothing of it travels, so it has no numbers among the
    /// job's blocks.
    pub(crate) alone: bool,
    /// If it is alone: blocks that are summed, counted from the call's first.
    summed: u64,
    blocks: Box<dyn Blocks>,
    layout: Layout,
    /// The block, counted from the call's first, that ends with the call's seal.
    seal: Option<u64>,
    /// The agreed key of each data block, where its group's keys are known.
    keys: Vec<u16>,
    /// By group: its keys are known.
    known: Vec<bool>,
    /// Blocks below this one, counted from the call's first, may be sent.
    released: u64,
    begun: bool,
    left: u64,
    /// One past the last block whose clamped elements were counted.
    counted: JobBlock,
    /// Whose contributions are in the first block that was finished.
    usual: u64,
    /// Finished blocks with other contributors, as far as neighbours come one after the other.
    unusual: Vec<Held>,
    /// Data blocks that are finished.
    data_done: u64,
}

/// What salts the digests of a job's calls: the same at all its members, and in all its epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    /// The daemon refuses workers of another run.
    pub(crate) run: Option<&'a str>,
}

/// What a block's packet says in its header besides its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) flags: u8,
    pub(crate) reduction: Reduction,
}

impl Report {
    /// What became of a call of which each aggregator had a part.
    ///
    /// A part without blocks names the members at its beginning. These differ between workers while
    /// one is being lost, and the part holds no contribution: only the other parts count.
    #[must_use]
    pub fn of_parts(parts: &[Call]) -> Self {
        let telling = parts.iter().filter(|part| part.knows_contributors());
        let joined = telling.map(|part| part.report).reduce(Self::joined);
        joined.or_else(|| Some(parts.first()?.report)).unwrap_or_default()
    }
}

impl Call {
    /// A call that has not begun, of the job with this name and run.
    pub(crate) fn new(job: Job<'_>, sequence: u64, blocks: Box<dyn Blocks>) -> Self {
        let mut call = Self {
            sequence,
            position: sequence,
            first_block: JobBlock(0),
            digest: 0,
            report: Report::default(),
            times: Timeline::default(),
            abandoned: false,
            alone: false,
            summed: 0,
            blocks,
            layout: Layout::new(0, 0),
            seal: None,
            keys: Vec::new(),
            known: Vec::new(),
            released: 0,
            begun: false,
            left: 0,
            counted: JobBlock(0),
            usual: 0,
            unusual: Vec::new(),
            data_done: 0,
        };
        call.digest = digest(job, &call.describe());
        call
    }

    /// What a block's packets say of the call: the 16-bit parts of its digest in turn. So each four
    /// blocks in a row say all of it. A call of fewer blocks has a seal.
    pub(crate) fn tag(&self, block: JobBlock) -> u16 {
        (self.digest >> (16 * ((block.0 - self.first_block.0) % TAGS))) as u16
    }

    /// Cuts the call into blocks of `chunks` chunks, numbered from `first_block`. `members` are
    /// those of the epoch.
    pub(crate) fn begin(
        &mut self,
        first_block: JobBlock,
        chunks: u16,
        members: u64,
    ) -> Result<(), Error> {
        let data = self.blocks.cut(chunks)?;
        let group = if self.blocks.format().needs_exponents() {
            group_of(self.blocks.agreed_chunks().unwrap_or(chunks))
        } else {
            0
        };
        self.layout = Layout::new(data, group);
        self.keys = vec![0; if group > 0 { data as usize } else { 0 }];
        self.known = vec![false; self.layout.groups() as usize];
        self.first_block = first_block;
        // The processes of one host have compared what they call.
        self.seal = if self.alone { None } else { self.sealed(chunks) };
        self.report.blocks = self.layout.blocks().max(self.seal.map_or(0, |at| at + 1));
        self.report.exponent_blocks = self.layout.groups();
        self.report.contributors = members;
        if self.alone {
            self.report.path = Path::Host;
        }
        self.left = self.report.blocks;
        self.begun = true;
        if self.left == 0 {
            self.settle();
        }
        Ok(())
    }

    /// Where the seal stands: behind the keys, or behind the last elements. A block of its own has
    /// it where that one is full.
    fn sealed(&self, chunks: u16) -> Option<u64> {
        let blocks = self.layout.blocks();
        if !(1..TAGS).contains(&blocks) {
            return None;
        }
        let usual = if self.layout.groups() > 0 { 0 } else { blocks - 1 };
        let room = usize::from(chunks) * CHUNK_LEN;
        Some(if self.lanes_len(self.first_block + usual) < room { usual } else { blocks })
    }

    /// Whether a block ends with the seal.
    pub(crate) fn is_sealed(&self, block: JobBlock) -> bool {
        self.seal == Some(block - self.first_block)
    }

    /// All blocks are finished.
    fn settle(&mut self) {
        self.blocks.all_reduced(&self.report);
        // Else `work` will finish it.
        if self.blocks.finished() {
            self.blocks.complete(&mut self.report);
        }
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

    /// Its report says whose contributions are in the result, and not merely which workers might
    /// have contributed.
    pub(super) fn knows_contributors(&self) -> bool {
        self.report.blocks > 0 || self.blocks.knows_contributors()
    }

    /// Number of its first block in the job's life; its blocks follow each other.
    #[must_use]
    pub const fn first_block(&self) -> JobBlock {
        self.first_block
    }

    /// Whose contributions are in which blocks: all blocks of a finished call, in ascending order.
    #[must_use]
    pub fn contributors(&self) -> Vec<Held> {
        let mut unusual = self.unusual.clone();
        unusual.sort_unstable_by_key(|held| held.from);
        let mut runs: Vec<Held> = Vec::new();
        let mut at = self.first_block.0;
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
        push(at, self.end().0 - at, self.usual);
        runs
    }

    /// The worker whose elements all get, where nobody else has any.
    pub(crate) fn root(&self) -> Option<u16> {
        self.blocks.root()
    }

    /// The arguments that must agree between workers.
    pub(crate) fn describe(&self) -> control::Call {
        let format = self.blocks.format();
        let mut numbers = numbers(format);
        if let Some(part) = self.blocks.part() {
            numbers = format!("{numbers}, {part}");
        }
        control::Call {
            sequence: self.sequence,
            count: self.blocks.vector_len() as u64,
            element: format.element().name().into(),
            operation: self.blocks.purpose().unwrap_or_else(|| format.op().name()).into(),
            numbers,
        }
    }

    /// What is remembered of it.
    #[must_use]
    pub fn record(&self, ending: Ending) -> Record {
        let format = self.blocks.format();
        Record {
            sequence: self.sequence,
            what: self.blocks.purpose().map(Label::new),
            len: self.blocks.vector_len() as u64,
            element: format.element(),
            op: format.op(),
            digest: self.digest,
            times: self.times,
            ending,
            report: self.report,
        }
    }

    /// Remembers when it was done, if it is.
    pub(crate) fn note_done(&mut self, now: Duration) {
        if self.times.done.is_none() && self.is_done() {
            self.times.done = Some(now);
        }
    }

    /// True when all its blocks are finished, and what is to be done besides.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_reduced() && self.blocks.finished()
    }

    /// True when all its blocks are finished.
    pub(crate) const fn is_reduced(&self) -> bool {
        self.begun && self.left == 0
    }

    pub(crate) const fn has_begun(&self) -> bool {
        self.begun
    }

    pub(crate) const fn holds(&self, block: JobBlock) -> bool {
        let (block, first) = (block.0, self.first_block.0);
        !self.alone && block >= first && block - first < self.report.blocks
    }

    /// One past its last block among the job's.
    pub(crate) fn end(&self) -> JobBlock {
        self.first_block + if self.alone { 0 } else { self.report.blocks }
    }

    /// Sums some of the blocks whose input is there, if its worker is the only one: the lanes that
    /// it would send are the sum. So results have the bits that an aggregator would give them. True
    /// if there were any.
    pub(crate) fn sum_alone(&mut self, members: u64) -> bool {
        if !self.alone || !self.begun || self.left == 0 {
            return false;
        }
        let mut payload = [0; MAX_PAYLOAD];
        let first = self.first_block + self.summed;
        let end = self.release().min(first + AT_ONCE);
        for index in 0..end.0.saturating_sub(first.0) {
            let block = first + index;
            let len = self.payload_len(block);
            let marks = self.encode(block, true, &mut payload[..len]);
            self.decode(block, marks.flags, &payload[..len], members);
        }
        self.summed = end.0.max(first.0) - self.first_block.0;
        end > first
    }

    /// Its elements: the result, where it is done.
    #[must_use]
    pub fn into_blocks(self) -> Box<dyn Blocks> {
        self.blocks
    }

    /// Does a piece of what is to be done besides sending and receiving; see [`Blocks::work`].
    pub(crate) fn work(&mut self) -> Result<bool, Error> {
        let did = self.blocks.work()?;
        if did && self.is_done() {
            self.blocks.complete(&mut self.report);
        }
        Ok(did)
    }

    /// See [`Blocks::awaited`].
    pub(crate) fn awaited(&self) -> Vec<usize> {
        self.blocks.awaited()
    }

    /// See [`Blocks::overdue`].
    pub(crate) fn overdue(&self, waited: Duration) -> Option<Error> {
        self.blocks.overdue(waited)
    }

    /// It will not end well.
    pub(crate) fn abort(&mut self, error: &Error) {
        if !self.is_done() {
            self.blocks.abort(error);
        }
    }

    /// One past the last block that may be sent: its input is in place, and its exponent known. It
    /// never goes back.
    pub(crate) fn release(&mut self) -> JobBlock {
        if self.released < self.report.blocks {
            let (scanned, staged) = (self.blocks.scanned(), self.blocks.staged());
            while self.released < self.report.blocks
                && self.is_ready(self.released, scanned, staged)
            {
                self.released += 1;
            }
        }
        self.first_block + self.released
    }

    fn is_ready(&self, index: u64, scanned: DataBlock, staged: DataBlock) -> bool {
        index == self.layout.blocks()
            || self.knows(self.first_block + index)
                && match self.layout.content(index) {
                    Content::Keys(group) => self.layout.group_range(group).1 <= scanned.0,
                    Content::Data(data) => data < staged,
                }
    }

    /// Everything that the workers must agree on before this block is known.
    pub(crate) fn knows(&self, block: JobBlock) -> bool {
        match self.content(block) {
            Some(Content::Data(data)) if !self.known.is_empty() => {
                self.known[self.layout.group_of(data) as usize]
            }
            _ => true,
        }
    }

    /// Most blocks whose input can be in place at once, while none of them is finished.
    pub(crate) fn most_at_once(&self) -> u64 {
        self.blocks.most_at_once()
    }

    /// Payload bytes of a block.
    pub(crate) fn payload_len(&self, block: JobBlock) -> usize {
        self.lanes_len(block) + if self.is_sealed(block) { CHUNK_LEN } else { 0 }
    }

    /// The same without the seal.
    fn lanes_len(&self, block: JobBlock) -> usize {
        let chunks = match self.content(block) {
            None => 0,
            Some(Content::Keys(group)) => {
                let (from, to) = self.layout.group_range(group);
                ((to - from) as usize).div_ceil(KEYS_PER_CHUNK)
            }
            Some(Content::Data(data)) => {
                let lanes = self.blocks.format().lanes_per_chunk();
                self.blocks.elements(data).div_ceil(lanes)
            }
        };
        chunks * CHUNK_LEN
    }

    /// Writes a block's payload; what its header says. The result is the same at every
    /// transmission: the elements change only when the block's result is here.
    pub(crate) fn encode(
        &mut self,
        block: JobBlock,
        first_time: bool,
        payload: &mut [u8],
    ) -> Marks {
        let reduction = self.reduction(block);
        let (lanes, seal) = payload.split_at_mut(self.lanes_len(block));
        if let Some(seal) = seal.first_chunk_mut() {
            *seal = sealing(self.digest, reduction);
        }
        let data = match self.content(block) {
            None => return Marks { flags: 0, reduction },
            Some(Content::Data(data)) => data,
            Some(Content::Keys(group)) => {
                let (from, to) = self.layout.group_range(group);
                let keys: Vec<u16> =
                    (from..to).map(|data| self.blocks.key(DataBlock(data))).collect();
                encode_keys(&keys, lanes);
                return Marks { flags: 0, reduction };
            }
        };
        let encoded = self.blocks.encode(data, self.key(data), lanes);
        // A block that is summed again in a later epoch has been counted.
        if first_time && block >= self.counted {
            self.counted = block + 1;
            self.report.saturated += u64::from(encoded.saturated);
        }
        let flags = if encoded.non_finite { flags::NON_FINITE } else { 0 };
        Marks { flags, reduction }
    }

    /// How the aggregator makes one of a block's contributions.
    pub(crate) fn reduction(&self, block: JobBlock) -> Reduction {
        match self.content(block) {
            Some(Content::Keys(_)) => Reduction::Max16,
            _ => self.blocks.format().reduction(),
        }
    }

    /// Whether a block's result comes of this call at all its members, as far as the seal tells.
    /// `payload` has the length of [`Self::payload_len`].
    pub(crate) fn is_of_all(&self, block: JobBlock, payload: &[u8], members: u64) -> bool {
        if !self.is_sealed(block) {
            return true;
        }
        let seal = &payload[self.lanes_len(block)..];
        let reduction = self.reduction(block);
        let own = sealing(self.digest, reduction);
        // A root's contribution alone may be the result.
        let alone = reduction != Reduction::Add || self.root().is_some();
        alone && seal == own
            || reduction == Reduction::Add && seal == times(own, members.count_ones())
    }

    /// Takes in the result of a block over these members: `payload` has the length of
    /// [`Self::payload_len`], and [`Self::is_of_all`] is asked before.
    pub(crate) fn decode(
        &mut self,
        block: JobBlock,
        result_flags: u8,
        payload: &[u8],
        members: u64,
    ) {
        let part = self.content(block);
        let lanes = &payload[..self.lanes_len(block)];
        self.note_contributors(block, members, matches!(part, Some(Content::Data(_))));
        self.left -= 1;
        match part {
            None => {}
            Some(Content::Keys(group)) => {
                let (from, to) = self.layout.group_range(group);
                decode_keys(lanes, &mut self.keys[from as usize..to as usize]);
                self.known[group as usize] = true;
            }
            Some(Content::Data(data)) => {
                let finite = result_flags & flags::NON_FINITE == 0;
                self.report.non_finite_blocks += u64::from(!finite);
                let lanes = finite.then_some(lanes);
                self.blocks.decode(data, self.key(data), lanes, members.count_ones());
            }
        }
        if self.left == 0 {
            self.settle();
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

    /// The block that is finished next was summed by an aggregator.
    pub(crate) const fn goes_over_aggregator(&mut self) {
        if matches!(self.report.path, Path::Ring) {
            self.report.path = Path::Mixed;
        }
    }

    /// A report names the workers in the data; a worker in the exponents alone added nothing.
    fn note_contributors(&mut self, block: JobBlock, members: u64, is_data: bool) {
        if self.left == self.report.blocks {
            self.usual = members;
        }
        if is_data {
            let report = &mut self.report;
            let first = self.data_done == 0;
            let any = if first { members } else { report.contributors | report.partial | members };
            report.contributors = if first { members } else { report.contributors & members };
            report.partial = any & !report.contributors;
            self.data_done += 1;
        }
        if members == self.usual {
            return;
        }
        match self.unusual.last_mut() {
            Some(last) if last.members == members && last.from + last.len == block.0 => {
                last.len += 1;
            }
            _ => self.unusual.push(Held { from: block.0, len: 1, members }),
        }
    }

    /// What it holds besides the seal.
    fn content(&self, block: JobBlock) -> Option<Content> {
        let index = block - self.first_block;
        (index < self.layout.blocks()).then(|| self.layout.content(index))
    }

    fn key(&self, data: DataBlock) -> u16 {
        self.keys.get(data.0 as usize).copied().unwrap_or_default()
    }
}

/// How a format's numbers travel, in words.
#[must_use]
pub fn numbers(format: &Format) -> String {
    let width = format.width();
    match format.scaling() {
        Some(scaling) => format!("{scaling} in {width}-bit lanes"),
        None => format!("as {width}-bit integers"),
    }
}

/// 64 bits of a call's arguments, on which all members must agree. Two calls that differ have the
/// same once in 2^64 times. They are salted by the job: calls that are confused in one job are not
/// in the next one. An epoch's numbers are no salt: a call that begins in one epoch at one member
/// may begin in the next one at another.
fn digest(job: Job<'_>, call: &control::Call) -> u64 {
    let control::Call { sequence, count, element, operation, numbers } = call;
    let mut hasher = SipHasher24::new();
    for number in [*sequence, *count] {
        hasher.write(&number.to_le_bytes());
    }
    let run = job.run.unwrap_or_default();
    for text in [job.name, run, element, operation, numbers] {
        hasher.write(&(text.len() as u64).to_le_bytes());
        hasher.write(text.as_bytes());
    }
    hasher.finish()
}

/// A call's seal: lanes of which the aggregator makes something else, if a digest differs.
///
/// In sums each lane of 64 bits has a byte of the digest. Of the smallest or largest of lanes, be
/// they as wide as they may, the digest and its complement come out unchanged if all are the same.
fn sealing(digest: u64, reduction: Reduction) -> [u8; CHUNK_LEN] {
    let mut seal = [0; CHUNK_LEN];
    let (lanes, _) = seal.as_chunks_mut();
    match reduction {
        Reduction::Add | Reduction::Copy => {
            for (lane, byte) in lanes.iter_mut().zip(digest.to_le_bytes()) {
                *lane = u64::from(byte).to_le_bytes();
            }
        }
        _ => (lanes[0], lanes[1]) = (digest.to_le_bytes(), (!digest).to_le_bytes()),
    }
    seal
}

/// The sum of that many equal seals.
fn times(mut seal: [u8; CHUNK_LEN], members: u32) -> [u8; CHUNK_LEN] {
    for lane in seal.as_chunks_mut().0 {
        *lane = (u64::from_le_bytes(*lane) * u64::from(members)).to_le_bytes();
    }
    seal
}

#[cfg(test)]
mod tests;
