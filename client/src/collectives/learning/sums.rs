//! Sums among the workers with the aggregators' lanes: the same integers, and so the same bits.
//!
//! A vector is cut into the blocks that an aggregator would get. Each has the exponent that the
//! workers agree on, and the lanes that a worker would send. What differs is who adds them.

use std::ops::Range;

use xdp_agg_common::wire::Reduction;
use xdp_agg_mesh::{By, Mesh, Patience, Pattern, Reducer, Span, combine_words};
#[cfg(doc)]
use xdp_agg_protocol::worker::Purpose;
use xdp_agg_protocol::worker::{Call, Path, Report, rank_bits};
use xdp_agg_quantize::Element;

use super::blocks::{Account, Blocks, Cut, LEFT_OUT, WORD};
use super::route::Route;

/// Words of keys up to which they go between pairs of workers, and not round a ring.
const SHORT_KEYS: usize = 2048;

/// Memory that is used again from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Lanes of the whole vector, or all workers' vectors.
    pub(super) words: Vec<u64>,
    pub(super) keys: Vec<u64>,
    lanes: [Vec<u64>; 2],
}

/// What became of an all-reduce.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    pub(crate) report: Report,
    /// The elements that were left out, from the first on; the same at all workers. See
    /// [`Purpose::leaving_out`].
    pub(crate) left_out: Vec<Range<usize>>,
}

impl Summed {
    /// By what a call's parts report.
    pub(crate) fn of_parts(calls: Vec<Call>) -> Self {
        let report = Report::of_parts(&calls);
        let mut left_out = Vec::new();
        for call in calls {
            left_out.extend_from_slice(call.into_blocks().left_out());
        }
        Self::new(report, left_out)
    }

    /// `left_out`: in any order; these came to each worker in an order of its own.
    pub(super) fn new(report: Report, mut left_out: Vec<Range<usize>>) -> Self {
        left_out.sort_unstable_by_key(|range| range.start);
        Self { report, left_out }
    }
}

impl Cut {
    /// Sums a vector that is not empty over the ranks of a mesh.
    pub(super) fn sum<T: Element>(
        &self,
        mesh: &mut Mesh,
        route: Route,
        data: &mut [T],
        scratch: &mut Scratch,
        patience: &mut Patience<'_>,
    ) -> Result<Summed, xdp_agg_mesh::Error> {
        // Of a mesh of one, nobody is there to sum with.
        let pattern = route.pattern().filter(|_| mesh.world_size() > 1);
        let mut left_out = Vec::new();
        let account = match pattern {
            None => self.by_exchange(mesh, data, scratch, &mut left_out, patience)?,
            Some(pattern) => {
                self.agree_on_keys(mesh, data, &mut scratch.keys, patience)?;
                let keys = bytemuck::cast_slice(&scratch.keys);
                left_out = self.left_out(keys, data.len());
                // Sums come in the place of what they are made of.
                let kept: Vec<Vec<T>> =
                    left_out.iter().map(|range| data[range.clone()].to_vec()).collect();
                let account = self.by_pattern(mesh, pattern, data, scratch, patience)?;
                for (range, kept) in left_out.iter().zip(kept) {
                    data[range.clone()].copy_from_slice(&kept);
                }
                account
            }
        };
        let report = Report {
            blocks: data.len().div_ceil(self.block) as u64,
            saturated: account.saturated,
            non_finite_blocks: account.non_finite,
            contributors: rank_bits(mesh.world_size()),
            path: Path::Ring,
            processes: 1,
            ..Report::default()
        };
        Ok(Summed { report, left_out })
    }

    /// This call, by such a pattern.
    pub(super) const fn by(&self, pattern: Pattern, span: Span) -> By {
        By { pattern, span, tag: self.tag }
    }

    /// The elements of the blocks with such keys.
    fn left_out(&self, keys: &[u16], len: usize) -> Vec<Range<usize>> {
        let blocks = keys.iter().enumerate().filter(|(_, key)| **key == LEFT_OUT);
        let range =
            |(index, _): (usize, _)| index * self.block..((index + 1) * self.block).min(len);
        blocks.map(range).collect()
    }

