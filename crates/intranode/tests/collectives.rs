//! Collectives on whole buffers, CSC and rings, each "process" a thread.

mod common;

use common::run;
use xdp_agg_intranode::add::add;
use xdp_agg_intranode::csc::Csc;
use xdp_agg_intranode::ring::Ring;
use xdp_agg_intranode::send_receive::SendReceive;
use xdp_agg_intranode::{Error, Options};

/// Small, so that buffers go through in many pieces.
const ROOM: usize = 64 << 10;

#[test]
fn waits_may_be_as_long_as_can_be() {
    let for_ever = |options: &mut Options| {
        options.join_within = std::time::Duration::MAX;
        options.wait_within = std::time::Duration::MAX;
    };
    run(2, for_ever, |group| {
        Csc::new(&group, ROOM).expect("an area");
        group.barrier().expect("all come");
    });
}

fn number(rank: usize, i: usize) -> i32 {
    (rank as i32 + 1).wrapping_mul(1_000_003) ^ i as i32
}

fn numbers(rank: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| number(rank, i).to_ne_bytes()).collect()
}

fn sums(n: usize, range: std::ops::Range<usize>) -> Vec<u8> {
    let sum = |i| (0..n).fold(0_i32, |sum, rank| sum.wrapping_add(number(rank, i)));
    range.flat_map(|i| sum(i).to_ne_bytes()).collect()
}

/// Elements of a part: none, one, odd, many pieces, and enough that an all-gather's copies go past
/// the caches.
const COUNTS: [usize; 6] = [0, 1, 7, 1000, 4097, 150_001];

fn same(options: &mut Options) {
    // Room for a buffer of each process.
    options.segment = 16 << 20;
}

#[test]
fn all_gather() {
    for n in 1..=5 {
        run(n, same, move |group| {
            let mut csc = Csc::new(&group, ROOM).expect("an area");
            let mut ring = Ring::new(&group, 4096).expect("mailboxes");
            let name = format!("{}-gather-{n}", std::process::id());
            let mut sockets = SendReceive::connect(&group, &name).expect("sockets");
            for count in COUNTS {
                // Not whole elements: bytes are bytes.
                let cut = |mut bytes: Vec<u8>| {
                    bytes.truncate((count * 4).saturating_sub(1));
                    bytes
                };
                let input = cut(numbers(group.local_rank(), count));
                let expected: Vec<u8> = (0..n).flat_map(|rank| cut(numbers(rank, count))).collect();
                let mut output = vec![0; expected.len()];
                csc.all_gather(&input, &mut output).expect("CSC");
                assert!(output == expected, "CSC, {n} × {count}");
                output.fill(0);
                ring.all_gather(&input, &mut output).expect("a ring");
                assert!(output == expected, "ring, {n} × {count}");
                output.fill(0);
                sockets.all_gather(&input, &mut output).expect("a ring of sockets");
                assert!(output == expected, "sockets, {n} × {count}");
                let mut buffer = group.buffer(input.len()).expect("a buffer");
                buffer.copy_from_slice(&input);
                output.fill(0);
                csc.all_gather_shared(&buffer, &mut output).expect("CSC");
                assert!(output == expected, "CSC in place, {n} × {count}");
            }
        });
    }
}

#[test]
fn reduce_scatter() {
    for n in 1..=5 {
        run(n, same, move |group| {
            let rank = group.local_rank();
            let mut csc = Csc::new(&group, ROOM).expect("an area");
            let mut ring = Ring::new(&group, 4096).expect("mailboxes");
            let name = format!("{}-scatter-{n}", std::process::id());
            let mut sockets = SendReceive::connect(&group, &name).expect("sockets");
            for count in COUNTS {
                let input = numbers(rank, n * count);
                let expected = sums(n, rank * count..(rank + 1) * count);
                let mut output = vec![0; expected.len()];
                csc.reduce_scatter(&input, &mut output, 4, &mut add::<i32>).expect("CSC");
                assert!(output == expected, "CSC, {n} × {count}");
                output.fill(0);
                ring.reduce_scatter(&input, &mut output, 4, &mut add::<i32>).expect("a ring");
                assert!(output == expected, "ring, {n} × {count}");
                output.fill(0);
                sockets
                    .reduce_scatter(&input, &mut output, 4, &mut add::<i32>)
                    .expect("a ring of sockets");
                assert!(output == expected, "sockets, {n} × {count}");
                let mut buffer = group.buffer(input.len()).expect("a buffer");
                buffer.copy_from_slice(&input);
                output.fill(0);
                csc.reduce_scatter_shared(&buffer, &mut output, 4, &mut add::<i32>).expect("CSC");
                assert!(output == expected, "CSC in place, {n} × {count}");
            }
        });
    }
}

