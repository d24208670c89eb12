//! Which job owns which slots of the engine's pool.

use std::collections::BTreeMap;

/// Contiguous ranges of one pool, given out first fit.
#[derive(Clone, Debug)]
pub(super) struct SlotRanges {
    slots: u32,
    /// Length by first slot.
    taken: BTreeMap<u32, u32>,
}

impl SlotRanges {
    pub(super) const fn new(slots: u32) -> Self {
        Self { slots, taken: BTreeMap::new() }
    }

    pub(super) const fn total(&self) -> u32 {
        self.slots
    }

    pub(super) fn free(&self) -> u32 {
        self.slots - self.taken.values().sum::<u32>()
    }

    /// The longest range that is free.
    pub(super) fn longest(&self) -> u32 {
        self.gaps().map(|(_, len)| len).max().unwrap_or(0)
    }

    /// Takes the first free range of `len` slots (not 0); its first slot.
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        let (base, _) = self.gaps().find(|(_, room)| *room >= len)?;
        self.taken.insert(base, len);
        Some(base)
    }

    /// Takes this range; false if not all of it is free.
    pub(super) fn take_at(&mut self, base: u32, len: u32) -> bool {
        let end = u64::from(base) + u64::from(len);
        let mut gaps = self.gaps();
        let free = gaps.any(|(start, room)| start <= base && end <= u64::from(start + room));
        drop(gaps);
        if free && len > 0 {
            self.taken.insert(base, len);
        }
        free && len > 0
    }

    /// Gives back the range that starts at `base`.
    pub(super) fn give_back(&mut self, base: u32) {
        self.taken.remove(&base);
    }

    /// Free ranges: first slot and length.
    fn gaps(&self) -> impl Iterator<Item = (u32, u32)> {
        let starts = std::iter::once(0).chain(self.taken.iter().map(|(base, len)| base + len));
        let ends = self.taken.keys().copied().chain(std::iter::once(self.slots));
        starts.zip(ends).map(|(start, end)| (start, end - start)).filter(|(_, len)| *len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_first_fit_and_come_back() {
        let mut pool = SlotRanges::new(16);
        assert_eq!(pool.take(8), Some(0));
        assert_eq!(pool.take(4), Some(8));
        assert_eq!(pool.take(8), None);
        assert_eq!((pool.free(), pool.longest()), (4, 4));
        pool.give_back(0);
        assert_eq!((pool.free(), pool.longest()), (12, 8));
        assert_eq!(pool.take(4), Some(0));
        assert_eq!(pool.take(4), Some(4));
        assert_eq!(pool.take(4), Some(12));
        assert_eq!((pool.free(), pool.longest(), pool.take(1)), (0, 0, None));
    }

    #[test]
    fn a_range_is_taken_where_it_was_if_it_is_free() {
        let mut pool = SlotRanges::new(16);
        assert!(pool.take_at(4, 8));
        assert!(!pool.take_at(11, 2) && !pool.take_at(0, 5) && !pool.take_at(12, 8));
        assert!(!pool.take_at(0, 0) && !pool.take_at(u32::MAX, 2));
        assert!(pool.take_at(12, 4) && pool.take_at(0, 4));
        assert_eq!(pool.free(), 0);
    }
}
