//! What a process says when it joins the group of its host.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Error;
use crate::pages;

/// Processes of one host in a job at most.
pub const MAX_PROCESSES: usize = 64;

/// Own blocks whose peaks the ring of peaks holds at least: the other processes scan that far ahead
/// of the slowest.
pub(crate) const RING_BLOCKS: usize = 128;

/// Bytes of a segment, where nothing asks for more.
const DEFAULT_SEGMENT: usize = 32 << 20;

/// Own blocks under way for which a good segment has room, in each of two calls.
const BLOCKS_GOOD: usize = 16;

/// What else a segment holds: tables, counters, and what is lost where rooms are rounded up.
const ROOM_BESIDES: usize = 1 << 20;

/// Where the room for buffers begins, and ends: on such a boundary.
pub(crate) const PAGES: usize = 64 << 10;

/// Smallest segment that can be asked for, in bytes.
pub const MIN_SEGMENT: usize = 1 << 20;

/// Where the segment lives. Either way it is gone with the last process that has it, however that
/// ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// An anonymous file in memory (`memfd_create`), sealed against shrinking.
    Memory,
    /// An unlinked file (`O_TMPFILE`) in this directory, such as `/dev/shm`.
    Directory(PathBuf),
}

/// What a process says when it joins the group of its host. All but `local_rank` has to be the same
/// in all of them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the job: at most 255 bytes. Jobs of different users never meet, nor do those of
    /// different network namespaces.
    pub job: String,
    /// Which of several groups of that name it is; at most 255 bytes. Processes of other ones never
    /// meet this one's.
    pub run: String,
    /// This process among those of the host: `0..local_size`.
    pub local_rank: usize,
    /// Processes of the job on this host, at most [`MAX_PROCESSES`].
    pub local_size: usize,
    /// Bytes of the segment that are for calls and collectives, at least [`MIN_SEGMENT`].
    pub segment: usize,
    /// Bytes of the segment beside these, for buffers ([`Group::buffer`]) and results that are read
    /// in place ([`View`](crate::View)). With 0 buffers take of the room for calls.
    ///
    /// [`Group::buffer`]: crate::Group::buffer
    pub buffers: usize,
    /// Where the segment lives; that of local rank 0 counts.
    pub backing: Backing,
    /// Tiles of a call that are under way at a time (D).
    pub depth: usize,
    /// Blocks of a slice in a full tile at most (m); see [`Group::slice_blocks`].
    ///
    /// [`Group::slice_blocks`]: crate::Group::slice_blocks
    pub slice_blocks: usize,
    /// Own blocks by which peaks are known ahead of staging, where the vector has as many: two
    /// packets of exponents by default. More costs a later start of the data, but no room.
    pub scan_ahead: usize,
    /// Whatever else has to be the same in all processes, as a digest.
    pub digest: u64,
    /// How long to wait for the other processes to come.
    pub join_within: Duration,
    /// How long a barrier, a collective or [`Group::begin`](crate::Group::begin) may take.
    pub wait_within: Duration,
    /// After how long a wait for other processes to come is told of in the log, and told again.
    pub warn_after: Duration,
}

/// Longer waits count as this one, a year: the clock cannot express every later time.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The moment at which a wait that begins now is over.
pub(crate) fn until(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

impl Options {
    /// The defaults: 32 MiB in memory, 8 tiles of up to 64 blocks a slice, one minute.
    #[must_use]
    pub fn new(job: impl Into<String>, local_rank: usize, local_size: usize) -> Self {
        Self {
            job: job.into(),
            run: String::new(),
            local_rank,
            local_size,
            segment: DEFAULT_SEGMENT,
            buffers: 0,
            backing: Backing::Memory,
            depth: 8,
            slice_blocks: 64,
            scan_ahead: 1408,
            digest: 0,
            join_within: Duration::from_secs(60),
            wait_within: Duration::from_secs(60),
            warn_after: Duration::from_secs(10),
        }
    }

    /// Bytes of a segment in which two calls of any length have room for 16 blocks of `block_bytes`
    /// bytes under way from each process. A block takes `local_size` inputs and a result; there is
    /// room for the peaks of some more. At least 32 MiB, all of it in memory from the start.
    #[must_use]
    pub const fn good_segment(&self, block_bytes: usize) -> usize {
        let processes = self.local_size;
        let peaks = RING_BLOCKS * processes * processes * 8;
        let data = BLOCKS_GOOD * (processes + 1) * processes * block_bytes;
        let wanted = (2 * (peaks + data) + ROOM_BESIDES).next_multiple_of(1 << 20);
        if wanted > DEFAULT_SEGMENT { wanted } else { DEFAULT_SEGMENT }
    }

    /// Bytes of the whole mapping.
    pub(crate) fn mapped(&self) -> usize {
        if self.buffers == 0 {
            return self.segment;
        }
        let [calls, buffers] = [self.segment, self.buffers].map(|len| len.next_multiple_of(PAGES));
        // The tables of the allocator come on top: what is asked for is what there is.
        calls + buffers + pages::overhead(buffers).next_multiple_of(PAGES)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.job.is_empty() || self.job.len() > 255 {
            let length = self.job.len();
            return Err(Error::config("job", format!("{length} bytes; 1 to 255 are allowed")));
        }
        if self.run.len() > 255 {
            let problem = format!("{} bytes; 255 at most are allowed", self.run.len());
            return Err(Error::config("run", problem));
        }
        if !(1..=MAX_PROCESSES).contains(&self.local_size) {
            let problem = format!("{} is not within 1..={MAX_PROCESSES}", self.local_size);
            return Err(Error::config("local_size (LOCAL_WORLD_SIZE)", problem));
        }
        if self.local_rank >= self.local_size {
            let problem = format!(
                "{} is not below local_size (LOCAL_WORLD_SIZE), which is {}",
                self.local_rank, self.local_size
            );
            return Err(Error::config("local_rank (LOCAL_RANK)", problem));
        }
        if self.segment < MIN_SEGMENT || self.segment > 1 << 40 {
            let problem = format!("{} bytes; at least {MIN_SEGMENT} are needed", self.segment);
            return Err(Error::config("segment", problem));
        }
        if self.buffers > 1 << 40 {
            let problem = format!("{} bytes; at most {} are possible", self.buffers, 1_u64 << 40);
            return Err(Error::config("buffers (XDP_AGG_BUFFERS)", problem));
        }
        if !(2..=64).contains(&self.depth) {
            return Err(Error::config("depth", format!("{} is not within 2..=64", self.depth)));
        }
        if !(1..=4096).contains(&self.slice_blocks) {
            let problem = format!("{} is not within 1..=4096", self.slice_blocks);
            return Err(Error::config("slice_blocks", problem));
        }
        if self.scan_ahead > 1 << 20 {
            let problem = format!("{} is more than {}", self.scan_ahead, 1 << 20);
            return Err(Error::config("scan_ahead", problem));
        }
        Ok(())
    }
}
