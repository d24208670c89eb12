//! Workers on the aggregator's own host: they have an interface of their own, and no other has it.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, JobSetup, Uplink};
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::{Header, Kind};

use crate::frames::{Frame, OUR_MAC, worker_mac};
use crate::setup::{
    AGGREGATOR, DROP, PASS, PORT, REDIRECT, counters, engine_beside, header, job, worker,
};

/// The interface by which packets of test runs seem to come in: loopback.
const LOOPBACK: u32 = 1;
const ELSEWHERE: u32 = 77;
const LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 109, 1);
const CHUNKS: u16 = 2;

/// Rank 0 is on the aggregator's host, with its address; rank 1 is not.
fn setup() -> JobSetup {
    let mut job = JobSetup { local: 0b01, ..job(2, 1) };
    job.members.insert(0, own());
    job
}

fn own() -> SocketAddrV4 {
    SocketAddrV4::new(AGGREGATOR, worker(0).port())
}

/// What a rank sends to one of the aggregator's addresses.
fn sent(job: &JobSetup, rank: u16, kind: Kind, to: Ipv4Addr) -> Frame {
    let header = Header { kind, ..header(job, rank, 0) };
    let data = [rank as u8 + 1; CHUNKS as usize * 64];
    Frame::new(worker_mac(rank), job.members[&rank], SocketAddrV4::new(to, PORT), &header, &data)
}

/// The action, and the frame as it was left.
fn run(engine: &XdpEngine, mut frame: Frame) -> (u32, Frame) {
    let action = engine.test_run(&mut frame.bytes, 1).expect("it runs").action;
    (action, frame)
}

#[test]
fn a_local_worker_is_answered_from_the_local_address() {
    let Some(mut engine) = engine_beside(32, Some((LOOPBACK, LOCAL))) else { return };
    let job = JobSetup { conf: job(1, 1).conf, ..setup() };
    let job = JobSetup { members: [(0, own())].into(), ..job };
    let local = engine.prepare(&job).expect("it fits").expect("one is on this host");
    assert!(local.has(0) && !local.has(1));
    assert_eq!(local.data, SocketAddrV4::new(LOCAL, PORT));
    let (action, reply) = run(&engine, sent(&job, 0, Kind::Probe, LOCAL));
    let reply = reply.decode();
    assert_eq!((action, reply.header.kind), (REDIRECT, Kind::ProbeReply));
    assert_eq!((reply.from, reply.to), (local.data, own()));
    assert_eq!((reply.mac_from, reply.mac_to), (OUR_MAC, worker_mac(0)));
    engine.start(job.job_id, None).expect("its path is learned");
    let (action, _) = run(&engine, sent(&job, 0, Kind::Contribution, LOCAL));
    assert_eq!(action, REDIRECT, "the only worker's block is complete");
    let (action, again) = run(&engine, sent(&job, 0, Kind::Contribution, LOCAL));
    let again = again.decode();
    assert_eq!((action, again.header.kind, again.header.rank), (REDIRECT, Kind::Result, 0));
    assert_eq!((again.from, again.to), (local.data, own()));
}

/// What is refused by the local interface: other ranks, the address that others use, packets for
/// another host, and a parent.
#[test]
fn by_the_local_interface_only_local_workers_come() {
    let Some(mut engine) = engine_beside(32, Some((LOOPBACK, LOCAL))) else { return };
    let parent = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 253), PORT);
    let uplink = Some(Uplink { addr: parent, job: 9, rank: 0 });
    let job = JobSetup { uplink, ..setup() };
    engine.prepare(&job).expect("it fits");
    let before = counters(&mut engine, &job);
    let stranger = sent(&job, 1, Kind::Probe, LOCAL);
    assert_eq!(run(&engine, stranger.clone()), (DROP, stranger));
    let mut expected = before;
    expected.0.rejects[Reject::Member as usize] += 1;
    assert_eq!(counters(&mut engine, &job), expected);
    // No other host is behind it: a packet that is not ours ends there, and is not counted.
    for frame in [sent(&job, 0, Kind::Probe, AGGREGATOR), {
        let mut arp = sent(&job, 0, Kind::Probe, LOCAL);
        arp.bytes[13] = 6;
        arp
    }] {
        assert_eq!(run(&engine, frame.clone()), (DROP, frame));
        assert_eq!(counters(&mut engine, &job), expected);
    }
    let header = Header { kind: Kind::ProbeReply, job: 9, ..header(&job, 0, 0) };
    for to in [LOCAL, AGGREGATOR] {
        let to = SocketAddrV4::new(to, PORT);
        let frame = Frame::new(worker_mac(0), parent, to, &header, &[0; 64]);
        assert_eq!(run(&engine, frame.clone()), (DROP, frame));
        assert!(!engine.probe_uplink(job.job_id).is_ok_and(|open| open), "no parent comes by it");
    }
}

/// What comes in by another interface: nobody has the local address there, and a worker of this
/// host does not come by it, whatever the packet says.
#[test]
fn by_other_interfaces_no_local_worker_comes() {
    let Some(mut engine) = engine_beside(32, Some((ELSEWHERE, LOCAL))) else { return };
    let job = setup();
    engine.prepare(&job).expect("it fits");
    let before = counters(&mut engine, &job);
    for rank in 0..2 {
        let frame = sent(&job, rank, Kind::Probe, LOCAL);
        assert_eq!(run(&engine, frame.clone()), (PASS, frame), "it is not for us");
    }
    assert_eq!(counters(&mut engine, &job), before);
    let forged = sent(&job, 0, Kind::Probe, AGGREGATOR);
    assert_eq!(run(&engine, forged.clone()), (DROP, forged));
    let mut expected = before;
    expected.0.rejects[Reject::Member as usize] += 1;
    assert_eq!(counters(&mut engine, &job), expected);
    let (action, reply) = run(&engine, sent(&job, 1, Kind::Probe, AGGREGATOR));
    assert_eq!((action, reply.decode().from), (REDIRECT, SocketAddrV4::new(AGGREGATOR, PORT)));
}
