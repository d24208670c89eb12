//! Calls on lent memory, as other languages make them: every type and reduction, calls in
//! flight, interruptions and forks. Sums of floats are in `exact.rs`.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use support::lent::{Job, SUM, call, close, everywhere, mixed, sums};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_client::lent::{Caller, DataType, Memory, Options, Precision, Reduction, Task};
use xdp_agg_client::{Builder, Error, JobError, WorkerLoss, bf16, f16};
use xdp_agg_common::control::AbortReason;

/// Every type and reduction, with sums that wrap, short and long.
#[test]
fn integers_and_extremes_are_as_in_memory() {
    need_root!();
    everywhere(|_, _, job| {
        for len in [5, 1000, 50_000] {
            check_integers(job, len);
            check_extremes(job, len);
        }
    });
}

/// A number for each rank and place: at the ends of the range, and small.
fn integer(rank: u16, at: usize) -> i64 {
    let random = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank) << 40;
    match at % 4 {
        0 => random as i64,
        1 => i64::MAX - at as i64,
        2 => at as i64 - 2,
        _ => i64::from(rank) - 1,
    }
}

macro_rules! check_type {
    ($job:expr, $len:expr, $($type:ty: $data_type:ident),*) => {$({
        let (job, len) = ($job, $len);
        let input = |rank: u16| -> Vec<$type> {
            (0..len).map(|at| integer(rank, at) as $type).collect()
        };
        let all: Vec<Vec<$type>> = (0..job.world()).map(input).collect();
        let each = |fold: &dyn Fn($type, $type) -> $type| -> Vec<$type> {
            (0..len).map(|at| {
                let all = all.iter().map(|data| data[at]);
                all.reduce(|a, b| fold(a, b)).expect("ranks")
            }).collect()
        };
        let sums = each(&<$type>::wrapping_add);
        let averages: Vec<$type> =
            sums.iter().map(|x| (*x as i64 / i64::from(job.world())) as $type).collect();
        for (reduction, expected) in [
            (Reduction::Sum, sums),
            (Reduction::Average, averages),
            (Reduction::Min, each(&|a: $type, b| a.min(b))),
            (Reduction::Max, each(&|a: $type, b| a.max(b))),
        ] {
            let task = Task::AllReduce(reduction);
            for (data, outcome) in job.call(input, DataType::$data_type, task, None) {
                assert!(data == expected, "{reduction} of {len} {}", DataType::$data_type);
                assert_eq!(outcome.precision, None);
            }
        }
    })*};
}

fn check_integers(job: &Job<'_>, len: usize) {
    check_type!(job, len, i32: I32, i64: I64, i16: I16, i8: I8, u8: U8);
    // Long vectors of small numbers travel as they are.
    let small = |rank: u16| vec![i32::from(rank) - 7; len];
    for (data, _) in job.call(small, DataType::I32, SUM, None) {
        let sum: i32 = (0..job.world()).map(|rank| i32::from(rank) - 7).sum();
        assert!(data.iter().all(|x| *x == sum));
    }
    let bits = |rank: u16| (0..len).map(|at| u8::from(at >> (rank % 8) & 1 == 1)).collect();
    let all: Vec<Vec<u8>> = (0..job.world()).map(bits).collect();
    let any = |at: usize| all.iter().any(|bits| bits[at] == 1);
    let every = |at: usize| all.iter().all(|bits| bits[at] == 1);
    for (reduction, expected) in [
        (Reduction::Sum, (0..len).map(any).collect::<Vec<_>>()),
        (Reduction::Or, (0..len).map(any).collect()),
        (Reduction::Max, (0..len).map(any).collect()),
        (Reduction::And, (0..len).map(every).collect()),
        (Reduction::Min, (0..len).map(every).collect()),
    ] {
        for (data, _) in job.call(bits, DataType::Bool, Task::AllReduce(reduction), None) {
            assert!(data.iter().zip(&expected).all(|(x, e)| *x == u8::from(*e)), "{reduction}");
        }
    }
}

