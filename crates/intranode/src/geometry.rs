//! Which process owns which block of a vector.

use std::ops::Range;

/// How a vector is cut into tiles, a tile into slices (one a process), a slice into blocks.
///
/// A full tile has `processes * slice_blocks` blocks; slice `l` of it is its `l`-th
/// `slice_blocks` blocks. The last tile holds what is left, `b` blocks, in slices of
/// `ceil(b / processes)`; the last slices may be short or empty. So the owners' work differs by at
/// most one block, but for those of a vector with fewer blocks than `processes²`. The blocks that
/// process `l` owns (its slice of every tile) are numbered `0..own_blocks(l)` in order.
///
/// All hosts of a job have to use the same geometry for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    len: usize,
    block: usize,
    slice_blocks: usize,
    processes: usize,
}

impl Geometry {
    /// A vector of `len` elements in blocks of `block` elements; `slice_blocks` blocks of a full
    /// tile belong to each of `processes` processes.
    ///
    /// # Panics
    /// If `block`, `slice_blocks` or `processes` is 0.
    #[must_use]
    pub fn new(len: usize, block: usize, slice_blocks: usize, processes: usize) -> Self {
        assert!(block > 0 && slice_blocks > 0 && processes > 0, "a geometry without extent");
        Self { len, block, slice_blocks, processes }
    }

    /// Elements of the vector.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vector has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements in a block; the vector's last may be shorter.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Blocks of a full tile that one process owns.
    #[must_use]
    pub fn slice_blocks(&self) -> usize {
        self.slice_blocks
    }

    /// Processes that share the vector.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// Blocks of the vector.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(self.block) as u64
    }

    /// Tiles of the vector; 0 of an empty one.
    #[must_use]
    pub fn tiles(&self) -> u64 {
        self.blocks().div_ceil(self.tile_blocks())
    }

    /// Elements in a full tile.
    #[must_use]
    pub fn tile_len(&self) -> usize {
        self.processes * self.slice_blocks * self.block
    }

    /// Elements of `tile`, as a range of the vector.
    #[must_use]
    pub fn tile_range(&self, tile: u64) -> Range<usize> {
        let start = (tile as usize).saturating_mul(self.tile_len()).min(self.len);
        start..start.saturating_add(self.tile_len()).min(self.len)
    }

    /// Blocks of `tile` that process `owner` owns.
    #[must_use]
    pub fn slice_len(&self, owner: usize, tile: u64) -> usize {
        let (first, last) = self.slice(owner, tile);
        (last - first) as usize
    }

    /// Elements of the blocks of `tile` that process `owner` owns, as a range of the vector.
    #[must_use]
    pub fn slice_range(&self, owner: usize, tile: u64) -> Range<usize> {
        let (first, last) = self.slice(owner, tile);
        self.elements(first).start..self.elements(last).start
    }

    /// Blocks of the whole vector that process `owner` owns.
    #[must_use]
    pub fn own_blocks(&self, owner: usize) -> u64 {
        match self.tiles() {
            0 => 0,
            tiles => {
                (tiles - 1) * self.slice_blocks as u64 + self.slice_len(owner, tiles - 1) as u64
            }
        }
    }

    /// Where block `j` of process `owner` is: its tile, and its elements in the vector.
    ///
    /// `j` must be below `own_blocks(owner)`.
    #[must_use]
    pub fn locate(&self, owner: usize, j: u64) -> (u64, Range<usize>) {
        debug_assert!(j < self.own_blocks(owner), "{self:?} {owner} {j}");
        let tile = j / self.slice_blocks as u64;
        let (first, _) = self.slice(owner, tile);
        (tile, self.elements(first + j % self.slice_blocks as u64))
    }

    /// The own blocks of a process that lie in tiles below `tiles`: `0..` this, for each owner.
    #[must_use]
    pub fn own_before(&self, owner: usize, tiles: u64) -> u64 {
        (tiles * self.slice_blocks as u64).min(self.own_blocks(owner))
    }

    fn tile_blocks(&self) -> u64 {
        (self.processes * self.slice_blocks) as u64
    }

    /// The blocks (of the vector) from .. to of a slice.
    fn slice(&self, owner: usize, tile: u64) -> (u64, u64) {
        let start = (tile * self.tile_blocks()).min(self.blocks());
        let held = (self.blocks() - start).min(self.tile_blocks());
        let quota = held.div_ceil(self.processes as u64);
        let owner = owner as u64;
        (start + (owner * quota).min(held), start + ((owner + 1) * quota).min(held))
    }

    fn elements(&self, block: u64) -> Range<usize> {
        let start = (block as usize).saturating_mul(self.block).min(self.len);
        start..start.saturating_add(self.block).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_has_one_owner(
            len in 0_usize..5_000, block in 1_usize..40, m in 1_usize..9, n in 1_usize..7,
        ) {
            let geometry = Geometry::new(len, block, m, n);
            let mut seen = vec![0_u8; len];
            for owner in 0..n {
                let mut before = 0;
                for j in 0..geometry.own_blocks(owner) {
                    let (tile, range) = geometry.locate(owner, j);
                    prop_assert!(tile < geometry.tiles());
                    prop_assert!(!range.is_empty() && range.len() <= block);
                    prop_assert!(range.start >= before, "in order");
                    before = range.end;
                    let slice = geometry.slice_range(owner, tile);
                    prop_assert!(slice.start <= range.start && range.end <= slice.end);
                    let whole = geometry.tile_range(tile);
                    prop_assert!(whole.start <= slice.start && slice.end <= whole.end);
                    prop_assert!(geometry.own_before(owner, tile) <= j);
                    prop_assert!(j < geometry.own_before(owner, tile + 1));
                    seen[range].iter_mut().for_each(|count| *count += 1);
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1), "{:?}", seen);
        }

        #[test]
        fn the_owners_share_evenly(
            tiles in 1_usize..5, rest in 0_usize..60, m in 1_usize..9, n in 1_usize..7,
        ) {
            let geometry = Geometry::new((tiles * n * m + rest) * 16, 16, m, n);
            let most = (0..n).map(|owner| geometry.own_blocks(owner)).max().unwrap_or(0);
            prop_assert!(most <= geometry.blocks().div_ceil(n as u64));
        }
    }
}
