//! What a worker may send, take in, and hand to its caller.

use std::any::Any;
use xdp_agg_common::control::RunKind;
use xdp_agg_common::wire::Header;
use xdp_agg_protocol::worker::{Call, Local, Report};

use super::{Checker, Completion, Epoch, Life, NONE};
use crate::reference::{Content, Layout, Shape, mix};

/// What a caller is given.
enum Elements {
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Elements {
    const fn len(&self) -> usize {
        match self {
            Self::I32(all) => all.len(),
            Self::F32(all) => all.len(),
        }
    }
}

impl Checker {
    /// A worker sends a contribution: within its window, which is half of the pool (invariant 7).
    pub(crate) fn sent(&mut self, life: usize, header: &Header) {
        let Some(index) = self.by_cookie.get(&header.cookie).copied() else {
            return self
                .fail(|| format!("a worker sends for an epoch that nobody has: {header:?}"));
        };
        let Epoch { who, bases, admitted, .. } = &self.epochs[index];
        let rank = self.lives[life].rank;
        if header.rank != rank || who[usize::from(rank)] != Some(life) {
            return self.fail(|| format!("rank {rank} sends what is not its own: {header:?}"));
        }
        let base = bases[usize::from(rank)];
        let window = u64::from(admitted.slots / 2);
        if header.block >= base + window {
            return self.fail(|| {
                format!(
                    "rank {rank} sends block {} without the result of block {base}: beyond its \
                     window of {window}",
                    header.block
                )
            });
        }
        if let Err(problem) = self.place(index, header.block).and_then(|p| self.keys(life, &p)) {
            self.fail(|| format!("rank {rank} sends too early: {problem}"));
        }
    }

    /// A worker took in a result.
    pub(crate) fn took(&mut self, life: usize, header: &Header, payload: &[u8]) {
        let Some(index) = self.by_cookie.get(&header.cookie).copied() else {
            return self.fail(|| format!("a result of no epoch is taken in: {header:?}"));
        };
        let Life { rank, epoch: latest, .. } = self.lives[life];
        let epoch = &mut self.epochs[index];
        if epoch.admitted.epoch != header.epoch || epoch.who[usize::from(rank)] != Some(life) {
            return self.fail(|| format!("rank {rank} takes in a foreign result: {header:?}"));
        }
        let block = header.block;
        let state = epoch.block(block);
        let bit = 1_u64 << rank;
        if state.completion == NONE {
            return self
                .fail(|| format!("rank {rank} has a result of block {block} before its end"));
        }
        if state.taken & bit != 0 {
            return self.fail(|| format!("rank {rank} takes in the result of block {block} twice"));
        }
        state.taken |= bit;
        let number = state.completion;
        let base = &mut epoch.bases[usize::from(rank)];
        while epoch.blocks.get(*base as usize).is_some_and(|block| block.taken & bit != 0) {
            *base += 1;
        }
        let is_copy = matches!(epoch.map.to_job(block).1, RunKind::Copy { .. });
        let completion = &self.completions[number as usize];
        if completion.lanes != payload || completion.flags != header.flags {
            return self.fail(|| format!("rank {rank} has another result of block {block}"));
        }
        if latest != Some(index) {
            return self.fail(|| {
                format!("rank {rank} takes in a result of an epoch that is over: {header:?}")
            });
        }
        self.record(life, number, is_copy);
    }

    pub(super) fn record(&mut self, life: usize, number: u32, is_copy: bool) {
        let block = self.completions[number as usize].block;
        if let Some(old) = self.lives[life].result(block) {
            if !is_copy || !self.same_as(old, number) {
                let rank = self.lives[life].rank;
                self.fail(|| format!("rank {rank} is given block {block} of the job once more"));
            }
            return;
        }
        let Life { taken, base, .. } = &mut self.lives[life];
        let index = block as usize;
        if index >= taken.len() {
            taken.resize(index + 1, NONE);
        }
        taken[index] = number;
        while taken.get(*base as usize).is_some_and(|completion| *completion != NONE) {
            *base += 1;
        }
    }

    /// Whether two completions are one result: a copy is what it copies.
    pub(super) fn same_as(&self, one: u32, other: u32) -> bool {
        if one == other {
            return true;
        }
        let (one, other) = (&self.completions[one as usize], &self.completions[other as usize]);
        let what = |c: &Completion| (c.block, c.members, c.flags);
        what(one) == what(other) && one.lanes == other.lanes
    }