/// Minima and maxima of floats: infinities are numbers, and a NaN goes before all.
fn check_extremes(job: &Job<'_>, len: usize) {
    let input = |rank: u16| {
        let mut data = mixed(rank, len);
        data[0] = [f32::INFINITY, 3.0, 3.0, 3.0][usize::from(rank)];
        data[1] = [1.0, -f32::NAN, 3.0, 3.0][usize::from(rank)];
        data[2] = [f32::NEG_INFINITY, f32::MIN_POSITIVE, 0.0, -0.0][usize::from(rank)];
        data
    };
    let all: Vec<Vec<f32>> = (0..job.world()).map(input).collect();
    for (reduction, fold) in
        [(Reduction::Min, f32::min as fn(f32, f32) -> f32), (Reduction::Max, f32::max)]
    {
        let expected: Vec<f32> = (0..len)
            .map(|at| all.iter().map(|data| data[at]).reduce(fold).expect("ranks"))
            .collect();
        let check = |at: usize, x: f64, expected: f64| {
            let right = if at == 1 { x.is_nan() } else { x == expected };
            assert!(right, "{reduction}: {at}: {x} for {expected}");
        };
        let task = Task::AllReduce(reduction);
        for (data, _) in job.call(input, DataType::F32, task, None) {
            let pairs = data.iter().zip(&expected).enumerate();
            pairs.for_each(|(at, (x, e))| check(at, f64::from(*x), f64::from(*e)));
        }
        let wide = |rank| -> Vec<f64> { input(rank).into_iter().map(f64::from).collect() };
        for (data, _) in job.call(wide, DataType::F64, task, None) {
            let pairs = data.iter().zip(&expected).enumerate();
            pairs.for_each(|(at, (x, e))| check(at, *x, f64::from(*e)));
        }
        let half = |rank| -> Vec<f16> { input(rank).into_iter().map(f16::from_f32).collect() };
        for (data, _) in job.call(half, DataType::F16, task, None) {
            let pairs = data.iter().zip(&expected).enumerate();
            pairs.for_each(|(at, (x, e))| check(at, x.to_f64(), f16::from_f32(*e).to_f64()));
        }
        let brain = |rank| -> Vec<bf16> { input(rank).into_iter().map(bf16::from_f32).collect() };
        for (data, _) in job.call(brain, DataType::Bf16, task, None) {
            let pairs = data.iter().zip(&expected).enumerate();
            pairs.for_each(|(at, (x, e))| check(at, x.to_f64(), bf16::from_f32(*e).to_f64()));
        }
    }
}

/// Broadcast, all-gather, reduce, reduce-scatter and barrier.
#[test]
fn other_collectives_move_every_byte() {
    need_root!();
    everywhere(|_, _, job| {
        let world = job.world();
        for len in [1, 7, 1003, 40_001] {
            let bytes = |rank: u16| -> Vec<u8> {
                (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (rank as u8 + 1)).collect()
            };
            for root in [0, world - 1] {
                for (data, _) in job.call(bytes, DataType::U8, Task::Broadcast { root }, None) {
                    assert!(data == bytes(root), "{len} of {root}");
                }
                let task = Task::Reduce { reduction: Reduction::Sum, root };
                let exact = Some(Precision::Exact);
                let reduced = job.call(|r| mixed(r, len), DataType::F32, task, exact);
                let expected = sums(world, len, |rank| mixed(rank, len));
                let at_root = &reduced[usize::from(root)].0;
                assert!(expected.iter().zip(at_root).all(|(sum, x)| *sum as f32 == *x));
            }
            let part = |rank| job.callers[0].communicator().part(rank, len);
            for (data, _) in job.call(bytes, DataType::U8, Task::AllGather, None) {
                for rank in 0..world {
                    assert_eq!(data[part(rank)], bytes(rank)[part(rank)]);
                }
            }
            let task = Task::ReduceScatter(Reduction::Sum);
            let scattered = job.call(|r| mixed(r, len), DataType::F32, task, None);
            let expected = sums(world, len, |rank| mixed(rank, len));
            for (rank, (data, _)) in (0..).zip(scattered) {
                for at in part(rank) {
                    assert!(close(data[at], expected[at]), "{at}: {}", data[at]);
                }
            }
        }
        job.at_all(|_, caller| {
            let (none, options) = (Memory::none(), Options::default());
            // SAFETY: no memory is lent.
            unsafe { caller.call(none, &Task::Barrier, &options, &mut || false) }.expect("met");
        });
    });
}

