//! Workers that share the links of their hosts, in a model without sockets and without chance.

use std::collections::BTreeMap;

use xdp_agg_protocol::worker::EpochBlock;
use xdp_agg_protocol::worker::flow::{CallRole, Config, Congestion, Flow};

use super::*;

const HOSTS: usize = 4;
const RATE: u64 = 100_000_000;
const MTU: u32 = 1500;
/// Blocks of a worker in an iteration: 225 KB, so that the start is a large part of it.
const BLOCKS: u64 = 160;
/// Of a packet between two processes, besides queues.
const LATENCY: Duration = Duration::from_micros(150);

fn packet_time() -> Duration {
    let bits = frame_len(chunks_for_mtu(MTU)) as u64 * 8;
    Duration::from_nanos(bits * 1_000_000_000 / RATE)
}

/// One direction of a link, with a queue that takes in everything.
#[derive(Clone, Copy, Default)]
struct Link(Duration);

impl Link {
    /// When a packet arrives at the other end.
    fn carry(&mut self, now: Duration) -> Duration {
        self.0 = self.0.max(now) + packet_time();
        self.0 + LATENCY
    }
}

enum Arrival {
    Up { rank: usize, block: u64 },
    Result { rank: usize, block: u64 },
    Pending { rank: usize, block: u64 },
}

struct Cluster {
    processes: usize,
    flows: Vec<Flow>,
    up: [Link; HOSTS],
    down: [Link; HOSTS],
    /// Ranks whose contribution is in, a bit each, by block.
    sums: BTreeMap<u64, u64>,
    under_way: BTreeMap<(Duration, u64), Arrival>,
    sent: u64,
    now: Duration,
}

impl Cluster {
    fn new(processes: usize, window: u32) -> Self {
        let config = Config {
            limit: window,
            window_max: window,
            initial_window: 32,
            congestion: Congestion::Tolerant,
            rto_min: Duration::from_millis(4),
            rto_max: Duration::from_millis(250),
            block_interval: Duration::ZERO,
        };
        Self {
            processes,
            flows: (0..HOSTS * processes).map(|_| Flow::new(config)).collect(),
            up: [Link::default(); HOSTS],
            down: [Link::default(); HOSTS],
            sums: BTreeMap::new(),
            under_way: BTreeMap::new(),
            sent: 0,
            now: Duration::ZERO,
        }
    }

    fn put(&mut self, at: Duration, arrival: Arrival) {
        self.sent += 1;
        self.under_way.insert((at, self.sent), arrival);
    }

    fn send(&mut self, rank: usize) {
        self.flows[rank].handle_timeout(self.now);
        while let Some(EpochBlock(block)) = self.flows[rank].poll_transmit(self.now) {
            let at = self.up[rank / self.processes].carry(self.now);
            self.put(at, Arrival::Up { rank, block });
        }
    }

    fn answer(&mut self, rank: usize, block: u64) {
        let at = self.down[rank / self.processes].carry(self.now);
        self.put(at, Arrival::Result { rank, block });
    }

    fn take_in(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Up { rank, block } => {
                let all = u64::MAX >> (64 - self.flows.len());
                let sum = self.sums.entry(block).or_default();
                let again = *sum >> rank & 1 == 1;
                *sum |= 1 << rank;
                match (*sum == all, again) {
                    (true, true) => self.answer(rank, block),
                    (true, false) => {
                        (0..self.flows.len()).for_each(|rank| self.answer(rank, block));
                    }
                    (false, true) => self.put(self.now + LATENCY, Arrival::Pending { rank, block }),
                    (false, false) => {}
                }
            }
            Arrival::Result { rank, block } => {
                self.flows[rank].handle_result(EpochBlock(block), self.now);
                self.send(rank);
            }
            Arrival::Pending { rank, block } => {
                self.flows[rank].handle_pending(EpochBlock(block), self.now);
                self.send(rank);
            }
        }
    }

    /// All workers sum this number of blocks; how long it takes them on average.
    fn call(&mut self, blocks: u64) -> Duration {
        let start = self.now;
        for rank in 0..self.flows.len() {
            self.flows[rank].extend(blocks, CallRole::All);
            self.send(rank);
        }
        let mut ended = vec![None; self.flows.len()];
        while ended.iter().any(Option::is_none) {
            let arrives = self.under_way.first_key_value().map(|((at, _), _)| *at);
            let timer = self.flows.iter().filter_map(Flow::poll_timeout).min();
            self.now = arrives.into_iter().chain(timer).min().expect("more comes").max(self.now);
            if arrives == Some(self.now) {
                let (_, arrival) = self.under_way.pop_first().expect("it is there");
                self.take_in(arrival);
            } else {
                (0..self.flows.len()).for_each(|rank| self.send(rank));
            }
            for (flow, ended) in self.flows.iter().zip(&mut ended) {
                if flow.is_idle() {
                    ended.get_or_insert(self.now - start);
                }
            }
        }
        ended.iter().flatten().sum::<Duration>() / ended.len() as u32
    }

    /// The median of iterations, each with a barrier before it, over what links allow.
    fn times_bound(&mut self) -> f64 {
        let iteration = |_| {
            self.call(1);
            self.call(BLOCKS)
        };
        let mut times: Vec<_> = (0..11).map(iteration).collect();
        times.sort();
        let bound = packet_time() * (BLOCKS * self.processes as u64) as u32;
        times[5].as_secs_f64() / bound.as_secs_f64()
    }
}

/// With a pool of 1024 slots, windows grow until queues are long. At the start of a call the last
/// worker's first block then waits behind the windows of its neighbours.
#[test]
fn a_window_of_what_links_carry_keeps_workers_at_their_bound() {
    for processes in [2, 4] {
        let [fixed, large] = [window(RATE, MTU), 512].map(|window| {
            let times = Cluster::new(processes, window).times_bound();
            (window, times)
        });
        assert!(fixed.1 < 1.1, "{processes} processes a host: {fixed:?}, {large:?}");
        assert!(large.1 > 1.15, "{processes} processes a host: {fixed:?}, {large:?}");
    }
}

#[test]
fn a_window_is_a_power_of_two_that_covers_a_trip() {
    let windows = [1_000_000, 50_000_000, RATE, 1_000_000_000, 10_000_000_000, 100_000_000_000];
    assert_eq!(windows.map(|bits| window(bits, MTU)), [8, 8, 16, 128, 512, 512]);
    assert_eq!(window(RATE, 306), 64);
}
