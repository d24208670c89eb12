//! The exact reference, and what is compared with it at every step.
//!
//! The checker is told everything that happens, by the simulation, which sees all parties at once.
//! It keeps what the protocol promises in its own words:
//!
//! * An **epoch** has members, each of them a *life* (a process). In an epoch each block's sum is
//!   complete at most once, and it is the exact sum of one contribution of every member
//!   (invariants 1 and 2). Where the plan says that a block is copied, the sum is the one that it
//!   copies.
//! * A **lineage** is what a job's members hand on from epoch to epoch: block numbers, and results.
//!   A result that any member took in *that goes on into a later epoch* is what all members of that
//!   epoch get, bit by bit. A block whose result only lost members took in may be summed again
//!   without them. Then a lost member that lives on somewhere has another result. No more can be
//!   promised, and [`Checker::begins`] compares each plan with that: no block is skipped that a
//!   member lacks, none is done again that a member has, and what is copied is what all holders
//!   have.
//! * With block scaling a call has blocks of keys, and each data block goes with the keys of its
//!   **group**: those that its contributors were given as the result of that block of keys,
//!   whichever members it is of. No member contributes data without keys.
//! * In a **tree** of aggregators all of this holds of the whole. Each aggregator counts each of
//!   its members once. It sends up nothing but the exact sum of those below it, and hands down
//!   nothing but the root's result.
//! * A **slot** is taken over only when every member of the epoch holds the slot's result
//!   (invariant 7). The checker knows this of all members; no party of the protocol does.

mod errors;
mod path;
mod results;
mod ring;
mod standing;
mod sums;
mod tree;

use std::collections::BTreeMap;

use xdp_agg_common::control::{Admitted, Plan, RunKind};
use xdp_agg_common::reform::BlockMap;

pub(crate) use path::Origin;

use crate::reference::Shape;
use crate::scenario::{JobPlan, Link, Scenario};

/// No completion.
const NONE: u32 = u32::MAX;

/// The reference, and the first thing that contradicts it.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    jobs: Vec<(u64, JobPlan)>,
    /// By job: its calls have no excuse for not ending by their deadlines.
    in_time: Vec<bool>,
    lives: Vec<Life>,
    epochs: Vec<Epoch>,
    by_cookie: BTreeMap<u64, usize>,
    lineages: Vec<Lineage>,
    completions: Vec<Completion>,
    /// By daemon, and number of the job there.
    path: BTreeMap<(usize, u16), path::Registered>,
    /// The aggregators of each epoch, by its cookie and by daemon.
    trunks: BTreeMap<u64, BTreeMap<usize, tree::Node>>,
    troubles: tree::Troubles,
    looks: standing::Looks,
    /// Epochs of rings, by the ring's number.
    rings: BTreeMap<usize, usize>,
    /// Epochs at daemons whose members came from a ring.
    pub(crate) returned: u64,
    /// Epochs in which an aggregator stands in for a lost one.
    pub(crate) stood_in: u64,
    /// What every member got for a call, by lineage and sequence: which completions, and a digest.
    answers: BTreeMap<(usize, u64), Vec<GivenResult>>,
    problem: Option<String>,
    keys: KeyCounts,
}

/// Blocks of keys that were completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    /// Their keys were agreed upon.
    pub(crate) agreed: u64,
    /// Of these, by the plan of a later epoch than the one that they were first sent in.
    pub(crate) again: u64,
    /// Handed on to members that lacked them.
    pub(crate) copied: u64,
    /// Of these that were agreed upon, those that stood behind data.
    pub(crate) behind: u64,
}

/// What a member got for a call: the completion of each block, and a digest of the elements.
type GivenResult = (Vec<u32>, u64);

/// A process that takes part.
#[derive(Debug, Default)]
struct Life {
    job: usize,
    rank: u16,
    lineage: Option<usize>,
    /// The latest epoch that it is a member of.
    epoch: Option<usize>,
    /// Completion whose result it took in, by the job's block number.
    taken: Vec<u32>,
    /// Oldest block that it has not taken in.
    base: u64,
    /// The first call that it takes part in.
    first_sequence: u64,
    /// Its first epoch has begun.
    has_run: bool,
    /// It was killed, or its control connection ended.
    lost: bool,
    /// Results have not reached it for half of `dead_after`, as its aggregator knows.
    cut_off: bool,
    /// It ended its membership of its own accord.
    gave_up: bool,
    /// It goes on without a daemon, and has not left that ring again.
    on_ring: bool,
    standing: standing::Standing,
}

