//! One membership: its numbers, its flow, and what this worker has of the job's blocks.

use xdp_agg_common::control::{Admitted, Held, Plan, Progress, Run, RunKind};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::reform::{BlockMap, SPAN_MAX};
use xdp_agg_common::wire::BLOCK_MASK;

use super::history::History;
use crate::worker::flow::{CallRole, Flow};
use crate::worker::{EpochBlock, Error, JobBlock};

/// A membership of the job, from [`Admitted`] to the next one.
#[derive(Debug)]
pub(super) struct Epoch {
    pub(super) admitted: Admitted,
    pub(super) flow: Flow,
    pub(super) history: History,
    map: BlockMap,
    /// First block of the job that the plan says anything about: all before are finished.
    from: JobBlock,
    /// First block of the epoch behind the plan's runs. From there on blocks of the job are
    /// `shift` ahead.
    runs_end: EpochBlock,
    shift: u64,
    /// Blocks without a number in this epoch, because all members had them before, as far as this
    /// worker knows whose contributions are in them.
    skipped: Vec<Held>,
    /// Blocks that travel although this worker has them: others do not.
    mine: Vec<Held>,
}

impl Epoch {
    /// The first epoch of this worker. Without `keep`, results are not kept for others.
    pub(super) fn first(admitted: Admitted, flow: Flow, keep: bool) -> Result<Self, Error> {
        let plan = admitted.plan.clone().unwrap_or_default();
        if !plan.runs.is_empty() || plan.from > BLOCK_MASK {
            return Err(impossible("a plan with blocks that this worker never took part in"));
        }
        let capacity = if keep { admitted.slots / 2 } else { 0 };
        let history = History::new(capacity as usize, stride(&admitted));
        Ok(Self::with(admitted, &plan, flow, history))
    }

    fn with(admitted: Admitted, plan: &Plan, flow: Flow, history: History) -> Self {
        let map = BlockMap::new(plan);
        let end: u64 = plan.from + plan.runs.iter().map(|run| run.len).sum::<u64>();
        let runs_end = EpochBlock(map.count_before(end));
        Self {
            admitted,
            flow,
            history,
            map,
            from: JobBlock(plan.from),
            runs_end,
            shift: end - runs_end.0,
            skipped: Vec::new(),
            mine: Vec::new(),
        }
    }

    /// The epoch that follows, with what this worker has of the blocks that its plan hands on.
    /// `end`: one past the last block that this worker could send.
    pub(super) fn next(
        &self,
        admitted: Admitted,
        mut flow: Flow,
        rank: u16,
        end: JobBlock,
    ) -> Result<Self, Error> {
        let Some(plan) = admitted.plan.clone() else {
            return Err(impossible("a new epoch without a plan for the blocks of the old one"));
        };
        let ours = self.progress(0);
        let total: u64 = plan.runs.iter().fold(0, |sum, run| sum.saturating_add(run.len));
        if plan.from > ours.base || total > SPAN_MAX || plan.from + total > end.0 {
            return Err(impossible("a plan for blocks that this worker cannot have sent"));
        }
        if total > 0 && admitted.chunks != self.admitted.chunks {
            return Err(impossible("another block size while calls are in flight"));
        }
        let numbered = BlockMap::new(&plan).count_before(plan.from + total);
        let capacity = u64::from(admitted.slots / 2).max(numbered);
        let history = History::new(capacity as usize, stride(&admitted));
        flow.extend(numbered + (end.0 - plan.from - total), CallRole::All);
        let mut next = Self::with(admitted, &plan, flow, history);
        let mut block = plan.from;
        for run in &plan.runs {
            for block in block..block + run.len {
                self.hand_over(&mut next, JobBlock(block), *run, rank)?;
            }
            block += run.len;
        }
        if ours.held.last().is_some_and(|held| held.from + held.len > block) {
            return Err(impossible("a plan that does again what this worker has"));
        }
        Ok(next)
    }

    /// The same membership when its members leave a ring before its block `next`. All have the same
    /// results, also of the plan's blocks, so nothing remains to be handed on. `end`: one past the
    /// last block that this worker could send.
    pub(super) fn after_ring(&self, next: EpochBlock, mut flow: Flow, end: JobBlock) -> Self {
        let from = self.locate(next).0;
        let plan = Plan { from: from.0, ..Plan::default() };
        flow.extend(end - from, CallRole::All);
        let history = History::new(0, stride(&self.admitted));
        Self::with(self.admitted.clone(), &plan, flow, history)
    }