    /// All workers get all vectors, and each sums them as the aggregator would.
    fn by_exchange<T: Element>(
        &self,
        mesh: &mut Mesh,
        data: &mut [T],
        scratch: &mut Scratch,
        left_out: &mut Vec<Range<usize>>,
        patience: &mut Patience<'_>,
    ) -> Result<Account, xdp_agg_mesh::Error> {
        let (rank, world) = (usize::from(mesh.rank()), usize::from(mesh.world_size()));
        let bytes = size_of_val(data);
        let each = bytes.div_ceil(WORD);
        // What was in it is written over, but for bytes behind a vector that nobody reads.
        scratch.words.resize(each * world, 0);
        let own = &mut scratch.words[rank * each..][..each];
        bytemuck::cast_slice_mut::<_, u8>(own)[..bytes].copy_from_slice(bytemuck::cast_slice(data));
        mesh.exchange(&mut scratch.words, self.tag, patience.again())?;
        let vectors: Vec<&[T]> = scratch
            .words
            .chunks_exact(each)
            .map(|words| &bytemuck::cast_slice(words)[..data.len()])
            .collect();
        let (reduction, [sum, one]) = (self.format.reduction(), &mut scratch.lanes);
        let mut account = Account::default();
        let mut start = 0;
        for block in data.chunks_mut(self.block) {
            let range = start..start + block.len();
            start = range.end;
            let parts = || vectors.iter().map(|vector| &vector[range.clone()]);
            let key = if self.format.needs_exponents() {
                parts().map(|part| self.own_key(part)).max().unwrap_or_default()
            } else {
                0
            };
            if key == LEFT_OUT {
                account.non_finite += 1;
                left_out.push(range);
                continue;
            }
            let words = self.format.payload(block.len()) / WORD;
            sum.resize(words, 0);
            one.resize(words, 0);
            let mut non_finite = false;
            for (from, part) in parts().enumerate() {
                let into = if from == 0 { &mut *sum } else { &mut *one };
                let encoded = self.format.encode(key, &[part], bytemuck::cast_slice_mut(into));
                non_finite |= encoded.non_finite;
                account.saturated += if from == rank { u64::from(encoded.saturated) } else { 0 };
                if from > 0 {
                    combine_words(sum, one, reduction);
                }
            }
            self.decode(key, sum, non_finite, world as u32, block);
            account.non_finite += u64::from(non_finite);
        }
        Ok(account)
    }

    /// The workers, which have agreed on keys, sum lanes by a pattern: in the vector's own place
    /// where lanes are as wide as elements.
    fn by_pattern<T: Element>(
        &self,
        mesh: &mut Mesh,
        pattern: Pattern,
        data: &mut [T],
        scratch: &mut Scratch,
        patience: &mut Patience<'_>,
    ) -> Result<Account, xdp_agg_mesh::Error> {
        let Scratch { words, keys, lanes: [lanes, _] } = scratch;
        let (by, op) = (self.by(pattern, Span::World), self.format.op());
        let contributors = u32::from(mesh.world_size());
        let keys: &[u16] = bytemuck::cast_slice(keys);
        let mut blocks = Blocks::<T>::new(self, contributors, keys, lanes);
        if self.format.width().bytes() == size_of::<T>() {
            let unit = (op, self.block * size_of::<T>());
            if pattern != Pattern::Ring {
                blocks.make_ready(0, bytemuck::cast_slice_mut(data));
                blocks.is_ready = true;
            }
            blocks.comes_finished = pattern != Pattern::Doubling;
            mesh.all_reduce_units(data, unit, by, &mut blocks, patience.again())?;
            if pattern == Pattern::Doubling {
                blocks.finish(0, bytemuck::cast_slice_mut(data));
            }
            return Ok(blocks.account);
        }
        let per_block = self.format.payload(self.block) / WORD;
        words.resize(data.len().div_ceil(self.block) * per_block, 0);
        for (index, (place, block)) in
            words.chunks_mut(per_block).zip(data.chunks(self.block)).enumerate()
        {
            blocks.encode(index, block);
            place[..blocks.lanes.len()].copy_from_slice(blocks.lanes);
        }
        let mut marked = blocks.marked;
        let lanes: &mut [i64] = bytemuck::cast_slice_mut(words);
        let unit = (op, per_block * WORD);
        mesh.all_reduce_units(lanes, unit, by, &mut marked, patience.again())?;
        for (index, (place, block)) in
            words.chunks(per_block).zip(data.chunks_mut(self.block)).enumerate()
        {
            blocks.decode(index, bytemuck::cast_slice(place), block);
        }
        Ok(blocks.account)
    }

    fn decode<T: Element>(
        &self,
        key: u16,
        lanes: &[u64],
        non_finite: bool,
        contributors: u32,
        to: &mut [T],
    ) {
        if non_finite {
            return T::fill_nan(to);
        }
        self.format.decode(key, bytemuck::cast_slice(lanes), contributors, contributors, to);
    }

    fn own_key<T: Element>(&self, block: &[T]) -> u16 {
        if self.leaves_out && !block.iter().all(T::is_number) {
            return LEFT_OUT;
        }
        self.format.key(&[self.format.peak(block)])
    }

    /// The largest of all workers' keys of each block; none where the format has no exponents.
    fn agree_on_keys<T: Element>(
        &self,
        mesh: &mut Mesh,
        data: &[T],
        keys: &mut Vec<u64>,
        patience: &mut Patience<'_>,
    ) -> Result<(), xdp_agg_mesh::Error> {
        keys.clear();
        if !self.format.needs_exponents() {
            return Ok(());
        }
        let blocks = data.len().div_ceil(self.block);
        keys.resize((blocks * size_of::<u16>()).div_ceil(WORD), 0);
        let all: &mut [u16] = bytemuck::cast_slice_mut(keys);
        for (key, block) in all.iter_mut().zip(data.chunks(self.block)) {
            *key = self.own_key(block);
        }
        let pattern = if keys.len() <= SHORT_KEYS { Pattern::Doubling } else { Pattern::Ring };
        let by = self.by(pattern, Span::World);
        mesh.all_reduce_words_by(keys, Reduction::Max16, by, patience.again())
    }
}

#[cfg(test)]
mod tests;
