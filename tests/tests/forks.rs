//! Programs that fork, as training programs do for their data loaders. A child has nothing of its
//! parent's job and changes nothing of it, and the parent's end is noticed while children live.

mod support;

use std::collections::BTreeSet;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, at_all, check_sums, need_root, network, second_daemon};
use xdp_agg_client::collectives::{Choice, Way};
use xdp_agg_client::{AggregatorLoss, Builder, Communicator, Error, Op, State};
use xdp_agg_testbed::fork::{in_child, is_mapped, kept, take_sockets};
use xdp_agg_testbed::steady::{Line, Steady, Work, judge};
use xdp_agg_tls::testing::{Authority, Valid};

/// In what time the others go on or are told.
const PROMISED: Duration = Duration::from_secs(3);

/// Held by a test that looks at this process's descriptors: another test would make some.
fn turn() -> impl Drop {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, and two hosts with a daemon; None, with a message, without root.
fn alone() -> Option<(impl Drop, Lab)> {
    need_root!(None);
    Some((turn(), Lab::start(network(2, "ports"), "userspace")))
}

/// Set at the end of the test, also of one that fails: the threads of a scope are waited for.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a child finds: each call on its parent's communicators is an error, and their end is
/// nobody's.
fn is_nobodys(workers: &mut Vec<Communicator>, theirs: &BTreeSet<String>) -> bool {
    let held: Vec<_> = kept("self").intersection(theirs).cloned().collect();
    if !held.is_empty() || is_mapped("memfd:xdp-agg") {
        eprintln!("a child has {held:?} of its parent's");
        return false;
    }
    for worker in &*workers {
        let mut data = [1_i32; 4];
        let all = [
            worker.all_reduce(&mut data, Op::Sum).map(drop),
            worker.all_reduce_async(vec![1_i32; 4], Op::Sum).map(drop),
            worker.broadcast(&mut data, 0).map(drop),
            worker.barrier().map(drop),
        ];
        let told = (worker.state(), worker.members().len(), worker.counters().epoch);
        if !all.iter().all(|call| matches!(call, Err(Error::Forked)))
            || told != (State::Failed, 0, 0)
        {
            eprintln!("a child's calls: {all:?}, {told:?}");
            return false;
        }
    }
    drop(mem::take(workers));
    true
}

/// Forks a child that does all that, and checks that nothing came of it.
fn fork_and_sum(workers: &mut Vec<Communicator>, before: &BTreeSet<String>) {
    let theirs = &kept("self") - before;
    assert!(theirs.len() > workers.len(), "{theirs:?}");
    assert!(in_child(LIMIT, || is_nobodys(workers, &theirs)).expect("the child ends"));
    check_sums(workers, 20_000);
}

/// Makes connections among the workers themselves.
fn meet(lab: &Lab, workers: &[Communicator]) {
    let choice = Choice::new(Way::Ring);
    at_all(&lab.topology, workers, |worker| {
        let mut data = [1_i32; 100];
        worker.all_reduce_by(&mut data, Op::Sum, choice).expect("all come");
        assert!(data.iter().all(|x| *x == i32::from(worker.world_size())));
    });
}

#[test]
fn a_child_of_an_idle_worker_changes_nothing() {
    let Some((_alone, lab)) = alone() else { return };
    for size in [1, 2] {
        let before = kept("self");
        let mut workers = lab.connect_hosts("first", (2, size), |settings, _| settings);
        let second = lab.connect_hosts("second", (2, size), |settings, _| settings);
        fork_and_sum(&mut workers, &before);
        // Connections among the workers themselves, too.
        meet(&lab, &workers);
        fork_and_sum(&mut workers, &before);
        let mut both: Vec<_> = workers.into_iter().chain(second).collect();
        let theirs = &kept("self") - &before;
        let ended = in_child(LIMIT, || is_nobodys(&mut both, &theirs));
        assert!(ended.expect("the child ends"));
        let (first, second) = both.split_at(2 * usize::from(size));
        check_sums(first, 1000);
        check_sums(second, 1000);
    }
}

#[test]
fn a_child_of_a_worker_in_a_call_changes_nothing() {
    let Some((_alone, lab)) = alone() else { return };
    for size in [1, 2] {
        let before = kept("self");
        let mut workers = lab.connect_hosts("busy", (2, size), |settings, _| settings);
        let over = AtomicBool::new(false);
        let handles: Vec<_> = workers
            .iter()
            .map(|worker| worker.all_reduce_async(vec![1_i32; 1000], Op::Sum).expect("it starts"))
            .collect();
        let theirs = &kept("self") - &before;
        // A child's copies: the threads below have these.
        let mut copies = mem::take(&mut workers);
        thread::scope(|scope| {
            for worker in &copies {
                let over = &over;
                scope.spawn(move || {
                    // All make the same calls: the last one says whether it is the last.
                    let mut last = [0_i32];
                    while last[0] == 0 {
                        let mut data = vec![1_i32; 100_000];
                        worker.all_reduce(&mut data, Op::Sum).expect("nobody disturbs it");
                        last[0] = i32::from(over.load(Ordering::Relaxed));
                        worker.all_reduce(&mut last, Op::Sum).expect("nobody disturbs it");
                    }
                });
            }
            let _over = Over(&over);
            for _ in 0..20 {
                let ended = in_child(LIMIT, || {
                    // SAFETY: in the child no thread has them.
                    let mut own = unsafe { std::ptr::read(&raw const copies) };
                    is_nobodys(&mut own, &theirs)
                });
                assert!(ended.expect("the child ends"));
                thread::sleep(Duration::from_millis(3));
            }
        });
        workers.append(&mut copies);
        for handle in handles {
            let (sum, _) = handle.wait(LIMIT).expect("its results are there");
            assert!(sum.iter().all(|x| *x == 2 * i32::from(size)));
        }
        check_sums(&workers, 1000);
    }
}

/// Handles of calls that were started are another process's, too, even if they are all that is
/// left.
#[test]
fn a_child_gets_nothing_of_a_call_in_flight() {
    let Some((_alone, lab)) = alone() else { return };
    let mut workers = lab.connect("flight", 2, |settings| settings);
    let start = |worker: &Communicator| {
        worker.all_reduce_async(vec![1_i32; 100], Op::Sum).expect("it starts")
    };
    let first = start(&workers[0]);
    let mut handles = vec![start(&workers[0])];
    let ended = in_child(LIMIT, || {
        drop(mem::take(&mut workers));
        let waited = mem::take(&mut handles).remove(0).wait(LIMIT);
        matches!(waited, Err(Error::Forked))
    });
    assert!(ended.expect("the child ends"));
    handles.push(first);
    handles.extend([start(&workers[1]), start(&workers[1])]);
    for handle in handles {
        let (sum, _) = handle.wait(LIMIT).expect("both have called");
        assert!(sum.iter().all(|x| *x == 2));
    }
}

/// Children that are forked at any moment of a communicator's life: before it, while it joins, in
/// calls, while it leaves. None of them has a descriptor of it.
#[test]
fn a_child_of_any_moment_has_no_descriptor() {
    let Some((_alone, lab)) = alone() else { return };
    let before = kept("self");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let tune = |settings: Builder, _| match round % 3 {
                    0 => settings.on_aggregator_loss(AggregatorLoss::Ring),
                    _ => settings,
                };
                let workers = lab.connect_hosts(&format!("{round}"), (2, 1 + round % 2), tune);
                meet(&lab, &workers);
                check_sums(&workers, 5000);
            }
        });
        let mut most = 0;
        for _ in 0..150 {
            // What takes the place of a connection is one socket for all.
            let clean = in_child(LIMIT, || (&kept("self") - &before).len() <= 1);
            assert!(clean.expect("the child ends"), "a child has a descriptor of its parent's job");
            most = most.max((&kept("self") - &before).len());
            thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        assert!(most > 3, "nothing happened meanwhile");
    });
}

