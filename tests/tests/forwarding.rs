//! Trees of aggregators, each engine on a host of its own, under loss, repetition and reordering on
//! every link. They test the engines directly: workers are sockets that obey the window.

mod support;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use support::{LIMIT, need_root};
use xdp_agg::engine::{
    self, Engine, EngineConfig, EngineError, EngineKind, JobSetup, LocalAddr, SumError, Uplink,
    XdpMode,
};
use xdp_agg_common::maps::{JobConf, JobCounters, Reject, ResultMode};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction, flags};
use xdp_agg_testbed::{Faults, Mode, Namespace, Topology};

const PORT: u16 = 0xBEE0;
const WORKERS: u16 = 5;
const BLOCKS: u64 = 1000;
const CHUNKS: u16 = 22;
const SLOTS: u32 = 64;
/// How long a worker waits for anything before it repeats what it misses.
const PATIENCE: Duration = Duration::from_millis(5);

/// An aggregator of a tree: its host, its engine, its parent, and the workers directly below.
type Spot = (Host, EngineKind, Option<usize>, &'static [u16]);

#[derive(Clone, Copy, Debug)]
enum Host {
    Aggregator,
    Worker(usize),
}

use EngineKind::{Userspace, Xdp};
use Host::{Aggregator, Worker as On};

/// A root with two forwarders and a worker of its own.
const fn fork(root: EngineKind, one: EngineKind, two: EngineKind) -> [Spot; 3] {
    [(Aggregator, root, None, &[4]), (On(5), one, Some(0), &[1, 3]), (On(6), two, Some(0), &[0, 2])]
}

/// Each with one below it.
const fn chain(root: EngineKind, one: EngineKind, two: EngineKind) -> [Spot; 3] {
    [
        (Aggregator, root, None, &[]),
        (On(5), one, Some(0), &[1, 3]),
        (On(6), two, Some(1), &[0, 2, 4]),
    ]
}

/// Five workers' hosts, two forwarders', and the root's.
fn network() -> Topology {
    let net = Topology::builder().workers(7).mode(Mode::OneNic).build().expect("a network");
    for host in [5, 6] {
        net.serve_on_worker(host).expect("it is there");
    }
    net
}

fn faults() -> Faults {
    let some = Faults { loss: 0.02, duplicate: 0.02, hold: 0.02, hold_packets: 5, ..Faults::NONE };
    Faults { hold_time: Duration::from_micros(100), ..some }.only_udp(PORT)
}

struct Node {
    host: Namespace,
    addr: SocketAddrV4,
    engine: Box<dyn Engine>,
    setup: JobSetup,
}

impl Node {
    fn run<T: Send>(&mut self, work: impl FnOnce(&mut dyn Engine) -> T + Send) -> T {
        let engine = &mut *self.engine;
        self.host.run(|| work(engine)).expect("its namespace is there")
    }

    fn counters(&mut self) -> JobCounters {
        let job = usize::from(self.setup.job_id);
        self.engine.counters().expect("they can be read")[job]
    }
}

/// Opens the engines and prepares the job of the tree on each.
fn plant(net: &Topology, spots: &[Spot], cookie: u64) -> Vec<Node> {
    let place = |host: Host| match host {
        Host::Aggregator => (net.aggregator().clone(), net.aggregator_addr()),
        Host::Worker(at) => (net.worker(at).clone(), net.worker_addr(at)),
    };
    let addr = |at: usize| SocketAddrV4::new(place(spots[at].0).1, PORT);
    // The members of each: workers, and the children under the lowest rank below them.
    let mut members: Vec<BTreeMap<u16, SocketAddrV4>> = Vec::new();
    let mut forwarders = vec![0_u64; spots.len()];
    for (.., ranks) in spots {
        members.push(ranks.iter().map(|rank| (*rank, worker_address(net, *rank))).collect());
    }
    for at in (1..spots.len()).rev() {
        let rank = *members[at].keys().next().expect("somebody is below");
        let parent = spots[at].2.expect("only the first has none");
        members[parent].insert(rank, addr(at));
        forwarders[parent] |= 1 << rank;
    }
    let plant = |at: usize| {
        let (host, kind, parent, _) = spots[at];
        let host = place(host).0;
        let engine = host.run(|| open(kind, *addr(at).ip())).expect("a namespace");
        let conf = JobConf {
            members: members[at].keys().fold(0, |bits, rank| bits | 1 << rank),
            cookie,
            addr: u32::from(*addr(at).ip()),
            slots: SLOTS,
            port: PORT,
            epoch: 3,
            workers: WORKERS,
            max_chunks: CHUNKS,
            ..JobConf::default()
        };
        let uplink = parent.map(|parent| {
            let rank = *members[at].keys().next().expect("somebody is below");
            Uplink { addr: addr(parent), job: job_of(parent), rank }
        });
        let setup = JobSetup::new(job_of(at), conf, members[at].clone());
        let setup = JobSetup { uplink, forwarders: forwarders[at], ..setup };
        let mut node = Node { host, addr: addr(at), engine, setup: setup.clone() };
        node.run(|engine| engine.prepare(&setup)).expect("it fits");
        node
    };
    (0..spots.len()).map(plant).collect()
}

/// The job has another number on each aggregator.
fn job_of(node: usize) -> u16 {
    [3, 0, 5][node]
}

fn open(kind: EngineKind, addr: Ipv4Addr) -> Box<dyn Engine> {
    let config = EngineConfig {
        kind,
        xdp_mode: XdpMode::Native,
        interfaces: if kind == Xdp { vec!["eth0".into()] } else { Vec::new() },
        data_addr: Some(addr),
        local_addr: LocalAddr::Auto,
        data_port: PORT,
        slots: 128,
        mtu: None,
        pin: None,
        fresh: false,
        vlan: None,
    };
    engine::open(&config).expect("it opens").engine
}

fn worker_address(net: &Topology, rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(net.worker_addr(rank.into()), 40_000 + rank)
}

struct Worker {
    rank: u16,
    socket: UdpSocket,
    to: SocketAddrV4,
    job: u16,
    cookie: u64,
}

impl Worker {
    fn new(net: &Topology, rank: u16, node: &Node) -> Self {
        let bind = || UdpSocket::bind(worker_address(net, rank));
        let socket = net.worker(rank.into()).run(bind).expect("a namespace").expect("it binds");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let JobSetup { job_id: job, conf, .. } = &node.setup;
        Self { rank, socket, to: node.addr, job: *job, cookie: conf.cookie }
    }

    fn send(&self, kind: Kind, block: u64) {
        let header = Header {
            kind,
            flags: flags_of(self.rank, block),
            reduction: reduction_of(block),
            job: self.job,
            cookie: self.cookie,
            epoch: 3,
            rank: self.rank,
            block,
            tag: 9,
        };
        let mut packet = vec![0; HEADER_LEN];
        header.emit(packet.first_chunk_mut().expect("a header's length"));
        packet.extend((0..lanes()).flat_map(|lane| value(self.rank, block, lane).to_le_bytes()));
        self.socket.send_to(&packet, self.to).expect("it goes out");
    }

    fn receive(&self) -> Option<(Header, Vec<u8>)> {
        let mut buffer = [0; 2048];
        let (header, len) = loop {
            let (len, from) = self.socket.recv_from(&mut buffer).ok()?;
            let ours = buffer[..len].first_chunk().expect("a header");
            let header = Header::parse(ours).expect("a header of ours");
            // A link may have held it back since the tree before this one.
            if header.cookie == self.cookie {
                assert_eq!(from, self.to.into());
                break (header, len);
            }
        };
        assert_eq!((header.rank, header.job), (self.rank, self.job), "it is for us");
        Some((header, buffer[HEADER_LEN..len].to_vec()))
    }

    fn probe(&self) {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            self.send(Kind::Probe, 0);
            if self.receive().is_some_and(|(header, _)| header.kind == Kind::ProbeReply) {
                return;
            }
        }
        panic!("rank {}: no answer to a probe", self.rank);
    }

    /// All blocks; every result must be the sum of all workers of the tree.
    fn work(&self) {
        let mut held = vec![false; BLOCKS as usize];
        let (mut base, mut sent, mut pendings) = (0, 0, 0_u64);
        let end = Instant::now() + LIMIT;
        while base < BLOCKS {
            assert!(Instant::now() < end, "rank {}: no result of block {base}", self.rank);
            while sent < BLOCKS && sent < base + u64::from(SLOTS / 2) {
                self.send(Kind::Contribution, sent);
                sent += 1;
            }
            let Some((header, payload)) = self.receive() else {
                let missing = (base..sent).filter(|block| !held[*block as usize]);
                missing.take(8).for_each(|block| self.send(Kind::Contribution, block));
                continue;
            };
            match header.kind {
                Kind::Result => {
                    assert_eq!(payload, sum(header.block), "block {}", header.block);
                    assert_eq!(
                        header.flags,
                        (0..WORKERS).fold(0, |all, rank| { all | flags_of(rank, header.block) })
                    );
                    held[header.block as usize] = true;
                }
                Kind::Pending => pendings += 1,
                Kind::ProbeReply => {}
                other => panic!("rank {}: {other:?}", self.rank),
            }
            while base < BLOCKS && held[base as usize] {
                base += 1;
            }
        }
        eprintln!("rank {}: {pendings} times told to wait", self.rank);
    }
}

