//! Sums are right, and the same bits every time.

use std::time::Duration;

use xdp_agg_ps::{Op, PsClient};

use crate::common::Servers;

fn value(rank: u16, i: usize) -> f32 {
    let bits = (i as u32).wrapping_mul(2_654_435_761) ^ u32::from(rank).wrapping_mul(40_503);
    (bits % 200_003) as f32 * 1.37e-3 - 100.0
}

fn input(rank: u16, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// Additions in order of rank.
fn sum(world: u16, i: usize) -> f32 {
    (1..world).fold(value(0, i), |sum, rank| sum + value(rank, i))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_are_those_in_order_of_rank_for_all_worlds_and_servers() {
    for servers in 1..=3 {
        let servers = Servers::start(servers);
        for world in 1..=5 {
            for len in [0, 1, 999, 16 * 1024, 16 * 1024 + 1, 200_001] {
                let results = servers.run(&format!("{world} {len}"), world, |mut client| {
                    let mut data = input(client.rank(), len);
                    client.all_reduce(&mut data, Op::Sum).expect("a sum");
                    data
                });
                let expected: Vec<f32> = (0..len).map(|i| sum(world, i)).collect();
                for result in results {
                    assert!(bits(&result) == bits(&expected), "{world} workers, {len} elements");
                }
            }
        }
    }
}

#[test]
fn many_calls_of_all_types_and_operations() {
    let servers = Servers::start(2);
    servers.run_with(
        "types",
        3,
        |o| o.block = 500,
        |mut client| {
            let rank = i32::from(client.rank());
            for turn in 0..40 {
                let mut floats = input(client.rank(), 3000 + turn);
                client.all_reduce(&mut floats, Op::Average).expect("an average");
                for (i, value) in floats.into_iter().enumerate() {
                    assert_eq!(value.to_bits(), (sum(3, i) / 3.0).to_bits());
                }
                let mut doubles = vec![f64::from(rank) + 0.5; 1001];
                client.all_reduce(&mut doubles, Op::Sum).expect("a sum");
                assert_eq!(doubles, [4.5; 1001]);
                let mut integers = vec![-rank - 1; 777];
                client.all_reduce(&mut integers, Op::Sum).expect("a sum");
                assert_eq!(integers, [-6; 777]);
                client.all_reduce(&mut integers, Op::Average).expect("an average");
                assert_eq!(integers, [-6; 777]);
                let mut integers = vec![if rank == 0 { -5 } else { 0 }; 7];
                client.all_reduce(&mut integers, Op::Average).expect("an average");
                assert_eq!(integers, [-1; 7], "towards zero");
            }
        },
    );
}

/// However late some workers are: they begin their calls at other times in every run.
#[test]
fn every_run_gives_the_same_bits() {
    let servers = Servers::start(2);
    let run = |turn: u64| {
        servers.run(&format!("run {turn}"), 4, |mut client| {
            let late = (u64::from(client.rank()) * 7 + turn * 3) % 5;
            std::thread::sleep(Duration::from_millis(late * 4));
            let mut data = input(client.rank(), 150_000);
            client.all_reduce(&mut data, Op::Sum).expect("a sum");
            bits(&data)
        })
    };
    let first = run(0);
    assert!(first.iter().all(|result| *result == first[0]), "all workers get the same");
    (1..4).for_each(|turn| assert!(run(turn) == first, "run {turn} differs"));
}

#[test]
fn jobs_do_not_meet() {
    let servers = Servers::start(2);
    std::thread::scope(|scope| {
        for job in 0..6_u16 {
            let servers = &servers;
            scope.spawn(move || {
                servers.run(&format!("job {job}"), 3, |mut client| {
                    for _ in 0..20 {
                        let mut data = vec![f32::from(job); 40_000];
                        client.all_reduce(&mut data, Op::Sum).expect("a sum");
                        assert!(data.iter().all(|value| *value == 3.0 * f32::from(job)));
                    }
                });
            });
        }
    });
}

/// A job may be run again under its name, at once.
#[test]
fn a_name_can_be_used_again() {
    let servers = Servers::start(1);
    for _ in 0..20 {
        servers.run("again", 2, |mut client| {
            client.all_reduce(&mut [1.0_f32; 10], Op::Sum).expect("a sum");
        });
    }
}

/// Pieces one by one, more of them than windows and queues hold, and with gaps in their numbers.
#[test]
fn pieces_come_back_as_they_become_complete() {
    let servers = Servers::with(2, |options| options.window = 1 << 20);
    let work = |mut client: PsClient| {
        let rank = client.rank();
        let mut seen = 0;
        for sequence in 1..=2 {
            assert_eq!(client.start(300).expect("it is begun"), sequence);
            let mut next = 0;
            let take = |client: &mut PsClient, wait| {
                let wait = Duration::from_millis(wait);
                let sums = client.poll(wait, |piece: xdp_agg_ps::Piece<'_, f32>| {
                    assert_eq!(piece.sequence, sequence);
                    let at = piece.piece as usize;
                    assert_eq!(piece.values.len(), 10_000 + at);
                    assert_eq!(piece.values[7].to_bits(), sum(3, at).to_bits());
                });
                sums.expect("sums")
            };
            while next < 300 {
                let values = vec![value(rank, next); 10_000 + next];
                if client.push(next as u64, &values).expect("it is pushed") {
                    next += 1 + usize::from(next % 5 == 0);
                } else {
                    seen += take(&mut client, 1000);
                }
            }
            while client.outstanding() > 0 {
                seen += take(&mut client, 1000);
            }
        }
        let mut data = input(rank, 100);
        client.all_reduce(&mut data, Op::Sum).expect("a call among the pieces");
        assert_eq!(data[99].to_bits(), sum(3, 99).to_bits());
        seen
    };
    // Of each five numbers one is left out.
    assert_eq!(servers.run("pieces", 3, work), [2 * 240; 3]);
}