/// A program that is executed has nothing either: all descriptors are close-on-exec.
#[test]
fn an_executed_program_has_no_descriptor() {
    let Some((_alone, lab)) = alone() else { return };
    let before = kept("self");
    let ring = |settings: Builder, _| settings.on_aggregator_loss(AggregatorLoss::Ring);
    let workers = lab.connect_hosts("exec", (2, 2), ring);
    meet(&lab, &workers);
    let theirs = &kept("self") - &before;
    let mut child = Command::new("sleep").arg("30").spawn().expect("a program");
    let has = kept(&child.id().to_string());
    child.kill().and_then(|()| child.wait()).expect("it was running");
    assert!(theirs.len() > 4 && has.is_disjoint(&theirs), "{has:?} of {theirs:?}");
}

#[test]
fn a_child_on_the_ring_changes_nothing() {
    let Some((_alone, lab)) = alone() else { return };
    let (daemon, second) = second_daemon(&lab);
    let tune = |settings: Builder, _| {
        let settings = settings.aggregators([second]).on_aggregator_loss(AggregatorLoss::Ring);
        settings.fallback_after(Duration::from_millis(300))
    };
    let before = kept("self");
    let mut workers = lab.connect_hosts("ring", (2, 1), tune);
    daemon.kill().expect("it was running");
    check_sums(&workers, 1000);
    assert!(workers.iter().all(|worker| worker.state() == State::OnRing));
    fork_and_sum(&mut workers, &before);
}

