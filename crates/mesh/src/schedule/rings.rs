//! Collectives round rings, and the barrier.

use std::cmp::Ordering;
use std::ops::Range;

use super::{Effect, Groups, Schedule, part};

/// Appends a ring all-gather: position `me` of `order` gets every part. `after`: the receives that
/// must have ended before the parts that a position holds already may be sent.
pub(super) fn ring_gather(
    schedule: &mut Schedule,
    order: &[u16],
    me: usize,
    after: usize,
    part: impl Fn(usize) -> Range<usize>,
    holds: impl Fn(usize, usize) -> bool,
) {
    let size = order.len();
    if size < 2 {
        return;
    }
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let mut ready = vec![after; size];
    for step in 0..size - 1 {
        let (out, come) = ((me + size - step) % size, (me + 2 * size - step - 1) % size);
        if !holds(next, out) {
            schedule.send(order[next], part(out), ready[out]);
        }
        if !holds(me, come) {
            ready[come] = schedule.receive(order[previous], part(come), Effect::Replace, after);
        }
    }
}

/// A ring that parts of a vector go round. In step `k` the rank at position `i` sends part `i - 1 -
/// k`, and receives the one before. It sends that one in the next step.
struct Ring<'a> {
    /// The ranks, in their order.
    order: &'a [u16],
    /// This rank's position.
    me: usize,
}

impl Ring<'_> {
    /// Steps after which position `i` has part `i` of all ranks; as many more distribute the parts.
    const fn half(&self) -> usize {
        self.order.len().saturating_sub(1)
    }

    /// Appends some of the steps, with the effect of each. `after`: the receives that must have
    /// ended before the first of them.
    fn go(
        &self,
        schedule: &mut Schedule,
        steps: Range<usize>,
        after: usize,
        part: impl Fn(usize) -> Range<usize>,
        effect: impl Fn(usize) -> Effect,
    ) {
        let Self { order, me } = *self;
        let size = order.len();
        let (next, previous) = (order[(me + 1) % size], order[(me + size - 1) % size]);
        let first = steps.start;
        for step in steps {
            let out = me + 2 * size - 1 - step;
            if step == first {
                schedule.send(next, part(out % size), after);
            } else {
                schedule.pass_on(next, part(out % size));
            }
            schedule.receive(previous, part((out - 1) % size), effect(step), after);
        }
    }

    /// Reduce-scatter: position `i` ends with part `i`. `complete`: no other ranks' elements are to
    /// come in.
    fn reduce(
        &self,
        schedule: &mut Schedule,
        after: usize,
        part: impl Fn(usize) -> Range<usize>,
        complete: bool,
    ) {
        let last = self.half().checked_sub(1).filter(|_| complete);
        let effect = |step| if Some(step) == last { Effect::Complete } else { Effect::Reduce };
        self.go(schedule, 0..self.half(), after, part, effect);
    }

    /// All-gather: position `i` begins with part `i`.
    fn gather(&self, schedule: &mut Schedule, after: usize, part: impl Fn(usize) -> Range<usize>) {
        self.go(schedule, self.half()..2 * self.half(), after, part, |_| Effect::Replace);
    }

    /// One after the other, without a break: what is complete is sent on while the rest comes.
    fn reduce_and_gather(
        &self,
        schedule: &mut Schedule,
        after: usize,
        part: impl Fn(usize) -> Range<usize>,
    ) {
        let half = self.half();
        let effect = |step: usize| match (step + 1).cmp(&half) {
            Ordering::Less => Effect::Reduce,
            Ordering::Equal => Effect::Complete,
            Ordering::Greater => Effect::Replace,
        };
        self.go(schedule, 0..2 * half, after, part, effect);
    }
}

