//! The elements of a call of several processes of one host: this one's slices of the vector.
//!
//! Reduce-scatter inside the host and quantization are one: a block is encoded straight from the
//! processes' parts in the shared segment (SW-IntraCC's CSC-RS, fused; PASSING, section 4.1). So
//! are de-quantization and all-gather: a result is decoded straight into the segment, where all
//! processes of the host read it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_intranode::{Exchange, Feeder, Geometry, Group, Key, Marks, Reserved, Results, Shape};
use xdp_agg_protocol::worker::{
    Blocks, Buffer, DataBlock, Path, Purpose, Report, Share, block_len,
};
use xdp_agg_quantize::{Element, Encoded, Format};

use crate::digest::digest;
use crate::error::{Error, JobError, code_of};

/// This process's slices of a vector that is summed by several hosts, or the part of them that one
/// of several aggregators sums.
#[derive(Debug)]
pub(crate) struct Grouped<T: Element> {
    /// None when this part is done: the room in the segment is for other calls then, also while
    /// nobody has asked for the result yet.
    exchange: Option<Arc<Exchange>>,
    geometry: Geometry,
    format: Format,
    share: Share,
    place: LocalPlace,
    /// The vector goes in and out here; one of the parts has it.
    feed: Option<Feed<T>>,
    /// What all owners of the host report, when all is done.
    marks: Option<Marks>,
    /// Blocks of this part without a result.
    left: u64,
    /// The block whose result came last: it is told when the report is there.
    last: Option<u64>,
    purpose: Purpose,
    left_out: Vec<Range<usize>>,
}

/// This process among those of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPlace {
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    /// Chunks of a block.
    pub(crate) chunks: u16,
    /// Blocks of a slice in a full chunk.
    pub(crate) slice_blocks: usize,
}

/// This process's whole vector.
#[derive(Debug)]
pub(crate) struct Feed<T: Element> {
    /// None when the whole result is in the vector.
    pub(crate) feeder: Option<Feeder>,
    pub(crate) buffer: Buffer<T>,
    pub(crate) access: Access,
}

/// How the feeder reaches the vector.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// It copies input into the segment, and results out of it.
    Copies,
    /// It copies input; results stay in the segment.
    Reads,
    /// The vector lies in the segment.
    InSegment,
}

/// What a call of a host's processes is, besides its elements.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    pub(crate) format: Format,
    /// Chunks of a block.
    pub(crate) chunks: u16,
    /// Its number, the same in all processes of the host.
    pub(crate) sequence: u64,
    pub(crate) purpose: &'a Purpose,
    /// By which way it goes.
    pub(crate) way: &'static str,
}

/// A call of a host's processes that is open in this one.
#[derive(Debug)]
pub(crate) struct Opened<T: Element> {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) place: LocalPlace,
    pub(crate) feed: Feed<T>,
    /// Where results that are to be read in place will be.
    pub(crate) results: Option<Results>,
}

