//! Packet in, verdict and packet out, one row a case.

use std::collections::BTreeMap;

use std::net::SocketAddrV4;

use xdp_agg::engine::{Engine as _, EngineError, JobSetup, SumError};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{MAX_JOBS, Reject, ResultMode};
use xdp_agg_common::wire::{Header, Kind, flags};

use crate::frames::{Frame, OUR_MAC, payload, worker_mac};
use crate::setup::{
    AGGREGATOR, DROP, PASS, PORT, REDIRECT, counters, engine, header, job, running, start, worker,
};

/// Loading is the test: the verifier refuses the program, or it does not.
#[test]
fn the_verifier_takes_the_program() {
    let Some(mut engine) = engine(1024) else { return };
    assert_eq!(engine.slots(), 1024);
    assert_eq!(engine.max_chunks(), 54, "no interface bounds the block");
    assert!(engine.counters().expect("they can be read").iter().all(|c| *c == Default::default()));
}

#[test]
fn a_block_goes_round() {
    let Some(mut engine) = engine(32) else { return };
    let job = job(3, 1);
    assert_eq!(start(&mut engine, &job, None), ResultMode::Fanout, "all are behind one interface");
    let send = |rank: u16, flags: u8| {
        let header = Header { flags, ..header(&job, rank, 5) };
        let mut frame = Frame::from_worker(rank, &header, 22);
        let action = engine.test_run(&mut frame.bytes, 1).expect("it runs").action;
        (action, frame)
    };
    assert_eq!(send(2, 0).0, DROP);
    let (action, pending) = send(2, 0);
    let pending = pending.decode();
    assert_eq!((action, pending.header.kind, pending.header.rank), (REDIRECT, Kind::Pending, 2));
    assert_eq!((pending.from, pending.to), (SocketAddrV4::new(AGGREGATOR, PORT), worker(2)));
    assert_eq!((pending.mac_from, pending.mac_to), (OUR_MAC, worker_mac(2)));
    assert_eq!(pending.payload.len(), CHUNK_LEN);
    assert_eq!(pending.payload[..8], 0b100_u64.to_le_bytes());
    assert_eq!(send(0, flags::NON_FINITE).0, DROP);
    let (action, result) = send(1, 0);
    let result = result.decode();
    assert_eq!((action, result.header.kind), (REDIRECT, Kind::Result));
    assert_eq!(result.header.flags, flags::NON_FINITE, "one worker's flag is all workers' flag");
    let sum: Vec<u8> = (0..22 * 16)
        .map(|lane| (0..3).map(|rank| lane_of(&payload(rank, 5, 22), lane)).sum::<u32>())
        .flat_map(u32::to_le_bytes)
        .collect();
    assert_eq!(result.payload, sum);
    // A worker that asks again gets the same sum, for itself alone.
    let (action, again) = send(0, 0);
    let again = again.decode();
    assert_eq!((action, again.header.kind, again.header.rank), (REDIRECT, Kind::Result, 0));
    assert_eq!((again.to, again.header.flags), (worker(0), flags::NON_FINITE));
    assert_eq!(again.payload, sum);
    assert_eq!(engine.missing(job.job_id, 5).expect("the job is there"), 0);
    assert_eq!(engine.missing(job.job_id, 6).expect("the job is there"), 0b111);
}

#[test]
fn every_refusal_is_counted_under_its_reason_and_changes_nothing() {
    let Some(mut engine) = engine(32) else { return };
    let job = job(2, 9);
    start(&mut engine, &job, None);
    let honest = header(&job, 0, 0);
    let with = |header: Header| Frame::from_worker(0, &header, 2);
    let raw = |change: fn(&mut Vec<u8>)| {
        let mut frame = Frame::from_worker(0, &header(&job_of(9), 0, 0), 2);
        change(&mut frame.bytes);
        frame
    };
    let rows: [(&str, Reject, Frame); 12] = [
        ("another version", Reject::Version, raw(|f| f[42] = 0x11)),
        ("no such kind", Reject::Malformed, raw(|f| f[42] = 0x2f)),
        ("unknown flag", Reject::Malformed, raw(|f| f[43] = 0x80)),
        ("job off", Reject::Job, with(Header { job: 4, ..honest })),
        ("job out of range", Reject::Job, with(Header { job: MAX_JOBS as u16, ..honest })),
        ("cookie", Reject::Cookie, with(Header { cookie: 1, ..honest })),
        ("epoch", Reject::Epoch, with(Header { epoch: 8, ..honest })),
        ("rank out of range", Reject::Member, with(Header { rank: 2, ..honest })),
        ("another's rank", Reject::Member, with(Header { rank: 1, ..honest })),
        ("no payload", Reject::Size, Frame::from_worker(0, &honest, 0)),
        ("half a chunk", Reject::Truncated, {
            let to = SocketAddrV4::new(AGGREGATOR, PORT);
            Frame::new(worker_mac(0), worker(0), to, &honest, &[0; 96])
        }),
        ("beyond the window", Reject::Window, with(Header { block: 8, ..honest })),
    ];
    for (what, reason, frame) in rows {
        let (before, before_none) = counters(&mut engine, &job);
        let mut out = frame.clone();
        let action = engine.test_run(&mut out.bytes, 1).expect("it runs").action;
        assert_eq!((action, &out), (DROP, &frame), "{what}");
        let (after, after_none) = counters(&mut engine, &job);
        let mut expected = (before, before_none);
        let attributed = !matches!(reason, Reject::Version | Reject::Malformed | Reject::Job);
        let side = if attributed { &mut expected.0 } else { &mut expected.1 };
        side.rejects[reason as usize] += 1;
        assert_eq!((after, after_none), expected, "{what}");
        let (state, _) = engine.slot(job.job_id, 0).expect("the job is there");
        assert_eq!(state, Default::default(), "{what}");
    }
}