#[test]
fn a_child_over_tls_changes_nothing() {
    need_root!();
    let _alone = turn();
    let authority = Authority::new("forks");
    let ca = authority.trusting().ca.expect("it trusts the authority");
    let topology = network(2, "ports");
    let name = topology.aggregator_addr().to_string();
    let own = authority.issue(&name, Valid::Now);
    let path = |path: &Path| path.display().to_string();
    let extra = ["--tls-cert", &path(&own.certificate), "--tls-key", &path(&own.key)];
    let lab = Lab::start_with(topology, "userspace", &extra);
    let before = kept("self");
    let mut workers = lab.connect_hosts("tls", (2, 1), |settings, _| settings.tls_ca(&ca));
    for _ in 0..3 {
        fork_and_sum(&mut workers, &before);
    }
}

/// Children may have communicators of their own, and the parents go on beside them.
#[test]
fn children_join_a_job_of_their_own() {
    let Some((_alone, lab)) = alone() else { return };
    let parents = lab.connect("parents", 2, |settings| settings);
    let child = |rank: u16| {
        let settings = lab.worker("children", rank, 2);
        in_child(LIMIT, || {
            let Ok(worker) = lab.connect_one(rank, settings) else { return false };
            let mut data = vec![i32::from(rank) + 1; 10_000];
            let summed = worker.all_reduce(&mut data, Op::Sum);
            summed.is_ok() && data.iter().all(|x| *x == 3)
        })
    };
    thread::scope(|scope| {
        let both = [scope.spawn(|| child(0)), scope.spawn(|| child(1))];
        for _ in 0..20 {
            check_sums(&parents, 5000);
        }
        for child in both {
            assert!(child.join().expect("no panic").expect("the child ends"));
        }
    });
    check_sums(&parents, 5000);
}

/// Steady workers of hosts with `size` processes each, with four children each.
fn steady(lab: &Lab, job: &str, (hosts, size): (u16, u16), policy: &str) -> Vec<Steady> {
    // A new job's first attempts may meet what is ending of the one before.
    let work = Work { longest: 150_000, children: 4, reconnects: true, ..Work::default() };
    let settings = [("XDP_AGG_ON_WORKER_LOSS", policy)];
    let workers: Vec<_> = (0..hosts * size)
        .map(|rank| lab.steady_of(job, (rank, hosts * size), (rank % size, size), &settings, &work))
        .collect();
    for worker in &workers {
        worker.wait_calls(1, LIMIT).expect("the job begins");
    }
    workers
}

fn is_failure(since: Instant) -> impl Fn(Instant, &Line) -> bool {
    move |at, line| at > since && matches!(line, Line::Failed { .. })
}

