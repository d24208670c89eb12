//! Workers and daemons that die in the middle of calls, as processes do: by SIGKILL, with their
//! host, behind a cut cable. What a sum must be is known (`xdp_agg_testbed::steady`). So every call
//! of every worker is searched for what must never happen, a wrong sum.
//!
//! `cargo xtask bench kill --times 50` does the same at random moments, many times.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::watched::{
    Failure, RING, all_said, any_said, call_of, call_over, calls_of, check, check_none_failed,
    failure_of, work,
};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_testbed::steady::{Line, Steady, Work};

const FAIL: [(&str, &str); 2] =
    [("XDP_AGG_ON_WORKER_LOSS", "fail"), ("XDP_AGG_ON_AGGREGATOR_LOSS", "fail")];
const SHRINK: [(&str, &str); 2] =
    [("XDP_AGG_ON_WORKER_LOSS", "shrink"), ("XDP_AGG_ON_AGGREGATOR_LOSS", "fail")];
const RESUME: [(&str, &str); 2] =
    [("XDP_AGG_ON_WORKER_LOSS", "shrink"), ("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];

/// In what time the others go on or are told.
const PROMISED: Duration = Duration::from_secs(3);
/// The same after a host has vanished without a word: two seconds more to notice.
const PROMISED_SILENT: Duration = Duration::from_secs(5);

/// Policy `fail`: the others' calls return an error that names the rank, at once.
#[test]
fn a_killed_worker_is_named_to_the_others() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    for round in 0..5 {
        let mut workers = lab.steady_job("named", 4, &FAIL, &work());
        thread::sleep(Duration::from_millis(7 * round));
        let victim = round as usize % 4;
        // Before the kill: the others may have said so by the time that its process is reaped.
        let since = Instant::now();
        let said = workers.remove(victim).said();
        for worker in &workers {
            let Failure { after, kind, ranks, .. } = failure_of(worker, since);
            assert_eq!((&*kind, &ranks[..]), ("member_lost", &[victim as u16][..]));
            assert!(after < PROMISED, "{after:?}");
        }
        check(&[all_said(&workers), vec![said]].concat());
    }
}

/// Policy `shrink`: the others go on without it, each sum is of those that are told, and the block
/// that was under way is counted once.
#[test]
fn the_others_go_on_without_a_killed_worker() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(4, "ports"), engine);
        for round in 0..4 {
            let mut workers = lab.steady_job("shrink", 4, &SHRINK, &work());
            thread::sleep(Duration::from_millis(7 * round));
            let victim = round as usize % 4;
            let dying = workers.remove(victim);
            let since = Instant::now();
            let said = dying.said();
            drop(dying);
            calls_of(&workers, since, 0b1111 & !(1 << victim), PROMISED);
            check(&[all_said(&workers), vec![said]].concat());
        }
    }
}

/// Two at once, and then another one: the last two still get right sums, and so does the last.
#[test]
fn losses_one_after_the_other_are_survived() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let mut workers = lab.steady_job("again", 4, &SHRINK, &work());
    let mut since = Instant::now();
    drop((workers.remove(3), workers.remove(1)));
    calls_of(&workers, since, 0b0101, LIMIT);
    since = Instant::now();
    drop(workers.remove(0));
    call_of(&workers[0], since, 0b0100);
    check(&all_said(&workers));
}

/// A cut cable, and a host that is gone: no end of the connection is announced.
#[test]
fn a_host_that_vanishes_is_noticed() {
    need_root!();
    for how in ["cable", "host"] {
        let lab = Lab::start_with(network(3, "ports"), "xdp", &["--dead-after", "2"]);
        let mut workers = lab.steady_job("vanish", 3, &SHRINK, &work());
        let since = Instant::now();
        match how {
            "cable" => lab.topology.set_link_up(2, false).expect("it is cut"),
            _ => lab.topology.remove_host(2).expect("it goes"),
        }
        let gone = workers.remove(2);
        for worker in &workers {
            let after = call_of(worker, since, 0b011) - since;
            eprintln!("{how}: {after:?}");
            assert!(after < PROMISED_SILENT, "{how}: {after:?}");
        }
        check(&all_said(&workers));
        drop(gone);
    }
}

/// A killed worker that comes back takes part in the next epoch. Sums are right before, between and
/// after.
#[test]
fn a_killed_worker_comes_back() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let mut workers = lab.steady_job("back", 3, &SHRINK, &work());
    for round in 0..3 {
        let since = Instant::now();
        let said = workers.remove(1).said();
        calls_of(&workers, since, 0b101, LIMIT);
        let since = Instant::now();
        workers.insert(1, lab.steady("back", 1, 3, &SHRINK, &work()));
        calls_of(&workers, since, 0b111, LIMIT);
        let joined = workers[1].said();
        let Some((_, Line::Joined { sequence, .. })) = joined.first() else {
            panic!("round {round}: {joined:?}");
        };
        assert!(*sequence > 0, "it starts where the others are");
        check(&[all_said(&workers), vec![said]].concat());
    }
}

