//! A forwarder's packets: sums go up, and what the parent sends comes down.

use std::net::{Ipv4Addr, SocketAddrV4};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, EngineError, JobSetup, SumError, Uplink};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, Reject, ResultMode};
use xdp_agg_common::wire::{Header, Kind, flags};

use crate::frames::{Decoded, Frame, OUR_MAC, noise, payload, worker_mac};
use crate::setup::{AGGREGATOR, DROP, PASS, PORT, REDIRECT, counters, engine, header, job, worker};

const PARENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 253), 0xBEE1);
const PARENT_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0];
const US: SocketAddrV4 = SocketAddrV4::new(AGGREGATOR, PORT);
const CHUNKS: u16 = 3;

/// A job of three workers, of which the parent knows us as rank 0 of its job 9.
fn below() -> JobSetup {
    JobSetup { uplink: Some(Uplink { addr: PARENT, job: 9, rank: 0 }), ..job(3, 1) }
}

/// A packet of the parent.
fn from_parent(job: &JobSetup, kind: Kind, block: u64, data: &[u8]) -> Frame {
    let header = Header { kind, job: 9, ..header(job, 0, block) };
    Frame::new(PARENT_MAC, PARENT, US, &header, data)
}

fn run(engine: &XdpEngine, frame: &mut Frame) -> u32 {
    engine.test_run(&mut frame.bytes, 1).expect("it runs").action
}

fn contribute(engine: &XdpEngine, job: &JobSetup, rank: u16, block: u64) -> (u32, Frame) {
    let mut frame = Frame::from_worker(rank, &header(job, rank, block), CHUNKS);
    (run(engine, &mut frame), frame)
}

fn start(engine: &mut XdpEngine, job: &JobSetup) {
    engine.prepare(job).expect("it fits");
    for rank in 0..job.conf.workers {
        let probe = Header { kind: Kind::Probe, ..header(job, rank, 0) };
        assert_eq!(run(engine, &mut Frame::from_worker(rank, &probe, 1)), REDIRECT);
    }
    let error = engine.start(job.job_id, None).expect_err("the parent has not answered");
    assert!(matches!(error, EngineError::Sum(SumError::NoUplink(PARENT))), "{error}");
    let mut reply = from_parent(job, Kind::ProbeReply, 0, &[0; 64]);
    assert_eq!(run(engine, &mut reply), DROP, "it ends here");
    assert!(engine.probe_uplink(job.job_id).expect("the job is there"));
    assert_eq!(engine.start(job.job_id, None).expect("all is learned").mode, ResultMode::Fanout);
}

/// The sum of what three workers contribute.
fn sum_of_three(block: u64) -> Vec<u8> {
    let lanes = |rank| {
        let bytes = payload(rank, block, CHUNKS);
        bytes.as_chunks().0.iter().map(|lane| u32::from_le_bytes(*lane)).collect::<Vec<_>>()
    };
    let [a, b, c] = [0, 1, 2].map(lanes);
    (0..a.len()).map(|i| a[i] + b[i] + c[i]).flat_map(u32::to_le_bytes).collect()
}

/// What leaves for one host.
fn sent(to: SocketAddrV4, mac_to: [u8; 6], header: Header, payload: Vec<u8>) -> (u32, Decoded) {
    let (mac_from, from) = (OUR_MAC, US);
    (REDIRECT, Decoded { mac_from, mac_to, from, to, header, payload })
}

fn decoded((action, frame): (u32, Frame)) -> (u32, Decoded) {
    (action, frame.decode())
}

#[test]
fn a_sum_goes_up_and_its_result_comes_down() {
    goes_up_and_comes_down(3);
}

/// Every job has a device map of its own, and is found by its cookie behind all others.
#[test]
fn the_last_place_for_a_job_serves_as_any() {
    goes_up_and_comes_down(MAX_JOBS as u16 - 1);
}

