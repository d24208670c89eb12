//! The sums of the latest results, kept for members that may lack them when the epoch ends.
//!
//! As many as [`xdp_agg_common::reform`] asks for: half the pool, or all blocks of the epoch's plan
//! where those are more. A block of the epoch lives in entry `block mod capacity`; all members have
//! the one that it overwrites.

use crate::worker::EpochBlock;

/// One result, without its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the block in the epoch.
    pub(super) block: EpochBlock,
    /// Bit `r`: rank `r`'s contribution is in it.
    pub(super) members: u64,
    /// Flags of the result.
    pub(super) flags: u8,
    /// Payload bytes.
    len: u16,
}

/// A ring buffer of results.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: Vec<Option<Entry>>,
    lanes: Vec<u8>,
    /// Bytes of a full block.
    stride: usize,
}

impl History {
    /// Room for `capacity` results of up to `stride` bytes each; all memory is taken now.
    pub(super) fn new(capacity: usize, stride: usize) -> Self {
        Self { entries: vec![None; capacity], lanes: vec![0; capacity * stride], stride }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Keeps a result; does nothing without capacity.
    pub(super) fn put(&mut self, block: EpochBlock, members: u64, flags: u8, payload: &[u8]) {
        let Some(index) = self.index(block) else { return };
        let place = index * self.stride..index * self.stride + payload.len();
        let Some(place) = self.lanes.get_mut(place) else { return };
        place.copy_from_slice(payload);
        self.entries[index] = Some(Entry { block, members, flags, len: payload.len() as u16 });
    }

    /// A result and its lanes, if it is still here.
    pub(super) fn get(&self, block: EpochBlock) -> Option<(Entry, &[u8])> {
        let index = self.index(block)?;
        let entry = self.entries[index].filter(|entry| entry.block == block)?;
        Some((entry, &self.lanes[index * self.stride..][..usize::from(entry.len)]))
    }

    fn index(&self, block: EpochBlock) -> Option<usize> {
        block.0.checked_rem(self.capacity()).map(|index| index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_results_are_kept() {
        let mut history = History::new(4, 128);
        for block in 0..6 {
            history.put(EpochBlock(block), 0b11, block as u8, &[block as u8; 64]);
        }
        assert!(history.get(EpochBlock(1)).is_none());
        for block in 2..6 {
            let (entry, lanes) = history.get(EpochBlock(block)).expect("one of the last four");
            assert_eq!(
                (entry.block, entry.members, entry.flags),
                (EpochBlock(block), 0b11, block as u8)
            );
            assert_eq!(lanes, [block as u8; 64]);
        }
        let mut none = History::default();
        none.put(EpochBlock(0), 1, 0, &[0; 64]);
        assert!(none.get(EpochBlock(0)).is_none());
    }
}