/// A stopped process does not count as dead: it costs time, and nothing else.
#[test]
fn a_stopped_worker_is_waited_for() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let mut workers = lab.steady_job("stopped", 4, &SHRINK, &work());
    let before = lab.job_stats("stopped").info;
    workers[2].process.signal(libc::SIGSTOP).expect("it runs");
    // A call may have been done meanwhile, but not one that began after this.
    thread::sleep(Duration::from_millis(500));
    let calls = |workers: &[Steady]| workers.iter().map(|w| w.said().len()).collect::<Vec<_>>();
    let then = calls(&workers);
    thread::sleep(Duration::from_millis(9_500));
    assert_eq!(calls(&workers), then, "calls end without a contribution of each");
    let since = Instant::now();
    workers[2].process.signal(libc::SIGCONT).expect("it is there");
    calls_of(&workers, since, 0b1111, LIMIT);
    let after = lab.job_stats("stopped").info;
    assert_eq!((before.epoch, before.joined), (after.epoch, after.joined));
    let said = all_said(&workers);
    assert!(!any_said(&said, |line| matches!(line, Line::Call { reforms: 1.., .. })));
    check_none_failed(&said);
}

/// The daemon dies. Policy `fail`: every call says so, and after a restart there are calls again.
#[test]
fn a_killed_daemon_is_told_of() {
    need_root!();
    let mut lab = Lab::start(network(3, "ports"), "xdp");
    let work = Work { reconnects: true, ..work() };
    let workers = lab.steady_job("told", 3, &FAIL, &work);
    for _ in 0..2 {
        let since = Instant::now();
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        for worker in &workers {
            let Failure { after, kind, .. } = failure_of(worker, since);
            assert!(kind == "aggregator_lost" && after < PROMISED, "{kind}, {after:?}");
        }
        lab.start_daemon();
        calls_of(&workers, Instant::now(), 0b111, LIMIT);
    }
    // In each job calls are numbered from 0 and are the same ones: so are their results.
    check(&all_said(&workers));
}

/// Policy `resume`: the workers wait for the daemon and go on, the call under way included.
#[test]
fn a_restarted_daemon_is_gone_on_with() {
    need_root!();
    for engine in support::ENGINES {
        let mut lab = Lab::start(network(3, "ports"), engine);
        let workers = lab.steady_job("resume", 3, &RESUME, &work());
        for _ in 0..3 {
            lab.daemon.take().expect("it runs").kill().expect("it was running");
            lab.start_daemon();
            let since = Instant::now();
            calls_of(&workers, since, 0b111, PROMISED);
        }
        check_none_failed(&all_said(&workers));
    }
}

/// With `--pin` calls go on without a daemon, and after its restart in the same epoch.
#[test]
fn a_pinned_data_path_outlives_its_daemon() {
    need_root!();
    let Some((_bpffs, mut lab)) = Lab::start_pinned(network(3, "ports")) else { return };
    let workers = lab.steady_job("pinned", 3, &RESUME, &work());
    let epoch = lab.job_stats("pinned").info.epoch;
    for _ in 0..3 {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        let since = Instant::now();
        calls_of(&workers, since, 0b111, LIMIT);
        lab.start_daemon();
        let since = Instant::now();
        calls_of(&workers, since, 0b111, LIMIT);
    }
    thread::sleep(Duration::from_secs(1));
    let info = lab.job_stats("pinned").info;
    assert_eq!((info.epoch, &info.joined[..]), (epoch, &[0, 1, 2][..]));
    let said = all_said(&workers);
    let is_changed = |line: &Line| matches!(line, Line::Call { reforms: 1.., .. });
    assert!(!any_said(&said, is_changed), "the epoch goes on");
    check_none_failed(&said);
}

/// Policy `ring`: no daemon comes back, and the workers go on among themselves. They say so.
#[test]
fn without_a_daemon_the_workers_go_on_over_a_ring() {
    need_root!();
    let mut lab = Lab::start(network(3, "ports"), "xdp");
    let workers = lab.steady_job("ring", 3, &RING, &work());
    let since = Instant::now();
    lab.daemon.take().expect("it runs").kill().expect("it was running");
    for worker in &workers {
        let after = call_over(worker, since, "ring") - since;
        assert!(after < PROMISED + Duration::from_secs(1), "{after:?}");
        worker.wait_calls(20, LIMIT).expect("and on");
    }
    check_none_failed(&all_said(&workers));
}
