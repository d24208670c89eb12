//! A dead host or link is noticed in time, and a process that merely does nothing is not taken for
//! dead. Without `set_liveness` of the daemon's connections a dead one would take minutes.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use xdp_agg_common::control::{Join, Reply, Request, read_message, write_message};

use support::{LIMIT, Lab, need_root, network};

mod support;

/// The least that a worker can be: it joins a job that never fills, and reads nothing more.
fn join(lab: &Lab, host: u16, rank: u16) -> TcpStream {
    let mut stream = lab.control_from(lab.topology.worker(host.into()));
    let join = Join {
        job: "liveness".into(),
        rank,
        world_size: 8,
        data_port: 7 + rank,
        max_chunks: 1,
        ..Join::default()
    };
    write_message(&mut stream, &Request::Join(join)).expect("the daemon reads");
    stream
}

/// Ranks that the daemon holds for connected.
fn joined(lab: &Lab) -> Vec<u16> {
    let mut stream = lab.control_from(lab.topology.aggregator());
    write_message(&mut stream, &Request::Jobs).expect("the daemon reads");
    match read_message(&mut stream).expect("the daemon answers") {
        Reply::Jobs(jobs) => jobs.into_iter().flat_map(|job| job.joined).collect(),
        other => panic!("{other:?}"),
    }
}

/// Waits until these ranks are joined; how long that took.
fn wait(lab: &Lab, ranks: &[u16]) -> Duration {
    let start = Instant::now();
    while joined(lab) != ranks {
        assert!(start.elapsed() < LIMIT, "still {:?}, not {ranks:?}", joined(lab));
        sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

#[test]
fn a_dead_link_is_noticed_within_two_seconds_and_others_stay() {
    need_root!();
    let lab = Lab::start_with(network(2, "ports"), "userspace", &["--dead-after", "2"]);
    let kept: Vec<_> = [(0, 0), (0, 1), (1, 2)].map(|(host, rank)| join(&lab, host, rank)).into();
    wait(&lab, &[0, 1, 2]);
    lab.topology.set_link_up(0, false).expect("the plug can be pulled");
    let took = wait(&lab, &[2]);
    eprintln!("a dead link was noticed after {took:?}");
    // After 1.6 s and a look, on a machine that has time for it.
    assert!(took <= Duration::from_millis(2500), "{took:?}");
    assert!(took >= Duration::from_millis(500), "{took:?}: a blink would be enough");
    drop(kept);
}

#[test]
fn who_answers_no_heartbeat_stays_until_its_link_dies() {
    need_root!();
    // All heartbeats that are sent without an answer come within 1.6 s, instead of 16.
    let lab = Lab::start_with(network(2, "ports"), "userspace", &["--dead-after", "0.2"]);
    let (silent, other) = (join(&lab, 0, 0), join(&lab, 1, 1));
    wait(&lab, &[0, 1]);
    // Neither reads anything: to TCP a stopped process looks the same. 20 times `dead_after`.
    sleep(Duration::from_secs(4));
    assert_eq!(joined(&lab), [0, 1]);
    // No more heartbeats: now it is keepalive that finds out, whose clock ticks in seconds.
    lab.topology.set_link_up(0, false).expect("the plug can be pulled");
    let took = wait(&lab, &[1]);
    eprintln!("without heartbeats a dead link was noticed after {took:?}");
    assert!(took <= Duration::from_millis(2500), "{took:?}");
    drop((silent, other));
}
