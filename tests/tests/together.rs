//! Short calls over several aggregators, which the caller's thread carries alone.

mod support;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use support::watched::{all_said, first};
use support::{
    LIMIT, Lab, check_all, check_sums, expected, input, need_root, network, on_all, second_daemon,
};
use xdp_agg_client::{
    AggregatorLoss, Builder, Communicator, Error, Handle, JobError, Op, Path, WorkerLoss,
};
use xdp_agg_testbed::steady::{Line, Steady, Work};

/// Elements of a call that is carried by its waiter, and of one that is not.
const SHORT: usize = 3000;
const LONG: usize = 100_000;

/// By how much a call may exceed its deadline: the daemon's last word, and a busy machine.
const SLACK: Duration = Duration::from_secs(5);

fn start(worker: &Communicator, len: usize) -> Handle<i32> {
    worker.all_reduce_async(input(worker.rank(), len), Op::Sum).expect("it starts")
}

fn check(handle: Handle<i32>, world_size: u16, len: usize) {
    let (sum, _) = handle.wait(LIMIT).expect("it ends");
    assert!(sum == expected(world_size, len), "{len} elements");
}

/// All sizes are summed in both ways to carry a call, with and without exponents, and in processes
/// of one host.
#[test]
fn all_sizes_are_summed() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let both = [lab.control(), second];
    let workers = lab.connect("sizes", 3, |settings| settings.aggregators(both));
    check_all(&workers, [0, 1, 351, 352, 353, 705, SHORT, 16 << 10, (16 << 10) + 1, LONG]);
    let workers = lab.connect_hosts("group", (2, 2), |settings, _| settings.aggregators(both));
    for round in 0..20 {
        check_sums(&workers, 1 + round * 600);
    }
}

/// Several threads wait at once, for short calls and long ones, while the caller's own goes on with
/// short calls: each drives what the others wait for.
#[test]
fn several_threads_wait_at_once() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let workers =
        lab.connect("threads", 2, |settings| settings.aggregators([lab.control(), second]));
    on_all(&workers, |worker| {
        for round in 0..20 {
            let mut lens = [SHORT, LONG, SHORT, 1, LONG, SHORT, 0, SHORT];
            lens.rotate_left(round % 8);
            // Started in the same order everywhere, waited for in any.
            let handles: Vec<_> = lens.map(|len| (start(worker, len), len)).into();
            let (mut one, mut other): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
            for (index, handle) in handles.into_iter().enumerate() {
                if (index + usize::from(worker.rank())) % 2 == 0 {
                    one.push(handle);
                } else {
                    other.insert(0, handle);
                }
            }
            thread::scope(|scope| {
                for part in [one, other] {
                    scope.spawn(move || {
                        for (handle, len) in part {
                            check(handle, 2, len);
                        }
                    });
                }
                for _ in 0..20 {
                    let mut data = input(worker.rank(), SHORT);
                    worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                    assert!(data == expected(2, SHORT));
                }
            });
        }
    });
}

/// A thread's deadline holds while another thread, which has more time, drives the same engines.
#[test]
fn a_deadline_holds_whoever_drives() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let both = [lab.control(), second];
    for (patient, hasty) in [(SHORT, SHORT), (SHORT, LONG), (LONG, SHORT), (LONG, LONG)] {
        let job = format!("deadlines {patient} {hasty}");
        let workers = lab.connect(&job, 2, |settings| settings.aggregators(both));
        let (first, then) = (start(&workers[0], patient), start(&workers[0], hasty));
        thread::scope(|scope| {
            let other = scope.spawn(move || first.wait(LIMIT).map(drop));
            thread::sleep(Duration::from_millis(100));
            let since = Instant::now();
            let error = then.wait(Duration::from_millis(500)).map(drop).expect_err("alone");
            assert!(since.elapsed() < Duration::from_millis(500) + SLACK, "{:?}", since.elapsed());
            assert!(matches!(error, Error::Job(JobError::Deadline { .. })), "{error}");
            // The membership is over, for all its calls.
            other.join().expect("no panic").expect_err("alone");
            assert!(since.elapsed() < Duration::from_millis(500) + SLACK, "{:?}", since.elapsed());
        });
    }
}

