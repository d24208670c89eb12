//! The table of what is shared by all: calls and the areas of collectives. The first process to
//! come makes a record and room for it, the others join in, the last to leave frees both.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::layout::{RECORD, RECORD_COUNT, RECORDS};
use crate::marks::Marks;
use crate::{Error, Group};

/// Bytes of a description, of each process.
const DESCRIPTION: usize = 256;
/// In the key of a record: it is of results that are read in place ([`View`](crate::View)).
pub(crate) const VIEW: u64 = 1 << 62;
/// Records of such results at most, so that calls find some, too.
const VIEWS: usize = RECORD_COUNT / 2;

fn is_of_view(key: u64) -> bool {
    key >> 62 == 1
}

/// Bytes of a failure's text.
const TEXT: usize = 448;

/// Where each thing is in a record, in bytes from its start.
mod at {
    pub(super) const KEY: usize = 0;
    pub(super) const USED: usize = 8;
    pub(super) const FAILED: usize = 12;
    pub(super) const FAILED_RANK: usize = 16;
    pub(super) const FAILED_CODE: usize = 20;
    pub(super) const FAILED_LEN: usize = 24;
    pub(super) const DESCRIPTION_LEN: usize = 28;
    pub(super) const CAME: usize = 32;
    pub(super) const WENT: usize = 40;
    pub(super) const DIGEST: usize = 48;
    pub(super) const OFFSET: usize = 56;
    pub(super) const BYTES: usize = 64;
    // A line of their own: what owners report.
    pub(super) const SATURATED: usize = 128;
    pub(super) const NON_FINITE: usize = 136;
    pub(super) const ALL: usize = 144;
    pub(super) const ANY: usize = 152;
    pub(super) const REFORMS: usize = 160;
    pub(super) const PATH: usize = 164;
    pub(super) const DESCRIPTION: usize = 192;
    pub(super) const TEXT: usize = DESCRIPTION + super::DESCRIPTION;
}

const _: () = assert!(at::TEXT + TEXT <= RECORD);

/// States of a record's failure.
mod failed {
    pub(super) const NOT: u32 = 0;
    /// Somebody is writing what happened.
    pub(super) const WRITING: u32 = 1;
    /// Processes called differently.
    pub(super) const MISMATCH: u32 = 2;
    /// Somebody gave up.
    pub(super) const ELSEWHERE: u32 = 3;
    /// A process left that was still needed: the code says which.
    pub(super) const LEFT: u32 = 4;
}

/// What a process wants to share.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    /// The same in all processes, and of no other record at the time.
    pub(crate) key: u64,
    /// Has to be the same in all processes.
    pub(crate) digest: u64,
    /// For the words of a mismatch.
    pub(crate) description: &'a str,
    /// Room that is wanted.
    pub(crate) bytes: usize,
    /// How much of it has to be zero at first.
    pub(crate) zeroed: usize,
}

/// A process's share in a record. Leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Shared {
    group: Arc<Group>,
    record: usize,
    /// Where its room is in the segment.
    pub(crate) offset: usize,
}

impl Shared {
    /// Joins in, or makes room for the others to join in.
    pub(crate) fn claim(group: &Arc<Group>, claim: &Claim<'_>) -> Result<Self, Error> {
        let core = group.core();
        core.check()?;
        let locked = core.lock()?;
        let records = (0..RECORD_COUNT).map(|index| RECORDS + index * RECORD);
        let used = |record: &usize| core.segment.word(record + at::USED).load(Relaxed) != 0;
        let key = |record: usize| core.segment.counter(record + at::KEY).load(Relaxed);
        let found = records.clone().filter(used).find(|&record| key(record) == claim.key);
        let record = match found {
            Some(record) => record,
            None => Self::make(group, claim)?,
        };
        let bit = 1 << core.rank;
        let came = core.segment.counter(record + at::CAME).fetch_or(bit, Relaxed);
        if came & bit != 0 {
            let problem = format!("call {} is already running in this process", claim.key);
            return Err(Error::config("sequence", problem));
        }
        let offset = core.segment.counter(record + at::OFFSET).load(Relaxed) as usize;
        // From here on dropping it leaves the record, which takes the lock.
        drop(locked);
        let shared = Self { group: Arc::clone(group), record, offset };
        if shared.counter(at::DIGEST).load(Relaxed) != claim.digest {
            shared.publish(failed::MISMATCH, 0, claim.description);
            let first = shared.description();
            return Err(Error::Mismatch { ours: claim.description.to_owned(), theirs: first });
        }
        shared.check()?;
        Ok(shared)
    }