/// Calls of all kinds in flight at once, some of which take two rounds, beside calls that wait.
#[test]
fn calls_in_flight_keep_their_order() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let job = Job::start(&lab, (2, 1), |settings| settings);
    job.at_all(|rank, caller| {
        let lens = [3, 1000, 40_000, 5, 16_000, 100_000, 1, 300];
        for round in 0..5 {
            let mut vectors: Vec<Vec<f32>> = lens.iter().map(|len| mixed(rank, *len)).collect();
            if round == 3 {
                vectors[2][17] = f32::INFINITY;
                vectors[5][18] = f32::NAN;
            }
            let (sender, ended) = channel();
            let flights: Vec<_> = vectors
                .iter_mut()
                .enumerate()
                .map(|(number, data)| {
                    let pointer = data.as_mut_ptr().cast();
                    // SAFETY: the vectors outlive the calls, which are waited for below.
                    let memory = unsafe { Memory::new(pointer, data.len(), DataType::F32) };
                    // SAFETY: as above.
                    let flight = unsafe { caller.start(memory, SUM, Options::default()) };
                    let flight = flight.expect("it starts");
                    let sender = sender.clone();
                    flight.on_done(move |ending| {
                        sender.send((number, ending.is_ok())).expect("waited for");
                    });
                    flight
                })
                .collect();
            let mut last = mixed(rank, 2000);
            call(caller, &mut last, DataType::F32, SUM, None).expect("it comes last");
            for flight in &flights {
                flight.wait(LIMIT).expect("in time").expect("it ends");
            }
            let order: Vec<_> = (0..lens.len()).map(|_| ended.recv().expect("told")).collect();
            assert_eq!(order, (0..lens.len()).map(|n| (n, true)).collect::<Vec<_>>());
            for (len, data) in lens.iter().zip(&vectors) {
                let expected = sums(2, *len, |rank| mixed(rank, *len));
                for (at, (x, sum)) in data.iter().zip(&expected).enumerate() {
                    let special = round == 3 && !x.is_finite();
                    assert!(special || close(*x, *sum), "{len}: {at}: {x}");
                }
            }
            if round == 3 {
                assert!(vectors[2][17] == f32::INFINITY && vectors[5][18].is_nan());
            }
        }
    });
}

/// A caller that does not want to wait any longer is out within 100 ms, and the others are told.
#[test]
fn an_interruption_ends_a_call() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let mut job = Job::start(&lab, (2, 1), |settings| settings);
    let mut data = vec![1.0_f32; 5000];
    // SAFETY: the vector outlives the call.
    let memory = unsafe { Memory::new(data.as_mut_ptr().cast(), data.len(), DataType::F32) };
    let (rung, start) = (AtomicBool::new(false), Instant::now());
    let mut interrupted = || {
        rung.store(start.elapsed() > Duration::from_millis(300), Ordering::Relaxed);
        rung.load(Ordering::Relaxed)
    };
    let options = Options::default();
    // SAFETY: as above.
    let ended = unsafe { job.callers[0].call(memory, &SUM, &options, &mut interrupted) };
    let took = start.elapsed();
    assert!(matches!(ended, Err(Error::Interrupted(_))), "{ended:?}");
    assert!(took < Duration::from_millis(450), "{took:?}");
    let late = call(&job.callers[1], &mut [1.0_f32], DataType::F32, SUM, None);
    let told =
        matches!(&late, Err(Error::Job(JobError::Aborted(AbortReason::Member { rank: 0, .. }))));
    assert!(told, "{late:?}");
    // A caller that closes has its calls in flight ended, too.
    job = Job::start(&lab, (2, 1), |settings| settings.job("another"));
    // SAFETY: the vector outlives the call, which has ended before the test does.
    let flight = unsafe { job.callers[0].start(memory, SUM, options) }.expect("it starts");
    assert!(flight.wait(Duration::from_millis(50)).is_none());
    job.callers[0].close();
    assert!(matches!(flight.wait(LIMIT), Some(Err(Error::Job(JobError::Closed)))), "{flight:?}");
    let after = call(&job.callers[0], &mut [1.0_f32], DataType::F32, SUM, None);
    assert!(matches!(after, Err(Error::Job(JobError::Closed))), "{after:?}");
}

