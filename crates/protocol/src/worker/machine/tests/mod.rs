//! The machine against a small daemon and a bad network.

mod breaking;
mod by_hand;
mod daemon;
mod differing;
mod waits;
mod world;

use rand::Rng;
use xdp_agg_common::control::{AggregatorLoss, Policy};

use super::{Path, State};
use world::{BLOCK, World};

fn running(seed: u64, size: u16, policy: Policy) -> World {
    let mut world = World::new(seed, size, policy);
    world.run_until(|world| world.all(State::Running));
    world
}

#[test]
fn calls_are_exact_under_loss() {
    for seed in 0..20 {
        let mut world = running(seed, 3, Policy::default());
        world.loss = 0.1;
        for len in [1, BLOCK, 5 * BLOCK + 3, 60 * BLOCK] {
            world.call_all(len);
        }
        world.finish();
        assert_eq!(world.outcomes.len(), 12);
        let mut contributors = world.outcomes.values().flat_map(|(contributors, _)| contributors);
        assert!(contributors.all(|members| *members == 0b111));
    }
}

/// A rank dies at any moment; the others finish what was under way and go on.
#[test]
fn survivors_go_on() {
    for seed in 0..300 {
        let mut world = running(seed, 4, World::shrink());
        world.loss = 0.05;
        for len in [3 * BLOCK, 40 * BLOCK, 1] {
            world.call_all(len);
        }
        world.run_up_to(200);
        world.kill((seed % 4) as u16);
        world.finish();
        let last = world.call_all(BLOCK + 1);
        world.finish();
        let survivors = 0b1111 & !(1 << (seed % 4));
        let rank = world.alive()[0];
        assert_eq!(world.outcomes[&(last, rank)].0, [survivors; 2]);
    }
}

/// Two more die while the job reforms, or right behind it.
#[test]
fn losses_may_follow_each_other() {
    for seed in 0..300 {
        let mut world = running(seed, 5, World::shrink());
        world.loss = 0.1;
        for len in [30 * BLOCK, 20 * BLOCK] {
            world.call_all(len);
        }
        for rank in [(seed % 5) as u16, ((seed + 2) % 5) as u16, ((seed + 3) % 5) as u16] {
            world.run_up_to(120);
            world.kill(rank);
        }
        world.finish();
    }
}

#[test]
fn a_new_daemon_takes_the_job_up() {
    for seed in 0..200 {
        let mut world = running(seed, 3, World::shrink());
        world.loss = 0.05;
        for round in 0..3 {
            world.call_all(30 * BLOCK);
            world.run_up_to(150);
            world.kill_daemon(false);
            world.run_up_to(30);
            world.start_daemon();
            world.finish_and_run();
            assert_eq!(world.at(0).counters().resumes, round + 1);
        }
    }
}

/// A data path that outlives its daemon goes on summing meanwhile, and the epoch with it.
#[test]
fn a_pinned_data_path_goes_on() {
    for seed in 0..100 {
        let mut world = running(seed, 3, World::shrink());
        world.loss = 0.05;
        world.call_all(30 * BLOCK);
        world.run_up_to(60);
        world.kill_daemon(true);
        world.call_all(10 * BLOCK);
        world.finish();
        world.start_daemon();
        world.call_all(10 * BLOCK);
        world.finish_and_run();
        let counters = world.at(0).counters();
        assert_eq!((counters.resumes, counters.reforms, counters.epoch), (1, 0, 1));
    }
}

/// One control connection breaks and the daemon is still there.
#[test]
fn a_cut_connection_is_taken_up_again() {
    for seed in 0..100 {
        let mut world = running(seed, 3, World::shrink());
        world.call_all(30 * BLOCK);
        for _ in 0..5 {
            let (turns, rank) = (world.rng.random_range(0..20), world.rng.random_range(0..3));
            world.run_turns(turns);
            world.cut(rank);
        }
        world.finish();
    }
}

