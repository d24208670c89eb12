//! What becomes of the blocks in flight when a job gets a new epoch.
//!
//! Blocks have two numbers. The *job's* number counts all blocks of a job's life, in the order of
//! calls, the same at every member. The *epoch's* number is the one on the wire; it starts from 0 in
//! every epoch. A [`Plan`] says which block of the job is which of the epoch.
//!
//! When an epoch ends before its calls do, the members that go on say what they have
//! ([`Progress`]), and take in no more results of that epoch. For each block, then:
//! * All have its result: it is finished ([`RunKind::Skip`]).
//! * Nobody has: it is summed again by the new members ([`RunKind::Redo`]). No member that goes on
//!   was given a result of it, so none is counted twice; their input is still there.
//! * Some have: it is finished, and those that lack it get the same sum ([`RunKind::Copy`]). It
//!   travels as any block does, but one holder contributes the sum and all others contribute
//!   nothing (lanes of zero).
//!
//! So a result that anybody was given is what everybody gets, bit by bit, whoever died.
//!
//! # Why a holder can always be found
//! A member keeps the sums of the last `W` blocks of the epoch whose results it had, where `W` is
//! half the pool. Let `s` be the member whose oldest missing block, `base`, is the lowest. A block
//! is complete only when `s` contributed to it, and `s` sends no block from `base + W` on. So every
//! block that anybody has and `s` lacks is among the last `W` that its holder can have had.

use serde::{Deserialize, Serialize};

/// Most blocks between the oldest that is missing somewhere and the newest that is held anywhere:
/// more than any pool has slots. A progress beyond it is a lie.
pub const SPAN_MAX: u64 = 1 << 20;

/// What a member has of the blocks of its job, by their numbers in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Oldest block whose result it lacks: it has all before.
    pub base: u64,
    /// Number of the next call that it would start.
    pub next_sequence: u64,
    /// Results that it can hand on, before and after `base`, in ascending order; after `base` these
    /// are all that it has.
    pub held: Vec<Held>,
}

/// Neighbouring blocks whose sums a member can hand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Number of the first.
    pub from: u64,
    /// How many.
    pub len: u64,
    /// Bit `r`: rank `r`'s contribution is in them.
    pub members: u64,
}

/// Which block of the job is which of a new epoch. The default plan is that of a first epoch: all
/// blocks, from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The job's block that the runs start from: all before are finished.
    pub from: u64,
    /// What follows it. Blocks behind the last run were sent by nobody: the new members sum them.
    pub runs: Vec<Run>,
    /// Number of the first call that the new epoch may have to finish or start; where a member
    /// joins, it starts with this one.
    pub next_sequence: u64,
}

/// Neighbouring blocks with the same fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// How many.
    pub len: u64,
    /// What becomes of them.
    pub kind: RunKind,
}

/// What becomes of a block of an earlier epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// All members have its result. It has no number in the new epoch.
    Skip,
    /// The new members sum it.
    Redo,
    /// One member contributes the sum that it has, the others nothing.
    Copy {
        /// The rank that contributes.
        source: u16,
        /// Whose contributions are in that sum.
        members: u64,
    },
}

/// Why no plan can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nobody can hand on this block's sum, though somebody has had it.
    #[error("no member can hand on block {0}, whose result some have and others lack")]
    NoSource(u64),
    /// A member's progress cannot be true.
    #[error(
        "rank {rank}'s progress is impossible: results must be in ascending order and within \
         {SPAN_MAX} blocks of what the others lack"
    )]
    Impossible {
        /// The member.
        rank: u16,
    },
}

impl Progress {
    /// One past the newest block that it has.
    fn end(&self) -> u64 {
        self.held.last().map_or(0, |held| held.from + held.len).max(self.base)
    }

    /// Whether it has this block.
    fn has(&self, block: u64) -> bool {
        block < self.base || self.sum_of(block).is_some()
    }

    /// Whose contributions are in the sum of this block, if it can hand it on.
    fn sum_of(&self, block: u64) -> Option<u64> {
        let behind = self.held.partition_point(|held| held.from <= block);
        let held = self.held.get(behind.checked_sub(1)?)?;
        (block - held.from < held.len).then_some(held.members)
    }

