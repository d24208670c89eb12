//! CSC as a call that never blocks, each "process" a thread.

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{in_small_segment, on_all, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xdp_agg_intranode::{ABANDONED, Copied, Copies, Error, Group, MIN_SEGMENT};

/// Bytes: none, some, a few lines, and some rounds in the smallest segment.
const LENS: [usize; 7] = [0, 1, 63, 64, 4099, 300_007, 3_000_001];

fn byte(rank: usize, i: usize) -> u8 {
    (i * 31 + i / 977 + rank * 101) as u8
}

fn even(n: usize, len: usize) -> Vec<Range<usize>> {
    (0..n).map(|rank| rank * len / n..(rank + 1) * len / n).collect()
}

fn begin(group: &Arc<Group>, sequence: u64, parts: Vec<Range<usize>>, len: usize) -> Copies {
    let description = format!("copy of {len}");
    group.begin_copies(&Copied { sequence, len, parts, description }).expect("it begins")
}

fn finish(copies: &mut Copies, data: &mut [u8]) -> Result<(), Error> {
    for _ in 0..2_000_000 {
        if copies.poll(data)?.done {
            return Ok(());
        }
        if !copies.can() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    panic!("it does not end: {copies:?}");
}

/// Every part comes to all, whoever has how much of the vector.
fn check(group: &Arc<Group>, sequence: u64, parts: Vec<Range<usize>>, len: usize) {
    let rank = group.local_rank();
    let mut data: Vec<u8> = (0..len).map(|i| byte(rank, i)).collect();
    let mut copies = begin(group, sequence, parts.clone(), len);
    finish(&mut copies, &mut data).expect("it ends");
    assert!(copies.done() && !copies.poll(&mut data).expect("done").did);
    let owner = |i: usize| parts.iter().position(|part| part.contains(&i));
    for (i, x) in data.iter().enumerate() {
        assert_eq!(*x, byte(owner(i).unwrap_or(rank), i), "{i} of {len}, {parts:?}");
    }
}

fn check_all(group: &Arc<Group>) {
    let n = group.local_size();
    let mut sequence = 0;
    for len in LENS {
        let uneven = (0..n).map(|rank| match rank {
            0 => 0..len / 3,
            rank if rank + 1 == n => len / 3 + len / 5..len - len / 7,
            _ => len / 3 + len / 5..len / 3 + len / 5,
        });
        let of_root = |root| (0..n).map(|rank| if rank == root { 0..len } else { 0..0 }).collect();
        let all = [even(n, len), of_root(0), of_root(n - 1), uneven.collect(), vec![0..0; n]];
        for parts in all {
            check(group, sequence, parts, len);
            sequence += 1;
        }
    }
}

#[test]
fn all_parts_come_to_all() {
    for n in [1, 2, 3, 5] {
        on_all(n, |group| check_all(&group));
    }
}

#[test]
fn all_parts_come_to_all_in_a_small_segment() {
    for n in [2, 4] {
        in_small_segment(n, |group| check_all(&group));
    }
}

/// A vector that fits has one round, however long it is. It is read in steps, which may begin and
/// end inside of any part.
#[test]
fn a_long_vector_that_fits_is_read_in_steps() {
    for n in [2, 3, 4] {
        run(
            n,
            |options| options.segment = 40 << 20,
            move |group| {
                let uneven = [0..10, 10..1_500_000, 1_500_000..2_000_001, 2_000_001..4_500_007];
                let len = uneven[n - 1].end;
                check(&group, 0, uneven[..n].to_vec(), len);
                check(&group, 1, even(n, 5_000_003), 5_000_003);
            },
        );
    }
}

/// Calls are carried out in another order than they began in, and more of them than have room.
#[test]
fn calls_do_not_wait_for_each_other() {
    const LEN: usize = 200_000;
    run(
        3,
        |options| options.segment = 2 * MIN_SEGMENT,
        |group| {
            let rank = group.local_rank();
            let parts = even(3, LEN);
            let mut calls: Vec<_> = (0..4)
                .map(|sequence| {
                    let data: Vec<u8> = (0..LEN).map(|i| byte(rank, i)).collect();
                    (begin(&group, sequence, parts.clone(), LEN), data)
                })
                .collect();
            calls.rotate_left(rank);
            let mut left = calls.len();
            let until = Instant::now() + Duration::from_secs(20);
            while left > 0 && Instant::now() < until {
                for (call, data) in &mut calls {
                    if !call.done() {
                        left -= usize::from(call.poll(data).expect("it goes on").done);
                    }
                }
                std::thread::yield_now();
            }
            assert_eq!(left, 0);
            for (_, data) in calls {
                for (owner, part) in parts.iter().enumerate() {
                    assert!(part.clone().all(|i| data[i] == byte(owner, i)), "rank {owner}'s part");
                }
            }
        },
    );
}

#[test]
fn calls_that_differ_are_named() {
    let errors = on_all(3, |group| {
        let len = if group.local_rank() == 1 { 10 } else { 11 };
        let description = format!("copy of {len}");
        let copied = Copied { sequence: 0, len, parts: even(3, len), description };
        let mut copies = group.begin_copies(&copied)?;
        finish(&mut copies, &mut vec![0; len])
    });
    for error in errors {
        let error = error.expect_err("they differ");
        let Error::Mismatch { ours, theirs } = &error else { panic!("{error}") };
        let both = format!("{ours} {theirs}");
        assert!(both.contains("copy of 10") && both.contains("copy of 11"), "{both}");
    }
}

/// Who has no place for a further piece sleeps, and is woken by the last one that reads.
#[test]
fn a_process_that_waits_for_a_place_is_woken() {
    in_small_segment(2, |group| {
        // Among these numbers of rounds are one more than there are places, and some more.
        for k in 2..9 {
            let (sequence, len) = (k as u64, k * 100_000);
            let mut data: Vec<u8> = (0..len).map(|i| byte(group.local_rank(), i)).collect();
            let mut copies = begin(&group, sequence, even(2, len), len);
            let start = Instant::now();
            if group.local_rank() == 1 {
                // Both places are written; the other one reads them, and sleeps.
                for _ in 0..2 {
                    copies.poll(&mut data).expect("a piece is written");
                }
                std::thread::sleep(Duration::from_millis(50));
                finish(&mut copies, &mut data).expect("it ends");
            } else {
                let waker = group.waker().expect("a waker");
                while !copies.poll(&mut data).expect("it goes on").done {
                    waker.arm();
                    if !copies.can() {
                        assert!(!copies.waiting_for().contains(&0), "{copies:?}");
                        let mut ears = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
                        let long = Timespec { tv_sec: 3, tv_nsec: 0 };
                        poll(&mut ears, Some(&long)).expect("poll");
                    }
                    waker.disarm();
                }
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(2), "{len} took {took:?}: nobody rang");
            group.barrier().expect("both come");
        }
    });
}

/// Who has which part is agreed on, also where the words say the same.
#[test]
fn parts_that_differ_are_a_mismatch() {
    let errors = on_all(3, |group| {
        let cut = if group.local_rank() == 1 { 4 } else { 5 };
        let copied = Copied {
            sequence: 0,
            len: 10,
            parts: vec![0..cut, cut..10, 10..10],
            description: "copy".into(),
        };
        let mut copies = group.begin_copies(&copied)?;
        finish(&mut copies, &mut [0; 10])
    });
    for error in errors {
        let error = error.expect_err("they differ");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

/// A process that gives up, leaves or does not come is named.
#[test]
fn losses_are_named() {
    let errors = on_all(3, |group| {
        let rank = group.local_rank();
        let mut data = vec![0; 30];
        let mut copies = begin(&group, 0, even(3, 30), 30);
        group.barrier()?;
        if rank == 1 {
            drop(copies);
            return Ok(());
        }
        finish(&mut copies, &mut data)
    });
    for (rank, error) in errors.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let error = error.expect_err("rank 1 gave up");
        let is_it = matches!(error, Error::Elsewhere { local_rank: 1, code: ABANDONED, .. });
        assert!(is_it, "{rank}: {error}");
    }
    let errors = on_all(3, |group| {
        if group.local_rank() == 2 {
            group.leave();
            return Ok(());
        }
        let (parts, description) = (even(3, 30), "copy of 30".to_owned());
        let mut copies =
            group.begin_copies(&Copied { sequence: 0, len: 30, parts, description })?;
        assert!(copies.waiting_for().is_empty(), "it can write");
        copies.poll(&mut [0; 30])?;
        assert!(copies.waiting_for().contains(&2), "{:?}", copies.waiting_for());
        finish(&mut copies, &mut [0; 30])
    });
    for error in errors.into_iter().take(2) {
        assert_eq!(error, Err(Error::PeerLeft { local_rank: 2 }));
    }
}

#[test]
fn parts_that_overlap_are_refused() {
    on_all(2, |group| {
        let three = vec![0..5, 5..10, 10..10];
        for parts in [vec![0..6, 5..10], vec![5..10, 0..5], vec![0..5, 5..11], three] {
            let copied = Copied { sequence: 0, len: 10, parts, description: "copy".into() };
            let error = group.begin_copies(&copied).expect_err("no such parts");
            assert!(matches!(error, Error::Config { name: "parts", .. }), "{error}");
        }
    });
}