/// A process that gives up in a call tells those of its host and of others why.
#[test]
fn a_reason_is_told_to_all_processes() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let job = Job::start(&lab, (2, 2), |settings| settings.deadline(LIMIT));
    let gradient = Some(Precision::Gradient);
    let errors = job.at_all(|rank, caller| {
        let mut data = vec![1.0_f32; 50_000];
        match rank {
            // It does not come, so that the call cannot end.
            3 => None,
            1 => {
                let pointer = data.as_mut_ptr().cast();
                // SAFETY: the vector outlives the call, which is waited for.
                let memory = unsafe { Memory::new(pointer, data.len(), DataType::F32) };
                let options = Options { precision: gradient, ..Options::default() };
                // SAFETY: as above.
                let flight = unsafe { caller.start(memory, SUM, options) }.expect("it starts");
                assert!(flight.wait(Duration::from_millis(500)).is_none());
                caller.abort("the disk is full");
                flight.wait(LIMIT).expect("it ends").expect_err("it was given up");
                None
            }
            _ => Some(call(caller, &mut data, DataType::F32, SUM, gradient).expect_err("it ends")),
        }
    });
    let said: Vec<_> = errors.iter().flatten().map(ToString::to_string).collect();
    assert!(said.len() == 2 && said.iter().all(|text| text.contains("disk is full")), "{said:?}");
}

/// Results that are read in place, waited for at once and started, of vectors in their own memory
/// and in the segment, also where a block has to be summed again.
#[test]
fn results_of_lent_memory_are_read_in_place() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let job = Job::start(&lab, (2, 2), |settings| settings.buffers(16 << 20));
    job.at_all(|rank, caller| {
        for (is_odd, in_segment) in [(false, false), (false, true), (true, false), (true, true)] {
            check_views(rank, caller, is_odd, in_segment);
        }
        let mut data = vec![1.0_f32; 50_000];
        // SAFETY: the vector outlives the calls, which are waited for.
        let memory = unsafe { Memory::new(data.as_mut_ptr().cast(), data.len(), DataType::F32) };
        let start = || {
            // SAFETY: as above.
            unsafe { caller.start_view(memory, Reduction::Average, Options::default()) }
        };
        let started: Vec<_> = (0..8).map(|_| start().expect("it starts")).collect();
        let error = start().expect_err("a ninth");
        assert!(error.to_string().contains("reads 8 results"), "{error}");
        for call in started {
            let (view, _) = call.wait(LIMIT).expect("it ends").expect("it ends well");
            assert!(bytemuck::cast_slice::<u8, f32>(&view).iter().all(|x| *x == 1.0));
        }
    });
}