fn lanes() -> u32 {
    u32::from(CHUNKS) * 16
}

fn value(rank: u16, block: u64, lane: u32) -> u32 {
    (lane * 31) ^ (block as u32) << 4 ^ u32::from(rank) << 16
}

fn flags_of(rank: u16, block: u64) -> u8 {
    if block % 11 == u64::from(rank) { flags::NON_FINITE } else { 0 }
}

fn reduction_of(block: u64) -> Reduction {
    if block.is_multiple_of(3) { Reduction::Max32 } else { Reduction::Add }
}

/// The result of a block.
fn sum(block: u64) -> Vec<u8> {
    let of = |lane| {
        let values = (0..WORKERS).map(|rank| value(rank, block, lane));
        if reduction_of(block) == Reduction::Add { values.sum() } else { values.max().unwrap_or(0) }
    };
    (0..lanes()).map(of).flat_map(u32::to_le_bytes).collect()
}

/// All results of a tree, with faults on every link.
fn all_reduce(net: &Topology, spots: &[Spot], cookie: u64, faults: &Faults) -> Vec<JobCounters> {
    net.set_all_faults(&Faults::NONE).expect("they are lifted");
    let mut nodes = plant(net, spots, cookie);
    let at = |rank| spots.iter().position(|(.., ranks)| ranks.contains(&rank)).expect("a home");
    let workers: Vec<_> = (0..WORKERS).map(|r| Worker::new(net, r, &nodes[at(r)])).collect();
    workers.iter().for_each(Worker::probe);
    for node in &mut nodes {
        // Members first: a parent answers every member that is registered.
        let end = Instant::now() + LIMIT;
        let job = node.setup.job_id;
        while !node.run(|engine| engine.probe_uplink(job)).expect("it goes out") {
            assert!(Instant::now() < end, "no answer of the parent");
            thread::sleep(Duration::from_millis(5));
        }
    }
    for node in &mut nodes {
        let job = node.setup.job_id;
        node.run(|engine| engine.start(job, None)).expect("all paths are learned");
    }
    net.set_all_faults(faults).expect("they are in force");
    thread::scope(|scope| {
        workers.iter().for_each(|worker| _ = scope.spawn(|| worker.work()));
    });
    nodes.iter_mut().map(Node::counters).collect()
}

