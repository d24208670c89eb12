//! All-reduces in which ranks exchange with one other rank after the other, or with all at once.
//!
//! They take fewer steps than a ring, so they suit vectors whose bytes cost less than a step.

use super::{Effect, Schedule, part};

/// What `rank` does so that all ranks have all parts of a vector of `len` elements: it sends its
/// [`part`] to each other rank. One step.
#[must_use]
pub fn exchange(rank: u16, world: u16, len: usize) -> Schedule {
    let size = usize::from(world);
    let mut schedule = Schedule::default();
    for distance in 1..world {
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        schedule.send(to, part(rank.into(), size, len), 0);
        schedule.receive(from, part(from.into(), size, len), Effect::Replace, 0);
    }
    schedule
}

/// What `rank` does in an all-reduce of `len` elements by recursive doubling: in step `k` it
/// exchanges whole vectors with the rank whose number differs in bit `k`.
///
/// Of a world that is no power of two, the ranks beyond the largest power give their vectors to
/// others first, and get the result at the end: two steps more.
#[must_use]
pub fn doubling(rank: u16, world: u16, len: usize) -> Schedule {
    with_pairs(rank, world, len, |schedule, pairs| {
        let mut distance = 1;
        while distance < pairs {
            let (partner, after) = (rank ^ distance, schedule.receives.len());
            schedule.send(partner, 0..len, after);
            let effect = Effect::Beside { sent: schedule.sends.len() };
            schedule.receive(partner, 0..len, effect, after);
            distance *= 2;
        }
    })
}

/// What `rank` does in an all-reduce of `len` elements by recursive halving and doubling
/// (Rabenseifner). Pairs exchange halves, then quarters, and so on, and reduce them. Then they
/// exchange the reduced parts in the opposite order.
///
/// It carries as many bytes as a ring in fewer steps. Worlds that are no power of two are treated
/// as in [`doubling`].
#[must_use]
pub fn halving(rank: u16, world: u16, len: usize) -> Schedule {
    with_pairs(rank, world, len, |schedule, pairs| {
        let mut own = 0..len;
        let mut given = Vec::new();
        let mut distance = pairs / 2;
        while distance > 0 {
            let middle = own.start + own.len() / 2;
            let (low, high) = (own.start..middle, middle..own.end);
            let (kept, gone) = if rank & distance == 0 { (low, high) } else { (high, low) };
            let (partner, after) = (rank ^ distance, schedule.receives.len());
            let effect = if distance == 1 { Effect::Complete } else { Effect::Reduce };
            schedule.send(partner, gone.clone(), after);
            schedule.receive(partner, kept.clone(), effect, after);
            given.push((partner, own, gone));
            own = kept;
            distance /= 2;
        }
        for (partner, whole, gone) in given.into_iter().rev() {
            let after = schedule.receives.len();
            schedule.send(partner, own, after);
            schedule.receive(partner, gone, Effect::Replace, after);
            own = whole;
        }
    })
}

/// What `rank` does around `work` among the first ranks, a power of two of them.
fn with_pairs(
    rank: u16,
    world: u16,
    len: usize,
    work: impl FnOnce(&mut Schedule, u16),
) -> Schedule {
    let pairs = 1 << world.max(1).ilog2();
    let mut schedule = Schedule::default();
    if rank >= pairs {
        schedule.send(rank - pairs, 0..len, 0);
        schedule.receive(rank - pairs, 0..len, Effect::Replace, 0);
        return schedule;
    }
    let beyond = Some(rank + pairs).filter(|beyond| *beyond < world);
    if let Some(beyond) = beyond {
        schedule.receive(beyond, 0..len, Effect::Reduce, 0);
    }
    work(&mut schedule, pairs);
    if let Some(beyond) = beyond {
        let after = schedule.receives.len();
        schedule.send(beyond, 0..len, after);
    }
    schedule
}

#[cfg(test)]
mod tests {
    use super::super::world::World;
    use super::*;
    use proptest::prelude::*;

    type Way = fn(u16, u16, usize) -> Schedule;

    proptest! {
        #[test]
        fn pairs_reduce_everything_once(
            world in 1..20_u16,
            len in 0..300_usize,
            ports in 1..4_usize,
        ) {
            for way in [doubling as Way, halving] {
                let schedules: Vec<_> = (0..world).map(|rank| way(rank, world, len)).collect();
                let mut ranks = World::of_own_ranks(&schedules, len);
                ranks.run(ports);
                for rank in 0..usize::from(world) {
                    prop_assert!(ranks.has_all(rank, 0..len));
                }
            }
        }

        #[test]
        fn an_exchange_brings_all_parts_in_one_step(world in 1..12_u16, each in 0..50_usize) {
            let (size, len) = (usize::from(world), usize::from(world) * each);
            let schedules: Vec<_> = (0..world).map(|rank| exchange(rank, world, len)).collect();
            let mut ranks = World::of_own_ranks(&schedules, len);
            let rounds = ranks.run(size);
            prop_assert!(rounds <= 1);
            for rank in 0..size {
                for owner in 0..size {
                    prop_assert!(ranks.has_only(rank, owner, part(owner, size, len)));
                }
            }
        }

        /// A rank may still be sending a vector when its partner's comes: what is kept beside is
        /// reduced only after all sends of the same elements.
        #[test]
        fn nothing_changes_what_is_still_to_be_sent(world in 1..20_u16, len in 1..50_usize) {
            for rank in 0..world {
                let schedule = doubling(rank, world, len);
                for (index, receive) in schedule.receives.iter().enumerate() {
                    let Effect::Beside { sent } = receive.effect else { continue };
                    let early = schedule.sends.iter().take_while(|send| send.after <= index);
                    prop_assert_eq!(early.count(), sent);
                }
            }
        }

        /// As few steps as there can be, and no more bytes than round a ring.
        #[test]
        fn halving_costs_what_it_should(exponent in 1..5_u32, each in 1..20_usize) {
            let world = 1 << exponent;
            let len = each * usize::from(world);
            for rank in 0..world {
                let schedule = halving(rank, world, len);
                prop_assert_eq!(schedule.sends.len(), 2 * exponent as usize);
                let sent: usize = schedule.sends.iter().map(|send| send.range.len()).sum();
                prop_assert_eq!(sent, 2 * (len - each));
            }
        }
    }
}
