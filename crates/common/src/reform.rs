//! What becomes of the blocks in flight when a job gets a new epoch.
//!
//! Blocks have two numbers. The *job's* number counts all blocks of a job's life, in the order of
//! calls, the same at every member. The *epoch's* number is the one on the wire; it starts from 0
//! in every epoch. A [`Plan`] says which block of the job is which of the epoch.
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
//! So once a member was given a result, all get the same one, bit by bit, whichever members died.
//!
//! # Why a holder can always be found
//! A member keeps the sums of the last `W` blocks of the epoch whose results it had, where `W` is
//! half the pool. Let `s` be the member whose oldest missing block, `base`, is the lowest. A block
//! is complete only when `s` contributed to it, and `s` sends no block from `base + W` on. So every
//! block that anybody has and `s` lacks is among the last `W` that its holder can have had.

use std::collections::BTreeMap;

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

    /// Tells every change from the block `from` on, where it has what lies before `base`.
    fn changes(&self, from: u64, mut tell: impl FnMut(u64, Change)) {
        if self.base > from {
            tell(from, Change::Results);
            tell(self.base, Change::ResultsEnd);
        }
        for held in &self.held {
            let end = held.from + held.len;
            if end > from {
                tell(held.from.max(from), Change::Sums(held.members));
                tell(end, Change::SumsEnd);
            }
            if end > self.base {
                tell(held.from.max(self.base), Change::Results);
                tell(end, Change::ResultsEnd);
            }
        }
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
        let sequences = members.iter().map(|(_, progress)| progress.next_sequence);
        let next_sequence = sequences.max().unwrap_or(0);
        let mut plan = Self { from, runs: Vec::new(), next_sequence };
        // From claim to claim and not from block to block: what members say must not keep the
        // daemon busy for long, and a claim costs the member that makes it.
        let mut changes = Vec::new();
        for (index, (_, progress)) in members.iter().enumerate() {
            progress.changes(from, |block, change| changes.push((block, change, index)));
        }
        changes.sort_unstable();
        let mut standing = Standing { all: members.len(), holders: 0, sums: BTreeMap::new() };
        let mut at = from;
        for (block, change, index) in changes {
            if block > at {
                plan.push(block - at, standing.fate(members, at)?);
                at = block;
            }
            standing.change(index, change);
        }
        Ok(plan)
    }

    /// Whether its numbers stay within bounds: true of every plan that [`Self::new`] makes. A
    /// worker that is told any other plan was not told it by a daemon of this release.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let mut end = self.from;
        self.from < 1 << 62
            && self.runs.iter().all(|run| {
                end = end.saturating_add(run.len);
                run.len > 0 && end < 1 << 62
            })
    }

    fn push(&mut self, len: u64, kind: RunKind) {
        match self.runs.last_mut() {
            Some(run) if run.kind == kind => run.len += len,
            _ => self.runs.push(Run { len, kind }),
        }
    }
}

/// What changes for one member at a block. In this order where several do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// It cannot hand on the sums from here on.
    SumsEnd,
    /// It has no results from here on.
    ResultsEnd,
    /// It has the results from here on.
    Results,
    /// It can hand on the sums from here on; whose contributions are in them.
    Sums(u64),
}

/// Which members have the result of a block.
struct Standing {
    all: usize,
    holders: usize,
    /// Whose contributions are in the sum that a member can hand on, by its place in the list.
    sums: BTreeMap<usize, u64>,
}

impl Standing {
    fn change(&mut self, index: usize, change: Change) {
        match change {
            Change::SumsEnd => drop(self.sums.remove(&index)),
            Change::ResultsEnd => self.holders -= 1,
            Change::Results => self.holders += 1,
            Change::Sums(members) => drop(self.sums.insert(index, members)),
        }
    }

    /// What becomes of the block.
    fn fate(&self, members: &[(u16, Progress)], block: u64) -> Result<RunKind, PlanError> {
        if self.holders == self.all {
            return Ok(RunKind::Skip);
        }
        if self.holders == 0 {
            return Ok(RunKind::Redo);
        }
        let source = self.sums.first_key_value();
        source
            .map(|(index, sum)| RunKind::Copy { source: members[*index].0, members: *sum })
            .ok_or(PlanError::NoSource(block))
    }
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
    /// The table of a plan that [`Plan::is_possible`].
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

    /// All members of the largest job claim as much as control frames carry.
    #[test]
    fn a_plan_is_made_in_time_whatever_is_claimed() {
        let held = |rank: u64| (0..20_000_u64).map(move |i| (i * 52 + rank % 26, 26));
        let claim = |rank: u16| progress(0, &held(rank.into()).collect::<Vec<_>>());
        let members: Vec<_> = (0..64).map(|rank| (rank, claim(rank))).collect();
        let start = std::time::Instant::now();
        let plan = Plan::new(&members).expect("all is well");
        // A fraction of a second, or a few beside much else; every claim by every other: minutes.
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
        assert!(plan.runs.len() > 20_000 && plan.is_possible());
    }

    #[test]
    fn plans_that_no_daemon_makes_are_known_as_such() {
        let run = |len| Run { len, kind: RunKind::Redo };
        for (from, runs) in [(1 << 62, vec![]), (0, vec![run(0)]), (5, vec![run(1), run(u64::MAX)])]
        {
            assert!(!Plan { from, runs, next_sequence: 0 }.is_possible());
        }
        assert!(Plan::default().is_possible());
    }

    proptest! {
        /// Each block by itself, by the words of the module's text.
        #[test]
        fn a_plan_tells_each_block_its_fate(
            bases in prop::collection::vec(0_u64..8, 1..4),
            helds in prop::collection::vec(prop::collection::vec((0_u64..3, 1_u64..4), 0..4), 4),
        ) {
            let claim = |(rank, base): (usize, &u64)| {
                let mut at = 0;
                let held = helds[rank].iter().map(|(gap, len)| {
                    let held = Held { from: at + gap, len: *len, members: 1 + rank as u64 };
                    at = held.from + len;
                    held
                });
                let held = held.collect();
                (rank as u16, Progress { base: *base, next_sequence: 0, held })
            };
            let members: Vec<_> = bases.iter().enumerate().map(claim).collect();
            let sum = |(rank, progress): &(u16, Progress), block| {
                let of = |held: &&Held| (held.from..held.from + held.len).contains(&block);
                let held = progress.held.iter().find(of)?;
                Some(RunKind::Copy { source: *rank, members: held.members })
            };
            let has = |member: &(u16, Progress), block| {
                block < member.1.base || sum(member, block).is_some()
            };
            let fate = |block| {
                let holders = members.iter().filter(|member| has(member, block)).count();
                match holders {
                    0 => Ok(RunKind::Redo),
                    all if all == members.len() => Ok(RunKind::Skip),
                    _ => members.iter().find_map(|m| sum(m, block)).ok_or(block),
                }
            };
            let from = bases.iter().copied().min().unwrap_or(0);
            match Plan::new(&members) {
                Ok(plan) => {
                    prop_assert_eq!(plan.from, from);
                    let mut block = from;
                    for Run { len, kind } in &plan.runs {
                        for block in block..block + len {
                            prop_assert_eq!(fate(block), Ok(*kind));
                        }
                        block += len;
                    }
                    prop_assert!((block..block + 30).all(|block| fate(block) == Ok(RunKind::Redo)));
                }
                Err(PlanError::NoSource(block)) => {
                    prop_assert_eq!(fate(block), Err(block));
                    prop_assert!((from..block).all(|block| fate(block).is_ok()));
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

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
