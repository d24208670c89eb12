//! Broadcast and the other collectives end to end: through the aggregator over real XDP, also under
//! loss, and among the workers.

mod support;

use std::time::{Duration, Instant};

use support::{ENGINES, LIMIT, Lab, at_all, element, need_root, network};
use xdp_agg_client::collectives::{Algorithm, Choice, Tuning, Way};
use xdp_agg_client::{Communicator, Error, JobError, Op, WorkerLoss};
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::{Faults, Topology, at_once};

/// Bits that no arithmetic leaves alone: NaNs with payloads, negative zeros, the smallest numbers.
fn bits(rank: u16, i: usize) -> u32 {
    (i as u32).wrapping_mul(0x9e37_79b9) ^ u32::from(rank) << 28 ^ 0x7fc0_0001
}

fn floats(rank: u16, len: usize) -> Vec<f32> {
    (0..len).map(|i| f32::from_bits(bits(rank, i))).collect()
}

fn check_broadcast(worker: &Communicator, len: usize, root: u16, choice: Choice) {
    let mut data = floats(worker.rank(), len);
    worker
        .broadcast_by(&mut data, root, choice)
        .unwrap_or_else(|error| panic!("rank {}: {error}", worker.rank()));
    let exact = data.iter().enumerate().all(|(i, x)| x.to_bits() == bits(root, i));
    assert!(exact, "rank {} of root {root}, {len} by {}", worker.rank(), choice.way);
    let mut halves = vec![xdp_agg_client::bf16::from_bits(worker.rank() * 3); len % 1000];
    worker.broadcast_by(&mut halves, root, choice).expect("all are well");
    assert!(halves.iter().all(|x| x.to_bits() == root * 3));
}

/// Every bit of the root's data reaches everybody through the aggregator, from any root, also where
/// a hundredth of the packets is lost.
#[test]
fn a_broadcast_through_the_aggregator_is_exact_under_loss() {
    need_root!();
    let faults = Faults { loss: 0.01, ..Faults::NONE }.only_udp(DATA_PORT);
    for engine in ENGINES {
        let topology = Topology::builder().workers(4).faults(faults).build().expect("a network");
        let lab = Lab::start(topology, engine);
        let workers = lab.connect("broadcast", 4, |settings| settings);
        at_all(&lab.topology, &workers, |worker| {
            for len in [0, 1, 3, 703, 705, 100_003] {
                check_broadcast(worker, len, (len % 4) as u16, Choice::new(Way::Aggregator));
            }
        });
        let counters = lab.job_stats("broadcast").counters;
        assert!(counters.duplicates > 0, "nothing was lost? {counters:?}");
    }
}

/// A broadcast is the root's packets, and a sixteenth as many of each other worker. A worker that
/// comes late gets it all, also when the root has left.
#[test]
fn a_broadcast_is_the_roots_packets() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let mut workers = lab.connect("copies", 3, |settings| settings);
        let choice = Choice::new(Way::Aggregator);
        let block = workers[0].block_bytes();
        let blocks = 800;
        at_all(&lab.topology, &workers, |worker| {
            // What comes while a worker has not called yet waits for it.
            std::thread::sleep(Duration::from_millis(20) * u32::from(worker.rank()));
            let mut data = floats(worker.rank(), blocks * block / 4);
            worker.broadcast_by(&mut data, 0, choice).expect("all are well");
            assert!(data.iter().enumerate().all(|(i, x)| x.to_bits() == bits(0, i)));
        });
        let sent: Vec<u64> = workers.iter().map(|worker| worker.counters().flow.sent).collect();
        assert_eq!(sent, [800, 50, 50], "{engine}");
        // Seven blocks, the first of them the one to which all contribute. Then seven blocks that
        // only the root has to come for.
        let all = at_all(&lab.topology, &workers, |worker| {
            let mut data = floats(worker.rank(), 7 * block / 4);
            worker.broadcast_by(&mut data, 0, choice)
        });
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        let root = workers.remove(0);
        let mut data = floats(0, 7 * block / 4);
        root.broadcast_by(&mut data, 0, choice).expect("nobody else has to be there");
        drop(root);
        std::thread::sleep(Duration::from_millis(50));
        at_all(&lab.topology, &workers, |worker| {
            let mut data = floats(worker.rank(), 7 * block / 4);
            worker.broadcast_by(&mut data, 0, choice).expect("it is in its slots");
            assert!(data.iter().enumerate().all(|(i, x)| x.to_bits() == bits(0, i)));
        });
    }
}