    fn is_possible(&self, lowest_base: u64) -> bool {
        let mut end = 0;
        let ascending = self.held.iter().all(|held| {
            let ordered = held.from >= end && held.len > 0 && held.members != 0;
            end = held.from.saturating_add(held.len);
            ordered && end < 1 << 62
        });
        ascending && self.base < 1 << 62 && self.end() - lowest_base <= SPAN_MAX
    }
}

impl Plan {
    /// The plan for members with this progress, by rank.
    ///
    /// # Errors
    /// A progress that cannot be true, or a sum that nobody can hand on.
    pub fn new(members: &[(u16, Progress)]) -> Result<Self, PlanError> {
        let bases = members.iter().map(|(_, progress)| progress.base);
        let from = bases.min().unwrap_or(0);
        if let Some((rank, _)) = members.iter().find(|(_, p)| !p.is_possible(from)) {
            return Err(PlanError::Impossible { rank: *rank });
        }
        let end = members.iter().map(|(_, progress)| progress.end()).max().unwrap_or(0);
        let sequences = members.iter().map(|(_, progress)| progress.next_sequence);
        let next_sequence = sequences.max().unwrap_or(0);
        let mut plan = Self { from, runs: Vec::new(), next_sequence };
        for block in from..end {
            plan.push(fate(members, block)?);
        }
        Ok(plan)
    }

    fn push(&mut self, kind: RunKind) {
        match self.runs.last_mut() {
            Some(run) if run.kind == kind => run.len += 1,
            _ => self.runs.push(Run { len: 1, kind }),
        }
    }
}

/// What becomes of one block.
fn fate(members: &[(u16, Progress)], block: u64) -> Result<RunKind, PlanError> {
    let holders = members.iter().filter(|(_, progress)| progress.has(block)).count();
    if holders == members.len() {
        return Ok(RunKind::Skip);
    }
    if holders == 0 {
        return Ok(RunKind::Redo);
    }
    members
        .iter()
        .find_map(|(rank, progress)| {
            progress.sum_of(block).map(|members| RunKind::Copy { source: *rank, members })
        })
        .ok_or(PlanError::NoSource(block))
}

/// A plan as a table: from the job's numbers to the epoch's and back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMap {
    from: u64,
    /// First block of the job and of the epoch behind all runs.
    end: (u64, u64),
    /// Each run with its first block of the job and of the epoch.
    runs: Vec<(u64, u64, Run)>,
}