fn job_of(epoch: u16) -> JobSetup {
    job(2, epoch)
}

#[test]
fn a_probe_opens_the_path_and_comes_back() {
    let Some(mut engine) = engine(32) else { return };
    let job = job(2, 1);
    engine.prepare(&job).expect("it fits");
    let error = engine.start(job.job_id, None).expect_err("nobody has probed");
    assert!(matches!(error, EngineError::Sum(SumError::NoPath(0))), "{error}");
    let probe = |rank| Header { kind: Kind::Probe, ..header(&job, rank, 0) };
    let mut frame = Frame::from_worker(0, &probe(0), 54);
    assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, REDIRECT);
    let reply = frame.decode();
    assert_eq!((reply.header.kind, reply.header.rank), (Kind::ProbeReply, 0));
    assert_eq!(reply.payload, payload(0, 0, 54), "the payload comes back as it was sent");
    let error = engine.start(job.job_id, None).expect_err("rank 1 has not probed");
    assert!(matches!(error, EngineError::Sum(SumError::NoPath(1))), "{error}");
    // While paths are learned, nothing is summed.
    let mut early = Frame::from_worker(0, &header(&job, 0, 0), 1);
    assert_eq!(engine.test_run(&mut early.bytes, 1).expect("it runs").action, DROP);
    assert_eq!(counters(&mut engine, &job).0.rejects[Reject::Epoch as usize], 1);
    // A path of an old epoch does not count.
    let next = job_of(2);
    engine.prepare(&next).expect("it fits");
    let error = engine.start(job.job_id, None).expect_err("a new epoch learns anew");
    assert!(matches!(error, EngineError::Sum(SumError::NoPath(0))), "{error}");
}

#[test]
fn a_job_that_ended_takes_nothing() {
    let Some((mut engine, job)) = running(1) else { return };
    engine.stop(job.job_id).expect("it stops");
    let mut frame = Frame::from_worker(0, &header(&job, 0, 0), 1);
    assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, DROP);
    assert_eq!(counters(&mut engine, &job).1.rejects[Reject::Job as usize], 1);
    engine.missing(job.job_id, 0).expect_err("no such job");
}

/// A slot that another job left behind in an epoch of the same number does not look stale.
#[test]
fn slots_start_empty_whoever_used_them_before() {
    let Some(mut engine) = engine(32) else { return };
    let first = job(1, 1);
    start(&mut engine, &first, None);
    for block in [0, 8, 16] {
        let mut frame = Frame::from_worker(0, &header(&first, 0, block), 1);
        assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, REDIRECT);
    }
    engine.stop(first.job_id).expect("it stops");
    let second = JobSetup { job_id: 5, ..job(1, 1) };
    start(&mut engine, &second, None);
    let mut frame = Frame::from_worker(0, &header(&second, 0, 0), 1);
    assert_eq!(engine.test_run(&mut frame.bytes, 1).expect("it runs").action, REDIRECT);
    assert_eq!(frame.decode().header.kind, Kind::Result);
}

/// One job's packets change nothing of another's, even with the same ranks and blocks.
#[test]
fn jobs_do_not_meet() {
    let Some(mut engine) = engine(32) else { return };
    let one = job(2, 1);
    let mut other = JobSetup { job_id: 4, ..job(2, 1) };
    other.conf.slot_base = 0;
    other.conf.cookie ^= 0xff;
    start(&mut engine, &one, None);
    start(&mut engine, &other, None);
    let mut frame = Frame::from_worker(0, &header(&one, 0, 1), 1);
    engine.test_run(&mut frame.bytes, 1).expect("it runs");
    // Rank 1 of the other job, with the cookie of the other and the number of this one.
    let mut foreign = Frame::from_worker(1, &Header { job: 3, ..header(&other, 1, 1) }, 1);
    assert_eq!(engine.test_run(&mut foreign.bytes, 1).expect("it runs").action, DROP);
    assert_eq!(engine.missing(one.job_id, 1).expect("it is there"), 0b10);
    assert_eq!(engine.missing(other.job_id, 1).expect("it is there"), 0b11);
}

#[test]
fn setups_that_do_not_fit_are_refused() {
    let Some(mut engine) = engine(32) else { return };
    let good = job(2, 1);
    type Change = fn(&mut JobSetup);
    let changes: [(&str, Change); 6] = [
        ("pool beyond the table", |j| j.conf.slot_base = 25),
        ("slots not a power of two", |j| j.conf.slots = 6),
        ("job number", |j| j.job_id = MAX_JOBS as u16),
        ("members", |j| _ = j.members.pop_last()),
        ("no members", |j| (j.conf.workers, j.members) = (0, BTreeMap::new())),
        ("block", |j| j.conf.max_chunks = 55),
    ];
    for (what, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        engine.prepare(&bad).expect_err(what);
    }
    engine.prepare(&good).expect("it fits");
    // Not our address: another host's packet that passes by.
    let probe = Header { kind: Kind::Probe, ..header(&good, 0, 0) };
    let elsewhere = SocketAddrV4::new([10, 1, 0, 253].into(), PORT);
    let frame = Frame::new(worker_mac(0), worker(0), elsewhere, &probe, &[0; 64]);
    let mut out = frame.clone();
    assert_eq!(engine.test_run(&mut out.bytes, 1).expect("it runs").action, PASS);
    assert_eq!(out, frame);
}

fn lane_of(payload: &[u8], lane: usize) -> u32 {
    let bytes = &payload[lane * 4..lane * 4 + 4];
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}