/// A worker that waits for a root that does not come is told that root, and no other rank.
#[test]
fn a_deadline_names_the_root_alone() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let choice = Choice::new(Way::Aggregator);
    let deadline = Duration::from_secs(2);
    let workers = lab.connect("late", 3, |settings| settings.deadline(deadline));
    at_all(&lab.topology, &workers, |worker| {
        worker.broadcast_by(&mut [0_i32; 10], 0, choice).expect("all are well");
    });
    let start = Instant::now();
    let results = at_all(&lab.topology, &workers, |worker| match worker.rank() {
        2 => None,
        _ => Some(worker.broadcast_by(&mut [0_i32; 10], 2, choice)),
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    let errors: Vec<Error> =
        results.into_iter().flatten().map(|result| result.expect_err("rank 2 is late")).collect();
    // The first one to lose patience ends the job for all.
    let named = |error: &Error| {
        let Error::Job(JobError::Deadline { ranks, .. }) = error else { return false };
        ranks == &[2]
    };
    assert!(errors.iter().any(named), "{errors:?}");
    assert!(!errors.iter().any(|e| e.to_string().contains("rank 1, ")), "{errors:?}");
}

#[test]
fn every_way_of_every_collective_is_exact() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let workers = lab.connect("ways", 4, |settings| settings);
    at_all(&lab.topology, &workers, |worker| {
        let (rank, world, len) = (worker.rank(), worker.world_size(), 30_001);
        let ways = Algorithm::ALL.map(Way::Mesh).into_iter().chain([Way::Aggregator]);
        let whole = |rank| (0..len).map(|i| element(rank, i)).collect::<Vec<i32>>();
        let sum = |i: usize| (0..world).map(|rank| element(rank, i)).sum::<i32>();
        for way in ways {
            check_broadcast(worker, 70_001, 1, Choice::new(way));
            check_broadcast(worker, 100, 3, Choice::new(way).unchecked());
            if way == Way::Mesh(Algorithm::ScatterAllGather) {
                continue;
            }
            let mut data = whole(rank);
            worker.reduce_by(&mut data, Op::Sum, 2, Choice::new(way)).expect("all are well");
            assert!(rank != 2 || (0..len).all(|i| data[i] == sum(i)), "{way}");
            let mut small: Vec<f32> = vec![f32::from(rank); 9];
            worker.reduce_by(&mut small, Op::Average, 0, Choice::new(way)).expect("all are well");
            assert!(rank != 0 || small == [1.5; 9], "{way}: {small:?}");
        }
        for way in [Way::Aggregator, Way::Ring] {
            let mut data = whole(rank);
            let part = worker.reduce_scatter_by(&mut data, Op::Sum, Choice::new(way));
            let part = part.expect("all are well");
            assert_eq!(part, worker.part(rank, len));
            assert!(part.clone().all(|i| data[i] == sum(i)), "{way}");
            (0..len).filter(|i| !part.contains(i)).for_each(|i| data[i] = -1);
            worker.all_gather_by(&mut data, Choice::new(way)).expect("all are well");
            assert!((0..len).all(|i| data[i] == sum(i)), "{way}");
        }
        worker.barrier().expect("all are well");
        // By the table.
        let mut data = floats(rank, 1_200_000);
        worker.broadcast(&mut data, 0).expect("all are well");
        assert!(data.iter().enumerate().all(|(i, x)| x.to_bits() == bits(0, i)));
    });
}

