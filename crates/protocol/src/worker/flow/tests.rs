//! The flow alone, then several flows around the slot machine on a simulated network.

mod queues;
mod solo;

use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict};
use xdp_agg_common::wire::Reduction;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

const CONFIG: Config = Config {
    limit: 64,
    window_max: 64,
    initial_window: 16,
    congestion: Congestion::Tolerant,
    rto_min: MS,
    rto_max: Duration::from_millis(100),
    block_interval: Duration::ZERO,
};

fn send_all(flow: &mut Flow, now: Duration) -> Vec<u64> {
    std::iter::from_fn(|| flow.poll_transmit(now).map(|block| block.0)).collect()
}

#[test]
fn a_result_is_acknowledgement_and_credit() {
    let mut flow = Flow::new(CONFIG);
    assert_eq!(flow.extend(100, CallRole::All), EpochBlock(0));
    assert_eq!(send_all(&mut flow, US), (0..16).collect::<Vec<_>>());
    assert!(flow.handle_result(EpochBlock(0), US * 10));
    assert!(!flow.handle_result(EpochBlock(0), US * 10), "a copy is not delivered twice");
    assert!(
        !flow.handle_result(EpochBlock(50), US * 10),
        "a block that was not sent has no result"
    );
    // One credit, one more because of slow start.
    assert_eq!(send_all(&mut flow, US * 10), [16, 17]);
    assert_eq!(flow.base().0, 1);
}

#[test]
fn a_gap_is_repeated_before_the_timer() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(16, CallRole::All);
    send_all(&mut flow, US);
    for block in [1, 2] {
        flow.handle_result(EpochBlock(block), US * 20);
        assert_eq!(send_all(&mut flow, US * 20), [0_u64; 0]);
    }
    flow.handle_result(EpochBlock(3), US * 20);
    // Overtaken, but not for longer than trips vary: 19 us, give or take 9.5.
    assert_eq!(send_all(&mut flow, US * 20), [0_u64; 0]);
    // Trips stay as they are, and the block is still missing: well before the timer, it is sent.
    flow.extend(8, CallRole::All);
    assert_eq!(send_all(&mut flow, US * 20), [16, 17, 18, 19, 20, 21]);
    for block in 4..16 {
        flow.handle_result(EpochBlock(block), US * 21);
    }
    assert_eq!(send_all(&mut flow, US * 40), [22, 23]);
    for block in 16..23 {
        flow.handle_result(EpochBlock(block), US * 41);
    }
    let now = US * 60;
    flow.handle_result(EpochBlock(23), now);
    assert_eq!(send_all(&mut flow, now), [0]);
    assert_eq!(flow.counters().gap_retransmissions, 1);
    assert_eq!(flow.counters().losses, 1);
    // The aggregator had it: a straggler, not a loss.
    flow.handle_pending(EpochBlock(0), US * 70);
    assert_eq!(flow.counters().losses, 0);
    assert_eq!(send_all(&mut flow, US * 70), [0_u64; 0]);
    flow.handle_result(EpochBlock(0), US * 80);
    assert!(flow.is_idle());
    assert_eq!(flow.poll_timeout(), None);
}

/// Block after block comes back at once, then one waits for another worker's timer: this worker's
/// own timer stays near the trips, however often that happens.
#[test]
fn anothers_timer_does_not_lengthen_this_one() {
    let mut flow = Flow::new(CONFIG);
    let mut now = US;
    for round in 0..200 {
        let EpochBlock(block) = flow.extend(1, CallRole::All);
        assert_eq!(send_all(&mut flow, now), [block]);
        let trip = if round % 10 == 9 { MS * 90 } else { US * 50 };
        assert!(flow.handle_result(EpochBlock(block), now + trip));
        now += trip + US;
    }
    let EpochBlock(block) = flow.extend(1, CallRole::All);
    assert_eq!(send_all(&mut flow, now), [block]);
    let timer = flow.poll_timeout().expect("a block is under way") - now;
    assert!(timer < MS * 2, "{timer:?}");
}

/// A trip beyond the timer counts as one that the timer ended: the timer grows by a step.
#[test]
fn a_trip_beyond_the_timer_lengthens_it_little() {
    let mut flow = Flow::new(CONFIG);
    let mut now = US;
    for trip in [MS; 100].into_iter().chain([MS * 7]) {
        let EpochBlock(block) = flow.extend(1, CallRole::All);
        assert_eq!(send_all(&mut flow, now), [block]);
        assert!(flow.handle_result(EpochBlock(block), now + trip));
        now += trip + US;
    }
    flow.extend(1, CallRole::All);
    send_all(&mut flow, now);
    let timer = flow.poll_timeout().expect("a block is under way") - now;
    assert!((MS * 2..MS * 3).contains(&timer), "{timer:?}");
}