/// A dead rank comes back, and takes part from the next call on.
#[test]
fn a_rank_comes_back() {
    for seed in 0..200 {
        let mut world = running(seed, 3, World::shrink());
        world.loss = 0.05;
        world.call_all(20 * BLOCK);
        world.run_up_to(60);
        world.kill(2);
        world.run_up_to(60);
        world.rejoin(2);
        // Calls that begin before the new epoch are the survivors' own. Rank 1 is one call ahead.
        world.run_turns(seed as u32 % 40);
        world.call(0, 9 * BLOCK);
        world.call(1, 9 * BLOCK);
        world.call(1, 2 * BLOCK);
        world.run_turns(20);
        world.call(0, 2 * BLOCK);
        world.run_until(|world| world.all(State::Running));
        let first = world.at(2).next_sequence();
        for sequence in first..world.at(0).next_sequence() {
            world.call(2, if sequence == 1 { 9 * BLOCK } else { 2 * BLOCK });
        }
        world.finish();
        let last = world.call_all(BLOCK / 2);
        world.finish();
        assert_eq!(world.outcomes[&(last, 2)].0, [0b111]);
        assert_eq!(world.at(2).members(), 0b111);
    }
}

/// No daemon comes back: the members sum over a ring what is left, and all that follows.
#[test]
fn a_ring_takes_over() {
    let policy = Policy { aggregator_loss: AggregatorLoss::Ring, ..World::shrink() };
    for seed in 0..200 {
        let mut world = running(seed, 3, policy);
        world.loss = 0.05;
        world.call_all(3 * BLOCK);
        world.call_all(30 * BLOCK + 1);
        world.run_up_to(150);
        if seed % 2 == 0 {
            world.kill(1);
            world.run_until(|world| world.epoch == 2 && world.all(State::Running));
            world.run_up_to(150);
        }
        world.go_over_to_a_ring(seed % 3 == 0);
        world.call_all(0);
        let last = world.call_all(2 * BLOCK);
        world.finish();
        let rank = world.alive()[0];
        assert_eq!(world.paths[&(last, rank)], Path::Ring);
        let counters = world.at(rank).counters();
        assert!((1..=3).contains(&counters.ring_calls), "{counters:?}");
    }
}

/// On a ring, in the middle of calls, whose daemon is dead.
fn on_ring(seed: u64, pinned: bool) -> World {
    let policy = Policy { aggregator_loss: AggregatorLoss::Ring, ..World::shrink() };
    let mut world = running(seed, 3, policy);
    world.loss = 0.05;
    world.call_all(3 * BLOCK);
    world.call_all(40 * BLOCK + 1);
    world.run_up_to(150);
    world.go_over_to_a_ring(pinned);
    world
}

/// The daemon comes back, without memory or with its data path, whose idea of the epoch's blocks
/// differs. The members leave the ring after the same batch, and sum there again.
#[test]
fn a_daemon_takes_over_from_a_ring() {
    for seed in 0..200 {
        let mut world = on_ring(seed, seed % 3 == 0);
        world.run_up_to(150);
        world.start_daemon();
        world.call_until_back(1 + seed as usize % 7 * BLOCK);
        world.finish_and_run();
        let last = world.call_all(30 * BLOCK);
        world.finish();
        assert_eq!((world.returns, world.paths[&(last, 0)]), (1, Path::Aggregator));
        let counters = world.at(0).counters();
        assert_eq!(counters.resumes, 1, "{counters:?}");
    }
}

/// As long as one member does not reach the daemon, nobody leaves the ring.
#[test]
fn nobody_leaves_a_ring_alone() {
    for seed in 0..50 {
        let mut world = on_ring(seed, false);
        world.apart = 1 << (seed % 3);
        world.start_daemon();
        for _ in 0..20 {
            world.call_all(3 * BLOCK);
            world.finish();
            world.run_up_to(100);
            assert!(world.all(State::OnRing));
        }
        world.apart = 0;
        world.call_until_back(3 * BLOCK);
        world.finish_and_run();
        assert_eq!(world.returns, 1);
    }
}

/// The daemon dies again when the members have just left the ring. They build another ring, and
/// leave it, too, when the daemon is there again.
#[test]
fn another_ring_follows() {
    for seed in 0..100 {
        let mut world = on_ring(seed, false);
        for rings in 1..4 {
            world.start_daemon();
            world.call_until_back(5 * BLOCK);
            assert_eq!(world.returns, rings);
            world.go_over_to_a_ring(false);
            world.finish();
            let last = world.call_all(2 * BLOCK);
            world.finish();
            assert_eq!(world.paths[&(last, 1)], Path::Ring);
        }
        world.start_daemon();
        world.call_until_back(5 * BLOCK);
        world.finish_and_run();
        // Four rings, and the daemon's epoch behind them.
        assert_eq!(world.at(2).counters().reforms, 5);
    }
}
