//! All-reduces that learn which way is fastest.

mod support;

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use support::lent::{AVERAGE, Job, SUM, mixed};
use support::{LIMIT, Lab, at_all, expected, input, need_root, network, on_all};
use xdp_agg_client::collectives::Route;
use xdp_agg_client::lent::{
    Caller, DataType, Memory, Options, Outcome, Precision, Reduction, Task,
};
use xdp_agg_client::{Builder, Communicator, Element, Error, JobError, Op, Path, Scaling, f16};
use xdp_agg_common::control::{AbortReason, AggregatorLoss, Cause};
use xdp_agg_testbed::at_once;

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
    // Of hosts of several processes, a short vector has one way besides the aggregators.
    assert!(ring >= 4, "ways among the workers were tried");
}

fn fixed_contributors(worker: &Communicator) -> u64 {
    (1 << (worker.world_size() / worker.local_size())) - 1
}

#[test]
fn all_workers_learn_alike_and_no_bit_depends_on_it() {
    need_root!();
    // With little shared memory, a host's processes take long vectors between hosts in batches.
    for (hosts, processes, engine, segment) in [
        (4, 1, "xdp", None),
        (3, 1, "userspace", None),
        (2, 2, "xdp", None),
        (3, 3, "userspace", Some(1 << 20)),
    ] {
        let lab = Lab::start(network(hosts, "ports"), engine);
        let settings = |settings: Builder| match segment {
            Some(bytes) => settings.scaling(Scaling::Block).segment(bytes),
            None => settings.scaling(Scaling::Block),
        };
        let place = (hosts, processes);
        let learning = lab.connect_hosts("learning", place, |s, _| settings(s).learning(true));
        let fixed = lab.connect_hosts("fixed", place, |s, _| settings(s).learning(false));
        let pairs: Vec<_> = learning.into_iter().zip(fixed).collect();
        let learned = on_all(&pairs, |pair| {
            let host = lab.topology.worker((pair.0.rank() / processes).into());
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
            // Longer ones go by the aggregators or round the ring.
            let ways = if size.up_to > 512 << 10 || processes > 1 { 2 } else { 3 };
            assert!(size.times.len() >= ways, "{size:?}");
            assert!(size.tried < size.calls && size.times.iter().all(|(_, time)| *time > 0));
        }
        for route in [Route::Exchange, Route::Doubling, Route::Halving, Route::Ring] {
            if route == Route::Exchange && processes > 1 {
                continue;
            }
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
    for (before, place) in
        [8, 10, 11, 12, 40].into_iter().flat_map(|before| [(before, (3, 1)), (before, (2, 2))])
    {
        let job = format!("odd{before}{place:?}");
        let workers =
            lab.connect_hosts(&job, place, |settings, _| settings.learning(true).deadline(SOON));
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
        let noticed = |error: &Error| match error {
            Error::Host(_) => error.cause(0) == Some(Cause::Mismatch),
            error => differs(error) || matches!(error, Error::Mesh(_)),
        };
        assert!(errors.iter().any(noticed), "after {before}, {place:?}: {errors:?}");
    }
}

/// A call of another language, made at once or started; what it left.
fn lent<T: Copy>(
    (caller, is_started): (&Caller, bool),
    data: &[T],
    data_type: DataType,
    (task, precision): (Task, Option<Precision>),
) -> (Vec<T>, Outcome) {
    let mut data = data.to_vec();
    // SAFETY: the vector outlives the call, and is of that type.
    let memory = unsafe { Memory::new(data.as_mut_ptr().cast(), data.len(), data_type) };
    let options = Options { precision, ..Options::default() };
    // SAFETY: as above.
    let outcome = unsafe {
        match is_started {
            true => caller
                .start(memory, task, options)
                .and_then(|call| call.wait(LIMIT).expect("all are there")),
            false => caller.call(memory, &task, &options, &mut || false),
        }
    };
    (data, outcome.expect("all are well"))
}

/// Calls from Python, C and MPI: the same bits by every way, infinities and NaNs included, whether
/// they are made at once or started.
#[test]
fn calls_on_lent_memory_learn() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    for place in [(3, 1), (2, 2)] {
        let name = |what: &str| format!("{what}{place:?}");
        let learning = Job::named(&lab, &name("learning"), place, |s| s.learning(true));
        let fixed = Job::named(&lab, &name("fixed"), place, |s| s.learning(false));
        lent_calls_learn(&learning, &fixed);
    }
}

fn lent_calls_learn(learning: &Job<'_>, fixed: &Job<'_>) {
    let gradient = Some(Precision::Gradient);
    fn all<T: Copy + bytemuck::Pod>(
        jobs: (&Caller, &Caller),
        data: &[T],
        data_type: DataType,
        how: (Task, Option<Precision>),
    ) {
        let (learning, fixed) = jobs;
        let (expected, as_expected) = lent((fixed, false), data, data_type, how);
        let mut ring = 0;
        for call in 0..LEARNED {
            let rank = usize::from(learning.communicator().rank());
            let is_started = (call + rank).is_multiple_of(3);
            let (result, outcome) = lent((learning, is_started), data, data_type, how);
            let bits = |of: &[T]| bytemuck::cast_slice::<T, u8>(of).to_vec();
            assert!(bits(&result) == bits(&expected), "{data_type} {how:?} in call {call}");
            assert_eq!(outcome.precision, as_expected.precision);
            assert_eq!(outcome.redone, as_expected.redone, "{data_type} {how:?} in call {call}");
            ring += usize::from(outcome.report.path == Path::Ring);
        }
        assert!(ring >= 4, "{data_type} {how:?}: ways among the workers were tried");
    }
    let learned = learning.at_all(|rank, caller| {
        let jobs = (caller, &fixed.callers[usize::from(rank)]);
        // Each has a length of its own: sizes that have learned try nothing.
        let floats = mixed(rank, 3000);
        let mut broken = mixed(rank, 10_000);
        broken[400 + usize::from(rank)] = [f32::NAN, f32::INFINITY, 1.0, 1.0][usize::from(rank)];
        let longs: Vec<i64> = (0..2000).map(|i| i64::MAX - i * (1 + i64::from(rank))).collect();
        let halves: Vec<u16> = (0..9000).map(|i| 0x3f80 + i % 77 + rank).collect();
        all(jobs, &floats, DataType::F32, (AVERAGE, gradient));
        all(jobs, &broken, DataType::F32, (SUM, gradient));
        all(jobs, &floats[..700], DataType::F32, (SUM, Some(Precision::Exact)));
        all(jobs, &input(rank, 40_000), DataType::I32, (SUM, None));
        all(jobs, &longs, DataType::I64, (SUM, None));
        all(jobs, &halves, DataType::Bf16, (SUM, gradient));
        all(jobs, &floats[..100], DataType::F32, (Task::AllReduce(Reduction::Max), None));
        caller.communicator().learned()
    });
    for one in &learned {
        assert_eq!(*one, learned[0], "workers differ");
    }
    assert!(learned[0].iter().any(|size| size.times.len() >= 3), "{learned:?}");
}

/// A caller that is interrupted gets its memory back soon, whichever way its call goes and
/// whatever it waits for, and the others are told.
#[test]
fn interrupted_callers_get_their_memory_back() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    for (before, size) in
        [7, 8, 9, 10, 11, 40].into_iter().flat_map(|before| [(before, 1), (before, 2)])
    {
        let job = Job::named(&lab, &format!("interrupted{before} {size}"), (2, size), |settings| {
            settings.learning(true).deadline(SOON)
        });
        let errors = job.at_all(|rank, caller| {
            for _ in 0..before {
                lent((caller, false), &input(rank, 3000), DataType::I32, (SUM, None));
            }
            let mut data = input(rank, 3000);
            let (pointer, len) = (data.as_mut_ptr().cast(), data.len());
            // SAFETY: the vector outlives the call, and is of that type.
            let memory = unsafe { Memory::new(pointer, len, DataType::I32) };
            let begun = Instant::now();
            let is_over = rank == 0;
            if rank == 1 {
                thread::sleep(Duration::from_secs(1));
            }
            let mut interrupted = || is_over && begun.elapsed() > Duration::from_millis(200);
            let options = Options::default();
            // SAFETY: as above.
            let mut call = || unsafe { caller.call(memory, &SUM, &options, &mut interrupted) };
            let outcome = call();
            assert!(!is_over || begun.elapsed() < Duration::from_millis(900));
            // What the other one sent before may be all that this one needs: then it is told in
            // its next call.
            outcome.and_then(|_| call()).expect_err("one is interrupted")
        });
        assert!(matches!(errors[0], Error::Interrupted(_)), "after {before}: {errors:?}");
    }
}

/// A worker that is gone is named by all others, whichever way a call goes.
#[test]
fn a_lost_worker_is_named_by_every_way() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "userspace");
    let moments = [(false, 40), (true, 9), (true, 10), (true, 11), (true, 12), (true, 40)];
    for ((learns, before), place) in
        moments.into_iter().flat_map(|moment| [(moment, (3, 1)), (moment, (2, 2))])
    {
        let job = format!("gone{learns}{before}{place:?}");
        let workers =
            lab.connect_hosts(&job, place, |settings, _| settings.learning(learns).deadline(SOON));
        let workers: Vec<_> = workers.into_iter().map(|one| Mutex::new(Some(one))).collect();
        let errors = at_once((0..).zip(&workers), |(rank, worker)| {
            let host = lab.topology.worker(rank / usize::from(place.1));
            let calls = || {
                let worker = worker.lock().expect("no panic").take().expect("it is there");
                let calls = if rank == 1 { before } else { before + 1 };
                let call = |_: &u32| worker.all_reduce(&mut input(worker.rank(), 3000), Op::Sum);
                let failed = (0..calls).find_map(|number| Some((number, call(&number).err()?)));
                let Some((number, error)) = failed else {
                    assert!(rank == 1, "{job}: one is gone");
                    return None;
                };
                // Its fellow knows at once, and another host's last results may still be on their
                // way.
                let least = if place.1 > 1 { before - 1 } else { before };
                assert!(number >= least && rank != 1, "{job}, rank {rank}, {number}: {error}");
                Some(error)
            };
            host.run(calls).expect("entering the namespace")
        });
        for (rank, error) in (0..).zip(&errors) {
            let Some(error) = error else { continue };
            let first = rank / place.1 * place.1;
            let names_it = match error {
                Error::Host(_) => error.cause(first) == Some(Cause::Lost(1)),
                Error::Mesh(error) => error.ranks() == [1],
                Error::Job(JobError::Aborted(reason)) => matches!(
                    reason,
                    AbortReason::MemberLost { rank: 1 }
                        | AbortReason::Member { cause: Some(Cause::Lost(1)), .. }
                        | AbortReason::Member { rank: 1, cause: Some(Cause::Left), .. }
                ),
                _ => false,
            };
            assert!(names_it, "{job}: {errors:?}");
        }
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
