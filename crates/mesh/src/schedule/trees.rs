//! Broadcast, and reduce as its mirror image.

use std::ops::Range;

use super::rings::ring_gather;
use super::{Algorithm, Effect, Groups, Schedule, part};

/// A rank's place in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The rank that it has its data from; None at the root.
    pub parent: Option<u16>,
    /// The ranks that it sends to, in this order.
    pub children: Vec<u16>,
}

impl Tree {
    /// Of an algorithm; None where it is not a tree ([`Algorithm::ScatterAllGather`]).
    #[must_use]
    pub fn of(algorithm: Algorithm, rank: u16, root: u16, groups: &Groups) -> Option<Self> {
        let world: u16 = groups.groups().iter().map(|group| group.len() as u16).sum();
        let around = || (0..world).map(|i| turn(root, i, world)).collect::<Vec<u16>>();
        Some(match algorithm {
            Algorithm::Direct => Self::star(&around(), rank),
            Algorithm::Chain | Algorithm::PipelinedChain { .. } => Self::chain(&around(), rank),
            Algorithm::TopologyChain { .. } => Self::chain(&groups.chain(root), rank),
            Algorithm::Binomial => Self::nomial(2, rank, root, world),
            Algorithm::Knomial { k } => Self::nomial(k, rank, root, world),
            Algorithm::ScatterAllGather => return None,
        })
    }

    fn star(order: &[u16], rank: u16) -> Self {
        match order.split_first() {
            Some((root, rest)) if *root == rank => Self { parent: None, children: rest.to_vec() },
            Some((root, _)) => Self { parent: Some(*root), children: Vec::new() },
            None => Self::default(),
        }
    }

    fn chain(order: &[u16], rank: u16) -> Self {
        let at = order.iter().position(|other| *other == rank).unwrap_or(0);
        Self {
            parent: at.checked_sub(1).and_then(|before| order.get(before).copied()),
            children: order.get(at + 1).copied().into_iter().collect(),
        }
    }

    /// A k-nomial tree. Ranks are counted from the root, in base `k`. A rank's parent has 0 for the
    /// rank's lowest digit that is not 0; its children have one more digit below that one. The
    /// largest subtree is served first.
    fn nomial(k: u32, rank: u16, root: u16, world: u16) -> Self {
        let me = u32::from(back(root, rank, world));
        let (k, size) = (k.max(2), u32::from(world));
        let global = |place: u32| turn(root, place as u16, world);
        let mut parent = None;
        let mut levels = Vec::new();
        let mut mask = 1;
        while mask < size {
            let digit = me / mask % k;
            if digit != 0 {
                parent = Some(global(me - digit * mask));
                break;
            }
            levels.push(mask);
            mask = mask.saturating_mul(k);
        }
        // Children up to the last rank, however large `k` is.
        let of_level = |mask: u32| (me + mask..size).step_by(mask as usize).take(k as usize - 1);
        let children = levels.into_iter().rev().flat_map(of_level).map(global).collect();
        Self { parent, children }
    }
}

/// The rank `by` places after another.
fn turn(from: u16, by: u16, world: u16) -> u16 {
    ((u32::from(from) + u32::from(by)) % u32::from(world)) as u16
}

/// How many places a rank is after the root.
fn back(root: u16, rank: u16, world: u16) -> u16 {
    ((u32::from(rank) + u32::from(world) - u32::from(root)) % u32::from(world)) as u16
}

/// What `rank` does in a broadcast of `len` elements of `size` bytes.
#[must_use]
pub fn broadcast(
    algorithm: Algorithm,
    rank: u16,
    root: u16,
    groups: &Groups,
    len: usize,
    size: usize,
) -> Schedule {
    let Some(tree) = Tree::of(algorithm, rank, root, groups) else {
        let world = groups.groups().iter().map(Vec::len).sum::<usize>() as u16;
        return scatter_all_gather(rank, root, world, len);
    };
    let mut schedule = Schedule::default();
    for chunk in chunks(algorithm, len, size) {
        let after = match tree.parent {
            Some(parent) => schedule.receive(parent, chunk.clone(), Effect::Replace, 0),
            None => 0,
        };
        for child in &tree.children {
            schedule.send(*child, chunk.clone(), after);
        }
    }
    schedule
}

/// What `rank` does in a broadcast of `len` elements of `size` bytes from the root to one rank of
/// each other host ([`Groups::heads`]), by the algorithm over these. Other ranks do nothing.
#[must_use]
pub fn broadcast_between_hosts(
    algorithm: Algorithm,
    rank: u16,
    root: u16,
    groups: &Groups,
    len: usize,
    size: usize,
) -> Schedule {
    let heads = groups.heads(root);
    let host_of = |rank: u16| heads.iter().position(|head| *head == rank);
    let (Some(host), Some(home)) = (host_of(rank), host_of(root)) else {
        return Schedule::default();
    };
    let hosts = Groups::single(heads.len() as u16);
    let mut schedule = broadcast(algorithm, host as u16, home as u16, &hosts, len, size);
    for send in &mut schedule.sends {
        send.to = heads[usize::from(send.to)];
    }
    for receive in &mut schedule.receives {
        receive.from = heads[usize::from(receive.from)];
    }
    schedule
}