fn check_views(rank: u16, caller: &Caller, is_odd: bool, in_segment: bool) {
    let mut own = vec![f32::from(rank) + 1.0; 60_000];
    if is_odd {
        own[1000 + usize::from(rank)] = f32::NAN;
        own[77] = f32::INFINITY;
    }
    let is_right = |(i, x): (usize, &f32)| match i {
        1000..1004 if is_odd => x.is_nan(),
        77 if is_odd => *x == f32::INFINITY,
        _ => *x == 10.0,
    };
    let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let before = bits(&own);
    let mut buffer = caller.communicator().buffer::<f32>(own.len()).expect("room");
    buffer.copy_from_slice(&own);
    let data: &mut [f32] = if in_segment { &mut buffer } else { &mut own };
    // SAFETY: the vector outlives the calls, which are waited for.
    let memory = unsafe { Memory::new(data.as_mut_ptr().cast(), data.len(), DataType::F32) };
    for precision in [Precision::Gradient, Precision::Exact] {
        let options = Options { precision: Some(precision), ..Options::default() };
        let start = || {
            // SAFETY: as above.
            unsafe { caller.start_view(memory, Reduction::Sum, options.clone()) }
        };
        let started: Vec<_> = (0..3).map(|_| start().expect("it starts")).collect();
        let (sum, mut never) = (Reduction::Sum, || false);
        // SAFETY: as above.
        let at_once = unsafe { caller.all_reduce_view(memory, sum, &options, &mut never) };
        let started = started.iter().map(|call| call.wait(LIMIT).expect("it ends"));
        for ended in started.chain([at_once]) {
            let (view, outcome) = ended.expect("it ends well");
            let sums = bytemuck::cast_slice::<u8, f32>(&view);
            assert!(sums.iter().enumerate().all(is_right), "{precision} {is_odd} {in_segment}");
            let is_gradient = precision == Precision::Gradient;
            assert_eq!(view.is_shared(), is_gradient && !is_odd, "{precision}");
            assert_eq!(outcome.redone > 0, is_gradient && is_odd, "{precision}");
        }
    }
    assert!(bits(data) == before, "the input stays");
    // In place: a block without a number leaves its input to be summed again.
    call(caller, data, DataType::F32, SUM, Some(Precision::Gradient)).expect("it ends well");
    assert!(data.iter().enumerate().all(is_right), "in place {is_odd} {in_segment}");
}

/// A forked child has the communicator's memory and descriptors, and may do nothing with them.
#[test]
fn a_forked_child_does_nothing() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let mut job = Job::start(&lab, (2, 1), |settings| settings);
    job.call(|rank| mixed(rank, 100), DataType::F32, SUM, None);
    for drops in [false, true, true] {
        let caller = job.callers.pop().expect("rank 1");
        // SAFETY: the child makes one call, which must not touch anything, drops, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = call(&caller, &mut [1.0_f32], DataType::F32, SUM, None);
            let stats = caller.stats();
            let right = matches!(forked, Err(Error::Forked)) && matches!(stats, Err(Error::Forked));
            caller.abort("in a child");
            if drops {
                drop(caller);
            }
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: the status is an integer that outlives the call.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child was not told");
        job.callers.push(caller);
        let sums = job.call(|_| vec![1.0_f32; 1000], DataType::F32, SUM, None);
        assert!(sums.iter().all(|(data, _)| data.iter().all(|x| *x == 2.0)), "drops: {drops}");
    }
}

/// A job that goes on without lost workers sums as it says, and nothing that it could not promise.
#[test]
fn what_a_shrinking_job_cannot_promise_is_refused() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let shrink = |settings: Builder| settings.on_worker_loss(WorkerLoss::Shrink);
    let job = Job::start(&lab, (2, 1), shrink);
    let exact = call(&job.callers[0], &mut [1.0_f32], DataType::F32, SUM, Some(Precision::Exact));
    assert!(matches!(exact, Err(Error::Config { .. })), "{exact:?}");
    for (data, outcome) in job.call(|_| vec![1.0_f32; 10], DataType::F32, SUM, None) {
        assert_eq!((data, outcome.precision), (vec![2.0; 10], Some(Precision::Gradient)));
    }
    for (data, _) in job.call(|_| vec![i32::MAX; 10], DataType::I32, SUM, None) {
        assert_eq!(data, [-2; 10]);
    }
    let wrong =
        call(&job.callers[0], &mut [1_i32], DataType::I32, Task::AllReduce(Reduction::Or), None);
    assert!(matches!(wrong, Err(Error::Config { name: "op", .. })), "{wrong:?}");
}
