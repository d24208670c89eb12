//! What the stripes of a communicator know of each other: which members are left, and how far each
//! is.
//!
//! A ring takes the place of one lost aggregator, which cannot tell the members of further losses.
//! (In a co-located job a host takes its aggregator with it.) The other aggregators tell them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What each stripe has said last.
#[derive(Debug)]
pub(crate) struct Roll {
    first: usize,
    entries: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Members of the latest epoch, as bits; 0: not known.
    members: AtomicU64,
    /// Blocks without result.
    left: AtomicU64,
}

impl Roll {
    /// Of the stripes of the worker of this rank. Each worker begins its rounds with another
    /// stripe. If all began with the same aggregator, all would contend for its link and slots
    /// while the others stood idle. Where hosts are aggregators, each ends with its own.
    pub(crate) fn new(stripes: usize, rank: u16) -> Self {
        let first = (usize::from(rank) + 1) % stripes.max(1);
        Self { first, entries: (0..stripes).map(|_| Entry::default()).collect() }
    }

    /// The stripe that this worker serves first; the others follow in a circle.
    pub(crate) const fn first_served(&self) -> usize {
        self.first
    }

    /// The members of a stripe's latest epoch, and how many blocks it has left.
    pub(crate) fn publish(&self, stripe: usize, members: u64, left: u64) {
        if let Some(entry) = self.entries.get(stripe) {
            entry.members.store(members, Ordering::Relaxed);
            entry.left.store(left, Ordering::Relaxed);
        }
    }

    /// Most blocks that another stripe has left.
    pub(crate) fn most_left(&self, stripe: usize) -> u64 {
        let left = |entry: &Entry| entry.left.load(Ordering::Relaxed);
        self.others(stripe).map(left).max().unwrap_or(0)
    }

    fn others(&self, stripe: usize) -> impl Iterator<Item = &Entry> {
        let other = move |(index, entry)| (index != stripe).then_some(entry);
        self.entries.iter().enumerate().filter_map(other)
    }

    /// The ranks that another stripe goes on without.
    pub(crate) fn lost(&self, stripe: usize) -> u64 {
        let known = self.others(stripe).map(|entry| entry.members.load(Ordering::Relaxed));
        !known.filter(|members| *members != 0).fold(u64::MAX, |left, members| left & members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_the_others_counts() {
        let roll = Roll::new(3, 0);
        assert_eq!(roll.most_left(0), 0);
        roll.publish(0, 0, 90);
        roll.publish(1, 0, 40);
        roll.publish(2, 0, 60);
        assert_eq!([0, 1, 2].map(|stripe| roll.most_left(stripe)), [60, 90, 90]);
        assert_eq!(Roll::new(1, 0).most_left(0), 0, "alone, it waits for nobody");
    }

    #[test]
    fn each_rank_begins_with_another_stripe() {
        assert_eq!([0, 1, 2, 3].map(|rank| Roll::new(3, rank).first_served()), [1, 2, 0, 1]);
    }

    #[test]
    fn what_others_go_on_without_is_lost() {
        let roll = Roll::new(3, 0);
        assert_eq!(roll.lost(0), 0, "nothing is known");
        roll.publish(0, 0b1111, 0);
        roll.publish(1, 0b0111, 0);
        assert_eq!(roll.lost(0) & 0b1111, 0b1000);
        assert_eq!(roll.lost(1) & 0b1111, 0, "its own word does not count");
        roll.publish(2, 0b1110, 0);
        assert_eq!(roll.lost(0) & 0b1111, 0b1001);
    }
}