fn check(spots: &[Spot], counters: &[JobCounters], lossless: bool) {
    for (at, ((host, kind, parent, ranks), counters)) in spots.iter().zip(counters).enumerate() {
        eprintln!("{host:?} {kind:?}: {counters:?}");
        let children = spots.iter().filter(|spot| spot.2 == Some(at)).count();
        let members = (ranks.len() + children) as u64;
        assert_eq!(counters.contributions, BLOCKS * members, "each once, whatever came");
        assert_eq!(counters.blocks, BLOCKS);
        let strange = Reject::ALL.into_iter().filter(|reason| *reason != Reject::Cookie);
        assert!(strange.into_iter().all(|reason| counters.rejects[reason as usize] == 0));
        assert_eq!(counters.copies, BLOCKS * members + counters.resends);
        let up = if parent.is_some() { BLOCKS } else { 0 };
        assert_eq!((counters.forwards, counters.deliveries), (up, up));
        assert!(lossless || parent.is_none() || counters.forwards_again > 0, "some was lost");
    }
}

#[test]
fn trees_sum_exactly_under_loss() {
    need_root!();
    let net = network();
    let trees = [
        fork(Xdp, Xdp, Xdp),
        chain(Xdp, Xdp, Xdp),
        fork(Userspace, Userspace, Userspace),
        fork(Xdp, Userspace, Xdp),
        chain(Userspace, Xdp, Userspace),
    ];
    for (cookie, spots) in (1..).zip(trees) {
        let counters = all_reduce(&net, &spots, cookie, &faults());
        check(&spots, &counters, false);
    }
}

/// What is repeated here is what a worker had waited for too long.
#[test]
fn an_undisturbed_tree_sums_too() {
    need_root!();
    let net = network();
    let trees = [fork(Xdp, Xdp, Xdp), chain(Userspace, Userspace, Userspace)];
    for (cookie, spots) in (1..).zip(trees) {
        let counters = all_reduce(&net, &spots, cookie, &Faults::NONE);
        check(&spots, &counters, true);
    }
}

#[test]
fn a_forwarder_does_not_start_without_its_parent_or_by_multicast() {
    need_root!();
    let net = network();
    for kind in [Xdp, Userspace] {
        let spots = fork(kind, kind, kind);
        let mut nodes = plant(&net, &spots, 1);
        let workers: Vec<_> =
            (0..4).map(|r| Worker::new(&net, r, &nodes[if r % 2 == 1 { 1 } else { 2 }])).collect();
        workers.iter().for_each(Worker::probe);
        Worker::new(&net, 4, &nodes[0]).probe();
        let parent = nodes[0].addr;
        let error = nodes[1].run(|engine| engine.start(job_of(1), None)).expect_err("no answer");
        assert!(
            matches!(error, EngineError::Sum(SumError::NoUplink(addr)) if addr == parent),
            "{error}"
        );
        for at in [1, 2] {
            let end = Instant::now() + LIMIT;
            while !nodes[at].run(|engine| engine.probe_uplink(job_of(at))).expect("it goes out") {
                assert!(Instant::now() < end, "no answer of the parent");
                thread::sleep(Duration::from_millis(5));
            }
        }
        let wanted = Some(ResultMode::Multicast);
        let error = nodes[0].run(|engine| engine.start(job_of(0), wanted)).expect_err("forwarders");
        assert!(
            matches!(error, EngineError::Sum(SumError::Mode { mode: "multicast", .. })),
            "{error}"
        );
        nodes[0].run(|engine| engine.start(job_of(0), None)).expect("each has a copy of its own");
        nodes[1].run(|engine| engine.start(job_of(1), None)).expect("its parent has answered");
    }
}
