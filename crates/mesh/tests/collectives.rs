//! All collectives over loopback: every algorithm, root, odd size and number of ranks, with exact
//! bytes.

mod support;

use std::time::Duration;

use support::{at_once, bytes, on_all, world};
use xdp_agg_mesh::{Algorithm, Groups, Op, schedule};

/// Nothing, one byte, odd sizes around a chunk, and one that takes several receives.
const LENGTHS: [usize; 6] = [0, 1, 37, 4096, 4099, 700_001];

fn algorithms() -> Vec<Algorithm> {
    let mut all = Algorithm::ALL.to_vec();
    all.push(Algorithm::Knomial { k: 3 });
    all.push(Algorithm::PipelinedChain { chunk: 1000 });
    all.push(Algorithm::TopologyChain { chunk: 4096 });
    all
}

#[test]
fn every_rank_gets_the_roots_bytes() {
    for ranks in 1..=9_u16 {
        let mut meshes = world(ranks, 3);
        for algorithm in algorithms() {
            for root in 0..ranks {
                let lengths = if ranks % 4 == 1 { &LENGTHS[..] } else { &LENGTHS[2..5] };
                for len in lengths {
                    let expected = bytes(root, *len);
                    on_all(&mut meshes, |mesh| {
                        let mut data = bytes(mesh.rank(), *len);
                        mesh.broadcast(&mut data, root, algorithm).expect("all are well");
                        assert!(data == expected, "{algorithm} {ranks} {root} {len}");
                    });
                }
            }
        }
    }
}

/// Floats whose sums depend on the order of the additions.
fn floats(rank: u16, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 31 + usize::from(rank) * 17) as f32).sin() * 1e3).collect()
}

#[test]
fn reductions_are_exact_and_repeatable() {
    for ranks in [1, 2, 3, 5, 8] {
        let mut meshes = world(ranks, 2);
        for algorithm in algorithms() {
            let (root, len) = (ranks / 2, 5003);
            let sums: Vec<i64> = (0..len as i64)
                .map(|i| (0..i64::from(ranks)).map(|rank| rank * i - 7).sum())
                .collect();
            let runs = [0, 1].map(|_| {
                on_all(&mut meshes, |mesh| {
                    let rank = i64::from(mesh.rank());
                    let mut data: Vec<i64> = (0..len as i64).map(|i| rank * i - 7).collect();
                    mesh.reduce(&mut data, Op::Sum, root, algorithm).expect("all are well");
                    let mut largest = vec![rank as i32; 3];
                    mesh.reduce(&mut largest, Op::Max, root, algorithm).expect("all are well");
                    let mut mean = [f64::from(mesh.rank()); 3];
                    mesh.reduce(&mut mean, Op::Average, root, algorithm).expect("all are well");
                    let mut odd = floats(mesh.rank(), len);
                    mesh.reduce(&mut odd, Op::Sum, root, algorithm).expect("all are well");
                    if mesh.rank() == root {
                        assert!(data == sums, "{algorithm} {ranks}");
                        assert_eq!(largest, [i32::from(ranks) - 1; 3]);
                        assert_eq!(mean, [f64::from(ranks - 1) / 2.0; 3]);
                    }
                    odd
                })
            });
            let of_root = |run: usize| &runs[run][usize::from(root)];
            assert!(of_root(0) == of_root(1), "{algorithm} {ranks}: other bits in another run");
        }
    }
}

#[test]
fn parts_are_scattered_and_gathered() {
    for ranks in 1..=9_u16 {
        let mut meshes = world(ranks, 2);
        for len in [0_usize, 1, 5, 1003, 300_007] {
            on_all(&mut meshes, |mesh| {
                let mut data: Vec<i32> =
                    (0..len as i32).map(|i| i * i32::from(mesh.rank() + 1)).collect();
                let part = mesh.reduce_scatter(&mut data, Op::Sum).expect("all are well");
                assert_eq!(part, schedule::part(mesh.rank().into(), ranks.into(), len));
                let all: i32 = (1..=i32::from(ranks)).sum();
                let sum = |i: usize| (i as i32) * all;
                assert!(part.clone().all(|i| data[i] == sum(i)), "{ranks} {len}");
                // What is not this rank's part is anything.
                for i in (0..len).filter(|i| !part.contains(i)) {
                    data[i] = -1;
                }
                mesh.all_gather(&mut data).expect("all are well");
                assert!((0..len).all(|i| data[i] == sum(i)), "{ranks} {len}");
                let mut mean = vec![f32::from(mesh.rank()); len];
                let part = mesh.reduce_scatter(&mut mean, Op::Average).expect("all are well");
                assert!(mean[part].iter().all(|x| *x == f32::from(ranks - 1) / 2.0));
            });
        }
    }
}

