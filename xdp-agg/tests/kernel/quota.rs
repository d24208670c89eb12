//! A job's quota of packets, and which members were heard.

use std::net::SocketAddrV4;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, JobSetup};
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::{Header, Reduction};

use crate::frames::{Frame, payload, worker_mac};
use crate::setup::{
    AGGREGATOR, DROP, PORT, REDIRECT, counters, engine, header, job, running, start, worker,
};

/// Four packets at once, then one in 1.4 seconds: longer than this test takes.
fn limited(epoch: u16) -> JobSetup {
    let mut job = job(2, epoch);
    (job.conf.packet_interval, job.conf.packet_burst) = (1_400_000_000, 4_200_000_000);
    job
}

fn send(engine: &XdpEngine, job: &JobSetup, rank: u16, block: u64) -> u32 {
    let mut frame = Frame::from_worker(rank, &header(job, rank, block), 2);
    let sent = frame.clone();
    let action = engine.test_run(&mut frame.bytes, 1).expect("it runs").action;
    assert!(action != DROP || frame == sent, "a packet that is dropped is not changed");
    action
}

#[test]
fn beyond_the_quota_nothing_changes_and_no_other_job_is_touched() {
    let Some(mut engine) = engine(32) else { return };
    let one = limited(1);
    let mut other = JobSetup { job_id: 4, ..job(2, 1) };
    other.conf.slot_base = 0;
    start(&mut engine, &one, None); // two probes, of the four packets
    start(&mut engine, &other, None);
    // A stranger does not use up what the members have.
    for _ in 0..100 {
        let from = SocketAddrV4::new([10, 1, 0, 99].into(), 40_000);
        let to = SocketAddrV4::new(AGGREGATOR, PORT);
        let mut frame = Frame::new(worker_mac(0), from, to, &header(&one, 0, 0), &payload(0, 0, 2));
        assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, DROP);
        let spoilt = Header { cookie: 1, ..header(&one, 0, 0) };
        let mut frame = Frame::from_worker(0, &spoilt, 2);
        assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, DROP);
    }
    let before = counters(&mut engine, &one).0;
    assert_eq!(send(&engine, &one, 0, 0), DROP, "stored");
    assert_eq!(send(&engine, &one, 0, 0), REDIRECT, "pending");
    let state = engine.slot(one.job_id, 0).expect("it is there");
    let heard = engine.heard(one.job_id).expect("it is there");
    for block in 0..20 {
        assert_eq!(send(&engine, &one, 1, block), DROP, "over the quota");
    }
    assert_eq!(engine.slot(one.job_id, 0).expect("it is there"), state);
    assert_eq!(engine.slot(one.job_id, 1).expect("it is there").0, Default::default());
    assert!(heard[0].1.is_some() && heard[1].1.is_none(), "{heard:?}");
    assert_eq!(engine.heard(one.job_id).expect("it is there")[1].1, None);
    let mut expected = before;
    expected.contributions += 1;
    expected.duplicates += 1;
    expected.pendings += 1;
    expected.rejects[Reject::Quota as usize] += 20;
    assert_eq!(counters(&mut engine, &one).0, expected);
    // The other job has no quota, and the first one's does not concern it.
    for block in 0..8 {
        assert_eq!(send(&engine, &other, 0, block), DROP);
        assert_eq!(send(&engine, &other, 1, block), REDIRECT);
    }
    assert_eq!(counters(&mut engine, &other).0.blocks, 8);
    // A new epoch starts with a quota that is not used up.
    let next = limited(2);
    start(&mut engine, &next, None);
    assert_eq!(send(&engine, &next, 0, 0), DROP);
    assert_eq!(send(&engine, &next, 1, 0), REDIRECT, "complete");
}

#[test]
fn a_member_is_heard_when_its_contribution_counts() {
    let Some((mut engine, job)) = running(2) else { return };
    let heard = |engine: &mut XdpEngine| {
        let all = engine.heard(job.job_id).expect("the job is there");
        assert_eq!(all.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1]);
        [all[0].1, all[1].1]
    };
    assert_eq!(heard(&mut engine), [None, None], "a probe is no contribution");
    assert_eq!(send(&engine, &job, 1, 8), DROP, "beyond the window");
    assert_eq!(heard(&mut engine), [None, None]);
    send(&engine, &job, 1, 0);
    let pause = Duration::from_millis(50);
    thread::sleep(pause);
    let [nobody, since] = heard(&mut engine);
    let since = since.expect("rank 1 was heard");
    assert_eq!(nobody, None);
    assert!(since >= pause && since < Duration::from_secs(60), "{since:?}");
    // A repetition shows that the member is there, too.
    send(&engine, &job, 1, 0);
    assert!(heard(&mut engine)[1].expect("heard") < since + pause);
    start(&mut engine, &crate::setup::job(2, 2), None);
    let all = engine.heard(job.job_id).expect("the job is there");
    assert!(all.iter().all(|(_, since)| since.is_none()), "a new epoch: {all:?}");
}

/// A broadcast's root makes the copies of a block by itself, and they go where its members' packets
/// came from, as these say: to a neighbor, too. So they are what its packet costs.
#[test]
fn copies_count_as_many_packets_as_go_out() {
    let Some(mut engine) = engine(32) else { return };
    let mut job = job(2, 1);
    (job.conf.packet_interval, job.conf.packet_burst) = (1_000_000_000, 4_200_000_000);
    let began = Instant::now();
    start(&mut engine, &job, None); // two probes
    let before = counters(&mut engine, &job).0;
    let to = SocketAddrV4::new(AGGREGATOR, PORT);
    let neighbor = [2, 0, 0, 0, 9, 9];
    let mut copies = 0;
    for block in 0..20 {
        let copy = Header { reduction: Reduction::Copy, ..header(&job, 0, block % 8) };
        let mut frame =
            Frame::new(neighbor, worker(0), to, &copy, &payload(0, copy.block, 2)).bytes;
        copies += u64::from(engine.test_run(&mut frame, 1).expect("it runs").action == REDIRECT);
    }
    // The packet that is just within the burst passes whole.
    let most = (began.elapsed().as_millis() as u64 + 4200 - 2000) / 2000 + 1;
    assert!(copies >= 1 && copies <= most, "{copies} blocks to two members, {most} at most");
    let refused = counters(&mut engine, &job).0.rejects[Reject::Quota as usize];
    assert_eq!(refused - before.rejects[Reject::Quota as usize], 20 - copies);
}

/// A daemon in a container that came from another host reads another monotonic clock than the
/// kernel's programs.
#[test]
fn a_member_is_heard_in_time_in_any_time_namespace() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", "100000", "--fork"]);
        command
    };
    let may = unshare().arg("true").output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: time namespaces need root, and a kernel and util-linux that have them");
        return;
    }
    let own = std::env::current_exe().expect("Linux tells");
    let name = "quota::a_member_is_heard_when_its_contribution_counts";
    let output = unshare().arg(own).args(["--exact", name]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