/// The others of a killed worker go on, or are told, in time; and its place is free.
#[test]
fn the_death_of_a_worker_with_children_is_noticed() {
    need_root!();
    let _alone = turn();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let mut slowest = Duration::ZERO;
    for round in 0..20_u16 {
        let policy = ["shrink", "fail"][usize::from(round % 2)];
        // Every other time two processes a host.
        let size = 1 + round / 2 % 2;
        let mut workers = steady(&lab, &format!("orphans {round}"), (3, size), policy);
        thread::sleep(Duration::from_millis(7 * u64::from(round)));
        let mut dying = workers.remove(usize::from(size));
        let since = Instant::now();
        dying.process.signal(libc::SIGKILL).expect("it was running");
        for (at, worker) in workers.iter().enumerate() {
            let fellow = size == 2 && at == 2;
            let found = if policy == "fail" || fellow {
                worker.wait("an error", LIMIT, is_failure(since))
            } else {
                let others = if size == 1 { 0b101 } else { 0b11_0011 };
                worker.wait("a call of the others", LIMIT, |at, line| {
                    at > since
                        && matches!(line, Line::Call { contributors, partial: 0, .. }
                            if *contributors == others)
                })
            };
            let (at, _) = found.unwrap_or_else(|error| panic!("{round} {policy}: {error}"));
            slowest = slowest.max(at - since);
            assert!(at - since < PROMISED, "{round} {policy}: {:?}", at - since);
        }
        let said: Vec<_> = workers.iter().chain([&dying]).map(Steady::said).collect();
        let verdict = judge(&said);
        assert_eq!((verdict.wrong, verdict.different), (0, 0), "{verdict:?}");
    }
    eprintln!("the slowest noticed after {slowest:?}");
}

/// All processes of a job die, their children live: a new job has its name and its ranks at once.
#[test]
fn a_job_starts_again_while_children_of_its_dead_processes_live() {
    let Some((_alone, lab)) = alone() else { return };
    for size in [1, 2] {
        let mut workers = steady(&lab, "again", (2, size), "fail");
        for dying in &mut workers {
            dying.process.signal(libc::SIGKILL).expect("it was running");
        }
        let start = Instant::now();
        let again = steady(&lab, "again", (2, size), "fail");
        assert!(start.elapsed() < LIMIT / 3, "{:?}", start.elapsed());
        let verdict = judge(&again.iter().map(Steady::said).collect::<Vec<_>>());
        assert_eq!((verdict.wrong, verdict.different), (0, 0), "{verdict:?}");
    }
}

/// A dead process whose connection stays open elsewhere looks like a stopped one. Where a limit is
/// set, the others go on without either.
#[test]
fn who_is_silent_is_given_up_where_a_limit_is_set() {
    need_root!();
    let _alone = turn();
    let lab = Lab::start_with(network(3, "ports"), "userspace", &["--silent-timeout", "1"]);
    let settings = [("XDP_AGG_ON_WORKER_LOSS", "shrink")];
    for stopped in [true, false] {
        let job = format!("silent {stopped}");
        let mut workers = lab.steady_job(&job, 3, &settings, &Work::default());
        let mut silent = workers.remove(1);
        // Heartbeats have been answered.
        thread::sleep(Duration::from_millis(500));
        let since = Instant::now();
        let _copies = if stopped {
            silent.process.signal(libc::SIGSTOP).expect("it was running");
            Vec::new()
        } else {
            let copies = take_sockets(silent.process.pid()).expect("it is ours");
            assert!(copies.len() >= 2, "{copies:?}");
            silent.process.signal(libc::SIGKILL).expect("it was running");
            copies
        };
        for worker in &workers {
            let is_it = |at, line: &Line| {
                at > since && matches!(line, Line::Call { contributors: 0b101, partial: 0, .. })
            };
            let found = worker.wait("a call of the others", LIMIT, is_it);
            let (at, _) = found.unwrap_or_else(|error| panic!("{job}: {error}"));
            let took = at - since;
            assert!(took > Duration::from_millis(700) && took < PROMISED, "{job}: {took:?}");
        }
    }
}