/// Several aggregators, and several processes on a host: the same calls.
#[test]
fn processes_of_a_host_take_part() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect_hosts("hosts", (2, 2), |settings, _| settings);
    let work = |worker: &Communicator| {
        let hierarchical = Algorithm::ALL.map(Way::Hierarchical);
        let chain = Way::Mesh(Algorithm::TopologyChain { chunk: 8192 });
        for way in [Way::Aggregator, chain].into_iter().chain(hierarchical) {
            check_broadcast(worker, 50_001, 3, Choice::new(way));
            check_broadcast(worker, 703, 0, Choice::new(way));
        }
        let mut parts = vec![worker.rank() as i64; 1003];
        worker.all_gather(&mut parts).expect("all are well");
        for rank in 0..4 {
            assert!(parts[worker.part(rank, 1003)].iter().all(|x| *x == i64::from(rank)));
        }
        let ring = Choice::new(Way::Ring);
        let started = worker.all_reduce_async_by(vec![1_i32; 5000], Op::Sum, ring);
        let (sum, report) = started.and_then(|call| call.wait(LIMIT)).expect("it ends");
        assert_eq!((sum, report.contributors), (vec![4; 5000], 0b11));
        worker.barrier().expect("all are well");
    };
    at_once(&workers, |worker| {
        lab.topology.worker((worker.rank() / 2).into()).run(|| work(worker)).expect("moved");
    });
}

/// A root, a length, a type or a collective that differs is an error at every worker, at once.
#[test]
fn calls_that_differ_are_errors_everywhere() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let mesh = Choice::new(Way::Mesh(Algorithm::Binomial));
    let aggregator = Choice::new(Way::Aggregator);
    type Odd<'a> = &'a (dyn Fn(&Communicator) -> Result<(), Error> + Sync);
    let cases: [(Choice, Odd<'_>); 8] = [
        (aggregator, &|w| w.broadcast_by(&mut [0_f32; 100], 1, aggregator)),
        (aggregator, &|w| w.broadcast_by(&mut [0_f32; 102], 0, aggregator)),
        (aggregator, &|w| w.broadcast_by(&mut [0_i32; 100], 0, aggregator)),
        (aggregator, &|w| w.broadcast_by(&mut [0_f32; 100], 0, mesh)),
        (aggregator, &|w| w.all_reduce(&mut [0_i64; 50], Op::Max).map(drop)),
        (mesh, &|w| w.broadcast_by(&mut [0_f32; 100], 1, mesh)),
        (mesh, &|w| w.broadcast_by(&mut [0_f32; 101], 0, mesh)),
        (mesh, &|w| w.reduce_by(&mut [0_f32; 100], Op::Sum, 0, mesh)),
    ];
    for (case, (choice, odd)) in cases.into_iter().enumerate() {
        let workers = lab.connect(&format!("odd{case}"), 3, |settings| settings);
        let start = Instant::now();
        let results = at_all(&lab.topology, &workers, |worker| match worker.rank() {
            1 => odd(worker),
            _ => worker.broadcast_by(&mut [0_f32; 100], 0, choice),
        });
        assert!(start.elapsed() < Duration::from_secs(5), "case {case}");
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.expect_err("the calls differ").to_string();
            assert!(error.contains("call"), "case {case}, rank {rank}: {error}");
        }
    }
    let workers = lab.connect("root", 3, |settings| settings);
    let error = workers[0].broadcast(&mut [0_f32], 3).expect_err("no such root");
    assert!(error.to_string().contains("root: 3 of 3 workers"), "{error}");
    let error = workers[0].broadcast_by(&mut [0_f32], 0, Choice::new(Way::Ring));
    assert!(error.expect_err("no such way").to_string().contains("does not go by ring"));
}

/// A worker that dies is named by those that wait for it, on either way.
#[test]
fn a_dead_worker_is_an_error_and_no_hang() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    for way in [Way::Aggregator, Way::Mesh(Algorithm::PipelinedChain { chunk: 4096 })] {
        let choice = Choice::new(way).unchecked();
        // A worker that leaves in good order is not lost: the aggregator waits for its
        // contribution.
        let deadline = Duration::from_secs(3);
        let job = format!("dead-{way}");
        let mut workers = lab.connect(&job, 3, |settings| settings.deadline(deadline));
        at_all(&lab.topology, &workers, |worker| check_broadcast(worker, 1000, 0, choice));
        drop(workers.remove(1));
        let start = Instant::now();
        let results = at_all(&lab.topology, &workers, |worker| {
            let mut data = floats(worker.rank(), 2_000_000);
            worker.broadcast_by(&mut data, 0, choice).and_then(|()| worker.barrier())
        });
        assert!(start.elapsed() < Duration::from_secs(10), "{way}");
        for result in results {
            let error = result.expect_err("rank 1 is gone").to_string();
            assert!(error.contains("rank 1"), "{way}: {error}");
        }
    }
}