fn goes_up_and_comes_down(job_id: u16) {
    let Some(mut engine) = engine(32) else { return };
    let job = JobSetup { job_id, ..below() };
    start(&mut engine, &job);
    let before = counters(&mut engine, &job);
    let block = 5;
    assert_eq!(contribute(&engine, &job, 2, block).0, DROP);
    assert_eq!(contribute(&engine, &job, 0, block).0, DROP);
    let sum = sum_of_three(block);
    let up = Header { job: 9, ..header(&job, 0, block) };
    let forwarded = sent(PARENT, PARENT_MAC, up, sum);
    assert_eq!(decoded(contribute(&engine, &job, 1, block)), forwarded);
    // Two miss the result: the first one's repetition goes up, the other one is to wait.
    assert_eq!(decoded(contribute(&engine, &job, 1, block)), forwarded);
    let (action, pending) = decoded(contribute(&engine, &job, 2, block));
    assert_eq!((action, pending.header.kind, pending.to), (REDIRECT, Kind::Pending, worker(2)));
    // The parent's answer is for the member that asked; a mismatch is for the lowest rank.
    for (kind, rank) in [(Kind::Pending, 1), (Kind::Mismatch, 0)] {
        let mut frame = from_parent(&job, kind, block, &[7; 64]);
        let action = run(&engine, &mut frame);
        let header = Header { kind, ..header(&job, rank, block) };
        let expected = sent(worker(rank), worker_mac(rank), header, vec![7; 64]);
        assert_eq!((action, frame.decode()), expected);
    }
    let result = noise(0, block, CHUNKS);
    let mut down = from_parent(&job, Kind::Result, block, &result);
    down.bytes[43] |= flags::NON_FINITE;
    let twice = down.clone();
    assert_eq!(run(&engine, &mut down), REDIRECT);
    let Decoded { header: seen, payload, .. } = down.decode();
    let flags = flags::NON_FINITE;
    let expected = Header { kind: Kind::Result, flags, ..header(&job, seen.rank, block) };
    assert_eq!((seen, payload), (expected, result.clone()), "under our number of the job");
    let mut again = twice.clone();
    assert_eq!(run(&engine, &mut again), DROP);
    assert_eq!(again, twice);
    let answer = Header { kind: Kind::Result, flags, ..header(&job, 2, block) };
    let expected = sent(worker(2), worker_mac(2), answer, result);
    assert_eq!(decoded(contribute(&engine, &job, 2, block)), expected);
    let mut expected = before.0;
    expected.merge(&JobCounters {
        contributions: 3,
        blocks: 1,
        duplicates: 3,
        resends: 1,
        pendings: 1,
        copies: 1,
        forwards: 1,
        forwards_again: 1,
        deliveries: 1,
        late: 1,
        relays: 2,
        ..JobCounters::default()
    });
    assert_eq!(counters(&mut engine, &job), (expected, before.1));
}

#[test]
fn what_was_not_settled_is_not_taken_over() {
    let Some(mut engine) = engine(32) else { return };
    let job = below();
    start(&mut engine, &job);
    for rank in 0..3 {
        contribute(&engine, &job, rank, 5);
    }
    assert_eq!(contribute(&engine, &job, 0, 13).0, DROP);
    assert_eq!(counters(&mut engine, &job).0.rejects[Reject::Window as usize], 1);
    let mut result = from_parent(&job, Kind::Result, 5, &noise(0, 5, CHUNKS));
    assert_eq!(run(&engine, &mut result), REDIRECT);
    assert_eq!(contribute(&engine, &job, 0, 13).0, DROP);
    let (state, _) = engine.slot(job.job_id, 13).expect("the job is there");
    assert_eq!((state.block, state.seen, state.settled), (13, 1, 0));
    // The result of what the slot held before is late now.
    let mut late = from_parent(&job, Kind::Result, 5, &noise(0, 5, CHUNKS));
    assert_eq!(run(&engine, &mut late), DROP);
    let counters = counters(&mut engine, &job).0;
    assert_eq!((counters.deliveries, counters.late), (1, 1));
    assert_eq!(engine.slot(job.job_id, 13).expect("the job is there").0, state);
}

