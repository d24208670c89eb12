//! Calls of an [`xdp_agg_intranode::Exchange`], each "process" a thread.

mod common;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use common::{Running, in_small_segment, input, on_all, peak, run, shape, sum};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_intranode::{ABANDONED, Error, Geometry, MIN_SEGMENT, Marks, Shape};

#[test]
fn sums_are_right_whatever_the_length() {
    for size in 1..=5 {
        on_all(size, move |group| {
            let lengths = [0, 1, 5, 63, 64, 65, 352, 1000, 40_001, 300_007];
            for (sequence, len) in lengths.into_iter().enumerate() {
                let call = Running::begin(&group, sequence as u64, len, 64).expect("a call");
                let result = call.finish().expect("a result");
                assert_eq!(result, sum(sequence as u64, size, len), "{size} × {len}");
            }
        });
    }
}

#[test]
fn marks_of_all_owners_are_joined() {
    let marks = on_all(3, |group| {
        let mut call = Running::begin(&group, 9, 10_000, 64).expect("a call");
        while !call.turn().expect("a turn").1 {}
        call.feeder.marks()
    });
    let blocks = 10_000_u64.div_ceil(64);
    let joined = Marks {
        saturated: blocks,
        non_finite_blocks: 2 * blocks,
        contributors_all: 0b0110,
        contributors_any: 0b1_1100,
        reforms: 3,
        path: 3,
    };
    assert_eq!(marks, [joined; 3]);
}