/// What `rank` does in a reduction of `len` elements of `size` bytes to the root: the broadcast of
/// the same algorithm, backwards. The order of additions depends on nothing but the arguments.
/// [`Algorithm::ScatterAllGather`] is not a tree; the binomial one takes its place.
#[must_use]
pub fn reduce(
    algorithm: Algorithm,
    rank: u16,
    root: u16,
    groups: &Groups,
    len: usize,
    size: usize,
) -> Schedule {
    let tree = Tree::of(algorithm, rank, root, groups)
        .or_else(|| Tree::of(Algorithm::Binomial, rank, root, groups))
        .unwrap_or_default();
    let mut schedule = Schedule::default();
    for chunk in chunks(algorithm, len, size) {
        for (left, child) in tree.children.iter().enumerate().rev() {
            let all_are_in = tree.parent.is_none() && left == 0;
            let effect = if all_are_in { Effect::Complete } else { Effect::Reduce };
            // One after the other, so that they are added in this order.
            let after = schedule.receives.len();
            schedule.receive(*child, chunk.clone(), effect, after);
        }
        if let Some(parent) = tree.parent {
            schedule.send(parent, chunk, schedule.receives.len());
        }
    }
    schedule
}

/// The pieces in which a vector travels.
fn chunks(algorithm: Algorithm, len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    let bytes = algorithm.chunk().map_or(usize::MAX, |chunk| chunk as usize);
    let each = (bytes / size.max(1)).clamp(1, len.max(1));
    (0..len.div_ceil(each)).map(move |i| i * each..((i + 1) * each).min(len))
}

/// Equation (4): parts along a binomial tree, then round a ring. A rank inside the tree keeps the
/// parts of the ranks below it, and is not sent them again.
fn scatter_all_gather(rank: u16, root: u16, world: u16, len: usize) -> Schedule {
    let size = usize::from(world);
    let parts =
        |from: usize, to: usize| part(from, size, len).start..part(to.min(size) - 1, size, len).end;
    let me = usize::from(back(root, rank, world));
    let global = |place: usize| turn(root, (place % size) as u16, world);
    let mut schedule = Schedule::default();
    let mut mask = size.next_power_of_two();
    if me > 0 {
        mask = 1 << me.trailing_zeros();
        schedule.receive(global(me - mask), parts(me, me + mask), Effect::Replace, 0);
    }
    let after = schedule.receives.len();
    while mask > 1 {
        mask /= 2;
        if me + mask < size {
            schedule.send(global(me + mask), parts(me + mask, me + 2 * mask), after);
        }
    }
    // Parts that a place has from the scatter: those of its subtree.
    let holds = |place: usize, index: usize| {
        let end = if place == 0 { size } else { place + (1 << place.trailing_zeros()) };
        (place..end).contains(&index)
    };
    let order: Vec<u16> = (0..size).map(global).collect();
    ring_gather(&mut schedule, &order, me, after, |index| part(index, size, len), holds);
    schedule
}

#[cfg(test)]
mod tests {
    use super::super::world::{World, exactly_once, spread};
    use super::*;
    use proptest::prelude::*;

    fn all(algorithm: Algorithm, groups: &Groups, root: u16, len: usize) -> Vec<Schedule> {
        let world = groups.groups().iter().map(Vec::len).sum::<usize>() as u16;
        (0..world).map(|rank| broadcast(algorithm, rank, root, groups, len, 4)).collect()
    }

    #[test]
    fn trees_are_as_known() {
        let binomial = |rank| Tree::nomial(2, rank, 0, 8);
        assert_eq!(binomial(0), Tree { parent: None, children: vec![4, 2, 1] });
        assert_eq!(binomial(6), Tree { parent: Some(4), children: vec![7] });
        let four = |rank| Tree::nomial(4, rank, 0, 8);
        assert_eq!(four(0), Tree { parent: None, children: vec![4, 1, 2, 3] });
        assert_eq!(four(4), Tree { parent: Some(0), children: vec![5, 6, 7] });
    }

    #[test]
    fn a_k_beyond_the_ranks_is_a_star_and_costs_no_time() {
        let start = std::time::Instant::now();
        for k in [8, 9, u32::MAX] {
            let star = Tree { parent: None, children: vec![4, 5, 6, 7, 0, 1, 2] };
            assert_eq!(Tree::nomial(k, 3, 3, 8), star, "{k}");
            assert_eq!(Tree::nomial(k, 2, 3, 8), Tree { parent: Some(3), children: vec![] });
        }
        assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
    }