impl BlockMap {
    /// The table of a plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let (mut job, mut epoch) = (plan.from, 0);
        let mut runs = Vec::with_capacity(plan.runs.len());
        for run in &plan.runs {
            runs.push((job, epoch, *run));
            job += run.len;
            if run.kind != RunKind::Skip {
                epoch += run.len;
            }
        }
        Self { from: plan.from, end: (job, epoch), runs }
    }

    /// The epoch's number of a block of the job, and what becomes of it; none for a block that was
    /// finished before.
    #[must_use]
    pub fn to_epoch(&self, block: u64) -> Option<(u64, RunKind)> {
        if block >= self.end.0 {
            return Some((block - self.end.0 + self.end.1, RunKind::Redo));
        }
        if block < self.from {
            return None;
        }
        let behind = self.runs.partition_point(|(job, ..)| *job <= block);
        let (job, epoch, run) = self.runs.get(behind.checked_sub(1)?)?;
        (run.kind != RunKind::Skip).then_some((block - job + epoch, run.kind))
    }

    /// The job's number of a block of the epoch, and what becomes of it.
    #[must_use]
    pub fn to_job(&self, block: u64) -> (u64, RunKind) {
        // Runs that are skipped have no numbers in the epoch: of several with the same first
        // number the last is meant.
        let behind = self.runs.partition_point(|(_, epoch, _)| *epoch <= block);
        match behind.checked_sub(1).and_then(|index| self.runs.get(index)) {
            Some((job, epoch, run)) if block < self.end.1 => (block - epoch + job, run.kind),
            _ => (block - self.end.1 + self.end.0, RunKind::Redo),
        }
    }

    /// How many blocks of the epoch come before this block of the job.
    #[must_use]
    pub fn count_before(&self, block: u64) -> u64 {
        if block >= self.end.0 {
            return block - self.end.0 + self.end.1;
        }
        let behind = self.runs.partition_point(|(job, ..)| *job <= block);
        match behind.checked_sub(1).and_then(|index| self.runs.get(index)) {
            Some((_, epoch, Run { kind: RunKind::Skip, .. })) => *epoch,
            Some((job, epoch, _)) => block - job + epoch,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn progress(base: u64, held: &[(u64, u64)]) -> Progress {
        let held = held.iter().map(|(from, len)| Held { from: *from, len: *len, members: 0b111 });
        Progress { base, next_sequence: base, held: held.collect() }
    }

    fn copy(source: u16) -> RunKind {
        RunKind::Copy { source, members: 0b111 }
    }

    #[test]
    fn each_block_has_the_fate_that_the_module_text_tells() {
        // Rank 0 lacks 5 and has 6, rank 2 has all before 7.
        let members = [(0, progress(5, &[(3, 2), (6, 1)])), (2, progress(7, &[(3, 4)]))];
        let plan = Plan::new(&members).expect("all is well");
        let runs = [Run { len: 1, kind: copy(2) }, Run { len: 1, kind: RunKind::Skip }];
        assert_eq!(plan, Plan { from: 5, runs: runs.to_vec(), next_sequence: 7 });
        let map = BlockMap::new(&plan);
        assert_eq!(map.to_epoch(4), None);
        assert_eq!(map.to_epoch(5), Some((0, copy(2))));
        assert_eq!(map.to_epoch(6), None);
        assert_eq!(map.to_epoch(7), Some((1, RunKind::Redo)));
        assert_eq!(map.to_job(0), (5, copy(2)));
        assert_eq!(map.to_job(1), (7, RunKind::Redo));
        assert_eq!(map.to_job(9), (15, RunKind::Redo));
        assert_eq!((map.count_before(6), map.count_before(7), map.count_before(8)), (1, 1, 2));
    }

    #[test]
    fn what_nobody_has_is_done_again() {
        let members = [(0, progress(5, &[(6, 1)])), (1, progress(5, &[(6, 1)]))];
        let plan = Plan::new(&members).expect("all is well");
        let runs =
            [Run { len: 1, kind: RunKind::Redo }, Run { len: 1, kind: RunKind::Skip }].to_vec();
        assert_eq!(plan, Plan { from: 5, runs, next_sequence: 5 });
    }

    #[test]
    fn a_sum_that_nobody_can_hand_on_is_named() {
        let members = [(0, progress(5, &[])), (1, progress(7, &[(6, 1)]))];
        assert_eq!(Plan::new(&members), Err(PlanError::NoSource(5)));
    }

    #[test]
    fn lies_are_refused() {
        let honest = (0, progress(5, &[]));
        for lie in [
            progress(u64::MAX, &[]),
            progress(SPAN_MAX + 6, &[]),
            progress(5, &[(u64::MAX - 1, 9)]),
            progress(5, &[(9, 1), (8, 1)]),
            progress(5, &[(9, 0)]),
            Progress { held: vec![Held { from: 6, len: 1, members: 0 }], ..progress(5, &[]) },
        ] {
            let plan = Plan::new(&[honest.clone(), (1, lie)]);
            assert_eq!(plan, Err(PlanError::Impossible { rank: 1 }));
        }
    }

    proptest! {
        /// There and back again, every block of the epoch exactly once, in the job's order.
        #[test]
        fn the_table_agrees_with_itself(
            from in 0_u64..1000,
            kinds in prop::collection::vec((1_u64..5, 0_u8..3), 0..20),
        ) {
            let kind = |code| match code {
                0 => RunKind::Skip,
                1 => RunKind::Redo,
                _ => RunKind::Copy { source: 1, members: 0b10 },
            };
            let runs = kinds.iter().map(|(len, code)| Run { len: *len, kind: kind(*code) });
            let plan = Plan { from, runs: runs.collect(), next_sequence: 0 };
            let map = BlockMap::new(&plan);
            let total: u64 = plan.runs.iter().map(|run| run.len).sum();
            let mut next = 0;
            for block in from..from + total + 10 {
                prop_assert_eq!(map.count_before(block), next);
                if let Some((epoch, kind)) = map.to_epoch(block) {
                    prop_assert_eq!(epoch, next);
                    prop_assert_eq!(map.to_job(epoch), (block, kind));
                    next += 1;
                }
            }
            prop_assert_eq!(map.to_epoch(from.wrapping_sub(1)).filter(|_| from > 0), None);
        }
    }
}