    /// A call has ended with a result.
    pub(crate) fn delivered(&mut self, life: usize, call: Call) {
        let Life { job, rank, lineage, .. } = self.lives[life];
        let Some(lineage) = lineage else {
            return self.fail(|| format!("rank {rank} has a result without being a member"));
        };
        let sequence = call.sequence();
        let shape = self.shape(job, sequence);
        let chunks = self.lineages[lineage].chunks;
        let first = self.first_block(lineage, sequence);
        let layout = shape.layout(chunks);
        let blocks = layout.blocks();
        let contributors = call.contributors();
        let told = contributors.iter().map(|held| held.len).sum::<u64>();
        if told != blocks || blocks > 0 && call.first_block().0 != first {
            return self.fail(|| {
                format!("call {sequence} of rank {rank} tells of {told} blocks, it has {blocks}")
            });
        }
        let mut completions = Vec::new();
        for held in &contributors {
            for block in held.from..held.from + held.len {
                let Some(number) = self.lives[life].result(block) else {
                    return self.fail(|| format!("call {sequence} is done without block {block}"));
                };
                let truth = self.completions[number as usize].members;
                if truth != held.members {
                    return self.fail(|| {
                        format!(
                            "call {sequence} of rank {rank} says that {:#b} contributed to block \
                             {block}: it was {truth:#b}",
                            held.members
                        )
                    });
                }
                completions.push(number);
            }
        }
        if let Err(problem) = self.check_report(&layout, &completions, call.report()) {
            return self.fail(|| format!("call {sequence} of rank {rank}: {problem}"));
        }
        let any: Box<dyn Any> = call.into_blocks();
        let elements = match any.downcast::<Local<i32>>() {
            Ok(local) => Elements::I32(local.into_buffer().into_owned()),
            Err(any) => match any.downcast::<Local<f32>>() {
                Ok(local) => Elements::F32(local.into_buffer().into_owned()),
                Err(_) => return self.fail(|| "a call has come back as another one".into()),
            },
        };
        let digest = match self.check_elements(job, &shape, chunks, &completions, &elements) {
            Ok(digest) => digest,
            Err(problem) => {
                return self.fail(|| format!("{problem} of call {sequence} of rank {rank}"));
            }
        };
        self.compare(lineage, sequence, completions, digest);
    }

    /// All members that were given the same blocks have the same bits.
    fn compare(&mut self, lineage: usize, sequence: u64, completions: Vec<u32>, digest: u64) {
        let answers = self.answers.get(&(lineage, sequence));
        let differs = answers.into_iter().flatten().any(|(others, other)| {
            let same = others.iter().zip(&completions).all(|(a, b)| self.same_as(*a, *b));
            same && *other != digest
        });
        if differs {
            self.fail(|| format!("members have different bits of call {sequence}"));
        }
        self.answers.entry((lineage, sequence)).or_default().push((completions, digest));
    }

    /// What a caller is told of its call besides its elements.
    fn check_report(
        &self,
        layout: &Layout,
        completions: &[u32],
        report: &Report,
    ) -> Result<(), String> {
        let data = (0..).zip(completions).filter(|(index, _)| {
            // Whose keys alone are in a call has not contributed to it.
            matches!(layout.part(*index), Content::Data(_))
        });
        let data = || data.clone().map(|(_, number)| &self.completions[*number as usize]);
        let odd = data().filter(|completion| completion.is_odd()).count() as u64;
        let all = data().fold(u64::MAX, |all, completion| all & completion.members);
        let any = data().fold(0, |any, completion| any | completion.members);
        let told = [report.blocks, report.exponent_blocks, report.non_finite_blocks];
        if told != [layout.blocks(), layout.groups(), odd] || report.saturated != 0 {
            return Err(format!("{odd} blocks are not finite, and the report is {report:?}"));
        }
        let truth = (all, any & !all);
        if layout.data > 0 && (report.contributors, report.partial) != truth {
            return Err(format!("{truth:?} contributed, and the report is {report:?}"));
        }
        Ok(())
    }

    /// Compares each element with the exact one; a digest of all, or what is wrong.
    fn check_elements(
        &self,
        job: usize,
        shape: &Shape,
        chunks: u16,
        completions: &[u32],
        elements: &Elements,
    ) -> Result<u64, String> {
        if elements.len() != shape.len {
            return Err(format!("the number of elements, {},", elements.len()));
        }
        let world = self.jobs[job].1.world;
        let layout = shape.layout(chunks);
        let mut digest = 0;
        for (index, number) in (0..).zip(completions) {
            let Content::Data(data) = layout.part(index) else { continue };
            let completion = &self.completions[*number as usize];
            let Completion { members, lanes, keys, .. } = completion;
            let key = match layout.key_of(data) {
                Some((at, _)) if !self.same_as(*keys, completions[at as usize]) => {
                    return Err(format!("block {data} has other keys than it was summed with:"));
                }
                Some((_, place)) => self.key(*keys, place),
                None => 0,
            };
            let (contributors, scale) = (members.count_ones(), shape.scale(key, world));
            let (from, to) = shape.range(data, chunks);
            for (index, lane) in (from..to).zip(lanes.as_chunks::<4>().0) {
                let lane = u32::from_le_bytes(*lane);
                let (right, bits) = match elements {
                    Elements::I32(all) => {
                        let value = all[index];
                        (value == shape.integer(lane, world, contributors), value as u32)
                    }
                    Elements::F32(all) => {
                        let value = all[index];
                        let exact = shape.float(lane, world, contributors, scale);
                        let same = value.to_bits() == exact.to_bits();
                        let right = if completion.is_odd() { value.is_nan() } else { same };
                        (right, value.to_bits())
                    }
                };
                if !right {
                    return Err(format!("wrong element {index}"));
                }
                digest = mix(digest ^ u64::from(bits));
            }
        }
        Ok(digest)
    }
}