impl Opening<'_> {
    /// Opens the call. `results`: the place in which they are to be read.
    pub(crate) fn open<T: Element>(
        &self,
        group: &Arc<Group>,
        buffer: Buffer<T>,
        results: Option<Reserved>,
    ) -> Result<Opened<T>, xdp_agg_intranode::Error> {
        let Self { format, chunks, sequence, purpose, way } = *self;
        let block = usize::from(chunks) * format.lanes_per_chunk();
        let place = LocalPlace {
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            chunks,
            slice_blocks: group.slice_blocks(block * size_of::<T>()),
        };
        let geometry = Geometry::new(buffer.len(), block, place.slice_blocks, place.local_size);
        let what = purpose.what().unwrap_or_else(|| format.op().name());
        let description =
            format!("call {sequence}: {what} of {} {} by {way}", buffer.len(), T::TYPE);
        let numbers = xdp_agg_protocol::worker::numbers(&format);
        let shape = Shape {
            sequence,
            len: buffer.len(),
            element_size: size_of::<T>(),
            digest: digest(format!("{description}, {numbers}").bytes()),
            description,
            key: format.needs_exponents().then(|| Key::new(move |peaks| format.key(peaks))),
        };
        let is_view = results.is_some();
        let (mut feeder, exchange, results) = match results {
            None => {
                let (feeder, exchange) = group.begin(&shape, geometry)?;
                (feeder, exchange, None)
            }
            Some(results) => {
                let (feeder, exchange, results) = group.begin_view(&shape, geometry, results)?;
                (feeder, exchange, Some(results))
            }
        };
        let bytes = buffer.len() * size_of::<T>();
        let access = match group.find(buffer.pointer().cast(), bytes) {
            Some(vector) => {
                #[expect(unsafe_code, reason = "the vector of a call lies in the segment")]
                // SAFETY: the call has the buffer, and is the only one that touches it: it is lent
                // until all parts of the call are gone. It is written to unless results are read
                // in place.
                unsafe {
                    feeder.adopt(vector, purpose.leaves_out());
                }
                Access::InSegment
            }
            None if is_view => {
                if purpose.leaves_out() {
                    feeder.look_at_results();
                }
                Access::Reads
            }
            None => Access::Copies,
        };
        let feed = Feed { feeder: Some(feeder), buffer, access };
        Ok(Opened { exchange, place, feed, results })
    }
}

impl<T: Element> Grouped<T> {
    pub(crate) fn new(
        exchange: Arc<Exchange>,
        format: Format,
        share: Share,
        place: LocalPlace,
        feed: Option<Feed<T>>,
    ) -> Self {
        let left = share.count(exchange.own_blocks());
        let geometry = exchange.geometry();
        let exchange = Some(exchange);
        let (marks, last, purpose, left_out) = (None, None, Purpose::default(), Vec::new());
        Self {
            exchange,
            geometry,
            format,
            share,
            place,
            feed,
            marks,
            left,
            last,
            purpose,
            left_out,
        }
    }

    /// The same as a part of something that is more than an all-reduce.
    pub(crate) fn with_purpose(mut self, purpose: &Purpose) -> Self {
        self.purpose = purpose.clone();
        self
    }
}

impl<T: Element> Grouped<T> {
    /// Sleeps until `ready`, or this process can go on with the call, or a ring of another process.
    pub(crate) fn wait(&self, timeout: Duration, ready: impl FnOnce(&Self) -> bool) {
        let feeder = self.feed.as_ref().and_then(|feed| feed.feeder.as_ref());
        let exchange = self.exchange.as_ref().or_else(|| feeder.map(Feeder::exchange));
        let can = || ready(self) || feeder.is_some_and(Feeder::can);
        if let Some(exchange) = exchange {
            exchange.wait(timeout, can);
        }
    }

    /// Blocks of this part.
    fn blocks(&self) -> u64 {
        self.share.count(self.geometry.own_blocks(self.place.local_rank))
    }

    /// Other processes of the host, of those that the feeder names.
    fn others(&self, named: impl Fn(&Feeder) -> Vec<usize>) -> Vec<usize> {
        let feeder = self.feed.as_ref().and_then(|feed| feed.feeder.as_ref());
        let mut others = feeder.map_or_else(Vec::new, named);
        others.retain(|local_rank| *local_rank != self.place.local_rank);
        others
    }
}

impl<T: Element> Blocks for Grouped<T> {
    fn format(&self) -> &Format {
        &self.format
    }

    fn vector_len(&self) -> usize {
        self.geometry.len()
    }

    fn purpose(&self) -> Option<&str> {
        self.purpose.what()
    }

    fn part(&self) -> Option<String> {
        let LocalPlace { local_rank, local_size, slice_blocks, chunks } = self.place;
        let slices = format!(
            "slices of {slice_blocks} blocks of {chunks} chunks, process {local_rank} of \
             {local_size}"
        );
        Some(match self.share.in_words() {
            Some(part) => format!("{part}, {slices}"),
            None => slices,
        })
    }