    /// Makes a record. The lock is held.
    fn make(group: &Group, claim: &Claim<'_>) -> Result<usize, Error> {
        let core = group.core();
        let word = |at: usize| core.segment.word(at);
        let records = (0..RECORD_COUNT).map(|index| RECORDS + index * RECORD);
        let running = records.clone().filter(|at| word(at + at::USED).load(Relaxed) != 0).count();
        let is_view = is_of_view(claim.key);
        let arena = if is_view { core.buffers() } else { &core.arena };
        let room = arena.capacity();
        if claim.bytes > room {
            return Err(Error::TooLarge { wanted: claim.bytes, room });
        }
        let key = |at: &usize| core.segment.counter(at + at::KEY).load(Relaxed);
        let taken = records.clone().filter(|at| word(at + at::USED).load(Relaxed) != 0);
        if is_view && taken.filter(|at| is_of_view(key(at))).count() >= VIEWS {
            return Err(Error::Busy { running });
        }
        let free = records.clone().find(|at| word(at + at::USED).load(Relaxed) == 0);
        let Some(record) = free else { return Err(Error::Busy { running }) };
        let offset = match is_view {
            true => arena.allocate_pages(&core.segment, claim.bytes),
            false => arena.allocate(&core.segment, claim.bytes),
        };
        let Some(offset) = offset else { return Err(Error::Busy { running }) };
        for at in (0..claim.zeroed).step_by(8) {
            core.segment.counter(offset + at).store(0, Relaxed);
        }
        let counters = [
            (at::KEY, claim.key),
            (at::CAME, 0),
            (at::WENT, 0),
            (at::DIGEST, claim.digest),
            (at::OFFSET, offset as u64),
            (at::BYTES, claim.bytes as u64),
            (at::SATURATED, 0),
            (at::NON_FINITE, 0),
            (at::ALL, u64::MAX),
            (at::ANY, 0),
        ];
        for (at, value) in counters {
            core.segment.counter(record + at).store(value, Relaxed);
        }
        for at in [at::REFORMS, at::PATH] {
            word(record + at).store(0, Relaxed);
        }
        let len = core.segment.write_text(record + at::DESCRIPTION, DESCRIPTION, claim.description);
        word(record + at::DESCRIPTION_LEN).store(len as u32, Relaxed);
        word(record + at::FAILED).store(failed::NOT, Relaxed);
        word(record + at::USED).store(1, Relaxed);
        Ok(record)
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Whether it can still end well.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.group.core().check()?;
        let state = self.word(at::FAILED).load(Acquire);
        if state <= failed::WRITING {
            return Ok(());
        }
        let local_rank = self.word(at::FAILED_RANK).load(Relaxed) as usize;
        let code = self.word(at::FAILED_CODE).load(Relaxed);
        let len = self.word(at::FAILED_LEN).load(Relaxed) as usize;
        let text = self.group.core().segment.read_text(self.record + at::TEXT, len.min(TEXT));
        Err(match state {
            failed::MISMATCH => Error::Mismatch { ours: self.description(), theirs: text },
            failed::LEFT => Error::PeerLeft { local_rank: code as usize },
            _ => Error::Elsewhere { local_rank, code, text },
        })
    }

    /// Says that another process left without having done its part: all get the same error.
    pub(crate) fn miss(&self, local_rank: usize) {
        self.publish(failed::LEFT, local_rank as u32, "");
    }

    /// Says that this process gave up, and why.
    pub(crate) fn fail(&self, code: u32, text: &str) {
        self.publish(failed::ELSEWHERE, code, text);
    }

    fn publish(&self, state: u32, code: u32, text: &str) {
        let word = self.word(at::FAILED);
        // The first counts. Release below pairs with Acquire in `check`: text before state.
        if word.compare_exchange(failed::NOT, failed::WRITING, AcqRel, Relaxed).is_ok() {
            let core = self.group.core();
            let len = core.segment.write_text(self.record + at::TEXT, TEXT, text);
            self.word(at::FAILED_LEN).store(len as u32, Relaxed);
            self.word(at::FAILED_RANK).store(core.rank as u32, Relaxed);
            self.word(at::FAILED_CODE).store(code, Relaxed);
            word.store(state, Release);
        }
        self.group.core().ring_sleepers();
    }

    fn description(&self) -> String {
        let len = self.word(at::DESCRIPTION_LEN).load(Relaxed) as usize;
        let segment = &self.group.core().segment;
        segment.read_text(self.record + at::DESCRIPTION, len.min(DESCRIPTION))
    }

    /// Joins `marks` in. Most change nothing and only look, so the line stays shared.
    pub(crate) fn join_marks(&self, marks: &Marks) {
        for (at, more) in
            [(at::SATURATED, marks.saturated), (at::NON_FINITE, marks.non_finite_blocks)]
        {
            if more != 0 {
                self.counter(at).fetch_add(more, Relaxed);
            }
        }
        let all = self.counter(at::ALL);
        if all.load(Relaxed) & !marks.contributors_all != 0 {
            all.fetch_and(marks.contributors_all, Relaxed);
        }
        let any = self.counter(at::ANY);
        if marks.contributors_any & !any.load(Relaxed) != 0 {
            any.fetch_or(marks.contributors_any, Relaxed);
        }
        let reforms = self.word(at::REFORMS);
        if marks.reforms > reforms.load(Relaxed) {
            reforms.fetch_max(marks.reforms, Relaxed);
        }
        let path = self.word(at::PATH);
        if marks.path & !path.load(Relaxed) != 0 {
            path.fetch_or(marks.path, Relaxed);
        }
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks {
            saturated: self.counter(at::SATURATED).load(Relaxed),
            non_finite_blocks: self.counter(at::NON_FINITE).load(Relaxed),
            contributors_all: self.counter(at::ALL).load(Relaxed),
            contributors_any: self.counter(at::ANY).load(Relaxed),
            reforms: self.word(at::REFORMS).load(Relaxed),
            path: self.word(at::PATH).load(Relaxed),
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        self.group.core().segment.word(self.record + at)
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        self.group.core().segment.counter(self.record + at)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let core = self.group.core();
        // Without the lock the group is lost, and the segment goes with its last process.
        let Ok(locked) = core.lock() else { return };
        // It was the input of a call that failed here, and others may still read it.
        if core.is_detached(&(self.offset..self.offset + 1)) {
            return;
        }
        let went = self.counter(at::WENT).fetch_or(1 << core.rank, Relaxed) | 1 << core.rank;
        if went.count_ones() as usize == core.size {
            core.free(self.offset);
            self.word(at::USED).store(0, Relaxed);
            drop(locked);
            core.ring_sleepers();
        }
    }
}
