//! Jobs whose processes all share one host: their calls stay in its memory (paper 5), and give the
//! bits that they would have through the aggregator.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::lent::{Job, close, mixed, sums};
use support::watched::{self, Failure, failure_of, work};
use support::{LIMIT, Lab, need_root, network, on_all, second_daemon};
use xdp_agg_client::lent::{DataType, Memory, Options, Precision, Reduction, Task};
use xdp_agg_client::{Builder, Communicator, Element, Error, Op, Path, Report, Scaling, bf16, f16};

/// Lengths without and with a rest, and one that goes through the segment in several rounds.
const LENS: [usize; 7] = [0, 1, 3, 353, 5000, 40_001, 2_500_003];

/// All processes of one host.
fn job(
    lab: &Lab,
    name: &str,
    size: u16,
    tune: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Communicator> {
    let tune = |settings: Builder, _| tune(settings.scaling(Scaling::Block));
    lab.connect_hosts(name, (1, size), tune)
}

/// The same job in the host's memory, and through the aggregator.
fn both(lab: &Lab, size: u16) -> [Vec<Communicator>; 2] {
    [true, false]
        .map(|stay| job(lab, &format!("stay {stay} {size}"), size, |s| s.host_collectives(stay)))
}

fn sent(workers: &[Communicator]) -> u64 {
    workers.iter().map(|worker| worker.counters().flow.sent).sum()
}

/// What each rank has after an all-reduce, a reduce and a reduce-scatter, as far as it is
/// specified.
fn reductions<T: Element>(
    workers: &[Communicator],
    op: Op,
    input: impl Fn(u16) -> Vec<T> + Sync,
) -> Vec<(Vec<T>, Report)> {
    on_all(workers, |worker| {
        let (rank, mut data) = (worker.rank(), input(worker.rank()));
        let report = worker.all_reduce(&mut data, op).expect("it ends");
        let mut all = data;
        let mut data = input(rank);
        worker.reduce(&mut data, op, 1).expect("it ends");
        if rank == 1 {
            all.extend(data);
        }
        let mut data = input(rank);
        let part = worker.reduce_scatter(&mut data, op).expect("it ends");
        assert_eq!(part, worker.part(rank, data.len()));
        all.extend_from_slice(&data[part]);
        (all, report)
    })
}

fn check_type<T: Element>(
    jobs: &[Vec<Communicator>; 2],
    of: impl Fn(i32) -> T + Sync,
    bits: impl Fn(&T) -> u64,
) {
    for len in [0, 1, 353, 5000, 100_003] {
        for op in [Op::Sum, Op::Average, Op::Min, Op::Max] {
            let number =
                |rank: u16, i: usize| of((i as i32 * 7 + i32::from(rank) * 31) % 1009 - 400);
            let input = |rank: u16| -> Vec<T> { (0..len).map(|i| number(rank, i)).collect() };
            let [here, there] = [0, 1].map(|which| reductions(&jobs[which], op, input));
            for ((a, report), (b, other)) in here.into_iter().zip(there) {
                let [a, b] = [a, b].map(|data| data.iter().map(&bits).collect::<Vec<_>>());
                assert!(a == b, "{op} of {len} {}: other bits than the aggregator's", T::TYPE);
                assert_eq!(report.path, Path::Host, "{op} of {len} {}", T::TYPE);
                assert_eq!(other.path, Path::Aggregator);
                assert_eq!(report.contributors, other.contributors);
                assert_eq!(report.processes, other.processes);
            }
        }
    }
}

/// Every type and operation has the bits of the way through the aggregator, and sends nothing.
#[test]
fn sums_have_the_aggregators_bits_and_leave_nothing() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let jobs = both(&lab, 4);
    let before = sent(&jobs[0]);
    check_type(&jobs, |x| x as f32 * 0.37, |x: &f32| x.to_bits().into());
    check_type(&jobs, |x| f64::from(x) * 0.37, |x: &f64| x.to_bits());
    check_type(&jobs, |x| f16::from_f32(x as f32 * 0.25), |x: &f16| x.to_bits().into());
    check_type(&jobs, |x| bf16::from_f32(x as f32 * 0.25), |x: &bf16| x.to_bits().into());
    check_type(&jobs, |x| x, |x: &i32| *x as u64);
    check_type(&jobs, i64::from, |x: &i64| *x as u64);
    assert_eq!(sent(&jobs[0]), before, "blocks have left the host");
    assert!(sent(&jobs[1]) > 0);
}