    fn root(&self) -> Option<u16> {
        self.purpose.root()
    }

    fn check(&self) -> Result<(), JobError> {
        let Some(Feed { buffer, .. }) = &self.feed else { return Ok(()) };
        let data = buffer.slice(0..buffer.len());
        Ok(self.format.check(data, self.place.local_size as u16)?)
    }

    fn cut(&mut self, chunks: u16) -> Result<u64, JobError> {
        block_len(&self.format, Some(self.place.chunks), chunks)?;
        Ok(self.blocks())
    }

    fn agreed_chunks(&self) -> Option<u16> {
        Some(self.place.chunks)
    }

    fn elements(&self, block: DataBlock) -> usize {
        let own = self.share.place(block);
        self.geometry.locate(self.place.local_rank, own).1.len()
    }

    fn scanned(&self) -> DataBlock {
        let scanned = self.exchange.as_ref().map(|exchange| exchange.scanned());
        scanned.map_or(DataBlock(self.blocks()), |scanned| self.share.below(scanned))
    }

    fn staged(&self) -> DataBlock {
        let staged = self.exchange.as_ref().map(|exchange| exchange.staged());
        staged.map_or(DataBlock(self.blocks()), |staged| self.share.below(staged))
    }

    fn most_at_once(&self) -> u64 {
        // A chunk's worth of this part, whatever the others have done.
        (self.place.slice_blocks as u64 / self.share.of).max(1)
    }

    fn key(&self, block: DataBlock) -> u16 {
        self.exchange.as_ref().map_or(0, |exchange| exchange.key(self.share.place(block)))
    }

    fn encode(&self, block: DataBlock, key: u16, lanes: &mut [u8]) -> Encoded {
        // Nothing is sent again of a part that is done.
        let Some(exchange) = &self.exchange else { return Encoded::default() };
        let inputs = exchange.inputs(self.share.place(block));
        let mut sources: [&[T]; xdp_agg_intranode::MAX_PROCESSES] =
            [&[]; xdp_agg_intranode::MAX_PROCESSES];
        for (source, input) in sources.iter_mut().zip(inputs.iter()) {
            *source = bytemuck::cast_slice(input);
        }
        self.format.encode(key, &sources[..inputs.len()], lanes)
    }

    fn decode(&mut self, block: DataBlock, key: u16, lanes: Option<&[u8]>, contributors: u32) {
        let own = self.share.place(block);
        let processes = contributors * self.place.local_size as u32;
        let Some(exchange) = &self.exchange else { return };
        let is_number = exchange.with_output(own, |bytes| {
            let to: &mut [T] = bytemuck::cast_slice_mut(bytes);
            match lanes {
                Some(lanes) => self.format.decode(key, lanes, contributors, processes, to),
                None => T::fill_nan(to),
            }
            !to[0].is_nan()
        });
        // No worker sends a block again that has its result.
        exchange.hand_out(own, is_number);
        self.left -= 1;
        if self.left == 0 {
            self.last = Some(own);
        } else {
            exchange.finish(own, Marks::default());
        }
    }

    fn all_reduced(&mut self, report: &Report) {
        let exchange = self.exchange.take();
        let Some((last, exchange)) = self.last.take().zip(exchange) else { return };
        let marks = Marks {
            saturated: report.saturated,
            non_finite_blocks: report.non_finite_blocks,
            contributors_all: report.contributors,
            contributors_any: report.contributors | report.partial,
            reforms: report.reforms,
            path: match report.path {
                Path::Aggregator => 1,
                Path::Ring => 2,
                Path::Mixed => 3,
                Path::Host => 4,
            },
        };
        exchange.finish(last, marks);
    }

