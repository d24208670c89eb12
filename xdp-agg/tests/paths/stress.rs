//! The same few slots from eight ports at once, with more repetitions and late packets than news.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg::engine::{Engine as _, XdpMode};
use xdp_agg_common::maps::{Reject, ResultMode};
use xdp_agg_common::wire::Kind;

use crate::config;
use crate::network::{Mode, Network};
use crate::workers::{JOB, Worker, setup, sum};

const WORKERS: u16 = 8;
const BLOCKS: u64 = 3000;
/// Slots: two blocks of each worker are under way.
const POOL: u64 = 4;
/// How often each contribution is sent at once.
const COPIES: u64 = 3;
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn eight_ports_in_four_slots_sum_exactly() {
    let Some(network) = Network::new(Mode::Ports, WORKERS) else { return };
    let mut engine =
        network.inside(|| XdpEngine::open(&config(&network, XdpMode::Native))).expect("it opens");
    let workers = Worker::all(&network);
    engine.prepare(&setup(WORKERS, POOL as u32)).expect("it fits");
    workers.iter().for_each(Worker::probe);
    let started = network.inside(|| engine.start(JOB, None)).expect("all paths are open");
    assert_eq!(started.mode, ResultMode::Ports);
    let begin = Barrier::new(workers.len());
    thread::scope(|scope| {
        for worker in &workers {
            let (network, begin) = (&network, &begin);
            scope.spawn(move || {
                begin.wait();
                work(network, worker);
            });
        }
    });
    let counters = engine.counters().expect("they can be read")[usize::from(JOB)];
    eprintln!("{counters:?}");
    assert_eq!(counters.contributions, BLOCKS * u64::from(WORKERS), "each once, whatever came");
    assert_eq!(counters.blocks, BLOCKS);
    assert_eq!(counters.rejects, [0; Reject::COUNT]);
    let packets = counters.contributions + counters.duplicates + counters.stale;
    assert!(packets >= 100_000, "{packets} packets are no stress");
    assert!(counters.stale > 1000 && counters.resends > 1000, "{counters:?}");
}

/// Every block, several times each, and between them blocks of one and two generations ago.
fn work(network: &Network, worker: &Worker) {
    let end = Instant::now() + DEADLINE;
    let (mut base, mut sent) = (0, 0);
    let mut ahead = [false; POOL as usize];
    while base < BLOCKS {
        assert!(Instant::now() < end, "rank {}: no result of block {base}", worker.rank);
        while sent < BLOCKS && sent < base + POOL / 2 {
            for _ in 0..COPIES {
                worker.send(Kind::Contribution, sent);
            }
            for late in [POOL, 2 * POOL] {
                if sent >= late {
                    worker.send(Kind::Contribution, sent - late);
                }
            }
            sent += 1;
        }
        let Some((header, payload)) = worker.answer() else {
            // A packet got lost on the way: rings of veth are short.
            worker.send(Kind::Contribution, base);
            continue;
        };
        assert_eq!(header.rank, worker.rank);
        if header.kind == Kind::Result {
            assert_eq!(payload, sum(network, header.block), "block {}", header.block);
            if header.block >= base {
                ahead[(header.block % POOL) as usize] = true;
            }
            while std::mem::take(&mut ahead[(base % POOL) as usize]) {
                base += 1;
            }
        } else {
            assert_eq!(header.kind, Kind::Pending);
        }
    }
}