/// What `rank` does on a ring of all ranks, by parts of a vector of `len` elements.
fn round(
    rank: u16,
    world: u16,
    len: usize,
    work: impl Fn(&Ring<'_>, &mut Schedule, &dyn Fn(usize) -> Range<usize>),
) -> Schedule {
    let (order, size) = ((0..world).collect::<Vec<_>>(), usize::from(world));
    let ring = Ring { order: &order, me: rank.into() };
    let mut schedule = Schedule::default();
    work(&ring, &mut schedule, &|index| part(index, size, len));
    schedule
}

/// What `rank` does in a reduce-scatter of `len` elements: it ends with its [`part`].
#[must_use]
pub fn reduce_scatter(rank: u16, world: u16, len: usize) -> Schedule {
    round(rank, world, len, |ring, schedule, part| ring.reduce(schedule, 0, part, true))
}

/// What `rank` does in an all-gather of `len` elements: it begins with its [`part`].
#[must_use]
pub fn all_gather(rank: u16, world: u16, len: usize) -> Schedule {
    round(rank, world, len, |ring, schedule, part| ring.gather(schedule, 0, part))
}

/// What `rank` does in an all-reduce of `len` elements round a ring. All ranks end with the same
/// bits: each element is reduced at one rank.
///
/// No link carries more than `2 (N - 1) / N` times the vector, which is the least that is possible
/// without help from the network. A part is passed on while it comes, so both directions of every
/// link stay busy.
#[must_use]
pub fn all_reduce(rank: u16, world: u16, len: usize) -> Schedule {
    round(rank, world, len, |ring, schedule, part| ring.reduce_and_gather(schedule, 0, part))
}

/// What `rank` does in a hierarchical ring all-reduce (H-AR, the baseline of the Rina paper). It
/// takes three steps: reduce-scatter round its group; all-reduce of its part round the ranks of its
/// index in all groups; all-gather round its group. All ranks end with the same bits: each element
/// is reduced at one rank.
///
/// # Errors
/// Groups of several sizes, in words.
pub fn hierarchical_all_reduce(rank: u16, groups: &Groups, len: usize) -> Result<Schedule, String> {
    let (fellows, home) = groups.fellows(rank)?;
    let (groups, home) = (groups.groups(), usize::from(home));
    let size = groups.first().map_or(0, Vec::len);
    let index = groups[home].iter().position(|other| *other == rank).unwrap_or(0);
    let inside = |index: usize| part(index, size, len);
    let own = inside(index);
    let across = |index: usize| {
        let sub = part(index, groups.len(), own.len());
        own.start + sub.start..own.start + sub.end
    };
    let group = Ring { order: &groups[home], me: index };
    let fellows = Ring { order: &fellows, me: home };
    let mut schedule = Schedule::default();
    group.reduce(&mut schedule, 0, inside, groups.len() == 1);
    let after = schedule.receives.len();
    fellows.reduce_and_gather(&mut schedule, after, across);
    let after = schedule.receives.len();
    group.gather(&mut schedule, after, inside);
    Ok(schedule)
}

/// What `rank` does in a barrier, over one element whose value means nothing (dissemination). In
/// round `i` it tells the rank `2^i` places on, which so hears of all before it.
#[must_use]
pub fn barrier(rank: u16, world: u16) -> Schedule {
    let (me, size) = (usize::from(rank), usize::from(world));
    let mut schedule = Schedule::default();
    let mut distance = 1;
    while distance < size {
        let after = schedule.receives.len();
        schedule.send(((me + distance) % size) as u16, 0..1, after);
        schedule.receive(((me + size - distance) % size) as u16, 0..1, Effect::Replace, 0);
        distance *= 2;
    }
    schedule
}

#[cfg(test)]
mod tests {
    use super::super::world::World;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_reduced_once_and_gathered_once(
            world in 1..20_u16,
            len in 0..300_usize,
            ports in 1..4_usize,
        ) {
            let size = usize::from(world);
            let schedules: Vec<_> = (0..world).map(|r| reduce_scatter(r, world, len)).collect();
            let mut ranks = World::of_own_ranks(&schedules, len);
            ranks.run(ports);
            for rank in 0..size {
                prop_assert!(ranks.has_all(rank, part(rank, size, len)));
            }
            let schedules: Vec<_> = (0..world).map(|r| all_gather(r, world, len)).collect();
            let mut ranks = World::of_own_ranks(&schedules, len);
            ranks.run(ports);
            for (rank, schedule) in schedules.iter().enumerate() {
                for owner in 0..size {
                    prop_assert!(ranks.has_only(rank, owner, part(owner, size, len)));
                }
                let received: usize = schedule.receives.iter().map(|r| r.range.len()).sum();
                prop_assert_eq!(received, len - part(rank, size, len).len());
            }
        }

        /// No rank sends more than the fewest elements, and each element is completed once.
        #[test]
        fn a_ring_reduces_everything_once(
            world in 1..12_u16,
            len in 0..300_usize,
            ports in 1..4_usize,
        ) {
            let size = usize::from(world);
            let schedules: Vec<_> =
                (0..world).map(|rank| all_reduce(rank, world, len)).collect();
            let mut ranks = World::of_own_ranks(&schedules, len);
            ranks.run(ports);
            let mut completed = vec![0; len];
            for (rank, schedule) in schedules.iter().enumerate() {
                prop_assert!(ranks.has_all(rank, 0..len));
                let sent: usize = schedule.sends.iter().map(|send| send.range.len()).sum();
                prop_assert!(sent <= 2 * (size - 1) * len.div_ceil(size));
                for receive in &schedule.receives {
                    if receive.effect == Effect::Complete {
                        completed[receive.range.clone()].iter_mut().for_each(|times| *times += 1);
                    }
                }
            }
            prop_assert!(world == 1 || completed.iter().all(|times| *times == 1));
        }

        #[test]
        fn a_hierarchical_ring_reduces_everything_once(
            groups in 1..6_u16,
            size in 1..6_u16,
            len in 0..300_usize,
            ports in 1..4_usize,
        ) {
            let (world, parts) = (groups * size, Groups::of_size(groups * size, size));
            let schedules: Vec<_> = (0..world)
                .map(|rank| hierarchical_all_reduce(rank, &parts, len).expect("equal groups"))
                .collect();
            let mut ranks = World::of_own_ranks(&schedules, len);
            let rounds = ranks.run(ports);
            for rank in 0..usize::from(world) {
                prop_assert!(ranks.has_all(rank, 0..len));
            }
            // As many steps as two rings of the group and two across: 2(g-1) + 2(G-1).
            prop_assert!(rounds <= 2 * usize::from(size - 1) + 2 * usize::from(groups - 1));
        }
    }

    #[test]
    fn a_hierarchical_ring_wants_equal_groups() {
        let groups = Groups::of_size(5, 2);
        assert!(hierarchical_all_reduce(0, &groups, 10).is_err());
    }

    /// A rank that leaves has heard of all others, directly or not.
    #[test]
    fn nobody_leaves_a_barrier_early() {
        for world in 1..=17_u16 {
            let schedules: Vec<_> = (0..world).map(|rank| barrier(rank, world)).collect();
            let mut ranks = World::of_own_ranks(&schedules, 1);
            ranks.gossips = true;
            ranks.run(1);
            for rank in 0..usize::from(world) {
                assert!(ranks.has_all(rank, 0..1), "{rank} of {world}");
            }
        }
    }
}
