//! All-reduce round rings of threads over loopback.

mod support;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::{at_once, rendezvous};
use xdp_agg_common::wire::Reduction;
use xdp_agg_mesh::{Builder, By, Error, Mesh, Op, Patience, Pattern, Span, combine_words};

const SHORT: Duration = Duration::from_millis(1500);

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Runs `work` on every rank of a new ring; the results by rank.
fn on_ring<R: Send>(
    world: u16,
    set: impl Fn(Builder) -> Builder + Sync,
    work: impl Fn(Mesh) -> R + Sync,
) -> Vec<R> {
    let ranks = (0..world).map(|rank| Mesh::builder().rank(rank).world_size(world));
    at_once(rendezvous(ranks), |builder| work(set(builder).open().unwrap()))
}

fn unchanged(builder: Builder) -> Builder {
    builder
}

fn short_deadline(builder: Builder) -> Builder {
    builder.deadline(SHORT)
}

/// A value that differs by rank and place, and whose sums are exact in f32.
fn value(rank: u16, i: usize) -> i32 {
    (i as i32 % 1000) * i32::from(rank + 1) - 500
}

#[test]
fn sums_and_averages_of_all_sizes() {
    for world in 1..=5_u16 {
        on_ring(world, unchanged, |mut ring| {
            let rank = ring.rank();
            for count in [0_usize, 1, 2, 3, 4, 7, 512, 513, 4093, 70_001, 300_007] {
                let sum = |i| (0..world).map(|r| value(r, i)).sum::<i32>();
                let mut ints: Vec<i32> = (0..count).map(|i| value(rank, i)).collect();
                ring.all_reduce(&mut ints, Op::Sum).unwrap();
                assert!(ints.iter().enumerate().all(|(i, v)| *v == sum(i)), "{world} {count}");
                let mut ints: Vec<i32> = (0..count).map(|i| value(rank, i)).collect();
                ring.all_reduce(&mut ints, Op::Average).unwrap();
                let average = |i| sum(i) / i32::from(world);
                assert!(ints.iter().enumerate().all(|(i, v)| *v == average(i)), "{world} {count}");
                let mut floats: Vec<f32> = (0..count).map(|i| value(rank, i) as f32).collect();
                ring.all_reduce(&mut floats, Op::Average).unwrap();
                let average = |i| sum(i) as f32 / f32::from(world);
                assert!(floats.iter().enumerate().all(|(i, v)| *v == average(i)));
            }
        });
    }
}

#[test]
fn more_ranks_than_elements_and_a_large_world() {
    on_ring(
        9,
        |b| b.short_bytes(0),
        |mut ring| {
            for count in 1..=10 {
                let mut data = vec![i32::from(ring.rank()); count];
                ring.all_reduce(&mut data, Op::Sum).unwrap();
                assert_eq!(data, vec![36; count]);
            }
        },
    );
}