/// A packet in the parent's place that does not fit changes nothing.
#[test]
fn only_the_parents_packets_come_down() {
    let Some(mut engine) = engine(32) else { return };
    let job = below();
    start(&mut engine, &job);
    for rank in 0..3 {
        contribute(&engine, &job, rank, 5);
    }
    let (state, lanes) = engine.slot(job.job_id, 5).expect("the job is there");
    let honest = Header { kind: Kind::Result, job: 9, ..header(&job, 0, 5) };
    let data = noise(0, 5, CHUNKS);
    let with = |header: Header| Frame::new(PARENT_MAC, PARENT, US, &header, &data);
    let from = |addr| Frame::new(PARENT_MAC, addr, US, &honest, &data);
    let other = SocketAddrV4::new(*PARENT.ip(), PORT);
    let rows = [
        ("number of the job", Some(Reject::Job), with(Header { job: 3, ..honest })),
        ("epoch", Some(Reject::Epoch), with(Header { epoch: 2, ..honest })),
        ("rank", Some(Reject::Member), with(Header { rank: 1, ..honest })),
        ("a member's address", Some(Reject::Member), from(worker(0))),
        ("another port", Some(Reject::Member), from(other)),
        ("no lanes", Some(Reject::Size), Frame::new(PARENT_MAC, PARENT, US, &honest, &[])),
        ("tag", None, with(Header { tag: 8, ..honest })),
        ("length", None, Frame::new(PARENT_MAC, PARENT, US, &honest, &data[..128])),
        ("an earlier block", None, with(Header { block: 13, ..honest })),
        ("another slot", None, with(Header { block: 6, ..honest })),
    ];
    for (what, reason, frame) in rows {
        let (mut expected, none) = counters(&mut engine, &job);
        let mut out = frame.clone();
        assert_eq!((run(&engine, &mut out), &out), (DROP, &frame), "{what}");
        match reason {
            Some(reason) => expected.rejects[reason as usize] += 1,
            None => expected.late += 1,
        }
        assert_eq!(counters(&mut engine, &job), (expected, none), "{what}");
        assert_eq!(engine.slot(job.job_id, 5).expect("it is there").0, state, "{what}");
        assert_eq!(engine.slot(job.job_id, 5).expect("it is there").1, lanes, "{what}");
    }
    // With no job's cookie it is refused as a worker's would be; to another host it passes.
    let mut stranger = with(Header { cookie: 1, job: 3, ..honest });
    assert_eq!(run(&engine, &mut stranger), DROP);
    assert_eq!(counters(&mut engine, &job).0.rejects[Reject::Cookie as usize], 1);
    let elsewhere = SocketAddrV4::new([10, 1, 0, 252].into(), PORT);
    let mut passing = Frame::new(PARENT_MAC, PARENT, elsewhere, &honest, &data);
    assert_eq!(run(&engine, &mut passing), PASS);
}

/// A job of this aggregator alone does not become a forwarder by a packet.
#[test]
fn a_root_takes_no_results() {
    let Some(mut engine) = engine(32) else { return };
    let job = job(3, 1);
    crate::setup::start(&mut engine, &job, None);
    for rank in 0..2 {
        contribute(&engine, &job, rank, 5);
    }
    for kind in [Kind::Result, Kind::Pending, Kind::Mismatch, Kind::ProbeReply] {
        let mut frame = Frame::from_worker(0, &Header { kind, ..header(&job, 0, 5) }, CHUNKS);
        assert_eq!(run(&engine, &mut frame), DROP);
    }
    assert_eq!(counters(&mut engine, &job).0.rejects[Reject::Malformed as usize], 4);
    let (action, result) = contribute(&engine, &job, 2, 5);
    assert_eq!((action, result.decode().header.kind), (REDIRECT, Kind::Result));
}

#[test]
fn parents_that_cannot_be_are_refused() {
    let Some(mut engine) = engine(32) else { return };
    let up = Uplink { addr: PARENT, job: 9, rank: 0 };
    for (what, uplink) in [
        ("itself", Uplink { addr: US, ..up }),
        ("no address", Uplink { addr: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT), ..up }),
        ("no such rank", Uplink { rank: 3, ..up }),
        ("no such job", Uplink { job: MAX_JOBS as u16, ..up }),
    ] {
        let setup = JobSetup { uplink: Some(uplink), ..job(3, 1) };
        engine.prepare(&setup).expect_err(what);
    }
    engine.prepare(&JobSetup { forwarders: 0b1000, ..job(3, 1) }).expect_err("no such member");
    engine.prepare(&below()).expect("it fits");
}