/// What is no number, and what does not fit, is reported as it is by the aggregator.
#[test]
fn reports_are_the_same() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let fixed = [true, false].map(|stay| {
        lab.connect_hosts(&format!("fixed {stay}"), (1, 2), |settings, _| {
            settings.scaling(Scaling::Fixed(1e6)).host_collectives(stay)
        })
    });
    for jobs in [fixed, both(&lab, 2)] {
        let reports = jobs.each_ref().map(|workers| {
            on_all(workers, |worker| {
                let mut data = vec![0.5_f32; 5000];
                data[1000] = f32::NAN;
                data[3000] = 1e9;
                let report = worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                let bits: Vec<u32> = data.iter().map(|x| x.to_bits()).collect();
                (bits, report.saturated, report.non_finite_blocks, report.blocks)
            })
        });
        let [here, there] = reports;
        for (rank, (a, b)) in here.into_iter().zip(there).enumerate() {
            assert!(a.0 == b.0, "rank {rank}");
            assert_eq!((a.1, a.2), (b.1, b.2), "rank {rank}");
            assert!(a.2 > 0);
        }
        let refused = on_all(&jobs[0], |worker| {
            worker.all_reduce(&mut [i32::MAX; 3], Op::Sum).expect_err("it does not fit")
        });
        let told = refused.iter().filter(|error| error.to_string().contains("2147483647"));
        assert!(told.count() > 0, "{refused:?}");
    }
}

/// Settings of a job.
type Tune<'a> = &'a (dyn Fn(Builder) -> Builder + Sync);

/// Broadcast, all-gather and barrier move every byte, of any length, over one daemon and over two,
/// with the segment that there is by default and with the smallest.
#[test]
fn copies_move_every_byte() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let (_daemon, second) = second_daemon(&lab);
    let first = lab.control();
    let small = |settings: Builder| settings.segment(1 << 20);
    let two = |settings: Builder| settings.aggregators([first, second]);
    let tunes: [(&str, u16, Tune<'_>); 4] =
        [("plain", 4, &|s| s), ("small", 3, &small), ("two", 2, &two), ("many", 7, &small)];
    for (name, size, tune) in tunes {
        let workers = job(&lab, name, size, tune);
        assert!(workers.iter().all(Communicator::is_in_host));
        let before = sent(&workers);
        for len in LENS {
            let number = |rank: u16, i: usize| (i as f32 + 0.25) * (f32::from(rank) + 1.0);
            let input = |rank| -> Vec<f32> { (0..len).map(|i| number(rank, i)).collect() };
            on_all(&workers, |worker| {
                let mut data = input(worker.rank());
                worker.all_gather(&mut data).expect("it ends");
                for rank in 0..size {
                    for i in worker.part(rank, len) {
                        assert_eq!(data[i], number(rank, i), "{name}: {i} of {len}");
                    }
                }
                for root in [0, size - 1] {
                    let mut data = input(worker.rank());
                    worker.broadcast(&mut data, root).expect("it ends");
                    assert!(data == input(root), "{name}: {len} of rank {root}");
                }
                worker.barrier().expect("all come");
            });
        }
        assert_eq!(sent(&workers), before, "{name}: blocks have left the host");
    }
}

/// How late a process comes on purpose.
const LATE: Duration = Duration::from_millis(300);

/// Nobody is past a barrier, or done with a broadcast, before all have come.
#[test]
fn nobody_is_done_before_all_have_come() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let workers = job(&lab, "late", 3, |settings| settings);
    for what in 0..3 {
        let start = Instant::now();
        let took = on_all(&workers, |worker| {
            if worker.rank() == 2 {
                thread::sleep(LATE);
            }
            match what {
                0 => worker.barrier().expect("all come"),
                1 => worker.broadcast(&mut [7_i32; 9], 0).expect("all come"),
                _ => worker.all_gather(&mut [7_i32; 9]).expect("all come"),
            }
            start.elapsed()
        });
        assert!(took.iter().all(|took| *took >= LATE), "{what}: {took:?}");
    }
}

