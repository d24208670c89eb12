//! Which rank sends what to which one, after what: the collectives as data, one [`Schedule`] a
//! rank.
//!
//! A schedule knows no sockets and no clock. Ranges are in elements of the whole vector.

mod algorithm;
mod pairs;
mod rings;
mod trees;
#[cfg(test)]
mod world;

use std::ops::Range;

pub use algorithm::{Algorithm, Groups, UnknownAlgorithm};
pub use pairs::{doubling, exchange, halving};
pub use rings::{all_gather, all_reduce, barrier, hierarchical_all_reduce, reduce_scatter};
pub use trees::{Tree, broadcast, broadcast_between_hosts, reduce};

/// Sends a range to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The rank that it goes to.
    pub to: u16,
    /// Which elements.
    pub range: Range<usize>,
    /// How many of the schedule's receives, from its first on, must have ended before.
    pub after: usize,
    /// The last of those receives is of the same range: elements of it that have come may leave
    /// already.
    pub streams: bool,
}

impl Send {
    /// Nothing of another rank is in it.
    #[must_use]
    pub(crate) const fn is_own(&self) -> bool {
        self.after == 0 && !self.streams
    }
}

/// What becomes of elements that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They take the place of what is there.
    Replace,
    /// They are reduced with what is there.
    Reduce,
    /// The same, and with that all ranks' elements are in: an average is divided.
    Complete,
    /// They are kept beside the vector until all have come and that many of the schedule's sends,
    /// from its first on, have left. Then they are reduced with what is there, which was sent.
    Beside {
        /// The number of sends.
        sent: usize,
    },
}

/// Receives a range from a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The rank that it comes from.
    pub from: u16,
    /// Which elements.
    pub range: Range<usize>,
    /// What becomes of them.
    pub effect: Effect,
    /// How many of the schedule's receives, from its first on, must have ended before.
    pub after: usize,
}

/// What one rank does in a call.
///
/// Sends are carried out in their order, one after the other. Receives of one rank's messages are
/// carried out in their order. Receives from several ranks take any order that `after` allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// What it sends.
    pub sends: Vec<Send>,
    /// What it receives.
    pub receives: Vec<Receive>,
}

impl Schedule {
    /// The same among some of a world's ranks: its rank `i` is `ranks[i]` there.
    pub(crate) fn among(mut self, ranks: &[u16]) -> Self {
        self.sends.iter_mut().for_each(|send| send.to = ranks[usize::from(send.to)]);
        self.receives.iter_mut().for_each(|come| come.from = ranks[usize::from(come.from)]);
        self
    }

    pub(crate) fn send(&mut self, to: u16, range: Range<usize>, after: usize) {
        // An empty range is not sent: the other side leaves it out as well.
        if !range.is_empty() {
            self.sends.push(Send { to, range, after, streams: false });
        }
    }

    /// Sends the last receive's range on while it comes.
    pub(crate) fn pass_on(&mut self, to: u16, range: Range<usize>) {
        if !range.is_empty() {
            self.sends.push(Send { to, range, after: self.receives.len(), streams: true });
        }
    }

    /// Adds a receive. Returns how many receives have ended once this one has.
    pub(crate) fn receive(
        &mut self,
        from: u16,
        range: Range<usize>,
        effect: Effect,
        after: usize,
    ) -> usize {
        if !range.is_empty() {
            self.receives.push(Receive { from, range, effect, after });
        }
        self.receives.len()
    }
}

/// Part `index` of `of` parts of a vector of `len` elements. Parts are as even as can be; the first
/// ones are longer by one element if `of` does not divide `len`.
#[must_use]
pub const fn part(index: usize, of: usize, len: usize) -> Range<usize> {
    let (each, more) = (len / of, len % of);
    let start = index * each + if index < more { index } else { more };
    let end = start + each + if index < more { 1 } else { 0 };
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vector_once() {
        for len in [0, 1, 5, 64, 1001] {
            for of in 1..9 {
                let mut next = 0;
                for index in 0..of {
                    let part = part(index, of, len);
                    assert_eq!(part.start, next);
                    assert!(part.len() - len / of <= 1);
                    next = part.end;
                }
                assert_eq!(next, len);
            }
        }
    }
}