#[test]
fn the_timer_asks_for_the_oldest_and_then_for_more() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(12, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let first = flow.poll_timeout().expect("blocks are under way");
    flow.handle_timeout(first - US);
    assert_eq!(send_all(&mut flow, first - US), [0_u64; 0]);
    flow.handle_timeout(first);
    assert_eq!(send_all(&mut flow, first), [0]);
    flow.handle_result(EpochBlock(0), first + US);
    assert_eq!(send_all(&mut flow, first + US), [2, 3], "1 would be here if it were late");
    flow.handle_result(EpochBlock(2), first + US * 2);
    assert_eq!(send_all(&mut flow, first + US * 2), [1, 4, 5, 6]);
}

/// Results come in the order of blocks, as they wait in a queue. The first one that was not asked
/// for again ends repetition.
#[test]
fn late_results_are_not_asked_for() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(40, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let before = flow.window();
    let now = flow.poll_timeout().expect("blocks are under way");
    flow.handle_timeout(now);
    assert_eq!(send_all(&mut flow, now), [0]);
    flow.handle_result(EpochBlock(0), now + US * 300);
    assert_eq!(send_all(&mut flow, now + US * 300), [2, 3]);
    flow.handle_result(EpochBlock(1), now + US * 600);
    assert!(flow.window() >= before, "{} of {before}", flow.window());
    assert_eq!(send_all(&mut flow, now + US * 600), [16, 17]);
    for block in 2..16 {
        let now = now + US * 300 * (block + 1);
        flow.handle_result(EpochBlock(block.into()), now);
        assert!(send_all(&mut flow, now).iter().all(|sent| *sent > 17), "behind {block}");
    }
    assert_eq!(flow.counters().timer_retransmissions, 3);
}

/// A block alone behind the oldest one is asked for: no result before it would come.
#[test]
fn the_last_suspect_is_not_left_out() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(2, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let now = flow.poll_timeout().expect("blocks are under way");
    flow.handle_timeout(now);
    assert_eq!(send_all(&mut flow, now), [0]);
    flow.handle_result(EpochBlock(0), now + US);
    assert_eq!(send_all(&mut flow, now + US), [1]);
}

#[test]
fn a_straggler_is_asked_for_ever_more_slowly() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(12, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut waits = Vec::new();
    for _ in 0..6 {
        let next = flow.poll_timeout().expect("blocks are under way");
        waits.push(next - now);
        now = next;
        flow.handle_timeout(now);
        assert_eq!(send_all(&mut flow, now), [0]);
        flow.handle_pending(EpochBlock(0), now);
    }
    assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    assert_eq!(waits[5], CONFIG.rto_max);
    // It wakes up: all results come at once, and nothing is repeated for it.
    for block in 0..12 {
        flow.handle_result(EpochBlock(block), now);
        assert_eq!(send_all(&mut flow, now), [0_u64; 0]);
    }
}

#[test]
fn a_wrong_timeout_costs_no_window() {
    for wrong in [true, false] {
        let mut flow = Flow::new(CONFIG);
        flow.extend(40, CallRole::All);
        send_all(&mut flow, Duration::ZERO);
        let (block, before) = (flow.base().0, flow.window());
        let now = flow.poll_timeout().expect("blocks are under way");
        flow.handle_timeout(now);
        assert_eq!(send_all(&mut flow, now), [block]);
        assert_eq!(flow.window(), (before / 2).max(8));
        assert!(flow.handle_result(EpochBlock(block), now + US));
        if wrong {
            // The first one's result was late; this is the second one's.
            assert!(!flow.handle_result(EpochBlock(block), now + US * 2));
            assert_eq!(flow.window(), before);
        } else {
            assert!(flow.window() < before);
        }
    }
}

/// All results are late and come together. Blocks that were to be repeated, but were not yet, show
/// it.
#[test]
fn results_behind_a_timeout_show_that_it_was_wrong() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(12, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let before = flow.window();
    let now = flow.poll_timeout().expect("blocks are under way");
    flow.handle_timeout(now);
    assert_eq!(send_all(&mut flow, now), [0]);
    assert!(flow.window() < before);
    for block in 0..12 {
        assert!(flow.handle_result(EpochBlock(block), now + US));
    }
    assert!(flow.window() >= before, "{} of {before}", flow.window());
    // Only the oldest block's loss stays: which of its two transmissions was answered is not known.
    assert_eq!(flow.counters().losses, 1);
}

