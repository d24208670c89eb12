//! Collectives round rings, and the barrier.

use std::ops::Range;

use super::{Groups, Schedule, part};

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
            ready[come] = schedule.receive(order[previous], part(come), false, after);
        }
    }
}

/// Appends a ring reduce-scatter: position `i` ends with part `i` reduced over all.
fn ring_reduce(
    schedule: &mut Schedule,
    order: &[u16],
    me: usize,
    after: usize,
    part: impl Fn(usize) -> Range<usize>,
) {
    let size = order.len();
    if size < 2 {
        return;
    }
    let (next, previous) = (order[(me + 1) % size], order[(me + size - 1) % size]);
    let mut ready = after;
    for step in 0..size - 1 {
        let (out, come) = ((me + 2 * size - 1 - step) % size, (me + 2 * size - 2 - step) % size);
        schedule.send(next, part(out), ready);
        ready = schedule.receive(previous, part(come), true, after);
    }
}

/// What `rank` does in a reduce-scatter of `len` elements: it ends with its [`part`].
#[must_use]
pub fn reduce_scatter(rank: u16, world: u16, len: usize) -> Schedule {
    let (order, size) = ((0..world).collect::<Vec<_>>(), usize::from(world));
    let mut schedule = Schedule::default();
    ring_reduce(&mut schedule, &order, rank.into(), 0, |index| part(index, size, len));
    schedule
}

/// What `rank` does in an all-gather of `len` elements: it begins with its [`part`].
#[must_use]
pub fn all_gather(rank: u16, world: u16, len: usize) -> Schedule {
    let (order, size) = ((0..world).collect::<Vec<_>>(), usize::from(world));
    let mut schedule = Schedule::default();
    let holds = |place: usize, index: usize| place == index;
    ring_gather(&mut schedule, &order, rank.into(), 0, |index| part(index, size, len), holds);
    schedule
}

/// What `rank` does in a hierarchical ring all-reduce (H-AR, the baseline of the Rina paper):
/// reduce-scatter round its group, all-reduce of its part round the ranks of its index in all
/// groups, all-gather round its group. All ranks end with the same bits: each element is reduced at
/// one rank.
///
/// # Errors
/// Groups of several sizes, in words.
pub fn hierarchical_all_reduce(rank: u16, groups: &Groups, len: usize) -> Result<Schedule, String> {
    let groups = groups.groups();
    let size = groups.first().map_or(0, Vec::len);
    if groups.iter().any(|group| group.len() != size) {
        return Err("a hierarchical ring wants groups of one size".into());
    }
    let home = groups.iter().position(|group| group.contains(&rank)).unwrap_or(0);
    let index = groups[home].iter().position(|other| *other == rank).unwrap_or(0);
    let inside = |index: usize| part(index, size, len);
    let own = inside(index);
    let across = |index: usize| {
        let sub = part(index, groups.len(), own.len());
        own.start + sub.start..own.start + sub.end
    };
    let fellows: Vec<u16> = groups.iter().map(|group| group[index]).collect();
    let holds = |place: usize, index: usize| place == index;
    let mut schedule = Schedule::default();
    ring_reduce(&mut schedule, &groups[home], index, 0, inside);
    let after = schedule.receives.len();
    ring_reduce(&mut schedule, &fellows, home, after, across);
    let after = schedule.receives.len();
    ring_gather(&mut schedule, &fellows, home, after, across, holds);
    let after = schedule.receives.len();
    ring_gather(&mut schedule, &groups[home], index, after, inside, holds);
    Ok(schedule)
}

/// What `rank` does in a barrier, over one element whose value means nothing: in round `i` it
/// tells the rank `2^i` places on, which is told of all before it (dissemination).
#[must_use]
pub fn barrier(rank: u16, world: u16) -> Schedule {
    let (me, size) = (usize::from(rank), usize::from(world));
    let mut schedule = Schedule::default();
    let mut distance = 1;
    while distance < size {
        let after = schedule.receives.len();
        schedule.send(((me + distance) % size) as u16, 0..1, after);
        schedule.receive(((me + size - distance) % size) as u16, 0..1, false, 0);
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

    /// Whoever leaves has heard of everybody, directly or not.
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
