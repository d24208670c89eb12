//! The order of a call's blocks: its data, and ahead of it the exponents that the data needs.
//!
//! With block scaling (`docs/numerics.md`) the workers agree on an exponent for each block of data
//! before anybody sends it. A block of 16-bit keys, of which the aggregator takes the largest,
//! settles those of a *group* of data blocks. Exponent blocks are blocks like all others: exactly
//! once, repeated when lost, handed on to a new epoch. They travel [`AHEAD`] blocks before their
//! group, so that in steady state nobody waits for them; only the first of a call cost a round
//! trip.

use xdp_agg_quantize::KEYS_PER_CHUNK;

use super::DataBlock;

/// How far ahead of its group an exponent block travels at least, in data blocks. If this is half
/// of the job's pool or more, the pool's own rule ensures that the block's result is there: a
/// worker sends block `b` when it has the results up to `b - P/2`. Part of the protocol: all
/// workers of a call must agree.
pub const AHEAD: u64 = 1024;

/// What a block of a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Keys of the exponents of group `k`.
    Keys(u64),
    /// Data block `j`.
    Data(DataBlock),
}

/// Which block of a call is what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Data blocks.
    data: u64,
    /// Data blocks of a group; 0 without exponents.
    group: u64,
    /// Groups.
    groups: u64,
    /// Exponent blocks before the first data.
    first: u64,
}

/// Data blocks of a group, where blocks have `chunks` chunks: as many as their keys fit a block.
pub const fn group_of(chunks: u16) -> u64 {
    chunks as u64 * KEYS_PER_CHUNK as u64
}

/// How many data blocks of a flow must be known ahead of the one that is sent. Then no exponent
/// block waits for data that the worker has not looked at.
pub const fn looked_ahead(group: u64) -> u64 {
    AHEAD + 3 * group
}

impl Layout {
    /// `data` blocks, whose exponents go `group` (0: none do) to a block.
    pub const fn new(data: u64, group: u64) -> Self {
        if group == 0 {
            return Self { data, group, groups: 0, first: 0 };
        }
        let groups = data.div_ceil(group);
        let ahead = AHEAD.div_ceil(group) + 1;
        Self { data, group, groups, first: if groups < ahead { groups } else { ahead } }
    }

    /// Blocks in all.
    pub const fn blocks(&self) -> u64 {
        self.data + self.groups
    }

    /// Exponent blocks.
    pub const fn groups(&self) -> u64 {
        self.groups
    }

    /// The group of a data block.
    pub const fn group_of(&self, data: DataBlock) -> u64 {
        data.0 / self.group
    }

    /// The data blocks of a group: from, and to.
    pub const fn group_range(&self, group: u64) -> (u64, u64) {
        let (from, to) = (group * self.group, (group + 1) * self.group);
        (from, if to < self.data { to } else { self.data })
    }

    /// What the `index`-th block holds. First come `first` blocks of keys, then each group, and
    /// behind it the keys of the group `first` further on.
    pub const fn content(&self, index: u64) -> Content {
        if index < self.first {
            return Content::Keys(index);
        }
        let behind = index - self.first;
        let followed = self.groups - self.first;
        if self.group == 0 || behind >= followed * (self.group + 1) {
            return Content::Data(DataBlock(behind - followed));
        }
        let (group, offset) = (behind / (self.group + 1), behind % (self.group + 1));
        if offset == self.group {
            Content::Keys(group + self.first)
        } else {
            Content::Data(DataBlock(group * self.group + offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_exponents_all_is_data() {
        let layout = Layout::new(5, 0);
        assert_eq!((layout.blocks(), layout.groups()), (5, 0));
        assert!((0..5).all(|index| layout.content(index) == Content::Data(DataBlock(index))));
    }

    proptest! {
        /// Every part comes once, and each group's keys lie at least [`AHEAD`] data blocks before
        /// it, or before all data.
        #[test]
        fn keys_come_well_before_their_group(data in 0_u64..60_000, group in 1_u64..2000) {
            let layout = Layout::new(data, group);
            let (mut next_data, mut next_keys) = (0, 0);
            for index in 0..layout.blocks() {
                match layout.content(index) {
                    Content::Keys(k) => {
                        prop_assert_eq!(k, next_keys);
                        next_keys += 1;
                        let (from, to) = layout.group_range(k);
                        prop_assert!(from < to && to - from <= group);
                        prop_assert!(to - next_data <= looked_ahead(group));
                        prop_assert!(next_data == 0 || from - next_data >= AHEAD);
                    }
                    Content::Data(j) => {
                        prop_assert_eq!(j.0, next_data);
                        prop_assert!(layout.group_of(j) < next_keys);
                        next_data += 1;
                    }
                }
            }
            prop_assert_eq!((next_data, next_keys), (data, layout.groups()));
        }
    }
}
