//! All-reduces that learn which way is fastest.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, at_all, expected, input, need_root, network, on_all};
use xdp_agg_client::collectives::Route;
use xdp_agg_client::{Communicator, Element, Error, JobError, Op, Path, Scaling, f16};
use xdp_agg_common::control::AggregatorLoss;

/// Calls after which a size has learned.
const LEARNED: usize = 50;
/// An error has to be there in this time.
const SOON: Duration = Duration::from_secs(10);

/// The result's bits are those of a job that goes through the aggregator alone, in every call.
fn same_bits<T: Element>(
    pair: &(Communicator, Communicator),
    len: usize,
    op: Op,
    make: fn(f32) -> T,
) {
    let (learning, fixed) = pair;
    let rank = f32::from(learning.rank());
    let value = |i: usize| ((i as f32).mul_add(0.37, rank)).sin() * 10_f32.powi(i as i32 / 700 % 5);
    let data: Vec<T> = (0..len).map(|i| make(value(i))).collect();
    let mut through_aggregator = data.clone();
    let report = fixed.all_reduce(&mut through_aggregator, op).expect("all are well");
    assert_eq!(report.path, Path::Aggregator);
    let mut ring = 0;
    for call in 0..LEARNED {
        // Workers that start a call and those that wait for it at once are in the same call.
        let is_started = (call + usize::from(learning.rank())).is_multiple_of(3);
        let (result, report) = if is_started {
            let handle = learning.all_reduce_async(data.clone(), op).expect("it starts");
            handle.wait(LIMIT).expect("all are well")
        } else {
            let mut result = data.clone();
            let report = learning.all_reduce(&mut result, op).expect("all are well");
            (result, report)
        };
        let bits = |of: &[T]| bytemuck::cast_slice::<T, u8>(of).to_vec();
        assert!(bits(&result) == bits(&through_aggregator), "{} {op} in call {call}", T::TYPE);
        assert_eq!(report.contributors, fixed_contributors(learning));
        ring += usize::from(report.path == Path::Ring);
    }
    assert!(ring >= 6, "ways among the workers were tried");
}

fn fixed_contributors(worker: &Communicator) -> u64 {
    (1 << worker.world_size()) - 1
}

#[test]
fn all_workers_learn_alike_and_no_bit_depends_on_it() {
    need_root!();
    for (workers, engine) in [(4, "xdp"), (3, "userspace")] {
        let lab = Lab::start(network(workers, "ports"), engine);
        let block = |settings: xdp_agg_client::Builder| settings.scaling(Scaling::Block);
        let learning = lab.connect("learning", workers, |s| block(s).learning(true));
        let fixed = lab.connect("fixed", workers, |s| block(s).learning(false));
        let pairs: Vec<_> = learning.into_iter().zip(fixed).collect();
        let learned = on_all(&pairs, |pair| {
            let host = lab.topology.worker(pair.0.rank().into());
            let all = || {
                same_bits(pair, 1, Op::Sum, |value| value);
                same_bits(pair, 1000, Op::Average, |value| value);
                same_bits(pair, 20_000, Op::Sum, f64::from);
                same_bits(pair, 9000, Op::Sum, f16::from_f32);
                same_bits(pair, 5000, Op::Max, |value| value as i64);
                same_bits(pair, 300_000, Op::Sum, |value| value as i32);
                pair.0.learned()
            };
            host.run(all).expect("entering the namespace")
        });
        for one in &learned {
            assert_eq!(*one, learned[0], "workers differ");
        }
        for size in &learned[0] {
            assert!(size.times.len() >= 3, "{size:?}");
            assert!(size.tried < size.calls && size.times.iter().all(|(_, time)| *time > 0));
        }
        for route in [Route::Exchange, Route::Doubling, Route::Halving, Route::Ring] {
            let is_known = |times: &[(Route, u64)]| times.iter().any(|(one, _)| *one == route);
            assert!(learned[0].iter().any(|size| is_known(&size.times)), "{route}");
        }
    }
}