/// Something that a worker calls.
type Call = fn(&Communicator) -> Result<(), Error>;

/// Calls that differ are refused at every rank, by an error that names both.
#[test]
fn calls_that_differ_are_refused() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let cases: [(&str, Call, Call, [&str; 2]); 6] = [
        (
            "lengths",
            |w| w.all_gather(&mut [0_f32; 10]),
            |w| w.all_gather(&mut [0_f32; 11]),
            ["of 10 f32", "of 11 f32"],
        ),
        (
            "types",
            |w| w.all_gather(&mut [0_f32; 10]),
            |w| w.all_gather(&mut [0_i32; 10]),
            ["of 10 f32", "of 10 i32"],
        ),
        (
            "roots",
            |w| w.broadcast(&mut [0_f32; 10], 0),
            |w| w.broadcast(&mut [0_f32; 10], 1),
            ["root 0", "root 1"],
        ),
        (
            "operations",
            |w| w.reduce(&mut [0_f32; 10], Op::Sum, 0),
            |w| w.reduce(&mut [0_f32; 10], Op::Max, 0),
            ["sum", "max"],
        ),
        (
            "collectives",
            |w| w.all_gather(&mut [0_f32; 10]),
            |w| w.all_reduce(&mut [0_f32; 10], Op::Sum).map(drop),
            ["all-gather", "sum of 10"],
        ),
        (
            "names",
            |w| w.all_reduce_named("first", &mut [0_f32; 10], Op::Sum).map(drop),
            |w| w.all_reduce_named("second", &mut [0_f32; 10], Op::Sum).map(drop),
            ["first", "second"],
        ),
    ];
    for (name, call, other, said) in cases {
        let workers = job(&lab, name, 3, |settings| settings);
        let start = Instant::now();
        let errors = on_all(&workers, |worker| {
            let call = if worker.rank() == 1 { other } else { call };
            call(worker).expect_err("they differ")
        });
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
        let named = |error: &&Error| {
            let text = error.to_string();
            text.contains("do not agree") && said.iter().all(|word| text.contains(word))
        };
        assert!(errors.iter().filter(named).count() >= 2, "{name}: {errors:?}");
        let after = on_all(&workers, |worker| worker.barrier().is_err());
        assert_eq!(after, [true; 3], "{name}: nobody goes on");
    }
}

/// A deadline names the ranks that have not come.
#[test]
fn a_late_process_is_named() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let tune = |settings: Builder| settings.deadline(Duration::from_millis(700));
    let workers = job(&lab, "deadline", 3, tune);
    let errors = on_all(&workers, |worker| match worker.rank() {
        2 => None,
        _ => Some(worker.all_gather(&mut [1_f32; 100]).expect_err("rank 2 does not come")),
    });
    let named = |error: &Error| error.to_string().contains("for local ranks [2]");
    assert!(errors.iter().flatten().any(named), "{errors:?}");
    assert_eq!(errors.iter().flatten().count(), 2);
}

/// A killed process is named by all others in milliseconds, whatever they are in.
#[test]
fn a_killed_process_is_told_of() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    for victim in [0, 2] {
        let start = |rank: u16| {
            let name = format!("killed {victim}");
            lab.steady_of(&name, (rank, 3), (rank, 3), &[], &work())
        };
        let mut workers = watched::all_begin((0..3).map(start));
        let since = Instant::now();
        let dead = workers.remove(victim);
        let mut said = vec![dead.said()];
        drop(dead);
        for worker in &workers {
            let Failure { after, text, .. } = failure_of(worker, since);
            assert!(after < Duration::from_secs(3), "{after:?} {text}");
            assert!(text.contains(&format!("rank {victim}")), "{text}");
        }
        said.extend(watched::all_said(&workers));
        watched::check(&said);
    }
}