    /// What this worker has of one block goes over to the next epoch.
    fn hand_over(
        &self,
        next: &mut Self,
        block: JobBlock,
        run: Run,
        rank: u16,
    ) -> Result<(), Error> {
        let held = self.holds(block);
        match (run.kind, held) {
            (RunKind::Skip, Some(members)) => push(&mut next.skipped, block, members),
            (RunKind::Redo, None) => {}
            (RunKind::Copy { source, members }, Some(_)) => {
                let old = self.number(block).and_then(|number| self.history.get(number));
                let new = next.number(block);
                let known = old.zip(new).filter(|((entry, _), _)| {
                    // What a source hands on must be what the plan says it is.
                    source != rank || entry.members == members
                });
                let Some(((entry, lanes), number)) = known else {
                    return Err(impossible("to hand on a result that this worker does not keep"));
                };
                next.history.put(number, entry.members, entry.flags, lanes);
                push(&mut next.mine, block, members);
            }
            (RunKind::Copy { source, .. }, None) if source != rank => {}
            _ => return Err(impossible("a plan that does not fit what this worker has")),
        }
        Ok(())
    }

    /// The job's number of a block of the epoch, and what becomes of it.
    #[inline]
    pub(super) fn locate(&self, number: EpochBlock) -> (JobBlock, RunKind) {
        if number >= self.runs_end {
            return (JobBlock(number.0 + self.shift), RunKind::Redo);
        }
        let (block, kind) = self.map.to_job(number.0);
        (JobBlock(block), kind)
    }

    /// The epoch's number of a block that the plan's runs speak of, or that follows them.
    fn number(&self, block: JobBlock) -> Option<EpochBlock> {
        self.map.to_epoch(block.0).map(|(number, _)| EpochBlock(number))
    }

    /// One past the last block of the epoch that the plan's runs speak of.
    pub(super) const fn runs_end(&self) -> EpochBlock {
        self.runs_end
    }

    /// True for a block that travels although this worker has it.
    pub(super) fn is_mine(&self, block: JobBlock) -> bool {
        find(&self.mine, block).is_some()
    }

    /// Whose contributions are in this block of the job, if this worker has it; 0: it does not know
    /// any more.
    fn holds(&self, block: JobBlock) -> Option<u64> {
        if block < self.from {
            return Some(0);
        }
        let Some(number) = self.number(block) else {
            return Some(find(&self.skipped, block).unwrap_or(0));
        };
        if !self.flow.is_done(number) && !self.is_mine(block) {
            return None;
        }
        Some(self.history.get(number).map_or(0, |(entry, _)| entry.members))
    }

    /// What this worker has of the job's blocks.
    pub(super) fn progress(&self, next_sequence: u64) -> Progress {
        let oldest = match self.flow.base().0.checked_sub(self.history.capacity()) {
            None | Some(0) => self.from,
            Some(number) => self.locate(EpochBlock(number)).0,
        };
        // What lies behind both is finished nowhere.
        let end = self.locate(self.flow.sent_end().max(self.runs_end)).0;
        let mut progress = Progress { base: end.0, next_sequence, held: Vec::new() };
        for block in (oldest.0..end.0).map(JobBlock) {
            match self.holds(block) {
                None => progress.base = progress.base.min(block.0),
                Some(0) => {}
                Some(members) => push(&mut progress.held, block, members),
            }
        }
        progress
    }
}

/// Appends a block to runs in ascending order; one whose contributors are unknown is left out.
fn push(runs: &mut Vec<Held>, JobBlock(block): JobBlock, members: u64) {
    match runs.last_mut() {
        _ if members == 0 => {}
        Some(last) if last.members == members && last.from + last.len == block => last.len += 1,
        _ => runs.push(Held { from: block, len: 1, members }),
    }
}

/// The members of the run that a block is in.
fn find(runs: &[Held], JobBlock(block): JobBlock) -> Option<u64> {
    let behind = runs.partition_point(|held| held.from <= block);
    let held = runs.get(behind.checked_sub(1)?)?;
    (block - held.from < held.len).then_some(held.members)
}

fn stride(admitted: &Admitted) -> usize {
    usize::from(admitted.chunks) * CHUNK_LEN
}

fn impossible(what: &str) -> Error {
    Error::Protocol(what.into())
}