/// Where workers cannot listen for each other, they go on through the aggregator, all of them.
#[test]
fn workers_that_do_not_reach_each_other_go_on() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "userspace");
    let workers = lab.connect("alone", 3, |settings| settings.learning(true));
    // Not in the workers' namespaces: their addresses are not there.
    on_all(&workers, |worker| {
        for _ in 0..LEARNED {
            let mut data = input(worker.rank(), 3000);
            let report = worker.all_reduce(&mut data, Op::Sum).expect("it goes on");
            assert!(data == expected(3, 3000));
            assert_eq!(report.path, Path::Aggregator);
        }
        let learned = worker.learned();
        assert_eq!(learned[0].route, Route::Aggregator);
        assert_eq!((learned[0].tried, learned[0].times.len()), (0, 0));
    });
}

/// A lost aggregator, before a trial, in one and after it, changes no sum: the workers go on alike,
/// over a ring or by the next daemon, and learn on.
#[test]
fn a_lost_aggregator_ends_no_learning() {
    need_root!();
    const SIZES: [usize; 2] = [3000, 20_000];
    for (loss, before) in [
        (AggregatorLoss::Ring, 5),
        (AggregatorLoss::Ring, 20),
        (AggregatorLoss::Resume, 30),
        (AggregatorLoss::Ring, 70),
    ] {
        let mut lab = Lab::start(network(3, "ports"), "userspace");
        let workers = lab.connect("lost", 3, |settings| {
            settings
                .learning(true)
                .on_aggregator_loss(loss)
                .fallback_after(Duration::from_millis(300))
                .dead_after(Duration::from_secs(2))
        });
        let calls = |count: usize| {
            at_all(&lab.topology, &workers, |worker| {
                for call in 0..count {
                    for len in SIZES {
                        let mut data = input(worker.rank(), len);
                        worker.all_reduce(&mut data, Op::Sum).expect("it goes on");
                        assert!(data == expected(3, len), "{loss:?} {before}: call {call}, {len}");
                    }
                }
                worker.learned()
            })
        };
        calls(before);
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        let mut next = None;
        let learned = thread::scope(|scope| {
            let on = scope.spawn(|| calls(150));
            thread::sleep(Duration::from_millis(100));
            next = (loss == AggregatorLoss::Resume).then(|| lab.spawn_daemon(&[]));
            on.join().expect("no panic")
        });
        for one in &learned {
            assert_eq!(*one, learned[0], "workers differ");
        }
        assert_eq!(learned[0].len(), SIZES.len());
        assert!(learned[0].iter().all(|size| size.times.len() >= 3), "{learned:?}");
    }
}

/// A worker that makes another call where the others agree on what they have learned is found out
/// at once, and so is one whose call differs among the workers.
#[test]
fn calls_that_differ_are_errors_while_learning() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "userspace");
    for before in [8, 10, 11, 12, 40] {
        let job = format!("odd{before}");
        let workers = lab.connect(&job, 3, |settings| settings.learning(true).deadline(SOON));
        let begun = Instant::now();
        let errors = at_all(&lab.topology, &workers, |worker| {
            for _ in 0..before {
                let mut data = input(worker.rank(), 3000);
                worker.all_reduce(&mut data, Op::Sum).expect("it ends");
            }
            let len = if worker.rank() == 1 { 3001 } else { 3000 };
            worker.all_reduce(&mut input(worker.rank(), len), Op::Sum).expect_err("they differ")
        });
        assert!(begun.elapsed() < SOON, "{errors:?}");
        let differs = |error: &Error| matches!(error, Error::Job(JobError::CallMismatch { .. }));
        let noticed = |error: &Error| differs(error) || matches!(error, Error::Mesh(_));
        assert!(errors.iter().any(noticed), "after {before}: {errors:?}");
    }
}

/// With a table, or without leave, nothing is tried.
#[test]
fn who_does_not_want_it_learns_nothing() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    for (job, table) in [("none", None), ("table", Some("[[all-reduce]]\nalgorithm = \"ring\"\n"))]
    {
        let workers = lab.connect(job, 2, |settings| match table {
            None => settings.learning(false),
            Some(text) => {
                let table = xdp_agg_client::collectives::Tuning::parse(text);
                settings.tuning(table.expect("it is one"))
            }
        });
        at_all(&lab.topology, &workers, |worker| {
            for _ in 0..30 {
                let mut data = input(worker.rank(), 3000);
                let report = worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                assert_eq!(report.path == Path::Ring, table.is_some());
            }
            assert!(worker.learned().is_empty());
        });
    }
}