/// One epoch as its members know it.
#[derive(Debug)]
struct Epoch {
    job: usize,
    admitted: Admitted,
    lineage: Option<usize>,
    /// No aggregator sums.
    on_ring: bool,
    /// By rank.
    who: Vec<Option<usize>>,
    map: BlockMap,
    blocks: Vec<Block>,
    /// By rank: oldest block of the epoch that it has not taken in.
    bases: Vec<u64>,
}

/// A block of an epoch.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Ranks that took its result in.
    taken: u64,
    /// Its sum, once complete.
    completion: u32,
}

/// A sum.
#[derive(Debug)]
struct Completion {
    block: u64,
    members: u64,
    flags: u8,
    lanes: Vec<u8>,
    /// Which keys its lanes were made with, if any.
    keys: u32,
}

/// What is handed on from epoch to epoch.
#[derive(Debug)]
struct Lineage {
    job: usize,
    chunks: u16,
    /// First block of each call, as far as anybody asked; one more than calls.
    firsts: Vec<u64>,
    /// Calls that may be made.
    limit: u64,
}

impl Checker {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let key = |job: usize| crate::reference::mix(scenario.seed ^ (job as u64) << 56);
        let jobs = scenario.jobs.iter().enumerate().map(|(job, plan)| (key(job), plan.clone()));
        Self {
            jobs: jobs.collect(),
            in_time: scenario.jobs.iter().map(|plan| scenario.is_in_time(plan)).collect(),
            looks: standing::Looks::new(scenario),
            troubles: tree::Troubles {
                rough: scenario.link != Link { base: scenario.link.base, ..Link::CLEAN },
                ..tree::Troubles::default()
            },
            ..Self::default()
        }
    }

    /// How many blocks of keys there were.
    pub(crate) const fn key_counts(&self) -> KeyCounts {
        self.keys
    }

    /// The first contradiction.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Notes a contradiction.
    pub(crate) fn fail(&mut self, problem: impl FnOnce() -> String) {
        if self.problem.is_none() {
            self.problem = Some(problem());
        }
    }

    /// A process was started; its number.
    pub(crate) fn born(&mut self, job: usize, rank: u16) -> usize {
        self.lives.push(Life { job, rank, ..Life::default() });
        self.lives.len() - 1
    }

    /// A process joins as if for the first time. It may have been admitted before, without hearing
    /// of that.
    pub(crate) fn joins(&mut self, life: usize) {
        let life = &mut self.lives[life];
        if life.base > life.taken.iter().filter(|completion| **completion == NONE).count() as u64 {
            let rank = life.rank;
            return self.fail(|| format!("rank {rank} has results, and joins as if it had none"));
        }
        (life.lineage, life.epoch, life.base) = (None, None, 0);
        life.taken.clear();
    }

    /// What the members of a job call.
    pub(crate) fn shape(&self, job: usize, sequence: u64) -> Shape {
        let (key, plan) = &self.jobs[job];
        Shape::new(*key, plan, sequence)
    }

    /// The first call that this process takes part in; asked when its first epoch has begun.
    pub(crate) fn first_sequence(&mut self, life: usize) -> Option<u64> {
        let life = &mut self.lives[life];
        life.has_run = true;
        life.lineage.map(|_| life.first_sequence)
    }

    /// The latest epoch that a process is a member of.
    pub(crate) fn epoch(&self, life: usize) -> Option<usize> {
        self.lives[life].epoch
    }

    /// The daemon tells a process that it is a member.
    pub(crate) fn admitted(&mut self, life: usize, admitted: &Admitted) {
        let Life { job, rank, .. } = self.lives[life];
        let index = match self.by_cookie.get(&admitted.cookie) {
            Some(index) => *index,
            None => self.new_epoch(job, admitted),
        };
        if let Err(problem) = self.check_place(admitted, rank) {
            return self.fail(|| problem);
        }
        let epoch = &mut self.epochs[index];
        // Where to send to is not the same for all.
        let Admitted { data, job_id, .. } = epoch.admitted;
        if epoch.admitted != (Admitted { data, job_id, ..admitted.clone() }) || epoch.job != job {
            let old = epoch.admitted.clone();
            return self.fail(|| {
                format!("members of one epoch are told different things: {old:?} and {admitted:?}")
            });
        }
        let bit = 1_u64 << rank;
        if admitted.members & bit == 0 {
            return self.fail(|| format!("rank {rank} is admitted to an epoch without it"));
        }
        let place = &mut epoch.who[usize::from(rank)];
        if place.is_some_and(|other| other != life) {
            return self.fail(|| format!("rank {rank} of an epoch is two processes"));
        }
        *place = Some(life);
    }

    fn new_epoch(&mut self, job: usize, admitted: &Admitted) -> usize {
        let index = self.add_epoch(job, admitted, false);
        self.by_cookie.insert(admitted.cookie, index);
        index
    }

    /// An epoch without an aggregator, with the cookie of the last one that had one.
    fn ring_epoch(&mut self, job: usize, admitted: &Admitted) -> usize {
        self.add_epoch(job, admitted, true)
    }

    fn add_epoch(&mut self, job: usize, admitted: &Admitted, on_ring: bool) -> usize {
        let world = usize::from(self.jobs[job].1.world);
        self.epochs.push(Epoch {
            job,
            admitted: admitted.clone(),
            lineage: None,
            on_ring,
            who: vec![None; world],
            map: BlockMap::new(&admitted.plan.clone().unwrap_or_default()),
            blocks: Vec::new(),
            bases: vec![0; world],
        });
        self.epochs.len() - 1
    }

    /// An epoch begins: all its members have entered it. Its plan is compared with what they have
    /// now. Before, it binds no member: one that did not hear of it may go on in the old one, and
    /// says later what it has.
    fn begins(&mut self, index: usize) {
        let Epoch { job, admitted, who, .. } = &self.epochs[index];
        if who.iter().flatten().count() != admitted.members.count_ones() as usize {
            return self.fail(|| "an epoch begins, and not all its members know of it".into());
        }
        let (job, chunks, plan) = (*job, admitted.chunks, admitted.plan.clone());
        let on_ring = self.epochs[index].on_ring;
        if !on_ring && let Err(problem) = self.check_tree(admitted) {
            return self.fail(|| problem);
        }
        if !on_ring && let Err(problem) = self.check_spares(index) {
            return self.fail(|| problem);
        }
        let members = self.members_of(index);
        let old: Vec<_> = members.iter().filter_map(|life| self.lives[*life].lineage).collect();
        // Some may have been admitted to a first epoch whose daemon died before it told the others.
        let from_0 = plan.as_ref().is_none_or(|plan| *plan == Plan::default());
        let lineage = match (&plan, old.first()) {
            (_, None) if from_0 => {
                let limit = self.jobs[job].1.calls;
                self.lineages.push(Lineage { job, chunks, firsts: vec![0], limit });
                self.lineages.len() - 1
            }
            // Members that joined an epoch whose old members were lost before it began.
            (_, None) => match self.lineages.iter().rposition(|lineage| lineage.job == job) {
                Some(lineage) => lineage,
                None => return self.fail(|| "a plan for members without a past".into()),
            },
            (None, Some(_)) => {
                return self.fail(|| "a member of an earlier epoch starts from 0".into());
            }
            (Some(_), Some(first)) if old.iter().any(|other| other != first) => {
                return self.fail(|| "members of different lineages are put together".into());
            }
            (Some(_), Some(first)) => *first,
        };
        if self.lineages[lineage].chunks != chunks {
            return self.fail(|| "the size of blocks changes in a job's life".into());
        }
        if let Some(plan) = &plan {
            let survivors: Vec<_> = members
                .iter()
                .copied()
                .filter(|life| self.lives[*life].lineage.is_some())
                .collect();
            self.check_plan(index, plan, &survivors);
        }
        self.epochs[index].lineage = Some(lineage);
        for member in members {
            self.check_return(member);
            let life = &mut self.lives[member];
            life.epoch = Some(index);
            if life.lineage.is_none() {
                life.lineage = Some(lineage);
                life.first_sequence = plan.as_ref().map_or(0, |plan| plan.next_sequence);
                let first = self.first_block(lineage, self.lives[member].first_sequence);
                let fits = plan.as_ref().is_none_or(|p| p.from == first && p.runs.is_empty());
                if !fits {
                    return self.fail(|| format!("a rank joins in the middle of a call: {plan:?}"));
                }
                let life = &mut self.lives[member];
                // What was before it came is nothing that it lacks.
                life.base = first;
                life.taken.resize(first as usize, NONE);
            }
        }
    }

    fn check_plan(&mut self, index: usize, plan: &Plan, survivors: &[usize]) {
        for life in survivors {
            let Life { rank, base, .. } = self.lives[*life];
            if base < plan.from {
                return self.fail(|| {
                    format!("the plan takes block {base} for finished, which rank {rank} lacks")
                });
            }
        }
        let mut block = plan.from;
        for run in &plan.runs {
            for _ in 0..run.len {
                if let Err(problem) = self.check_fate(block, run.kind, survivors) {
                    let epoch = self.epochs[index].admitted.epoch;
                    return self.fail(|| format!("plan of epoch {epoch}: {problem}"));
                }
                block += 1;
            }
        }
        for life in survivors {
            let Life { rank, taken, .. } = &self.lives[*life];
            let beyond = taken.iter().skip(block as usize).any(|completion| *completion != NONE);
            if beyond {
                let rank = *rank;
                return self.fail(|| {
                    format!("the plan ends at block {block}, but rank {rank} has later results")
                });
            }
        }
    }

    fn check_fate(&self, block: u64, kind: RunKind, survivors: &[usize]) -> Result<(), String> {
        let results = || survivors.iter().map(|life| (*life, self.lives[*life].result(block)));
        let first = results().find_map(|(_, completion)| completion);
        let differs = |other: Option<u32>| match (first, other) {
            (Some(first), Some(other)) => !self.same_as(first, other),
            _ => false,
        };
        if let Some((life, _)) = results().find(|(_, completion)| differs(*completion)) {
            let rank = self.lives[life].rank;
            return Err(format!("block {block}: rank {rank} has another result than others"));
        }
        let holders = results().filter(|(_, completion)| completion.is_some()).count();
        match kind {
            RunKind::Skip if holders < survivors.len() => {
                Err(format!("block {block} is skipped, though not all members have it"))
            }
            RunKind::Redo if holders > 0 => {
                Err(format!("block {block} is summed again, though {holders} members have it"))
            }
            RunKind::Copy { source, members } => {
                let from = survivors.iter().find(|life| self.lives[**life].rank == source);
                let Some(completion) = from.and_then(|life| self.lives[*life].result(block)) else {
                    return Err(format!("block {block} is copied from rank {source}, without it"));
                };
                let truth = self.completions[completion as usize].members;
                if truth != members {
                    return Err(format!(
                        "block {block} is copied as a sum of {members:#b}, it is one of {truth:#b}"
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// First block of a call.
    fn first_block(&mut self, lineage: usize, sequence: u64) -> u64 {
        while self.lineages[lineage].firsts.len() as u64 <= sequence {
            let Lineage { job, chunks, firsts, .. } = &self.lineages[lineage];
            let call = firsts.len() as u64 - 1;
            let next = firsts[firsts.len() - 1] + self.shape(*job, call).layout(*chunks).blocks();
            self.lineages[lineage].firsts.push(next);
        }
        self.lineages[lineage].firsts[sequence as usize]
    }

    /// The call that a block belongs to, and its index there.
    fn locate(&mut self, lineage: usize, block: u64) -> (u64, u64) {
        while *self.lineages[lineage].firsts.last().unwrap_or(&0) <= block {
            let next = self.lineages[lineage].firsts.len() as u64;
            self.first_block(lineage, next);
        }
        let firsts = &self.lineages[lineage].firsts;
        let call = firsts.partition_point(|first| *first <= block) - 1;
        (call as u64, block - firsts[call])
    }
}

impl Life {
    /// The completion that it took in for a block of the job.
    fn result(&self, block: u64) -> Option<u32> {
        self.taken.get(block as usize).copied().filter(|completion| *completion != NONE)
    }
}

impl Epoch {
    fn block(&mut self, block: u64) -> &mut Block {
        let index = block as usize;
        if index >= self.blocks.len() {
            let new = Block { taken: 0, completion: NONE };
            self.blocks.resize(index + 1, new);
        }
        &mut self.blocks[index]
    }
}
