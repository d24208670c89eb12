//! Workers as small as they can be: sockets that obey the window and ask again after a while.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, JobSetup, Started};
use xdp_agg_common::maps::{JobConf, JobCounters, Reject, ResultMode};
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header, Kind, Reduction};

use crate::PORT;
use crate::network::{AGGREGATOR, Network, address};

pub(crate) const JOB: u16 = 2;
const BLOCKS: u64 = 500;
/// Chunks of a block.
pub(crate) const CHUNKS: usize = 22;
const POOL: u32 = 32;
const COOKIE: u64 = 0x1357_9bdf;
const PATIENCE: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(20);

/// All workers contribute all blocks; every one must get every sum.
pub(crate) fn all_reduce(
    network: &Network,
    engine: &mut XdpEngine,
    wanted: Option<ResultMode>,
) -> ResultMode {
    let workers = Worker::all(network);
    engine.prepare(&setup(network.workers, POOL)).expect("it fits");
    workers.iter().for_each(Worker::probe);
    // An engine works in the network namespace in which it was opened.
    let started = network.inside(|| engine.start(JOB, wanted)).expect("all paths are open");
    let done = Barrier::new(workers.len());
    thread::scope(|scope| {
        for worker in &workers {
            let (network, done) = (&network, &done);
            scope.spawn(move || worker.work(network, &started, done));
        }
    });
    check_counters(
        &engine.counters().expect("they can be read")[usize::from(JOB)],
        network,
        started.mode,
    );
    started.mode
}

/// The workers' job, with this many slots.
pub(crate) fn setup(workers: u16, slots: u32) -> JobSetup {
    let conf = JobConf {
        members: u64::MAX >> (64 - workers),
        cookie: COOKIE,
        addr: AGGREGATOR.into(),
        slots,
        port: PORT,
        epoch: 1,
        workers,
        max_chunks: CHUNKS as u16,
        ..JobConf::default()
    };
    let members = (0..workers).map(|rank| (rank, data_address(rank))).collect();
    JobSetup::new(JOB, conf, members)
}

fn data_address(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address(rank), 40_000 + rank)
}

/// The sum of a block, as its result holds it.
pub(crate) fn sum(network: &Network, block: u64) -> Vec<u8> {
    let sum = |lane| (0..network.workers).map(|rank| value(rank, block, lane)).sum();
    (0..CHUNKS as u32 * 16).map(sum).flat_map(u32::to_le_bytes).collect()
}

fn check_counters(counters: &JobCounters, network: &Network, mode: ResultMode) {
    let workers = u64::from(network.workers);
    assert_eq!(counters.contributions, BLOCKS * workers);
    assert_eq!(counters.blocks, BLOCKS);
    let served = network.served().len() as u64;
    let copies = if mode == ResultMode::Multicast { served.min(workers) } else { workers };
    assert_eq!(counters.copies, BLOCKS * copies + counters.resends, "{mode:?}");
    assert_eq!(counters.rejects, [0; Reject::COUNT]);
}

/// One worker, on a host of its own.
pub(crate) struct Worker {
    pub(crate) rank: u16,
    addr: SocketAddrV4,
    socket: UdpSocket,
}

impl Worker {
    /// One on each worker's host.
    pub(crate) fn all(network: &Network) -> Vec<Self> {
        (0..network.workers).map(|rank| Self::new(network, rank)).collect()
    }

    fn new(network: &Network, rank: u16) -> Self {
        let addr = data_address(rank);
        let socket = network.on_worker(rank, || UdpSocket::bind(addr)).expect("it binds");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { rank, addr, socket }
    }

    fn packet(&self, kind: Kind, block: u64) -> Vec<u8> {
        let mut ours = [0; HEADER_LEN];
        let header = Header {
            kind,
            flags: 0,
            reduction: Reduction::Add,
            job: JOB,
            cookie: COOKIE,
            epoch: 1,
            rank: self.rank,
            block,
            tag: 9,
        };
        header.emit(&mut ours);
        let lanes = (0..CHUNKS as u32 * 16).map(|lane| value(self.rank, block, lane));
        ours.into_iter().chain(lanes.flat_map(u32::to_le_bytes)).collect()
    }