/// Calls of several threads, each a name's, and calls in flight are carried out side by side.
#[test]
fn calls_of_several_threads_and_in_flight_stay_in_order() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let workers = job(&lab, "flying", 3, |settings| settings);
    on_all(&workers, |worker| {
        for round in 0..20_usize {
            let len = 1 + round * 7919;
            let handles: Vec<_> = (0..40)
                .map(|i| {
                    let data = vec![(i + i32::from(worker.rank())) as f32; len.min(50_000)];
                    worker.all_reduce_async(data, Op::Sum).expect("it starts")
                })
                .collect();
            let mut data = vec![worker.rank(); len].into_iter().map(i32::from).collect::<Vec<_>>();
            worker.all_gather(&mut data).expect("it ends");
            for rank in 0..3 {
                assert!(data[worker.part(rank, len)].iter().all(|x| *x == i32::from(rank)));
            }
            worker.barrier().expect("all come");
            for (i, handle) in handles.into_iter().enumerate() {
                let (sum, report) = handle.wait(LIMIT).expect("it ends");
                assert_eq!(report.path, Path::Host);
                assert!(sum.iter().all(|x| *x == (3 * i + 3) as f32));
            }
        }
    });
}

/// Calls on lent memory, as Python, C and MPI make them.
#[test]
fn lent_memory_stays_in_the_host() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let job = Job::start(&lab, (1, 3), |settings| settings);
    let before: u64 = job.callers.iter().map(|c| c.communicator().counters().flow.sent).sum();
    for len in [0, 1, 7, 1003, 300_001] {
        let bytes = |rank: u16| -> Vec<u8> {
            (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (rank as u8 + 1)).collect()
        };
        for (data, outcome) in job.call(bytes, DataType::U8, Task::Broadcast { root: 2 }, None) {
            assert!(data == bytes(2), "{len}");
            assert_eq!(outcome.report.path, Path::Host);
        }
        let part = |rank| job.callers[0].communicator().part(rank, len);
        for (data, _) in job.call(bytes, DataType::U8, Task::AllGather, None) {
            for rank in 0..3 {
                assert_eq!(data[part(rank)], bytes(rank)[part(rank)]);
            }
        }
        let expected = sums(3, len, |rank| mixed(rank, len));
        for precision in [Precision::Exact, Precision::Gradient] {
            let task = Task::AllReduce(Reduction::Sum);
            let all = job.call(|r| mixed(r, len), DataType::F32, task, Some(precision));
            for (data, _) in all {
                let right = |(x, sum): (&f32, &f64)| match precision {
                    Precision::Exact => *x == *sum as f32,
                    Precision::Gradient => close(*x, *sum),
                };
                assert!(data.iter().zip(&expected).all(right), "{precision} of {len}");
            }
        }
        // An infinity stays with its element.
        let odd = |rank: u16| -> Vec<f32> {
            let mut data = mixed(rank, len);
            if let Some(x) = data.get_mut(len / 2) {
                *x = f32::INFINITY;
            }
            data
        };
        let task = Task::ReduceScatter(Reduction::Sum);
        let gradient = Some(Precision::Gradient);
        for (rank, (data, _)) in (0..).zip(job.call(odd, DataType::F32, task, gradient)) {
            for i in part(rank) {
                let right = if i == len / 2 {
                    data[i] == f32::INFINITY
                } else {
                    close(data[i], expected[i])
                };
                assert!(right, "{i} of {len}: {}", data[i]);
            }
        }
    }
    job.at_all(|_, caller| {
        let options = Options::default();
        // SAFETY: no memory is lent.
        unsafe { caller.call(Memory::none(), &Task::Barrier, &options, &mut || false) }
            .expect("all come");
    });
    let after: u64 = job.callers.iter().map(|c| c.communicator().counters().flow.sent).sum();
    assert_eq!(after, before, "blocks have left the host");
}

/// All ranks need the same setting, and a value that is none is refused by name.
#[test]
fn the_setting_is_agreed_on() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "userspace");
    let joined = lab.try_connect("differ", &[0, 0], |settings, rank| {
        settings.local(rank, 2).host_collectives(rank == 0)
    });
    for joined in joined {
        let error = joined.expect_err("they differ").to_string();
        assert!(error.contains("XDP_AGG_HOST_COLLECTIVES"), "{error}");
    }
    let read = |name: &str| (name == "XDP_AGG_HOST_COLLECTIVES").then(|| "maybe".to_owned());
    let error = Builder::from_lookup(read).expect_err("no such value").to_string();
    assert!(error.contains("XDP_AGG_HOST_COLLECTIVES") && error.contains("on, off"), "{error}");
}
