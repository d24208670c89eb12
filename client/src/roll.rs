//! Who is left, as the stripes of a communicator know it.
//!
//! A ring takes the place of one lost aggregator. Its members have nobody to tell them who else is
//! lost (in a co-located job a host takes its aggregator with it); the other aggregators do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Members by stripe, as bits; 0: not known.
#[derive(Debug)]
pub(crate) struct Roll {
    members: Vec<AtomicU64>,
}

impl Roll {
    pub(crate) fn new(stripes: usize) -> Self {
        Self { members: (0..stripes).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The members of a stripe's latest epoch.
    pub(crate) fn publish(&self, stripe: usize, members: u64) {
        if let Some(place) = self.members.get(stripe) {
            place.store(members, Ordering::Relaxed);
        }
    }

    /// The ranks that another stripe goes on without.
    pub(crate) fn lost(&self, stripe: usize) -> u64 {
        let others = self.members.iter().enumerate().filter(|(index, _)| *index != stripe);
        let known = others.map(|(_, members)| members.load(Ordering::Relaxed));
        !known.filter(|members| *members != 0).fold(u64::MAX, |left, members| left & members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_go_on_without_is_lost() {
        let roll = Roll::new(3);
        assert_eq!(roll.lost(0), 0, "nothing is known");
        roll.publish(0, 0b1111);
        roll.publish(1, 0b0111);
        assert_eq!(roll.lost(0) & 0b1111, 0b1000);
        assert_eq!(roll.lost(1) & 0b1111, 0, "its own word does not count");
        roll.publish(2, 0b1110);
        assert_eq!(roll.lost(0) & 0b1111, 0b1001);
    }
}