#[test]
fn nobody_is_far_ahead_of_the_other_flows() {
    let mut ahead = Flow::new(Config { limit: 1000, window_max: 1000, ..CONFIG });
    ahead.extend(2000, CallRole::All);
    let mut block = 0;
    let mut now = Duration::ZERO;
    // The other one does nothing for a while.
    ahead.hold_back(2000);
    while let [_, ..] = send_all(&mut ahead, now)[..] {
        while block < ahead.sent_end().0 {
            now += US;
            assert!(ahead.handle_result(EpochBlock(block), now));
            block += 1;
        }
    }
    assert!(ahead.is_held_back());
    let lead = 2000 - ahead.left();
    assert!((LEAD..LEAD * 3).contains(&lead), "{lead}");
    // It comes closer, and this one goes on.
    ahead.hold_back(ahead.left() + LEAD);
    assert!(!ahead.is_held_back());
    assert_ne!(send_all(&mut ahead, now), [0_u64; 0]);
    // The last flow waits for nobody; nor does a flow without others.
    ahead.hold_back(0);
    assert!(!ahead.is_held_back());
}

#[test]
fn late_results_end_recovery() {
    let mut flow = Flow::new(CONFIG);
    flow.extend(4, CallRole::All);
    send_all(&mut flow, Duration::ZERO);
    let now = flow.poll_timeout().expect("blocks are under way");
    flow.handle_timeout(now);
    for block in 0..4 {
        flow.handle_result(EpochBlock(block), now); // the answers were only late
    }
    flow.extend(3, CallRole::All);
    assert_eq!(send_all(&mut flow, now), [4, 5, 6]);
}

#[test]
fn the_pool_is_a_hard_limit() {
    let mut flow = Flow::new(Config { limit: 8, initial_window: 1000, ..CONFIG });
    flow.extend(100, CallRole::All);
    assert_eq!(send_all(&mut flow, US).len(), 8);
    for block in 1..8 {
        flow.handle_result(EpochBlock(block), US);
    }
    // All credit is back, but block 8 would take the slot that block 0's neighbours may need.
    assert!(send_all(&mut flow, US).iter().all(|block| *block < 8));
    flow.handle_result(EpochBlock(0), US);
    assert_eq!(send_all(&mut flow, US).first(), Some(&8));
}

#[test]
fn the_pace_is_kept() {
    let mut flow = Flow::new(Config { block_interval: US * 100, ..CONFIG });
    flow.extend(1000, CallRole::All);
    let mut now = MS * 10;
    let mut sent = 0;
    while now < MS * 20 {
        sent += send_all(&mut flow, now).len();
        for block in flow.base().0..flow.base().0 + 16 {
            flow.handle_result(EpochBlock(block), now);
        }
        now = flow.poll_timeout().expect("more to send").max(now + US);
    }
    // 100 blocks in 10 ms, and the credit of 8 saved before.
    assert!((95..=112).contains(&sent), "{sent}");
}

/// What the simulated network does to each packet.
#[derive(Clone, Copy, Debug)]
struct Network {
    loss: f64,
    duplicate: f64,
    delay_us_max: u64,
}

#[derive(Clone, Copy)]
enum Packet {
    Up(Contribution, u64),
    Down { rank: usize, block: u64, sum: Option<u64> },
}

/// Packets under way, by the time at which they arrive and the order in which they left.
struct Wire {
    network: Network,
    rng: SmallRng,
    under_way: BTreeMap<(Duration, u64), Packet>,
    sent: u64,
}