/// 10 MB vectors through a segment of 1 MiB, several at a time, with random delays.
#[test]
fn many_calls_in_a_small_segment() {
    in_small_segment(3, |group| {
        let mut random = SmallRng::seed_from_u64(group.local_rank() as u64);
        let mut lengths = SmallRng::seed_from_u64(99);
        let lengths = [(); 12].map(|()| lengths.random_range(0..2_600_000));
        let start = Instant::now();
        let mut running = VecDeque::new();
        let mut next = 0;
        while next < 12 || !running.is_empty() {
            if next < 12 && running.len() < 4 {
                let len = lengths[next as usize];
                match Running::begin(&group, next, len, 352) {
                    Ok(call) => {
                        running.push_back((call, len));
                        next += 1;
                    }
                    Err(Error::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(start.elapsed() < Duration::from_secs(120), "some call does not end");
            let mut any = false;
            for _ in 0..running.len() {
                let (mut call, len) = running.pop_front().expect("one of them");
                let (did, done) = call.turn().expect("a turn");
                any |= did;
                if done {
                    assert_eq!(call.data, sum(call.sequence, 3, len), "call {}", call.sequence);
                } else {
                    running.push_back((call, len));
                }
            }
            if random.random_ratio(1, 500) {
                std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
            }
            if !any {
                std::thread::yield_now();
            }
        }
    });
}

/// Blocks finished by several threads, in any order.
#[test]
fn carriers_may_be_many() {
    on_all(2, |group| {
        let len = 200_000;
        let mut call = Running::begin(&group, 1, len, 64).expect("a call");
        let blocks = call.exchange.own_blocks();
        let carriers: Vec<_> = (0..3)
            .map(|carrier| {
                let exchange = call.exchange.clone();
                let waker = group.waker().expect("a waker");
                std::thread::spawn(move || {
                    // Each third block, in pairs of wrong order.
                    let mut own: Vec<_> = (0..blocks).filter(|j| j % 3 == carrier).collect();
                    own.chunks_mut(2).for_each(<[u64]>::reverse);
                    for j in own {
                        while j >= exchange.staged() {
                            waker.arm();
                            if j >= exchange.staged() {
                                poll(&waker);
                            }
                            waker.disarm();
                        }
                        common::carry(&exchange, j);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        while !call.feeder.done() {
            assert!(start.elapsed() < Duration::from_secs(30), "a carrier sleeps on");
            let progress = call.feeder.poll(&mut call.data, &mut common::peak).expect("a poll");
            if !progress.did {
                call.feeder.wait(Duration::from_secs(10));
            }
        }
        carriers.into_iter().for_each(|carrier| carrier.join().expect("a carrier"));
        assert_eq!(call.data, sum(1, 2, len));
    });
}

/// Sleeps as a carrier would on its sockets; a lost ring fails the test here.
fn poll(waker: &xdp_agg_intranode::Waker) {
    use rustix::event::{PollFd, PollFlags};
    let ear = waker.fd();
    let mut polled = [PollFd::new(&ear, PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    let rung = rustix::event::poll(&mut polled, Some(&timeout)).expect("poll");
    assert_eq!(rung, 1, "nobody rang");
}

#[test]
fn a_mismatch_is_told_to_all() {
    for odd in 0..3 {
        let errors = on_all(3, move |group| {
            let len = if group.local_rank() == odd { 1001 } else { 1000 };
            Running::begin(&group, 5, len, 64).and_then(Running::finish).expect_err("a mismatch")
        });
        for error in errors {
            let Error::Mismatch { ours, theirs } = &error else { panic!("{error}") };
            let both = format!("{ours} {theirs}");
            assert!(both.contains("1001 elements") && both.contains("1000 elements"), "{both}");
            assert!(both.contains(&format!("local rank {odd}")), "{both}");
        }
    }
}

/// Each part of what a call is: processes that differ in it, and in nothing else, get no sum.
#[test]
fn whatever_differs_of_a_call_is_a_mismatch() {
    // In one tile, so that it takes the same room in blocks of another size.
    let len = 1000;
    let changes: [fn(&mut Shape, &mut Geometry); 5] = [
        |shape, _| shape.digest += 1,
        |shape, _| shape.key = None,
        |shape, _| shape.element_size = 2,
        |_, geometry| *geometry = Geometry::new(geometry.len(), 65, 16, 2),
        |_, geometry| *geometry = Geometry::new(geometry.len(), 64, 17, 2),
    ];
    on_all(2, move |group| {
        for (number, change) in changes.iter().enumerate() {
            for odd in 0..2 {
                let sequence = (number * 2 + odd) as u64;
                let (mut shape, mut geometry) =
                    (shape(sequence, len), Geometry::new(len, 64, 16, 2));
                if group.local_rank() == odd {
                    change(&mut shape, &mut geometry);
                }
                let begun = group.begin(&shape, geometry);
                let error = begun.and_then(|(mut feeder, exchange)| {
                    let mut data = vec![0; len * shape.element_size];
                    let start = Instant::now();
                    loop {
                        assert!(start.elapsed() < Duration::from_secs(20), "change {number}");
                        if feeder.poll(&mut data, &mut peak)?.done || exchange.staged() > 0 {
                            return Ok(());
                        }
                    }
                });
                let error = error.expect_err("they differ");
                assert!(matches!(error, Error::Mismatch { .. }), "change {number}: {error}");
                group.barrier().expect("both come");
            }
        }
    });
}

/// Either side of a call that is dropped too early gives it up, whatever becomes of the other one.
#[test]
fn either_side_that_is_dropped_gives_the_call_up() {
    on_all(2, |group| {
        for has_staged in [false, true] {
            let (rank, len, sequence) = (group.local_rank(), 1000, u64::from(has_staged));
            let geometry = Geometry::new(len, 64, 8, 2);
            assert_eq!(geometry.tiles(), 1);
            let begun = group.begin(&shape(sequence, len), geometry).expect("a call");
            let (mut feeder, exchange) = begun;
            group.barrier().expect("both come");
            let mut data = input(sequence, rank, len);
            let start = Instant::now();
            let mut step = || {
                assert!(start.elapsed() < Duration::from_secs(20), "staged: {has_staged}");
                feeder.poll(&mut data, &mut peak)
            };
            while has_staged && exchange.staged() == 0 {
                step().expect("both are there");
            }
            group.barrier().expect("both come");
            // The feeder alone, before it has staged its part; or both, before all has its result.
            let kept = if rank == 0 {
                drop(feeder);
                (!has_staged).then_some(exchange)
            } else {
                let error = std::iter::repeat_with(step).find_map(Result::err);
                let Some(Error::Elsewhere { local_rank: 0, code: ABANDONED, .. }) = error else {
                    panic!("staged: {has_staged}: {error:?}");
                };
                Some(exchange)
            };
            group.barrier().expect("both come");
            drop(kept);
        }
    });
}

#[test]
fn a_failure_is_told_to_all() {
    let errors = on_all(3, |group| {
        // It may have failed before this process comes to it.
        let call = Running::begin(&group, 5, 100_000, 64).inspect(|call| {
            if group.local_rank() == 1 {
                call.exchange.fail(42, "the aggregator is on fire");
            }
        });
        call.and_then(Running::finish).expect_err("a failure")
    });
    let expected = Error::Elsewhere {
        local_rank: 1,
        code: 42,
        text: String::from("the aggregator is on fire"),
    };
    assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
}

#[test]
fn giving_up_is_told_to_all() {
    let errors = on_all(2, |group| {
        let call = Running::begin(&group, 5, 100_000, 64);
        if group.local_rank() == 1 {
            drop(call.expect("a call"));
            // The group stays: it is the call that is given up.
            std::thread::sleep(Duration::from_millis(300));
            return None;
        }
        Some(call.and_then(Running::finish).expect_err("the other gave up"))
    });
    let error = errors[0].clone().expect("an error");
    assert!(matches!(error, Error::Elsewhere { local_rank: 1, code: ABANDONED, .. }), "{error}");
}

#[test]
fn one_who_left_is_not_waited_for() {
    let errors = on_all(2, |group| {
        if group.local_rank() == 1 {
            return None;
        }
        let call = Running::begin(&group, 5, 100_000, 64).expect("a call");
        Some(call.finish().expect_err("the other has left"))
    });
    assert_eq!(errors[0], Some(Error::PeerLeft { local_rank: 1 }));
}

#[test]
fn all_room_comes_back() {
    in_small_segment(2, |group| {
        // More calls than the table has records, and more bytes than the segment has.
        for sequence in 0..200 {
            let start = Instant::now();
            let call = loop {
                match Running::begin(&group, sequence, 20_000, 64) {
                    // The other process may not have left the last call yet.
                    Err(Error::Busy { .. }) if start.elapsed() < Duration::from_secs(10) => {
                        std::thread::yield_now();
                    }
                    done => break done,
                }
            };
            assert_eq!(call.expect("a call").finish().expect("a result"), sum(sequence, 2, 20_000));
        }
    });
}

#[test]
fn what_can_never_fit_is_said_at_once() {
    in_small_segment(2, |group| {
        let geometry = Geometry::new(10_000_000, 352, 4096, 2);
        let error = group.begin(&common::shape(1, 10_000_000), geometry).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    });
}

#[test]
#[should_panic(expected = "a thread")]
fn finishing_while_inputs_are_held_is_refused() {
    on_all(1, |group| {
        let mut call = Running::begin(&group, 1, 100, 64).expect("a call");
        while call.exchange.staged() == 0 {
            call.feeder.poll(&mut call.data, &mut common::peak).expect("a poll");
        }
        let inputs = call.exchange.inputs(0);
        assert_eq!(inputs[0], &input(1, 0, 100)[..256]);
        call.exchange.finish(0, xdp_agg_intranode::Marks::default());
    });
}

/// Carries the blocks of a call in `flows` flows, block `j` in flow `j mod flows`. Like a flow of
/// the network, each sends a block when it knows the keys of `looks` of its own from there.
fn carry_in_flows(call: &mut Running, flows: u64, looks: u64, random: &mut SmallRng) {
    let own = call.exchange.own_blocks();
    let mut next: Vec<u64> = (0..flows).collect();
    let start = Instant::now();
    while !(call.feeder.done() && call.exchange.finished()) {
        assert!(start.elapsed() < Duration::from_secs(30), "flows wait for each other: {next:?}");
        let mut did = call.feeder.poll(&mut call.data, &mut common::peak).expect("a poll").did;
        // Some are often late, and which they are changes.
        let late = start.elapsed().as_millis() as usize / 7 % next.len();
        for (flow, j) in next.iter_mut().enumerate() {
            let needed = own.min(*j + (looks - 1) * flows + 1);
            let may = *j < own && call.exchange.scanned() >= needed && call.exchange.staged() > *j;
            if may && (flow != late || random.random_ratio(1, 50)) {
                common::carry(&call.exchange, *j);
                *j += flows;
                did = true;
            }
        }
        if !did {
            call.feeder.wait(Duration::from_millis(1));
        }
    }
}

/// Flows know far more keys ahead than the ring of peaks has room for.
#[test]
fn flows_look_further_ahead_than_peaks_are_kept() {
    let cases = [(1, 3, 300, 4), (2, 2, 700, 1), (3, 8, 100, 16), (4, 16, 60, 3), (5, 2, 800, 64)];
    for (size, flows, looks, slice_blocks) in cases {
        run(
            size,
            move |options| {
                options.segment = MIN_SEGMENT;
                options.slice_blocks = slice_blocks;
                options.scan_ahead = (flows * looks) as usize;
            },
            move |group| {
                let mut random = SmallRng::seed_from_u64(group.local_rank() as u64);
                let len = size * (flows * looks) as usize * 4 * 16 + 5;
                let mut call = Running::begin(&group, 1, len, 16).expect("a call");
                carry_in_flows(&mut call, flows, looks, &mut random);
                assert_eq!(call.data, sum(1, size, len), "{size} × {flows}");
            },
        );
    }
}
