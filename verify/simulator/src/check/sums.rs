//! What each member has to contribute to a block, and what has to come of that.

use xdp_agg_common::control::RunKind;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::wire::{MAX_WORKERS, Reduction, flags};

use super::{Checker, Completion, NONE};
use crate::reference::{Content, Inputs, Layout, Shape, combine, seal};

/// A contribution.
pub(super) struct Due {
    pub(super) payload: Vec<u8>,
    /// It is not of numbers alone.
    pub(super) odd: bool,
    /// Which keys its lanes were made with, if any.
    keys: u32,
}

/// A block of an epoch, as a block of a call.
pub(super) struct Place {
    job_block: u64,
    kind: RunKind,
    sequence: u64,
    part: Content,
    /// It ends with its call's seal.
    sealed: bool,
    shape: Shape,
    layout: Layout,
    chunks: u16,
    world: u16,
    /// Its keys, if it has any: the block of the job, and the place in it.
    key: Option<(u64, usize)>,
    /// The rank that contributes alone, if one does.
    root: Option<u16>,
}

impl Place {
    /// The rank whose contribution alone is the block's result, if there is one.
    pub(super) const fn root(&self) -> Option<u16> {
        self.root
    }

    /// Bytes of the block.
    pub(super) fn payload(&self) -> usize {
        let seal = if self.sealed { CHUNK_LEN } else { 0 };
        self.shape.payload(&self.layout, self.part, self.chunks) + seal
    }
}

impl Completion {
    pub(super) const fn is_odd(&self) -> bool {
        self.flags & flags::NON_FINITE != 0
    }
}

impl Checker {
    /// An agreed key.
    pub(super) fn key(&self, keys: u32, place: usize) -> u16 {
        let lanes = self.completions[keys as usize].lanes.as_chunks::<2>().0;
        lanes.get(place).map_or(0, |lane| u16::from_le_bytes(*lane))
    }

    /// What a block of an epoch is.
    pub(super) fn place(&mut self, epoch: usize, block: u64) -> Result<Place, String> {
        let (job_block, kind) = self.epochs[epoch].map.to_job(block);
        let Some(lineage) = self.epochs[epoch].lineage else {
            return Err("a contribution before all members were admitted".into());
        };
        let (sequence, index) = self.locate(lineage, job_block);
        let (job, chunks) = (self.epochs[epoch].job, self.epochs[epoch].admitted.chunks);
        let shape = self.shape(job, sequence);
        let layout = shape.layout(chunks);
        let (part, sealed) = (layout.part(index), layout.is_sealed(index));
        let key = match part {
            Content::Data(data) => layout.key_of(data),
            Content::Keys(_) | Content::Seal => None,
        };
        let key = key.map(|(at, place)| (job_block - index + at, place));
        let plan = &self.jobs[job].1;
        let world = plan.world;
        let root = shape.root.filter(|_| plan.has_copies() && !block.is_multiple_of(16));
        Ok(Place {
            job_block,
            kind,
            sequence,
            part,
            sealed,
            shape,
            layout,
            chunks,
            world,
            key,
            root,
        })
    }

    /// The result that a process has with the keys of a block that it is about to sum, if that has
    /// any.
    pub(super) fn keys(&self, life: usize, place: &Place) -> Result<u32, String> {
        match (place.kind, place.key) {
            (RunKind::Copy { .. }, _) | (_, None) => Ok(NONE),
            (_, Some((at, _))) => self.lives[life].result(at).ok_or_else(|| {
                let Place { job_block, .. } = place;
                format!("block {job_block} of the job goes with keys that are not agreed upon")
            }),
        }
    }

    /// What a rank has to contribute to a block of an epoch.
    pub(super) fn due(&mut self, epoch: usize, block: u64, rank: u16) -> Result<Due, String> {
        let place = self.place(epoch, block)?;
        let Place { job_block, part, sealed, shape, chunks, .. } = place;
        let Some(life) = self.epochs[epoch].who.get(usize::from(rank)).copied().flatten() else {
            return Err(format!("rank {rank} is no member of this epoch"));
        };
        match place.kind {
            RunKind::Copy { source, .. } if source == rank => {
                let completion = self.lives[life].result(job_block);
                let completion = completion.ok_or("the source of a copy has no result")?;
                let completion = &self.completions[completion as usize];
                let Completion { lanes, keys, .. } = completion;
                Ok(Due { payload: lanes.clone(), odd: completion.is_odd(), keys: *keys })
            }
            RunKind::Copy { .. } => {
                Ok(Due { payload: vec![0; place.payload()], odd: false, keys: NONE })
            }
            _ => {
                let keys = self.keys(life, &place)?;
                let key = place.key.map_or(0, |(_, place)| self.key(keys, place));
                let inputs = Inputs::new(life, place.world, place.sequence, shape).of(rank);
                let (mut payload, odd) = inputs.payload(part, chunks, key)?;
                if sealed {
                    let (job, rule) = (self.epochs[epoch].job, shape.rule(part));
                    payload.extend(seal(job, place.sequence, &shape, rule));
                }
                Ok(Due { payload, odd, keys })
            }
        }
    }