/// An aggregator whose process has stopped: the calls' deadline says so in time. When it goes on in
/// time, nothing has happened.
#[test]
fn a_stopped_aggregator_is_waited_for_until_the_deadline() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let (mut daemon, second) = second_daemon(&lab);
    let deadline = Duration::from_secs(2);
    let tune = |settings: Builder| settings.aggregators([lab.control(), second]).deadline(deadline);
    let workers = lab.connect("stopped", 2, tune);
    check_sums(&workers, SHORT);
    daemon.signal(libc::SIGSTOP).expect("it runs");
    thread::scope(|scope| {
        scope.spawn(|| check_sums(&workers, SHORT));
        thread::sleep(Duration::from_millis(300));
        daemon.signal(libc::SIGCONT).expect("it is there");
    });
    daemon.signal(libc::SIGSTOP).expect("it runs");
    let since = Instant::now();
    let errors = on_all(&workers, |worker| {
        worker.all_reduce(&mut vec![1; SHORT], Op::Sum).expect_err("half of it has no aggregator")
    });
    assert!(since.elapsed() < deadline + SLACK, "{:?}", since.elapsed());
    let late = |error: &Error| {
        let Error::Job(JobError::Deadline { waited, .. }) = error else { return false };
        *waited == deadline
    };
    assert!(errors.iter().any(late), "{errors:?}");
    daemon.signal(libc::SIGCONT).expect("it is there");
}

fn steady(lab: &Lab, second: SocketAddr, policy: &str) -> Vec<Steady> {
    let both = format!("{},{second}", lab.control());
    let settings = [("XDP_AGG_ADDR", &*both), ("XDP_AGG_ON_WORKER_LOSS", policy)];
    let work = Work { longest: SHORT, ..Work::default() };
    lab.steady_job(policy, 3, &settings, &work)
}

/// A member is lost in the middle of short calls: the others go on, or say so, as the job wants.
#[test]
fn a_member_is_lost_in_the_middle() {
    need_root!();
    for loss in [WorkerLoss::Shrink, WorkerLoss::Fail] {
        let lab = Lab::start(network(3, "ports"), "xdp");
        let (_daemon, second) = second_daemon(&lab);
        let mut workers = steady(&lab, second, loss.name());
        for worker in &workers {
            worker.wait_calls(50, LIMIT).expect("it goes well");
        }
        let dead = workers.remove(1);
        let mut said = vec![dead.said()];
        let since = Instant::now();
        dead.kill().expect("it was running");
        for worker in &workers {
            let goes_on = loss == WorkerLoss::Shrink;
            let (at, line) = first(worker, "what becomes of it", since, |line| match line {
                Line::Call { contributors, partial, .. } => {
                    goes_on && (*contributors, *partial) == (0b101, 0)
                }
                line => matches!(line, Line::Failed { .. }),
            });
            assert_eq!(goes_on, matches!(line, Line::Call { .. }), "{line:?}");
            assert!(at - since < SLACK, "{:?}", at - since);
        }
        said.extend(all_said(&workers));
        support::watched::check(&said);
    }
}

/// A lost aggregator of two, among short calls: a ring takes its place, or the next daemon.
#[test]
fn a_lost_aggregator_is_dealt_with() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    for loss in [AggregatorLoss::Ring, AggregatorLoss::Resume] {
        let (daemon, second) = second_daemon(&lab);
        let tune = |settings: Builder| {
            settings
                .aggregators([lab.control(), second])
                .on_aggregator_loss(loss)
                .fallback_after(Duration::from_millis(300))
                .dead_after(Duration::from_secs(2))
        };
        let workers = lab.connect(loss.name(), 2, tune);
        check_sums(&workers, SHORT);
        daemon.kill().expect("it was running");
        let mut again = None;
        thread::scope(|scope| {
            scope.spawn(|| check_sums(&workers, SHORT));
            thread::sleep(Duration::from_millis(100));
            again = (loss == AggregatorLoss::Resume).then(|| second_daemon(&lab));
        });
        let over_ring = on_all(&workers, |worker| {
            let report = worker.all_reduce(&mut vec![1; SHORT], Op::Sum).expect("it goes on");
            report.path != Path::Aggregator
        });
        assert_eq!(over_ring, [loss == AggregatorLoss::Ring; 2]);
        check_sums(&workers, SHORT);
    }
}