    pub(crate) fn send(&self, kind: Kind, block: u64) {
        let packet = self.packet(kind, block);
        let sent = self.socket.send_to(&packet, (AGGREGATOR, PORT)).expect("it goes out");
        assert_eq!(sent, packet.len());
    }

    /// The next answer; None if nothing comes for a while.
    pub(crate) fn answer(&self) -> Option<(Header, Vec<u8>)> {
        self.receive(&self.socket)
    }

    fn receive(&self, socket: &UdpSocket) -> Option<(Header, Vec<u8>)> {
        let mut buffer = [0; 2048];
        let (len, from) = socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from, (AGGREGATOR, PORT).into());
        let (ours, payload) = buffer[..len].split_first_chunk::<HEADER_LEN>().expect("a header");
        Some((Header::parse(ours).expect("a header of ours"), payload.to_vec()))
    }

    /// Opens the path.
    pub(crate) fn probe(&self) {
        for _ in 0..30 {
            self.send(Kind::Probe, 0);
            if let Some((header, payload)) = self.receive(&self.socket) {
                assert_eq!((header.kind, header.rank), (Kind::ProbeReply, self.rank));
                assert_eq!(payload, self.packet(Kind::Probe, 0)[HEADER_LEN..]);
                return;
            }
        }
        panic!("rank {}: no answer to any probe", self.rank);
    }

    fn work(&self, network: &Network, started: &Started, done: &Barrier) {
        let group = started.group.map(|group| {
            let bind = || UdpSocket::bind(group);
            let socket = network.on_worker(self.rank, bind).expect("it binds to the group");
            socket.join_multicast_v4(group.ip(), self.addr.ip()).expect("it joins");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            socket
        });
        let results = group.as_ref().unwrap_or(&self.socket);
        done.wait(); // nobody misses a group's packet because it joined late
        let mut held = vec![false; BLOCKS as usize];
        let mut sent = 0;
        let end = Instant::now() + DEADLINE;
        while let Some(first) = held.iter().position(|held| !held) {
            let first = first as u64;
            assert!(Instant::now() < end, "rank {}: no result of block {first}", self.rank);
            while sent < BLOCKS && sent < first + u64::from(POOL / 2) {
                self.send(Kind::Contribution, sent);
                sent += 1;
            }
            match self.receive(results) {
                Some((header, payload)) => {
                    self.take(network, &header, &payload, &mut held, group.is_some())
                }
                None => self.ask_again(network, first, &mut held, group.is_some()),
            }
        }
        done.wait();
        self.ask_for_the_last(network);
    }

    fn take(
        &self,
        network: &Network,
        header: &Header,
        payload: &[u8],
        held: &mut [bool],
        group: bool,
    ) {
        if header.kind != Kind::Result {
            assert_eq!((header.kind, header.rank), (Kind::Pending, self.rank));
            return;
        }
        assert_eq!(header.rank, if group { EVERYBODY } else { self.rank });
        assert_eq!(payload, sum(network, header.block), "block {}", header.block);
        held[header.block as usize] = true;
    }

    /// Nothing came for a while: a packet was lost. The answer comes to this worker alone.
    fn ask_again(&self, network: &Network, block: u64, held: &mut [bool], group: bool) {
        self.send(Kind::Contribution, block);
        if group && let Some((header, payload)) = self.receive(&self.socket) {
            self.take(network, &header, &payload, held, false);
        }
    }

    /// The last result is still held. A worker that asks for it gets it again, and no other does.
    fn ask_for_the_last(&self, network: &Network) {
        let mut held = vec![false; BLOCKS as usize];
        for _ in 0..30 {
            self.send(Kind::Contribution, BLOCKS - 1);
            if let Some((header, payload)) = self.receive(&self.socket) {
                self.take(network, &header, &payload, &mut held, false);
                if held[BLOCKS as usize - 1] {
                    return;
                }
            }
        }
        panic!("rank {}: the last result does not come again", self.rank);
    }
}

fn value(rank: u16, block: u64, lane: u32) -> u32 {
    (lane * 31) ^ (block as u32) << 4 ^ u32::from(rank) << 16
}
