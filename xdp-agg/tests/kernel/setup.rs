//! A job on a program that is attached to nothing.

use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, EngineError, JobSetup};
use xdp_agg_common::maps::{JobConf, JobCounters, ResultMode};
use xdp_agg_common::wire::{Header, Kind, Reduction};

use crate::frames::Frame;

pub(crate) const AGGREGATOR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 254);
pub(crate) const PORT: u16 = 0xBEE0;
/// Slots of the test job's pool.
pub(crate) const POOL: u32 = 8;
/// `enum xdp_action`.
pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// A loaded program; None, with a message, where this process may not load one.
pub(crate) fn engine(slots: u32) -> Option<XdpEngine> {
    engine_beside(slots, None)
}

/// The same, with this interface and address for workers of the aggregator's host.
pub(crate) fn engine_beside(slots: u32, local: Option<(u32, Ipv4Addr)>) -> Option<XdpEngine> {
    loaded(XdpEngine::detached(PORT, slots, local))
}

/// The program, if it may be loaded.
pub(crate) fn loaded(engine: Result<XdpEngine, EngineError>) -> Option<XdpEngine> {
    match engine {
        Ok(engine) => Some(engine),
        Err(reason @ (EngineError::NotPermitted(_) | EngineError::Unsupported(_))) => {
            eprintln!("skipped: {reason}");
            None
        }
        Err(error) => panic!("the program does not load: {error}, {:?}", error),
    }
}

/// A program with a running job of these workers, in epoch 1.
pub(crate) fn running(workers: u16) -> Option<(XdpEngine, JobSetup)> {
    let (mut engine, job) = (engine(32)?, job(workers, 1));
    start(&mut engine, &job, None);
    Some((engine, job))
}

/// Keeps this thread on one CPU (counted modulo those that the process may use).
pub(crate) fn pin_to_cpu(nth: usize) {
    let mine = sched_getaffinity(None).expect("this process has CPUs");
    let all: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(all[nth % all.len()]);
    sched_setaffinity(None, &one).expect("a CPU that this process may use");
}

/// The job of most tests.
pub(crate) fn job(workers: u16, epoch: u16) -> JobSetup {
    let conf = JobConf {
        members: u64::MAX >> (64 - workers),
        cookie: 0xC0FF_EE00,
        addr: AGGREGATOR.into(),
        slot_base: 16,
        slots: POOL,
        port: PORT,
        epoch,
        workers,
        max_chunks: 54,
        ..JobConf::default()
    };
    JobSetup::new(3, conf, (0..workers).map(|rank| (rank, worker(rank))).collect())
}

/// Address of a worker.
pub(crate) fn worker(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 1 + rank as u8), 40_000 + rank)
}

/// A header that the job takes.
pub(crate) fn header(job: &JobSetup, rank: u16, block: u64) -> Header {
    Header {
        kind: Kind::Contribution,
        flags: 0,
        reduction: Reduction::Add,
        job: job.job_id,
        cookie: job.conf.cookie,
        epoch: job.conf.epoch,
        rank,
        block,
        tag: 7,
    }
}

/// Prepares the job, probes every path and starts it.
pub(crate) fn start(
    engine: &mut XdpEngine,
    job: &JobSetup,
    mode: Option<ResultMode>,
) -> ResultMode {
    engine.prepare(job).expect("the job fits");
    for rank in 0..job.conf.workers {
        let header = Header { kind: Kind::Probe, ..header(job, rank, 0) };
        let mut frame = Frame::from_worker(rank, &header, 1).bytes;
        assert_eq!(engine.test_run(&mut frame, 1).expect("it runs").action, REDIRECT);
    }
    engine.start(job.job_id, mode).expect("all paths are learned").mode
}

/// Counters of the test job, and of packets that belong to no job.
pub(crate) fn counters(engine: &mut XdpEngine, job: &JobSetup) -> (JobCounters, JobCounters) {
    let all = engine.counters().expect("they can be read");
    (all[usize::from(job.job_id)], *all.last().expect("the last belongs to no job"))
}