#[test]
fn a_hierarchical_ring_gives_all_ranks_the_same_bits() {
    for (ranks, group) in [(1, 1), (4, 2), (6, 3), (8, 4), (8, 2), (5, 1), (5, 5)] {
        let mut meshes = world(ranks, group);
        for len in [0_usize, 3, 1001, 200_003] {
            let results = on_all(&mut meshes, |mesh| {
                let mut data = floats(mesh.rank(), len);
                mesh.hierarchical_all_reduce(&mut data, Op::Sum).expect("all are well");
                let mut least = vec![f64::from(mesh.rank()); len];
                mesh.hierarchical_all_reduce(&mut least, Op::Min).expect("all are well");
                assert!(least.iter().all(|x| *x == 0.0));
                data
            });
            for (rank, result) in results.iter().enumerate() {
                assert!(*result == results[0], "{ranks} in groups of {group}: rank {rank}");
            }
            for (i, got) in results[0].iter().enumerate() {
                let exact: f64 = (0..ranks).map(|rank| f64::from(floats(rank, len)[i])).sum();
                assert!((f64::from(*got) - exact).abs() < 0.01, "{got} {exact}");
                if i > 50 {
                    break;
                }
            }
        }
    }
}

/// A rank leaves the barrier only after all have come to it.
#[test]
fn a_barrier_keeps_everybody() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for ranks in [1, 2, 5, 8] {
        let (mut meshes, came) = (world(ranks, 1), AtomicUsize::new(0));
        for round in 1..=20 {
            on_all(&mut meshes, |mesh| {
                if mesh.rank() % 3 == 1 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                came.fetch_add(1, Ordering::SeqCst);
                mesh.barrier().expect("all are well");
                assert!(came.load(Ordering::SeqCst) >= round * usize::from(ranks));
                mesh.barrier().expect("all are well");
            });
        }
    }
}

/// Calls of several kinds follow each other without a pause: a rank may be ahead of others.
#[test]
fn calls_follow_each_other() {
    let mut meshes = world(5, 2);
    on_all(&mut meshes, |mesh| {
        for i in 0..200_u16 {
            let (root, algorithm) = (i % 5, Algorithm::ALL[usize::from(i % 7)]);
            let mut data = bytes(mesh.rank(), usize::from(i * 13));
            mesh.broadcast(&mut data, root, algorithm).expect("all are well");
            assert!(data == bytes(root, usize::from(i * 13)), "call {i}");
            if i % 17 == 0 {
                mesh.all_gather(&mut data).expect("all are well");
            }
        }
    });
}

#[test]
fn groups_of_any_shape_make_a_chain() {
    let groups = Groups::new(5, vec![vec![3, 1], vec![0, 4, 2]]).expect("each rank once");
    assert_eq!(groups.chain(4), [4, 0, 2, 3, 1]);
    let mut meshes = support::world_of(5, |builder| builder.groups(groups.clone()));
    on_all(&mut meshes, |mesh| {
        let mut data = bytes(mesh.rank(), 50_000);
        let algorithm = Algorithm::TopologyChain { chunk: 1024 };
        mesh.broadcast(&mut data, 4, algorithm).expect("all are well");
        assert!(data == bytes(4, 50_000));
    });
}

#[test]
fn everybody_gets_something_through_to_everybody() {
    let meshes = world(3, 1);
    let address = meshes[0].local_address().expect("it has connections");
    assert!(address.is_loopback());
    let flood = |mesh: xdp_agg_mesh::Mesh| {
        // Ranks that begin late must not disturb those that have begun.
        std::thread::sleep(Duration::from_millis(u64::from(mesh.rank()) * 50));
        mesh.flood(Duration::from_millis(50), Duration::from_millis(300)).expect("all are well")
    };
    let rates = at_once(meshes, flood);
    for (rank, row) in rates.iter().enumerate() {
        for (from, rate) in row.iter().enumerate() {
            // Loopback carries gigabytes a second, this machine's other work notwithstanding.
            assert_eq!(*rate > 1e6, from != rank, "{from} to {rank}: {rates:?}");
        }
    }
}
