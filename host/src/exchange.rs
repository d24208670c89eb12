//! The side of a slice's owner: all processes' inputs of its blocks in, results out.

use std::ops::Deref;

use smallvec::SmallVec;

use crate::{Error, Geometry};

/// What owners report of their blocks; joined over all blocks of all owners of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Elements that were clamped: added up.
    pub saturated: u64,
    /// Blocks with a NaN or an infinity: added up.
    pub non_finite_blocks: u64,
    /// Ranks that are in every block: the intersection.
    pub contributors_all: u64,
    /// Ranks that are in some block: the union.
    pub contributors_any: u64,
    /// New epochs during the call: the maximum.
    pub reforms: u32,
    /// Bits for the paths that were taken: the union.
    pub path: u32,
}

impl Default for Marks {
    /// Changes nothing where it is joined.
    fn default() -> Self {
        Self {
            saturated: 0,
            non_finite_blocks: 0,
            contributors_all: u64::MAX,
            contributors_any: 0,
            reforms: 0,
            path: 0,
        }
    }
}

/// One block's inputs, in order of local rank. [`Exchange::finish`] panics while it is held.
#[derive(Debug)]
pub struct Inputs<'a> {
    slices: SmallVec<[&'a [u8]; 8]>,
}

impl<'a> Deref for Inputs<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

/// One call, seen by the threads that carry the blocks which this process owns.
#[derive(Debug)]
pub struct Exchange;

impl Exchange {
    /// Which block is where.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        todo!()
    }

    /// Blocks of the vector that this process owns; `j` below is one of `0..own_blocks()`.
    #[must_use]
    pub fn own_blocks(&self) -> u64 {
        todo!()
    }

    /// Own blocks `0..this` have all processes' peaks. All of them, if none were wanted.
    #[must_use]
    pub fn scanned(&self) -> u64 {
        todo!()
    }

    /// Own blocks `0..this` have all processes' inputs.
    #[must_use]
    pub fn staged(&self) -> u64 {
        todo!()
    }

    /// Writes all processes' peaks of block `j` into `into`, in order of local rank.
    ///
    /// # Panics
    /// If `j` is not below [`Self::scanned`], was finished, or peaks were not wanted.
    pub fn peaks(&self, j: u64, into: &mut [f64]) {
        todo!()
    }

    /// All processes' inputs of block `j`.
    ///
    /// # Panics
    /// If `j` is not below [`Self::staged`], or was finished.
    #[must_use]
    pub fn inputs(&self, j: u64) -> Inputs<'_> {
        todo!()
    }

    /// Lets `write` write block `j`'s result: as many bytes as each input has.
    ///
    /// # Panics
    /// If `j` is not below [`Self::staged`], was finished, or is being written.
    pub fn with_output<R>(&self, j: u64, write: impl FnOnce(&mut [u8]) -> R) -> R {
        todo!()
    }

    /// Block `j`'s result is written: once for each block, in any order, by any thread.
    ///
    /// # Panics
    /// If it was finished before, or its inputs or output are borrowed.
    pub fn finish(&self, j: u64, marks: Marks) {
        todo!()
    }

    /// Joins in what belongs to no block in particular; before the last [`Self::finish`].
    pub fn add_marks(&self, marks: Marks) {
        todo!()
    }

    /// Whether all own blocks are finished.
    #[must_use]
    pub fn finished(&self) -> bool {
        todo!()
    }

    /// Ends the call at all local processes with [`Error::Elsewhere`] (the first failure counts).
    pub fn fail(&self, code: u32, text: &str) {
        todo!()
    }

    /// Whether the call can still end well.
    ///
    /// # Errors
    /// As [`Feeder::poll`](crate::Feeder::poll).
    pub fn check(&self) -> Result<(), Error> {
        todo!()
    }
}