impl Wire {
    fn put(&mut self, now: Duration, packet: Packet) {
        let Network { loss, duplicate, delay_us_max } = self.network;
        let copies = u32::from(self.rng.random_bool(1.0 - loss))
            + u32::from(self.rng.random_bool(duplicate));
        for _ in 0..copies {
            let delay = US * 10 + US * self.rng.random_range(0..=delay_us_max) as u32;
            self.sent += 1;
            self.under_way.insert((now + delay, self.sent), packet);
        }
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    fn arrived(&mut self, now: Duration) -> Option<Packet> {
        self.next_arrival().filter(|at| *at <= now)?;
        self.under_way.pop_first().map(|(_, packet)| packet)
    }
}

/// An aggregator of blocks of one number.
struct Sums {
    pool: Pool,
    members: u64,
    slots: Vec<(SlotState, u64)>,
}

impl Sums {
    /// Which workers are sent what: the sum, or that it is not complete.
    fn take_in(&mut self, c: &Contribution, worth: u64) -> (u64, Option<u64>) {
        let (state, sum) = &mut self.slots[self.pool.slot_of(c.block) as usize];
        let to_all = |complete| if complete { self.members } else { 0 };
        match state.contribute(self.pool, self.members, c) {
            Verdict::Store { complete } => {
                *sum = worth;
                (to_all(complete), Some(*sum))
            }
            Verdict::Add { complete } => {
                *sum += worth;
                (to_all(complete), Some(*sum))
            }
            Verdict::Resend => (1 << c.rank, Some(*sum)),
            Verdict::Pending => (1 << c.rank, None),
            Verdict::Stale => (0, None),
            Verdict::Forward => panic!("a root has no parent"),
            Verdict::Reject(reason) => panic!("an honest packet was {reason:?}"),
        }
    }
}

/// `workers` flows of `blocks` blocks over the network. Returns the virtual time it took and all
/// counters; panics on a wrong sum, a block out of the window or a run without end.
fn simulate(workers: u16, blocks: u64, network: Network, seed: u64) -> (Duration, Vec<Counters>) {
    let rng = SmallRng::seed_from_u64(seed);
    let mut wire = Wire { network, rng, under_way: BTreeMap::new(), sent: 0 };
    let pool = Pool::new(2 * CONFIG.limit).expect("a power of two");
    let slots = vec![(SlotState::default(), 0_u64); pool.slots() as usize];
    let mut sums = Sums { pool, members: u64::MAX >> (64 - workers), slots };
    let value = |rank: u16, block: u64| block * 1000 + u64::from(rank) + 1;
    let mut flows: Vec<Flow> = (0..workers).map(|_| Flow::new(CONFIG)).collect();
    for flow in &mut flows {
        flow.extend(blocks, CallRole::All);
    }
    let mut now = Duration::ZERO;
    for _ in 0..5_000_000_u32 {
        if flows.iter().all(Flow::is_idle) {
            return (now, flows.iter().map(|flow| *flow.counters()).collect());
        }
        for (rank, flow) in (0..).zip(&mut flows) {
            flow.handle_timeout(now);
            while let Some(EpochBlock(block)) = flow.poll_transmit(now) {
                assert!(block < flow.base().0 + u64::from(CONFIG.limit), "beyond the window");
                wire.put(now, Packet::Up(contribution(rank, block), value(rank, block)));
            }
        }
        let timer = flows.iter().filter_map(Flow::poll_timeout).min();
        let next = wire.next_arrival().into_iter().chain(timer).min();
        now = next.expect("something will happen").max(now);
        while let Some(packet) = wire.arrived(now) {
            match packet {
                Packet::Up(c, worth) => {
                    let (to, sum) = sums.take_in(&c, worth);
                    for rank in (0..usize::from(workers)).filter(|rank| to >> rank & 1 == 1) {
                        wire.put(now, Packet::Down { rank, block: c.block, sum });
                    }
                }
                Packet::Down { rank, block, sum: Some(sum) } => {
                    if flows[rank].handle_result(EpochBlock(block), now) {
                        let expected: u64 = (0..workers).map(|rank| value(rank, block)).sum();
                        assert_eq!(sum, expected, "block {block}");
                    }
                }
                Packet::Down { rank, block, sum: None } => {
                    flows[rank].handle_pending(EpochBlock(block), now)
                }
            }
        }
    }
    panic!("no end in sight at {now:?}");
}

fn contribution(rank: u16, block: u64) -> Contribution {
    let reduction = Reduction::Add;
    Contribution { rank, epoch: 1, tag: 1, chunks: 1, flags: 0, reduction, asks: false, block }
}

#[test]
fn without_loss_nothing_is_repeated() {
    let network = Network { loss: 0.0, duplicate: 0.0, delay_us_max: 0 };
    let (_, counters) = simulate(4, 2000, network, 1);
    for flow in counters {
        assert_eq!(flow.sent, 2000);
        assert_eq!(flow.gap_retransmissions + flow.timer_retransmissions, 0, "{flow:?}");
    }
}

/// Integers and a seed: any change of behaviour shows here.
#[test]
fn one_loss_in_a_hundred_costs_little() {
    let clean = Network { loss: 0.0, duplicate: 0.0, delay_us_max: 20 };
    let (clean, _) = simulate(4, 5000, clean, 1);
    let lossy = Network { loss: 0.01, duplicate: 0.0, delay_us_max: 20 };
    let (lossy, counters) = simulate(4, 5000, lossy, 1);
    assert!(lossy < clean * 4, "{clean:?} became {lossy:?}: {counters:?}");
    for flow in counters {
        // 5 of 100 blocks lose a packet on one of the four ways up or on our way down; each worker
        // repeats those, and few others.
        let repeated = flow.gap_retransmissions + flow.timer_retransmissions;
        assert!(repeated < flow.sent / 6, "{flow:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Invariants 1, 3 and 7 in one: exact sums, an end, and no block beyond the pool.
    #[test]
    fn every_network_below_total_loss_is_survived(
        workers in 1_u16..=5,
        blocks in 0_u64..300,
        loss in 0.0..0.4,
        duplicate in 0.0..0.3,
        delay_us_max in 0_u64..3000,
        seed: u64,
    ) {
        simulate(workers, blocks, Network { loss, duplicate, delay_us_max }, seed);
    }
}
