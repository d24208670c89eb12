//! The elements of a call of several processes of one host: this one's slices of the vector.
//!
//! Reduce-scatter inside the host and quantisation are one: a block is encoded straight from the
//! processes' parts in the shared segment (SW-IntraCC's CSC-RS, fused; PASSING, section 4.1). So
//! are de-quantisation and all-gather: a result is decoded straight into the segment, where all
//! processes of the host read it.

use std::any::Any;
use std::sync::Arc;

use xdp_agg_host::{Exchange, Feeder, Marks};
use xdp_agg_numbers::{Element, Encoded, Format};

use crate::blocks::{Blocks, Share, block_len};
use crate::buffer::Buffer;
use crate::call::{Path, Report};
use crate::error::Error;

/// This process's slices of a vector that is summed by several hosts, or the part of them that one
/// of several aggregators sums.
#[derive(Debug)]
pub(crate) struct Grouped<T: Element> {
    exchange: Arc<Exchange>,
    format: Format,
    share: Share,
    place: Place,
    /// The vector goes in and out here; one of the parts has it.
    feed: Option<Feed<T>>,
    /// Blocks of this part without a result.
    left: u64,
    /// The block whose result came last: it is told when the report is there.
    last: Option<u64>,
}

/// This process among those of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
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
    pub(crate) feeder: Feeder,
    pub(crate) buffer: Buffer<T>,
}

impl<T: Element> Grouped<T> {
    pub(crate) fn new(
        exchange: Arc<Exchange>,
        format: Format,
        share: Share,
        place: Place,
        feed: Option<Feed<T>>,
    ) -> Self {
        let left = share.count(exchange.own_blocks());
        Self { exchange, format, share, place, feed, left, last: None }
    }

    /// The vector: the result, once the call is done. None: another part has it.
    pub(crate) fn into_buffer(self) -> Option<Buffer<T>> {
        self.feed.map(|feed| feed.buffer)
    }
}

impl<T: Element> Blocks for Grouped<T> {
    fn format(&self) -> &Format {
        &self.format
    }

    fn vector_len(&self) -> usize {
        self.exchange.geometry().len()
    }

    fn check(&self) -> Result<(), Error> {
        let Some(Feed { buffer, .. }) = &self.feed else { return Ok(()) };
        let data = buffer.slice(0..buffer.len());
        Ok(self.format.check(data, self.place.local_size as u16)?)
    }

    fn cut(&mut self, chunks: u16) -> Result<u64, Error> {
        block_len(&self.format, Some(self.place.chunks), chunks)?;
        Ok(self.share.count(self.exchange.own_blocks()))
    }

    fn elements(&self, block: u64) -> usize {
        let own = self.share.place(block);
        self.exchange.geometry().locate(self.place.local_rank, own).1.len()
    }

    fn scanned(&self) -> u64 {
        self.share.below(self.exchange.scanned())
    }

    fn staged(&self) -> u64 {
        self.share.below(self.exchange.staged())
    }

    fn most_at_once(&self) -> u64 {
        // A chunk's worth of this part, whatever the others have done.
        (self.place.slice_blocks as u64 / self.share.of).max(1)
    }

    fn key(&self, block: u64) -> u16 {
        let mut peaks = [0.0; xdp_agg_host::MAX_PROCESSES];
        let peaks = &mut peaks[..self.place.local_size];
        self.exchange.peaks(self.share.place(block), peaks);
        self.format.key(peaks)
    }

    fn encode(&self, block: u64, key: u16, lanes: &mut [u8]) -> Encoded {
        let inputs = self.exchange.inputs(self.share.place(block));
        let mut sources: [&[T]; xdp_agg_host::MAX_PROCESSES] = [&[]; xdp_agg_host::MAX_PROCESSES];
        for (source, input) in sources.iter_mut().zip(inputs.iter()) {
            *source = bytemuck::cast_slice(input);
        }
        self.format.encode(key, &sources[..inputs.len()], lanes)
    }

    fn decode(&mut self, block: u64, key: u16, lanes: Option<&[u8]>, contributors: u32) {
        let own = self.share.place(block);
        let processes = contributors * self.place.local_size as u32;
        self.exchange.with_output(own, |bytes| {
            let to: &mut [T] = bytemuck::cast_slice_mut(bytes);
            match lanes {
                Some(lanes) => self.format.decode(key, lanes, contributors, processes, to),
                None => T::fill_nan(to),
            }
        });
        self.left -= 1;
        if self.left == 0 {
            self.last = Some(own);
        } else {
            self.exchange.finish(own, Marks::default());
        }
    }

    fn all_reduced(&mut self, report: &Report) {
        let Some(last) = self.last.take() else { return };
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
            },
        };
        self.exchange.finish(last, marks);
    }

    fn work(&mut self) -> Result<bool, Error> {
        let Some(Feed { feeder, buffer }) = &mut self.feed else {
            self.exchange.check()?;
            return Ok(false);
        };
        if feeder.done() || !feeder.can() {
            return Ok(false);
        }
        let len = buffer.len();
        let data = bytemuck::cast_slice_mut(buffer.slice_mut(0..len));
        let format = self.format;
        let progress =
            feeder.poll(data, &mut |block| format.peak::<T>(bytemuck::cast_slice(block)))?;
        Ok(progress.did)
    }

    fn finished(&self) -> bool {
        self.feed.as_ref().is_none_or(|feed| feed.feeder.done())
    }

    fn complete(&self, report: &mut Report) {
        report.processes = self.place.local_size as u16;
        let Some(Feed { feeder, buffer }) = &self.feed else { return };
        if buffer.is_empty() {
            return;
        }
        let marks = feeder.marks();
        report.saturated = marks.saturated;
        report.non_finite_blocks = marks.non_finite_blocks;
        report.contributors = marks.contributors_all;
        report.partial = marks.contributors_any & !marks.contributors_all;
        report.reforms = marks.reforms;
        report.path = match marks.path {
            2 => Path::Ring,
            3 => Path::Mixed,
            _ => Path::Aggregator,
        };
    }

    fn abort(&mut self, error: &Error) {
        if self.left > 0 || self.last.is_some() || !self.finished() {
            // The job of a slice numbers hosts; the other processes are told of ranks.
            let Place { local_rank, local_size, .. } = self.place;
            let rank = |host| host * local_size as u16 + local_rank as u16;
            self.exchange.fail(0, &error.clone().map_ranks(rank).to_string());
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
