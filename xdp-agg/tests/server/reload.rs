//! Settings that are read again: limits hold for jobs that begin from then on, and for no others.

use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::config::Partial;
use xdp_agg_common::maps::Reject;

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::worker::{Client, Worker, wish};

/// Slots of a job, and packets of it that its quota has refused.
fn of(daemon: &Daemon, job: &str) -> (u32, u64) {
    let stats = Client::connect(daemon.control).stats();
    let job = stats.jobs.into_iter().find(|other| other.info.job == job).expect("it runs");
    (job.info.slots, job.counters.rejects[Reject::Quota as usize])
}

/// The one worker of a job sends more than the quota below lets through in the time.
fn send_much(workers: &[Worker]) {
    for _ in 0..500 {
        workers[0].contribute(0, &[1]);
    }
}

#[test]
fn slots_and_quotas_are_those_of_a_jobs_begin() {
    let daemon = Daemon::start();
    let before = Worker::all(daemon.control, &wish("before", 0, 1));
    assert_eq!(of(&daemon, "before"), (8, 0));
    let other = Partial { job_slots: Some(4), job_packet_rate: Some(10), ..settings() };
    daemon.reread(other);
    // It does so soon.
    let start = Instant::now();
    let after = (0..).map(|number| format!("after {number}")).find_map(|name| {
        assert!(start.elapsed() < PATIENCE, "new jobs have the old slots");
        thread::sleep(Duration::from_millis(20));
        let workers = Worker::all(daemon.control, &wish(&name, 0, 1));
        (of(&daemon, &name).0 == 4).then_some((name, workers))
    });
    let (name, after) = after.expect("names do not end");
    send_much(&before);
    send_much(&after);
    let start = Instant::now();
    while of(&daemon, &name).1 == 0 {
        assert!(start.elapsed() < PATIENCE, "its quota lets all through");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(of(&daemon, "before"), (8, 0), "it goes on as it began");
}