    /// The models' numbers of rounds, where a rank sends one message in a round and receives one.
    #[test]
    fn rounds_are_those_of_the_models() {
        for world in 2..=17_u16 {
            let groups = Groups::single(world);
            let n = usize::from(world);
            let rounds = |algorithm, len| spread(&all(algorithm, &groups, 0, len), 0, len, 1);
            assert_eq!(rounds(Algorithm::Direct, 9), n - 1);
            assert_eq!(rounds(Algorithm::Chain, 9), n - 1);
            assert_eq!(
                rounds(Algorithm::Binomial, 9),
                usize::from(world).next_power_of_two().ilog2() as usize
            );
            for chunks in [1, 2, 7, 30] {
                let algorithm = Algorithm::PipelinedChain { chunk: 4 * 4 };
                // Equation (5): M/C + n - 2.
                assert_eq!(rounds(algorithm, chunks * 4), chunks + n - 2, "{world} {chunks}");
            }
            for k in 3..6 {
                let ports = k as usize - 1;
                let schedules = all(Algorithm::Knomial { k }, &groups, 0, 9);
                let depth = (1..).find(|depth| (k as usize).pow(*depth) >= n).unwrap_or(0);
                assert!(spread(&schedules, 0, 9, ports) <= depth as usize, "{world} {k}");
            }
        }
    }

    #[test]
    fn a_scatter_leaves_nothing_for_the_ring_twice() {
        let schedule = scatter_all_gather(4, 0, 8, 800);
        assert_eq!(schedule.receives[0].range, 400..800);
        assert_eq!(schedule.receives.len(), 1 + 4);
    }

    fn algorithms() -> impl Strategy<Value = Algorithm> {
        prop_oneof![
            Just(Algorithm::Direct),
            Just(Algorithm::Chain),
            Just(Algorithm::Binomial),
            (2..7_u32).prop_map(|k| Algorithm::Knomial { k }),
            Just(Algorithm::ScatterAllGather),
            (1..400_u32).prop_map(|chunk| Algorithm::PipelinedChain { chunk }),
            (1..400_u32).prop_map(|chunk| Algorithm::TopologyChain { chunk }),
        ]
    }

    proptest! {
        /// Every rank but the root gets every element exactly once, and what it gets is the root's.
        #[test]
        fn every_rank_gets_every_element_once(
            algorithm in algorithms(),
            world in 1..24_u16,
            group in 1..6_u16,
            root in 0..24_u16,
            len in 0..300_usize,
        ) {
            let (root, groups) = (root % world, Groups::of_size(world, group));
            let schedules = all(algorithm, &groups, root, len);
            for (rank, schedule) in schedules.iter().enumerate() {
                let expected = if rank == usize::from(root) { 0 } else { 1 };
                prop_assert!(exactly_once(schedule, len, expected), "{rank}: {schedule:?}");
            }
            spread(&schedules, root, len, 1);
        }

        /// One rank of every host gets every element exactly once, the root is that of its own,
        /// and the other ranks neither send nor receive.
        #[test]
        fn one_rank_of_every_host_gets_every_element_once(
            algorithm in algorithms(),
            world in 1..24_u16,
            group in 1..6_u16,
            root in 0..24_u16,
            len in 1..300_usize,
        ) {
            let (root, groups) = (root % world, Groups::of_size(world, group));
            let schedules: Vec<Schedule> = (0..world)
                .map(|rank| broadcast_between_hosts(algorithm, rank, root, &groups, len, 4))
                .collect();
            for host in groups.groups() {
                let getting = |rank: &&u16| !schedules[usize::from(**rank)].receives.is_empty();
                let heads: Vec<&u16> = host.iter().filter(getting).collect();
                let expected = if host.contains(&root) { vec![] } else { vec![&host[0]] };
                prop_assert_eq!(heads, expected);
            }
            let mut all = World::of_own_ranks(&schedules, len);
            all.run(1);
            for (rank, schedule) in (0..world).zip(&schedules) {
                let is_head = groups.heads(root).contains(&rank);
                let owner = if is_head { root } else { rank };
                prop_assert!(all.has_only(rank.into(), owner.into(), 0..len), "{rank}");
                let times = usize::from(is_head && rank != root);
                prop_assert!(exactly_once(schedule, len, times), "{rank}: {schedule:?}");
                prop_assert!(is_head || schedule.sends.is_empty(), "{rank}: {schedule:?}");
            }
        }

        /// The root's result holds every rank's contribution once, whatever the order of arrival.
        #[test]
        fn a_reduction_takes_everybody_in_once(
            algorithm in algorithms(),
            world in 1..24_u16,
            group in 1..6_u16,
            root in 0..24_u16,
            len in 0..300_usize,
            ports in 1..4_usize,
        ) {
            let (root, groups) = (root % world, Groups::of_size(world, group));
            let schedules: Vec<Schedule> =
                (0..world).map(|rank| reduce(algorithm, rank, root, &groups, len, 4)).collect();
            let mut world = World::of_own_ranks(&schedules, len);
            world.run(ports);
            prop_assert!(world.has_all(usize::from(root), 0..len));
        }
    }
}