    fn work(&mut self) -> Result<bool, JobError> {
        let Some(Feed { feeder: Some(feeder), buffer, access }) = &mut self.feed else {
            if let Some(exchange) = &self.exchange {
                exchange.check().map_err(Error::Host)?;
            }
            return Ok(false);
        };
        // One of an empty vector is done before anything was done.
        if !feeder.can() && !feeder.done() {
            return Ok(false);
        }
        let len = buffer.len();
        let format = self.format;
        let mut scan = |block: &[u8]| format.peak::<T>(bytemuck::cast_slice(block));
        let (purpose, left_out) = (&self.purpose, &mut self.left_out);
        let leaves_out = purpose.leaves_out();
        // A result that is a number has no NaN; results of integers never have one.
        let mut wanted = |place: Range<usize>, result: &[u8]| {
            let is_number = !leaves_out || !bytemuck::cast_slice::<_, T>(result)[0].is_nan();
            let elements = place.start / size_of::<T>()..place.end / size_of::<T>();
            if is_number {
                return purpose.wants(&elements);
            }
            left_out.push(elements);
            false
        };
        let progress = match access {
            Access::Copies => {
                let data = bytemuck::cast_slice_mut(buffer.slice_mut(0..len));
                feeder.poll_choosing(data, &mut scan, &mut wanted)
            }
            Access::Reads => {
                let data = bytemuck::cast_slice(buffer.slice(0..len));
                feeder.poll_reading(data, &mut scan, &mut wanted)
            }
            Access::InSegment => feeder.poll_in_segment(&mut scan, &mut wanted),
        };
        let progress = progress.map_err(Error::Host)?;
        if progress.done {
            self.marks = Some(feeder.marks());
            if let Some(feed) = &mut self.feed {
                feed.feeder = None;
            }
        }
        Ok(progress.did || progress.done)
    }

    fn finished(&self) -> bool {
        self.feed.as_ref().is_none_or(|feed| feed.feeder.is_none())
    }

    fn complete(&self, report: &mut Report) {
        report.processes = self.place.local_size as u16;
        let Some(marks) = self.marks.filter(|_| self.knows_contributors()) else { return };
        report.saturated = marks.saturated;
        report.non_finite_blocks = marks.non_finite_blocks;
        report.contributors = marks.contributors_all;
        report.partial = marks.contributors_any & !marks.contributors_all;
        report.reforms = marks.reforms;
        report.path = match marks.path {
            2 => Path::Ring,
            3 => Path::Mixed,
            4 => Path::Host,
            _ => Path::Aggregator,
        };
    }

    fn knows_contributors(&self) -> bool {
        self.marks.is_some() && !self.geometry.is_empty()
    }

    fn left_out(&self) -> &[Range<usize>] {
        &self.left_out
    }

    fn awaited(&self) -> Vec<usize> {
        // A process that has staged its part, but not summed its slices, may wait for another host.
        // It says so then, unless it is not able to.
        self.others(Feeder::unstaged)
    }

    fn overdue(&self, after: Duration) -> Option<JobError> {
        let waiting_for = self.others(Feeder::waiting_for);
        let is_theirs = !waiting_for.is_empty();
        let known = self.feed.as_ref().and_then(|feed| feed.feeder.as_ref());
        let known = known.map_or_else(String::new, |feeder| feeder.describe(&waiting_for));
        let what = "a call";
        let error = xdp_agg_intranode::Error::Deadline { what, after, waiting_for, known };
        is_theirs.then(|| Error::Host(error).into())
    }

    fn abort(&mut self, error: &JobError) {
        if self.left > 0 || self.last.is_some() || !self.finished() {
            // The job of a slice numbers hosts; the other processes are told of ranks.
            let LocalPlace { local_rank, local_size, .. } = self.place;
            let error = error.clone().in_ranks(local_size as u16, local_rank as u16);
            let (code, text) = (code_of(error.cause(0)), error.to_string());
            if let Some(exchange) = &self.exchange {
                exchange.fail(code, &text);
            } else if let Some(feeder) = self.feed.as_ref().and_then(|feed| feed.feeder.as_ref()) {
                feeder.exchange().fail(code, &text);
            }
        }
    }
}
