//! Jobs that share slow links: their packets wait in queues for many times the timer's floor, and
//! none is lost. What is repeated all the same only makes the queues longer.

use super::*;

const HOSTS: usize = 4;
const JOBS: usize = 4;
/// Of one job in a round, after which all wait for each other.
const BLOCKS: u64 = 192;

/// A packet of 1500 bytes at 50 Mbit/s.
const PACKET: Duration = Duration::from_micros(242);
const LATENCY: Duration = Duration::from_micros(30);

/// A link's one direction, with a queue that takes in everything.
#[derive(Clone, Copy, Default)]
struct Link {
    free_at: Duration,
}

impl Link {
    /// When a packet that takes so long arrives at the other end.
    fn carry(&mut self, now: Duration, takes: Duration) -> Duration {
        self.free_at = self.free_at.max(now) + takes;
        self.free_at + LATENCY
    }
}

#[derive(Clone, Copy)]
enum Arrival {
    Up { host: usize, job: usize, block: u64 },
    Down { host: usize, job: usize, block: u64, complete: bool },
}

/// Each host has a process of each job, and one link for all of them.
struct Cluster {
    /// By host and job.
    flows: Vec<Vec<Flow>>,
    sums: Vec<Sums>,
    up: [Link; HOSTS],
    down: [Link; HOSTS],
    under_way: BTreeMap<(Duration, u64), Arrival>,
    sent: u64,
    now: Duration,
}

impl Cluster {
    fn new() -> Self {
        let config = Config { limit: 512, window_max: 512, initial_window: 32, ..CONFIG };
        let config = Config { rto_min: MS * 4, rto_max: MS * 250, ..config };
        let pool = Pool::new(2 * config.limit).expect("a power of two");
        let sums = || {
            let slots = vec![(SlotState::default(), 0); pool.slots() as usize];
            Sums { pool, members: (1 << HOSTS) - 1, slots }
        };
        let flows = (0..HOSTS).map(|_| (0..JOBS).map(|_| Flow::new(config)).collect());
        Self {
            flows: flows.collect(),
            sums: (0..JOBS).map(|_| sums()).collect(),
            up: [Link::default(); HOSTS],
            down: [Link::default(); HOSTS],
            under_way: BTreeMap::new(),
            sent: 0,
            now: Duration::ZERO,
        }
    }

    fn put(&mut self, at: Duration, arrival: Arrival) {
        self.sent += 1;
        self.under_way.insert((at, self.sent), arrival);
    }

    /// What this process may send now.
    fn send(&mut self, host: usize, job: usize) {
        self.flows[host][job].handle_timeout(self.now);
        while let Some(EpochBlock(block)) = self.flows[host][job].poll_transmit(self.now) {
            let at = self.up[host].carry(self.now, PACKET);
            self.put(at, Arrival::Up { host, job, block });
        }
    }

    fn take_in(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Up { host, job, block } => {
                let (to, sum) = self.sums[job].take_in(&contribution(host as u16, block), 1);
                for host in (0..HOSTS).filter(|host| to >> host & 1 == 1) {
                    let takes = if sum.is_some() { PACKET } else { PACKET / 16 };
                    let at = self.down[host].carry(self.now, takes);
                    let complete = sum.is_some();
                    self.put(at, Arrival::Down { host, job, block, complete });
                }
            }
            Arrival::Down { host, job, block, complete } => {
                let (flow, block) = (&mut self.flows[host][job], EpochBlock(block));
                if complete {
                    flow.handle_result(block, self.now);
                } else {
                    flow.handle_pending(block, self.now);
                }
                self.send(host, job);
            }
        }
    }

    /// All jobs sum their blocks; how long it takes.
    fn round(&mut self) -> Duration {
        let start = self.now;
        for (host, job) in (0..HOSTS).flat_map(|host| (0..JOBS).map(move |job| (host, job))) {
            self.flows[host][job].extend(BLOCKS, CallRole::All);
            self.send(host, job);
        }
        while self.flows.iter().flatten().any(|flow| !flow.is_idle()) {
            let arrives = self.under_way.first_key_value().map(|((at, _), _)| *at);
            let timer = self.flows.iter().flatten().filter_map(Flow::poll_timeout).min();
            self.now = arrives.into_iter().chain(timer).min().expect("more comes").max(self.now);
            if arrives == Some(self.now) {
                let (_, arrival) = self.under_way.pop_first().expect("it is there");
                self.take_in(arrival);
                continue;
            }
            for (host, job) in (0..HOSTS).flat_map(|host| (0..JOBS).map(move |job| (host, job))) {
                self.send(host, job);
            }
        }
        self.now - start
    }
}

/// Integers and no chance: any change of behaviour shows here. With suspects repeated in the order
/// of blocks, as if a timeout were loss, a quarter of all packets went twice.
#[test]
fn what_waits_in_a_queue_is_not_repeated() {
    let mut cluster = Cluster::new();
    let rounds: Vec<Duration> = (0..11).map(|_| cluster.round()).collect();
    let mut counters = Counters::default();
    cluster.flows.iter().flatten().for_each(|flow| counters.merge(flow.counters()));
    let repeated = counters.gap_retransmissions + counters.timer_retransmissions;
    assert!(repeated * 40 < counters.sent, "{counters:?}, {rounds:?}");
    let least = PACKET * (BLOCKS * JOBS as u64) as u32;
    let slow = rounds.iter().filter(|round| **round > least * 23 / 20).count();
    assert!(slow < rounds.len() / 2, "{least:?} would do: {rounds:?}");
}