    /// What these ranks have to contribute to a block, together.
    pub(super) fn sum_of(&mut self, epoch: usize, block: u64, ranks: u64) -> Result<Due, String> {
        let place = self.place(epoch, block)?;
        let rule = match place.kind {
            RunKind::Copy { .. } => Reduction::Add,
            _ => place.shape.rule(place.part),
        };
        let mut sum: Option<Due> = None;
        for rank in (0..MAX_WORKERS as u16).filter(|rank| ranks >> rank & 1 == 1) {
            let due = self.due(epoch, block, rank)?;
            let Some(Due { payload, odd, keys }) = &mut sum else {
                sum = Some(due);
                continue;
            };
            *odd |= due.odd;
            if *keys != NONE && due.keys != NONE && !self.same_as(*keys, due.keys) {
                return Err(format!("rank {rank} has other keys of block {block} than others"));
            }
            *keys = if due.keys == NONE { *keys } else { due.keys };
            combine(rule, payload, &due.payload);
        }
        sum.ok_or_else(|| format!("nobody contributes to block {block}"))
    }

    /// A block is complete: its result is compared with the exact one, and kept.
    pub(super) fn complete(&mut self, epoch: usize, block: u64, result_flags: u8, payload: &[u8]) {
        match self.check_complete(epoch, block, result_flags, payload) {
            Ok(completion) => {
                self.count_keys(epoch, block);
                let number = self.completions.len() as u32;
                self.completions.push(completion);
                self.epochs[epoch].block(block).completion = number;
            }
            Err(problem) => self.fail(|| problem),
        }
    }

    fn count_keys(&mut self, epoch: usize, block: u64) {
        let Ok(place) = self.place(epoch, block) else { return };
        let Content::Keys(group) = place.part else { return };
        let behind = place.layout.keys_at(group) > group;
        let plan = self.epochs[epoch].admitted.plan.as_ref();
        let planned = plan.map_or(0, |p| p.from + p.runs.iter().map(|run| run.len).sum::<u64>());
        let counts = &mut self.keys;
        match place.kind {
            RunKind::Copy { .. } => counts.copied += 1,
            _ => {
                counts.agreed += 1;
                counts.again += u64::from(place.job_block < planned);
                counts.behind += u64::from(behind);
            }
        }
    }

    fn check_complete(
        &mut self,
        epoch: usize,
        block: u64,
        result_flags: u8,
        payload: &[u8],
    ) -> Result<Completion, String> {
        let contributors = self.epochs[epoch].admitted.members;
        let place = self.place(epoch, block)?;
        let members = match place.kind {
            RunKind::Copy { members, .. } => members,
            _ => contributors,
        };
        let Due { payload: sum, odd: any, keys } = self.sum_of(epoch, block, contributors)?;
        let marked = result_flags & flags::NON_FINITE != 0;
        if marked != any {
            return Err(format!("block {block} is marked non-finite: {marked}, not {any}"));
        }
        if !any && sum != payload {
            return Err(format!("the result of block {block} is wrong: {:?}", place.part));
        }
        let Place { job_block, .. } = place;
        let (lanes, flags) = (payload.to_vec(), result_flags);
        let completion = Completion { block: job_block, members, flags, lanes, keys };
        if !any && !matches!(place.kind, RunKind::Copy { .. }) {
            self.check_error(epoch, &place, &completion)?;
        }
        Ok(completion)
    }

    /// Sums with agreed keys are as near to the exact ones as their steps allow: half a step for
    /// each that contributed.
    fn check_error(
        &self,
        epoch: usize,
        place: &Place,
        completion: &Completion,
    ) -> Result<(), String> {
        let (Content::Data(data), Some((_, key))) = (place.part, place.key) else { return Ok(()) };
        let Place { shape, sequence, chunks, world, .. } = *place;
        let scale = shape.scale(self.key(completion.keys, key), world);
        let lives = || self.epochs[epoch].who.iter().flatten();
        let contributors = lives().count() as u32;
        let (from, to) = shape.range(data, chunks);
        for (index, lane) in (from..to).zip(completion.lanes.as_chunks::<4>().0) {
            let numbers = lives().map(|life| Inputs::new(*life, world, sequence, shape));
            let exact: f64 = numbers.map(|inputs| inputs.exact(index)).sum();
            let lane = u32::from_le_bytes(*lane);
            let error = (scale.sum(lane, world, contributors) - exact).abs();
            if error > scale.step() * f64::from(contributors) / 2.0 {
                return Err(format!("the sum of element {index} is wrong by {error}"));
            }
        }
        Ok(())
    }
}
