//! Jobs that went over to a ring because their daemon died come back to it when it is there again.
//! Every sum of every worker is checked.

mod support;

use std::time::{Duration, Instant};

use support::{LIMIT, Lab, network};
use xdp_agg_testbed::steady::{Line, Steady, Work, judge};

const RING: [(&str, &str); 3] = [
    ("XDP_AGG_ON_WORKER_LOSS", "shrink"),
    ("XDP_AGG_ON_AGGREGATOR_LOSS", "ring"),
    ("XDP_AGG_FALLBACK_AFTER", "1"),
];
/// Workers of the job.
const WORKERS: u16 = 3;
/// In what time they are back: the longest pause between two attempts, and some.
const BACK: Duration = Duration::from_secs(12);

/// The first call of a worker after this moment that all contributed to, over this path alone.
fn call_over(worker: &Steady, since: Instant, over: &str) -> Instant {
    let is_it = |at, line: &Line| {
        at > since && matches!(line, Line::Call { path, contributors: 0b111, .. } if path == over)
    };
    let what = format!("a call over the {over}");
    worker.wait(&what, LIMIT, is_it).unwrap_or_else(|error| panic!("{error}")).0
}

/// The daemon is killed, the job goes over to a ring, the daemon is started again, the job comes
/// back.
fn there_and_back(lab: &mut Lab, job: &str, times: u32) {
    let work = Work { longest: 150_000, ..Work::default() };
    let workers = lab.steady_job(job, WORKERS, &RING, &work);
    let mut epoch = lab.job_stats(job).info.epoch;
    for _ in 0..times {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        let since = Instant::now();
        for worker in &workers {
            call_over(worker, since, "ring");
        }
        lab.start_daemon();
        let since = Instant::now();
        for worker in &workers {
            let at = call_over(worker, since, "aggregator");
            assert!(at - since < BACK, "{:?}", at - since);
        }
        let info = lab.job_stats(job).info;
        assert_eq!((&*info.phase, &info.joined[..]), ("running", &[0, 1, 2][..]));
        assert!(info.epoch > epoch, "epoch {} after {epoch}", info.epoch);
        epoch = info.epoch;
    }
    check(&workers);
}

/// No call failed, none was wrong, nor different from another worker's.
fn check(workers: &[Steady]) {
    let said: Vec<_> = workers.iter().map(Steady::said).collect();
    let is_failed = |line: &Line| matches!(line, Line::Failed { .. });
    assert!(!said.iter().flatten().any(|(_, line)| is_failed(line)), "no call fails");
    let verdict = judge(&said);
    assert!(verdict.calls > 0);
    assert_eq!((verdict.wrong, verdict.different), (0, 0), "{verdict:?}");
}

/// A daemon without memory takes the job up, and the next one again.
#[test]
fn a_job_on_a_ring_comes_back() {
    need_root!();
    for engine in support::ENGINES {
        let mut lab = Lab::start(network(WORKERS, "ports"), engine);
        there_and_back(&mut lab, "back", 2);
    }
}

/// A daemon that has kept its data path has the epoch from before the ring, which no worker is in
/// any more: it begins another one.
#[test]
fn a_kept_epoch_is_not_gone_on_with() {
    need_root!();
    let Some((_bpffs, mut lab)) = Lab::start_pinned(network(WORKERS, "ports")) else { return };
    there_and_back(&mut lab, "kept", 2);
}

/// A daemon that is cut off until it has lost all members, and never dies.
#[test]
fn a_daemon_that_was_cut_off_is_found_again() {
    need_root!();
    let lab = Lab::start(network(WORKERS, "multicast"), "xdp");
    let work = Work { longest: 150_000, ..Work::default() };
    let settings = [&RING[..], &[("XDP_AGG_DEAD_AFTER", "1")]].concat();
    let workers = lab.steady_job("cut", WORKERS, &settings, &work);
    let link = lab.topology.aggregator_link().expect("it has one");
    let since = Instant::now();
    lab.topology.set_link_up(link, false).expect("the cable is cut");
    for worker in &workers {
        call_over(worker, since, "ring");
    }
    let since = Instant::now();
    lab.topology.set_link_up(link, true).expect("it is mended");
    for worker in &workers {
        let at = call_over(worker, since, "aggregator");
        assert!(at - since < BACK, "{:?}", at - since);
    }
    check(&workers);
}
