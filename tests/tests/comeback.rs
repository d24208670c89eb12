//! Jobs that went over to a ring because their daemon died come back to it when it is there again.
//! Every sum of every worker is checked.

mod support;

use std::time::{Duration, Instant};

use support::watched::{RING, all_said, call_over, check_none_failed, work};
use support::{Lab, network};
use xdp_agg_testbed::steady::Steady;

/// Workers of the job.
const WORKERS: u16 = 3;
/// In what time they are back: the longest pause between two attempts, and some.
const BACK: Duration = Duration::from_secs(12);

/// All have a call over the ring.
fn there(workers: &[Steady], since: Instant) {
    workers.iter().for_each(|worker| _ = call_over(worker, since, "ring"));
}

/// And in time one over the aggregator.
fn back(workers: &[Steady], since: Instant) {
    for worker in workers {
        let after = call_over(worker, since, "aggregator") - since;
        assert!(after < BACK, "{after:?}");
    }
}

/// The daemon is killed, the job goes over to a ring, the daemon is started again, the job comes
/// back.
fn there_and_back(lab: &mut Lab, job: &str, times: u32) {
    let workers = lab.steady_job(job, WORKERS, &RING, &work());
    let mut epoch = lab.job_stats(job).info.epoch;
    for _ in 0..times {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        there(&workers, Instant::now());
        lab.start_daemon();
        back(&workers, Instant::now());
        let info = lab.job_stats(job).info;
        assert_eq!((&*info.phase, &info.joined[..]), ("running", &[0, 1, 2][..]));
        assert!(info.epoch > epoch, "epoch {} after {epoch}", info.epoch);
        epoch = info.epoch;
    }
    check_none_failed(&all_said(&workers));
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
    let settings = [&RING[..], &[("XDP_AGG_DEAD_AFTER", "1")]].concat();
    let workers = lab.steady_job("cut", WORKERS, &settings, &work());
    let link = lab.topology.aggregator_link().expect("it has one");
    let since = Instant::now();
    lab.topology.set_link_up(link, false).expect("the cable is cut");
    there(&workers, since);
    let since = Instant::now();
    lab.topology.set_link_up(link, true).expect("it is mended");
    back(&workers, since);
    check_none_failed(&all_said(&workers));
}
