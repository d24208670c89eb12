//! The calls of a [`Machine`]: how they begin, are cut into blocks, and are handed back.

use std::time::Duration;

use xdp_agg_common::control::Admitted;

use super::{
    Call, Config, Ending, Freeze, GAP, Machine, NO_CALL, Path, Phase, RECORDS, Record, Report,
};
use crate::worker::call::Job;
use crate::worker::flow::CallRole;
use crate::worker::{Blocks, Error};

impl Machine {
    /// Adds a call; its blocks go out as soon as the job lets them. Returns its number.
    ///
    /// # Errors
    /// Not a member (yet); an integer that does not fit, which ends the membership.
    pub fn start(&mut self, mut blocks: Box<dyn Blocks>) -> Result<u64, Error> {
        if let Some(mut error) = self.failed.clone() {
            blocks.abort(&error);
            if let Error::CallMismatch { ours, .. } = &mut error
                && ours == NO_CALL
            {
                // The others found out before this worker came to the call.
                let call = self.make(self.next_sequence, blocks);
                *ours = call.describe().to_string();
            }
            return Err(error);
        }
        if !self.has_run {
            return Err(Error::NotJoined);
        }
        if let Err(error) = blocks.check() {
            // The others would wait for it.
            blocks.abort(&error);
            self.fail(error.clone());
            return Err(error);
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let mut call = self.make(sequence, blocks);
        call.position = sequence + self.asides;
        call.alone = self.config.alone;
        call.times.made = self.clock;
        self.calls.push_back(call);
        self.begin_calls();
        Ok(sequence)
    }

    pub(super) fn make(&self, sequence: u64, blocks: Box<dyn Blocks>) -> Call {
        let Config { job, origin, .. } = &self.config;
        let run = origin.as_ref().and_then(|origin| origin.run.as_deref());
        Call::new(Job { name: job, run }, sequence, blocks)
    }

    /// Cuts the calls into blocks that may begin now.
    pub(super) fn begin_calls(&mut self) {
        let runs = matches!(self.phase, Phase::Running | Phase::Ring(Some(_)));
        let may_begin = runs && self.freeze == Freeze::No;
        let Some(epoch) = self.epoch.as_ref().filter(|_| may_begin) else { return };
        for call in self.calls.iter_mut().filter(|call| !call.has_begun()) {
            if self.gate.is_some_and(|gate| call.sequence >= gate) {
                break;
            }
            let Admitted { chunks, members, .. } = epoch.admitted;
            if let Err(error) = call.begin(self.end, chunks, members) {
                return self.fail(error);
            }
            call.times.begun = Some(self.clock);
            call.note_done(self.clock);
            self.end = call.end();
            self.next_to_begin = call.sequence + 1;
            self.news |= call.is_done();
        }
        self.release();
        self.end_epoch_if_done();
    }

    /// Lets the flow have the blocks whose input has come in place.
    pub(super) fn release(&mut self) {
        let runs = matches!(self.phase, Phase::Running | Phase::Ring(Some(_)));
        let may = self.released < self.end && runs && self.freeze == Freeze::No;
        let Some(epoch) = self.epoch.as_mut().filter(|_| may) else { return };
        for call in self.calls.iter_mut().filter(|call| call.has_begun()) {
            if call.end() <= self.released {
                continue;
            }
            let ready = call.release();
            let role = match call.root().filter(|_| self.solo) {
                None => CallRole::All,
                Some(root) if root == self.config.rank => CallRole::Root,
                Some(_) => CallRole::Listener,
            };
            epoch.flow.extend(ready - self.released, role);
            self.released = ready;
            if ready < call.end() {
                break;
            }
        }
    }

    /// True if there is something to send or to do that there was not before: another process of
    /// the host has come further.
    pub fn look_again(&mut self, now: Duration) -> bool {
        let before = self.released;
        self.handle_timeout(now);
        self.released != before || self.work()
    }

    /// Does a piece of the work that calls have besides sending and receiving. True if there was
    /// any: there may be more.
    pub fn work(&mut self) -> bool {
        let mut did = false;
        let mut wrong = None;
        let members = self.members();
        for call in &mut self.calls {
            let was_done = call.is_done();
            match call.work() {
                Ok(worked) => did |= worked | call.sum_alone(members),
                Err(error) => wrong = wrong.or(Some(error)),
            }
            call.note_done(self.clock);
            self.news |= !was_done && call.is_done();
        }
        if let Some(error) = wrong {
            // A process of the host that gives a call up soon leaves, which breaks its later calls
            // too. If it did so since the first calls were looked at, they know the reason now.
            let first = self.calls.iter_mut().find_map(|call| call.work().err());
            self.fail(first.unwrap_or(error));
            return false;
        }
        if did {
            self.release();
            self.drop_abandoned();
        }
        did
    }

    /// A call's end, once: its elements and report, or why there will be none.
    pub fn poll_call(&mut self, sequence: u64) -> Option<Result<Call, Error>> {
        let index = self.calls.iter().position(|call| call.sequence == sequence)?;
        if self.calls[index].is_done() {
            let call = self.calls.remove(index)?;
            self.count(call.report);
            self.remember(&call, Ending::Done);
            return Some(Ok(call));
        }
        let error = self.failed.clone()?;
        let call = self.calls.remove(index)?;
        self.remember(&call, Ending::Failed);
        Some(Err(error))
    }

    /// True, once, if a call has ended since it was asked before.
    pub const fn has_news(&mut self) -> bool {
        std::mem::replace(&mut self.news, false)
    }

    /// True once it was a member whose blocks could be sent.
    #[must_use]
    pub const fn has_joined(&self) -> bool {
        self.has_run
    }

    /// Takes a call out, whatever its state: its memory is no longer there.
    pub fn remove(&mut self, sequence: u64) {
        if let Some(index) = self.calls.iter().position(|call| call.sequence == sequence) {
            if let Some(mut call) = self.calls.remove(index) {
                call.abort(&Error::Closed);
                self.remember(&call, Ending::GivenUp);
            }
            // Its blocks can be sent no more, so the job cannot go on.
            self.fail(Error::Closed);
        }
    }

    /// Nobody will ask for this call any more. It goes on, for the other workers' sake.
    pub fn abandon(&mut self, sequence: u64) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.sequence == sequence) {
            call.abandoned = true;
        }
        self.drop_abandoned();
    }

    pub(super) fn drop_abandoned(&mut self) {
        let failed = self.failed.is_some();
        while let Some(index) =
            self.calls.iter().position(|call| call.abandoned && (failed || call.is_done()))
        {
            let Some(call) = self.calls.remove(index) else { return };
            if call.is_done() {
                self.count(call.report);
                self.remember(&call, Ending::Done);
            } else {
                self.remember(&call, Ending::Failed);
            }
        }
    }

    fn remember(&mut self, call: &Call, ending: Ending) {
        if self.records.len() == RECORDS {
            self.records.pop_front();
        }
        self.records.push_back(call.record(ending));
    }

    /// What is remembered of a call that has ended, once, in the order in which they ended. The
    /// latest 64 are kept.
    pub fn poll_record(&mut self) -> Option<Record> {
        self.records.pop_front()
    }

    /// The same of calls that did not end yet, or whose result nobody took, in the order in which
    /// they were made.
    pub fn calls_in_flight(&self) -> impl Iterator<Item = Record> {
        let ending = |call: &Call| match call.is_done() {
            true => Ending::Done,
            false if self.failed.is_some() => Ending::Failed,
            false => Ending::Running,
        };
        self.calls.iter().map(move |call| call.record(ending(call)))
    }

    /// Tells the time before [`Self::start`], which is when the call was made.
    pub fn set_clock(&mut self, now: Duration) {
        self.clock = self.clock.max(now);
    }

    /// Time has passed. A call in flight remembers for how long nobody looked after it.
    pub(super) fn tick(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.clock);
        self.clock = self.clock.max(now);
        // A ring, and the way into an epoch, have pauses of their own.
        if gap < GAP || self.phase != Phase::Running || self.freeze != Freeze::No {
            return;
        }
        for call in self.calls.iter_mut().filter(|call| !call.is_done()) {
            let gap = gap.min(now.saturating_sub(call.times.made));
            call.times.gap = call.times.gap.max(gap);
        }
    }

    pub(super) fn count(&mut self, report: Report) {
        self.counters.calls += 1;
        self.counters.ring_calls += u64::from(matches!(report.path, Path::Ring | Path::Mixed));
        self.counters.saturated += report.saturated;
        self.counters.non_finite_blocks += report.non_finite_blocks;
    }
}
