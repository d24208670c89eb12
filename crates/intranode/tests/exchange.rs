//! Calls of an [`xdp_agg_intranode::Exchange`], each "process" a thread.

mod common;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use common::{Running, in_small_segment, input, on_all, run, sum};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_intranode::{ABANDONED, Error, Geometry, MIN_SEGMENT};

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
    for marks in marks {
        assert_eq!(marks.saturated, 10_000_u64.div_ceil(64), "one a block");
        assert_eq!((marks.contributors_all, marks.contributors_any), (7, 8));
    }
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
