//! Copies among the processes of a host: their bytes go over the shared segment, and nothing of
//! such a call leaves the host ([`xdp_agg_intranode::Copies`]). Where one host has all workers,
//! broadcast, all-gather and barrier are such calls. Of a hierarchical broadcast the part inside a
//! host is one.
//!
//! Such a call is one like all others: it has a number, is driven by whichever thread drives the
//! engine, and ends by the same deadlines. It has no blocks.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_intranode::{Copied, Copies};
use xdp_agg_protocol::worker::{Blocks, Buffer, DataBlock, Purpose, Report};
use xdp_agg_quantize::{Element, Encoded, Format, Op};

use crate::communicator::Communicator;
use crate::error::{Error, JobError, code_of};
use crate::handle::Begun;

/// A process's share in the call. The first aggregator's job has it, the others' have an empty one.
#[derive(Debug)]
pub(crate) struct InHost {
    /// None when all is copied.
    call: Option<(Copies, Buffer<u8>)>,
    len: usize,
    format: Format,
    purpose: Purpose,
    local_rank: u16,
    local_size: u16,
}

impl Communicator {
    /// All workers are processes of this host, and share a segment: calls need no aggregator.
    #[must_use]
    pub fn is_in_host(&self) -> bool {
        self.in_host
    }

    /// Begins a call that brings these parts of `bytes`, each of a rank of this host, to all ranks
    /// of the host. All hosts begin one.
    ///
    /// # Safety
    /// As [`Self::begin_lent`].
    #[expect(unsafe_code, reason = "the one place where memory is lent to such a call")]
    pub(crate) unsafe fn begin_copies(
        &self,
        bytes: &mut [u8],
        parts: &[(u16, Range<usize>)],
        purpose: &Purpose,
    ) -> Result<Begun, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let Some(group) = &self.group else { return Err(Error::Job(JobError::NotJoined)) };
        let format = Format::new(i64::TYPE, Op::Max, self.scaling, None, self.place.hosts)?;
        let _order = self.starting.lock();
        let sequence = self.agreed_sequence()?;
        let mut of_ranks = vec![0..0; group.local_size()];
        for (rank, part) in parts {
            of_ranks[usize::from(*rank % self.place.local_size)] = part.clone();
        }
        let copied = Copied {
            sequence,
            len: bytes.len(),
            parts: of_ranks,
            description: purpose.what().unwrap_or("copies").to_owned(),
        };
        let copies = group.begin_copies(&copied).map_err(|error| {
            let error = Error::Host(error);
            self.fail(&error);
            self.first_error().unwrap_or(error)
        })?;
        // SAFETY: as the caller promises; and a call that could not be started everywhere is taken
        // out of where it was.
        let mut call = Some((copies, unsafe { Buffer::lend(bytes) }));
        let parts = self.stripes.iter().map(|_| {
            Box::new(InHost {
                call: call.take(),
                len: copied.len,
                format,
                purpose: purpose.clone(),
                local_rank: self.place.local_rank,
                local_size: self.place.local_size,
            }) as Box<dyn Blocks>
        });
        self.start_parts(sequence, parts.collect())?;
        self.nudge(1);
        Ok(Begun::new(Arc::clone(&self.stripes), (sequence, false)))
    }
}

impl InHost {
    /// The other processes that this one waits for.
    fn others(&self) -> Vec<usize> {
        let mut others = self.call.as_ref().map_or_else(Vec::new, |(call, _)| call.waiting_for());
        others.retain(|rank| *rank != usize::from(self.local_rank));
        others
    }
}

impl Blocks for InHost {
    fn format(&self) -> &Format {
        &self.format
    }

    fn vector_len(&self) -> usize {
        self.len
    }

    fn purpose(&self) -> Option<&str> {
        self.purpose.what()
    }

    fn check(&self) -> Result<(), JobError> {
        Ok(())
    }

    fn cut(&mut self, _chunks: u16) -> Result<u64, JobError> {
        Ok(0)
    }

    fn elements(&self, _block: DataBlock) -> usize {
        0
    }

    fn scanned(&self) -> DataBlock {
        DataBlock(0)
    }

    fn staged(&self) -> DataBlock {
        DataBlock(0)
    }

    fn key(&self, _block: DataBlock) -> u16 {
        0
    }

    fn encode(&self, _block: DataBlock, _key: u16, _lanes: &mut [u8]) -> Encoded {
        Encoded::default()
    }

    fn decode(&mut self, _block: DataBlock, _key: u16, _lanes: Option<&[u8]>, _of: u32) {}

    fn work(&mut self) -> Result<bool, JobError> {
        let Some((call, buffer)) = &mut self.call else { return Ok(false) };
        let progress = call.poll(buffer.slice_mut(0..self.len)).map_err(Error::Host)?;
        if progress.done {
            // The room is for other calls now.
            self.call = None;
        }
        Ok(progress.did || progress.done)
    }

    fn finished(&self) -> bool {
        self.call.is_none()
    }

    fn complete(&self, report: &mut Report) {
        report.processes = self.local_size;
    }

    fn awaited(&self) -> Vec<usize> {
        self.others()
    }

    fn overdue(&self, after: Duration) -> Option<JobError> {
        let (call, waiting_for) = (&self.call.as_ref()?.0, self.others());
        let is_theirs = !waiting_for.is_empty();
        let (what, known) = ("a call", call.describe(&waiting_for));
        let error = xdp_agg_intranode::Error::Deadline { what, after, waiting_for, known };
        is_theirs.then(|| Error::Host(error).into())
    }

    fn abort(&mut self, error: &JobError) {
        if let Some((call, _)) = &mut self.call {
            let error = error.clone().in_ranks(self.local_size, self.local_rank);
            call.fail(code_of(error.cause(0)), &error.to_string());
        }
    }
}