#[test]
fn all_reduce() {
    for n in 1..=5 {
        run(n, same, move |group| {
            let mut csc = Csc::new(&group, ROOM).expect("an area");
            for count in COUNTS {
                let mut data = numbers(group.local_rank(), count);
                csc.all_reduce(&mut data, 4, &mut add::<i32>).expect("CSC");
                assert!(data == sums(n, 0..count), "{n} × {count}");
            }
        });
    }
}

/// A process whose call has ended may write to its input at once: nobody reads it any more.
#[test]
fn inputs_in_the_segment_are_free_when_the_call_has_ended() {
    let room = |options: &mut Options| options.buffers = 8 << 20;
    run(2, room, |group| {
        let rank = group.local_rank();
        let mut csc = Csc::new(&group, ROOM).expect("an area");
        let len = 512 << 10;
        let mut buffer = group.buffer(2 * len).expect("a buffer");
        let mut part = group.buffer(len).expect("a buffer");
        for round in 0..20_u8 {
            buffer.fill(round);
            part.fill(round);
            let mut output = vec![0; len];
            let mut slow = |sources: &[&[u8]], output: &mut [u8]| {
                if rank == 1 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                for (i, byte) in output.iter_mut().enumerate() {
                    *byte = sources[0][i] + sources[1][i];
                }
            };
            csc.reduce_scatter_shared(&buffer, &mut output, 1, &mut slow).expect("CSC");
            buffer.fill(0x7f);
            assert!(output.iter().all(|byte| *byte == 2 * round), "reduced, round {round}");
            let mut output = vec![0; 2 * len];
            csc.all_gather_shared(&part, &mut output).expect("CSC");
            part.fill(0x7f);
            assert!(output.iter().all(|byte| *byte == round), "gathered, round {round}");
        }
    });
}

#[test]
fn different_lengths_are_a_mismatch_at_all() {
    let errors = run(3, same, |group| {
        let mut csc = Csc::new(&group, ROOM).expect("an area");
        let input = vec![1; if group.local_rank() == 2 { 99 } else { 100 }];
        let mut output = vec![0; 3 * input.len()];
        csc.all_gather(&input, &mut output).expect_err("a mismatch")
    });
    for error in errors {
        let Error::Mismatch { ours, theirs } = &error else { panic!("{error}") };
        let both = format!("{ours} {theirs}");
        assert!(both.contains("of 99 bytes") && both.contains("of 100 bytes"), "{both}");
    }
}

#[test]
fn one_who_left_is_not_waited_for() {
    let errors = run(3, same, |group| {
        let mut csc = Csc::new(&group, ROOM).expect("an area");
        let mut ring = Ring::new(&group, 4096).expect("mailboxes");
        group.barrier().expect("a barrier");
        if group.local_rank() == 1 {
            return None;
        }
        let mut output = vec![0; 3_000_000];
        let gathered = csc.all_gather(&[1; 1_000_000], &mut output);
        let rung = ring.all_gather(&[1; 1_000_000], &mut output);
        Some([gathered, rung].map(|result| result.expect_err("one has left")))
    });
    let [gathered, rung] = errors[2].clone().expect("errors");
    assert_eq!(gathered, Error::PeerLeft { local_rank: 1 });
    assert_eq!(rung, Error::PeerLeft { local_rank: 1 });
}