/// Rounding must not depend on the rank: the bits are compared, with values that round differently
/// in every order.
#[test]
fn all_ranks_get_the_same_bits() {
    let bits = on_ring(4, unchanged, |mut ring| {
        let seed = f32::from(ring.rank() + 1);
        [300, 20_011].map(|count| {
            let mut data: Vec<f32> =
                (0..count).map(|i| (seed * i as f32).sin() * 10_f32.powi(i % 9)).collect();
            ring.all_reduce(&mut data, Op::Average).unwrap();
            data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    });
    assert!(bits.iter().all(|other| *other == bits[0]));
}

#[test]
fn not_a_number_reaches_everyone() {
    on_ring(3, unchanged, |mut ring| {
        let mut data = vec![1.0_f32; 5000];
        if ring.rank() == 1 {
            data[4321] = f32::NAN;
        }
        ring.all_reduce(&mut data, Op::Sum).unwrap();
        assert!(data[4321].is_nan());
        assert_eq!(data.iter().filter(|v| **v == 3.0).count(), 4999);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn equals_a_plain_sum(
        vectors in (2..=5_usize, 0..700_usize).prop_flat_map(|(world, count)| {
            prop::collection::vec(prop::collection::vec(any::<i32>(), count), world)
        }),
        short_bytes in prop_oneof![Just(0_usize), Just(1 << 20)],
    ) {
        let mut expected = vec![0_i32; vectors[0].len()];
        for vector in &vectors {
            for (sum, v) in expected.iter_mut().zip(vector) {
                *sum = sum.wrapping_add(*v);
            }
        }
        let world = vectors.len() as u16;
        let results = on_ring(world, |b| b.short_bytes(short_bytes), |mut ring| {
            let mut data = vectors[usize::from(ring.rank())].clone();
            ring.all_reduce(&mut data, Op::Sum).unwrap();
            data
        });
        for result in results {
            prop_assert_eq!(&result, &expected);
        }
    }
}

/// Runs a call in which one rank errs; the others' errors, by rank.
fn errors(world: u16, call: impl Fn(Mesh) -> Result<(), Error> + Sync) -> Vec<Option<Error>> {
    let started = Instant::now();
    let results = on_ring(world, short_deadline, call);
    let took = started.elapsed();
    assert!(took < SHORT + Duration::from_secs(2), "took {took:?}");
    results.into_iter().map(Result::err).collect()
}

#[test]
fn another_length_fails_on_all_and_names_both() {
    for (lengths, shown) in [([9000, 9001], "9001"), ([3, 4], "sum of 4"), ([7, 0], "sum of 0")] {
        let errors = errors(4, |mut ring| {
            let mut data = vec![0_f32; lengths[usize::from(ring.rank() == 2)]];
            ring.all_reduce(&mut data, Op::Sum)?;
            // Of a short vector a distant rank may have all it needs; the next call fails.
            ring.all_reduce(&mut data, Op::Sum)
        });
        for (rank, error) in errors.iter().enumerate() {
            let error = error.as_ref().unwrap_or_else(|| panic!("rank {rank} got a result"));
            assert!(matches!(error, Error::Mismatch { .. } | Error::Stopped { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("the ranks' calls differ") && text.contains(shown), "{text}");
        }
    }
}

#[test]
fn another_type_or_operation_fails_on_all() {
    for by_type in [true, false] {
        let errors = errors(3, |mut ring| {
            let odd = ring.rank() == 1;
            if odd && by_type {
                return ring.all_reduce(&mut vec![1_i32; 5000], Op::Sum);
            }
            let op = if odd { Op::Average } else { Op::Sum };
            ring.all_reduce(&mut vec![1_f32; 5000], op)
        });
        for error in errors {
            let text = error.unwrap().to_string();
            assert!(text.contains(if by_type { "i32" } else { "average" }), "{text}");
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_by_all_and_the_ring_stays_broken() {
    let errors = errors(4, |mut ring| {
        if ring.rank() == 1 {
            thread::sleep(SHORT + Duration::from_millis(300));
            return ring.all_reduce(&mut vec![0_f32; 100_000], Op::Sum);
        }
        let error = ring.all_reduce(&mut vec![0_f32; 100_000], Op::Sum).unwrap_err();
        let second = ring.all_reduce(&mut [1_i32], Op::Sum).unwrap_err();
        assert!(matches!(second, Error::Broken { .. }), "{second}");
        Err(error)
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let text = error.unwrap().to_string();
        assert!(rank == 1 || text.contains("waiting for rank 1, which has sent nothing"), "{text}");
    }
}

#[test]
fn a_dead_rank_is_named_by_all() {
    for world in [2, 3, 5] {
        let errors = errors(world, |mut ring| {
            ring.all_reduce(&mut [1_i32; 10], Op::Sum)?;
            if ring.rank() == 1 {
                // As a killed process: the connections end without a word.
                drop(ring);
                return Ok(());
            }
            ring.all_reduce(&mut vec![0_f32; 2_000_000], Op::Sum)
        });
        for (rank, error) in errors.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let text = error.unwrap_or_else(|| panic!("{world}: {rank} got a result")).to_string();
            assert!(text.contains("rank 1 is gone"), "{world}: rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_that_left_early_is_named() {
    let errors = errors(3, |mut ring| {
        if ring.rank() == 2 {
            return Ok(());
        }
        ring.all_reduce(&mut vec![0_f32; 2_000_000], Op::Sum)
    });
    for error in &errors[..2] {
        let text = error.as_ref().unwrap().to_string();
        assert!(text.contains("rank 2 is gone"), "{text}");
    }
}

/// Connects one rank with settings of its own.
fn connect(rank: u16, world: u16, address: SocketAddr) -> Result<Mesh, Error> {
    let builder = Mesh::builder().rank(rank).world_size(world).rendezvous(address);
    builder.deadline(SHORT).open()
}

#[test]
fn missing_ranks_are_named_by_those_who_came() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let guest = scope.spawn(move || connect(2, 4, address).unwrap_err());
        let host = Mesh::builder().world_size(4).listener(listener).deadline(SHORT);
        for error in [host.open().unwrap_err(), guest.join().unwrap()] {
            assert!(matches!(&error, Error::MissingRanks { missing, .. } if missing == &[1, 3]));
            assert!(error.to_string().contains("missing 1, 3;"), "{error}");
        }
    });
}

#[test]
fn a_taken_rank_and_another_world_size_are_turned_away_and_the_ring_forms() {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let host = Mesh::builder().world_size(3).listener(listener);
        let host = scope.spawn(move || host.open());
        let first =
            scope.spawn(move || Mesh::builder().rank(1).world_size(3).rendezvous(address).open());
        thread::sleep(Duration::from_millis(100));
        // Neither a stranger nor one that says nothing keeps the others from meeting.
        TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let taken = connect(1, 3, address).unwrap_err();
        assert!(taken.to_string().contains("rank 1 is taken by a worker on 127.0.0.1"), "{taken}");
        let host_again = Mesh::builder().rank(0).world_size(3).rendezvous(address).open();
        assert!(matches!(host_again, Err(Error::PortInUse { .. })), "{host_again:?}");
        let size = connect(2, 4, address).unwrap_err();
        assert!(size.to_string().contains("WORLD_SIZE is 4, that of rank 0 is 3"), "{size}");
        let mut last = connect(2, 3, address).unwrap();
        let (host, first) = (host.join().unwrap().unwrap(), first.join().unwrap().unwrap());
        let others = [host, first]
            .map(|mut ring| scope.spawn(move || ring.all_reduce(&mut [1_i32], Op::Sum).unwrap()));
        let mut data = [1_i32];
        last.all_reduce(&mut data, Op::Sum).unwrap();
        assert_eq!(data, [3]);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_deadline_may_be_as_long_as_can_be() {
    on_ring(
        2,
        |builder| builder.deadline(Duration::MAX),
        |mut ring| {
            ring.all_reduce(&mut [1_i32; 3], Op::Sum).unwrap();
        },
    );
}

#[test]
fn nobody_at_the_rendezvous_is_an_error_at_the_deadline() {
    let address = listener().local_addr().unwrap();
    let started = Instant::now();
    let error = connect(1, 2, address).unwrap_err();
    assert!(matches!(error, Error::Unreachable { rank: 0, .. }), "{error}");
    assert!(started.elapsed() < SHORT + Duration::from_millis(500));
}

/// By every pattern all ranks get what the words come to, also where vectors are far longer than
/// what sockets take at once, and while a rank is late.
#[test]
fn words_are_reduced_alike_by_every_pattern() {
    for world in [1, 2, 3, 4, 5, 6, 8_u16] {
        on_ring(world, unchanged, |mut mesh| {
            let rank = mesh.rank();
            for count in [1_usize, 3, 17, 8191, 400_003] {
                for pattern in [Pattern::Ring, Pattern::Doubling, Pattern::Halving] {
                    for reduction in [Reduction::Add, Reduction::Max32] {
                        let own = |rank, i| (value(rank, i) as u64).rotate_left(rank.into());
                        let mut words: Vec<u64> = (0..count).map(|i| own(rank, i)).collect();
                        let mut expected: Vec<u64> = (0..count).map(|i| own(0, i)).collect();
                        for other in 1..world {
                            let theirs: Vec<u64> = (0..count).map(|i| own(other, i)).collect();
                            combine_words(&mut expected, &theirs, reduction);
                        }
                        if usize::from(rank) == count % usize::from(world) {
                            thread::sleep(Duration::from_millis(1));
                        }
                        let mut never = || false;
                        let by = By { pattern, span: Span::World, tag: 7 };
                        let done = mesh.all_reduce_words_by(
                            &mut words,
                            reduction,
                            by,
                            patient(&mut never),
                        );
                        done.unwrap();
                        assert!(words == expected, "{world} {count} {pattern:?} {reduction:?}");
                    }
                }
            }
        });
    }
}

/// Each rank sums with those of its place in other hosts. Some have nothing to sum, and the calls
/// of all count alike.
#[test]
fn ranks_of_one_place_sum_between_hosts() {
    for (hosts, size) in [(1, 2), (2, 2), (2, 3), (3, 2), (4, 2)] {
        let in_hosts = |builder: Builder| builder.group_size(size);
        on_ring(hosts * size, in_hosts, |mut mesh| {
            let (rank, place) = (mesh.rank(), mesh.rank() % size);
            for count in [0, 1, 5, 30_001_u64] {
                for pattern in [Pattern::Ring, Pattern::Doubling, Pattern::Halving] {
                    let by = By { pattern, span: Span::Hosts, tag: place.into() };
                    let count = if place == 1 { 0 } else { count };
                    let mut words: Vec<u64> = (0..count).map(|i| i + u64::from(rank)).collect();
                    let mut never = || false;
                    let patience = patient(&mut never);
                    mesh.all_reduce_words_by(&mut words, Reduction::Add, by, patience).unwrap();
                    let ranks = (0..hosts).map(|host| u64::from(host * size + place));
                    let all = ranks.sum::<u64>();
                    let mut sums = (0..count).map(|i| i * u64::from(hosts) + all);
                    assert!(words.iter().copied().eq(&mut sums), "{hosts} {size} {pattern:?}");
                    let mut one = [1_i32];
                    mesh.all_reduce(&mut one, Op::Sum).unwrap();
                    assert_eq!(one, [i32::from(hosts * size)]);
                }
            }
            assert_eq!(mesh.calls(), 4 * 3 * 2);
        });
    }
}

#[test]
fn hosts_of_several_sizes_do_not_sum_place_by_place() {
    let errors = on_ring(
        3,
        |builder| builder.group_size(2),
        |mut mesh| {
            let by = By { pattern: Pattern::Ring, span: Span::Hosts, tag: 0 };
            let mut never = || false;
            let patience = patient(&mut never);
            mesh.all_reduce_words_by(&mut [1], Reduction::Add, by, patience).unwrap_err()
        },
    );
    assert!(errors.iter().all(|error| matches!(error, Error::Argument(_))), "{errors:?}");
}

fn patient(interrupted: &mut dyn FnMut() -> bool) -> Patience<'_> {
    Patience { deadline: Duration::from_secs(10), interrupted }
}

/// A caller that is interrupted gets its memory back soon, whether others are late or not.
#[test]
fn an_interrupted_caller_waits_no_more() {
    let errors = on_ring(2, short_deadline, |mut mesh| {
        if mesh.rank() == 1 {
            // Late. What the other one sent is there, so that its own next call is the first one
            // in which it is told.
            thread::sleep(Duration::from_millis(600));
            let mut call = || mesh.exchange(&mut [1_u64; 2], 7, patient(&mut || false));
            return call().and_then(|()| call()).unwrap_err();
        }
        let (begun, mut asked) = (Instant::now(), 0);
        let mut second_time = || {
            asked += 1;
            asked == 2
        };
        let error = mesh.exchange(&mut [1_u64; 2], 7, patient(&mut second_time)).unwrap_err();
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        error
    });
    assert!(matches!(errors[0], Error::Interrupted(_)), "{errors:?}");
    let told = matches!(errors[1], Error::Stopped { by: 0, .. } | Error::PeerLost { rank: 0, .. });
    assert!(told, "{errors:?}");
}

#[test]
fn ranks_with_other_tags_make_other_calls() {
    for pattern in [Pattern::Ring, Pattern::Doubling, Pattern::Halving] {
        let errors = on_ring(2, short_deadline, |mut mesh| {
            let tag = u64::from(mesh.rank()) << 40;
            let (by, mut never) = (By { pattern, span: Span::World, tag }, || false);
            let patience = patient(&mut never);
            mesh.all_reduce_words_by(&mut [1; 100], Reduction::Add, by, patience).unwrap_err()
        });
        assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    }
    let errors = on_ring(2, short_deadline, |mut mesh| {
        let tag = u64::from(mesh.rank());
        mesh.exchange(&mut [1_u64; 100], tag, patient(&mut || false)).unwrap_err()
    });
    assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
}