/// Where the job goes on without lost workers, zeros of a lost root are not taken for its data.
#[test]
fn a_lost_root_is_an_error_and_the_job_goes_on() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let mut workers = lab.connect("shrink", 3, |settings| {
        settings.on_worker_loss(WorkerLoss::Shrink).tuning(Tuning::default())
    });
    at_all(&lab.topology, &workers, |worker| {
        worker.broadcast(&mut floats(worker.rank(), 500_000), 2).expect("all are well");
    });
    drop(workers.remove(2));
    at_all(&lab.topology, &workers, |worker| {
        let error = worker.broadcast(&mut [1.0_f32; 10], 2).expect_err("the root is lost");
        assert!(matches!(&error, Error::DataLost { ranks, .. } if ranks == &[2]), "{error}");
        let mut data = floats(worker.rank(), 10);
        worker.broadcast(&mut data, 1).expect("the others are well");
        assert_eq!(data[9].to_bits(), bits(1, 9));
    });
}

/// The longest time of all workers, the shortest of a few calls, in seconds.
fn shortest(lab: &Lab, workers: &[Communicator], call: impl Fn(&Communicator) + Sync) -> f64 {
    let time = || {
        let times = at_all(&lab.topology, workers, |worker| {
            worker.barrier().expect("all are well");
            let start = Instant::now();
            call(worker);
            start.elapsed().as_secs_f64()
        });
        times.into_iter().fold(0.0, f64::max)
    };
    (0..4).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// On links with a rate, trees take as many message times as the models say. A parent whose
/// children's streams share its link takes up to twice that: 4.8 here in place of 3, 6.1 of 4 MiB.
#[test]
fn trees_take_the_time_of_their_models() {
    need_root!();
    const RATE: u64 = 100_000_000;
    let topology = Topology::builder().workers(8).rate(Some(RATE)).build().expect("a network");
    let lab = Lab::start(topology, "xdp");
    let workers = lab.connect("models", 8, |settings| settings);
    let len = 1 << 20;
    // Frames of 1514 bytes carry 1448 of the message.
    let message_s = len as f64 * 8.0 / RATE as f64 * (1514.0 / 1448.0);
    let unchecked = |algorithm| Choice::new(Way::Mesh(algorithm)).unchecked();
    let chain = Algorithm::PipelinedChain { chunk: 64 << 10 };
    for (algorithm, messages) in [
        (Algorithm::Binomial, 3.0),
        // Equation (3) takes the k - 1 sends of a round for one; on one link they are k - 1.
        (Algorithm::Knomial { k: 4 }, 4.0),
        (Algorithm::ScatterAllGather, 1.75),
        (chain, (16.0 + 6.0) / 16.0),
    ] {
        let seconds = shortest(&lab, &workers, |worker| {
            let mut data = floats(worker.rank(), len / 4);
            worker.broadcast_by(&mut data, 0, unchecked(algorithm)).expect("all are well");
            assert!(data.iter().enumerate().all(|(i, x)| x.to_bits() == bits(0, i)));
        });
        let times = seconds / message_s;
        println!("{algorithm}: {times:.2} message times, model {messages:.2}");
        assert!(times < 1.15 * messages, "{algorithm}: {times:.2} message times, not {messages}");
    }
    let seconds = shortest(&lab, &workers, |worker| {
        let mut data = vec![1_i32; len / 4];
        let binomial = unchecked(Algorithm::Binomial);
        worker.reduce_by(&mut data, Op::Sum, 0, binomial).expect("all are well");
        assert!(worker.rank() != 0 || data.iter().all(|x| *x == 8));
    });
    let times = seconds / message_s;
    println!("reduce by binomial: {times:.2} message times, model 3");
    assert!(times < 1.15 * 3.0, "reduce by binomial: {times:.2} message times, not 3");
}
