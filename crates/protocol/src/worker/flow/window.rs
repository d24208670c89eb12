//! How many blocks may be under way: additive increase, decrease by the share of lost blocks.
//!
//! Slow start, then one block more a round trip, as long as the smoothed share of lost blocks stays
//! below a tolerance. Above it the window shrinks once a round trip: by half of that share, and by
//! half of itself when more than a quarter was lost. So a congested queue halves it as in plain
//! AIMD. A link that loses one packet in a hundred at random does not starve it (the idea of BBR's
//! loss threshold). Halving at every loss would hold the window near ten blocks at 1 % loss on each
//! of four links, whatever the rate: see `docs/performance.md`.
//!
//! Packets in queues help nobody. Where a vector's parts go to several aggregators, a long queue
//! before one keeps the others' results from this worker, and links elsewhere run dry. The time of
//! a trip beyond the shortest one ever is taken for queues. Slow start pauses while that time is
//! more than half of [`LONGEST_QUEUE`]. The window shrinks when even the shortest trip of the round
//! has more than [`LONGEST_QUEUE`] in queues: once a round trip, and by half at most. (Swift and
//! LEDBAT, RFC 6817, have such delay targets.) The shortest one counts, because most trips wait for
//! another worker, too. A round in which all did costs half of the window once, and slow start
//! brings it back.
//!
//! A round trip with any loss also ends growth beyond a quarter of the pool's limit. The pool rule
//! stops a worker that is one limit ahead of its oldest missing block. Two to three round trips
//! pass until that block is found missing, repeated and answered.
//!
//! All this is [`Congestion::Tolerant`]. [`Congestion::Aimd`] is TCP Reno's rule (RFC 5681) and
//! nothing else: one block more a round trip, and half as many after a loss, once for what was
//! under way then. It looks at no delay, so it fills queues until they overflow as TCP does.

use std::collections::VecDeque;
use std::time::Duration;

/// Smallest window in blocks.
const FLOOR: f64 = 8.0;
/// The same of [`Congestion::Aimd`], which RFC 5681 (section 3.1) has as two segments.
const AIMD_FLOOR: f64 = 2.0;
/// Share of lost blocks in one round trip that halves the window.
const HALVING_SHARE: f64 = 0.25;
/// Weight of the newest round trip in the smoothed share.
const GAIN: f64 = 0.25;

/// Smoothed share of lost blocks that does not count as congestion: 2 % on the way up and as much
/// on the way down.
const TOLERANCE: f64 = 0.04;

/// Queues up to this long are left alone: ordinary switches hold a millisecond or less, the rest is
/// what processes wait for a processor.
const LONGEST_QUEUE: Duration = Duration::from_millis(20);

/// Trips that tell together how long the queues are now.
const SPAN: usize = 8;

/// What makes a window smaller. Workers of one job may differ in it: each has windows of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// A share of losses beyond what links lose at random, and queues beyond 20 ms.
    #[default]
    Tolerant,
    /// Any loss, by half: strict additive increase, multiplicative decrease (paper 3, section
    /// IV-C1; RFC 5681).
    Aimd,
}

impl Congestion {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Tolerant, Self::Aimd];

    /// What settings call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tolerant => "tolerant",
            Self::Aimd => "aimd",
        }
    }

    const fn floor(self) -> f64 {
        match self {
            Self::Tolerant => FLOOR,
            Self::Aimd => AIMD_FLOOR,
        }
    }
}

/// The window of one flow.
#[derive(Clone, Debug)]
pub struct Window {
    congestion: Congestion,
    blocks: f64,
    slow_start_until: f64,
    limit: f64,
    lossy_limit: f64,
    /// Window at the start of the round trip.
    round: f64,
    /// With [`Congestion::Aimd`]: the window was halved for a loss of this round trip.
    halved: bool,
    results: u32,
    losses: u32,
    share: f64,
    /// Shortest trip of this round, of the latest [`SPAN`], and of all.
    shortest: Option<Duration>,
    latest: VecDeque<Duration>,
    shortest_ever: Option<Duration>,
    /// Size and end of slow start before the latest timeouts in a row.
    before_timeout: Option<(f64, f64)>,
}

impl Window {
    /// A window of `initial` blocks that never exceeds `limit`, and after a loss not `lossy_limit`.
    #[must_use]
    pub fn new(congestion: Congestion, initial: u32, limit: u32, lossy_limit: u32) -> Self {
        let limit = f64::from(limit.max(1));
        let blocks = f64::from(initial.max(1)).min(limit);
        Self {
            congestion,
            blocks,
            round: blocks,
            halved: false,
            slow_start_until: limit,
            limit,
            lossy_limit: f64::from(lossy_limit).max(congestion.floor()).min(limit),
            results: 0,
            losses: 0,
            share: 0.0,
            shortest: None,
            latest: VecDeque::with_capacity(SPAN),
            shortest_ever: None,
            before_timeout: None,
        }
    }

    /// Blocks that may be under way.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks as u32
    }

    /// The trip of a block that was sent once; before [`Self::handle_result`].
    pub fn handle_trip(&mut self, trip: Duration) {
        let least = |shortest: Option<Duration>| shortest.map_or(trip, |other| other.min(trip));
        self.shortest = Some(least(self.shortest));
        self.shortest_ever = Some(least(self.shortest_ever));
        if self.latest.len() == SPAN {
            self.latest.pop_front();
        }
        self.latest.push_back(trip);
    }

    /// A new result. `in_use`: blocks that were under way; an idle window does not grow.
    pub fn handle_result(&mut self, in_use: u32) {
        self.results += 1;
        if f64::from(in_use) * 2.0 >= self.blocks {
            let slow_start = self.blocks < self.slow_start_until && !self.queues_grow();
            let step = if slow_start { 1.0 } else { 1.0 / self.blocks };
            self.blocks = (self.blocks + step).min(self.limit);
        }
        if f64::from(self.results + self.losses) >= self.round.floor() {
            self.end_round();
        }
    }

    /// `count` more transmissions are taken for lost.
    pub fn handle_losses(&mut self, count: u32) {
        self.losses += count;
        if self.congestion == Congestion::Aimd && count > 0 && !self.halved {
            // What is under way now is one round trip more, whose losses are of the same event.
            self.halved = true;
            self.round = self.blocks;
            self.results = 0;
            self.losses = 0;
            self.shrink(0.5);
        }
    }

    /// One of them was not lost after all.
    pub fn handle_acquittal(&mut self) {
        self.losses = self.losses.saturating_sub(1);
    }

    /// Nothing came back for a whole timeout.
    pub fn handle_timeout(&mut self) {
        self.before_timeout.get_or_insert((self.blocks, self.slow_start_until));
        self.shrink(0.5);
    }

    /// The latest timeouts were right: what they took stays taken.
    pub fn confirm_timeout(&mut self) {
        self.before_timeout = None;
    }

    /// The latest timeouts were wrong, nothing had been lost: gives back what they took (as the
    /// Eifel response, RFC 4015).
    pub fn undo_timeout(&mut self) {
        if let Some((blocks, slow_start_until)) = self.before_timeout.take() {
            self.blocks = self.blocks.max(blocks);
            self.slow_start_until = self.slow_start_until.max(slow_start_until);
        }
    }

    fn end_round(&mut self) {
        match self.congestion {
            Congestion::Tolerant => self.weigh_round(),
            Congestion::Aimd => self.halved = false,
        }
        self.shortest = None;
        self.round = self.blocks;
        self.results = 0;
        self.losses = 0;
    }

    /// The end of a round trip of [`Congestion::Tolerant`].
    fn weigh_round(&mut self) {
        let share = f64::from(self.losses) / f64::from(self.results + self.losses);
        self.share += GAIN * (share - self.share);
        if self.losses > 0 {
            self.blocks = self.blocks.min(self.lossy_limit);
            self.slow_start_until = self.slow_start_until.min(self.lossy_limit);
        }
        if share > HALVING_SHARE || self.losses > 0 && self.share > TOLERANCE {
            self.shrink(if share > HALVING_SHARE { 0.5 } else { self.share / 2.0 });
        }
        if let Some(excess) = self.queueing() {
            self.blocks = (self.blocks / excess.min(2.0)).max(FLOOR.min(self.limit));
        }
    }

    /// By how much even the shortest trip of the round was too long, if it was.
    fn queueing(&self) -> Option<f64> {
        let excess = self.shortest?.as_secs_f64() / self.trip_with(LONGEST_QUEUE).as_secs_f64();
        (excess > 1.0).then_some(excess)
    }

    fn queues_grow(&self) -> bool {
        self.congestion == Congestion::Tolerant && self.queue_is_half_full()
    }

    fn queue_is_half_full(&self) -> bool {
        self.latest.iter().min().is_some_and(|trip| *trip > self.trip_with(LONGEST_QUEUE / 2))
    }

    /// How long a trip along the path takes with such queues.
    fn trip_with(&self, queues: Duration) -> Duration {
        self.shortest_ever.unwrap_or_default() + queues
    }

    fn shrink(&mut self, by: f64) {
        self.blocks = (self.blocks * (1.0 - by)).max(self.congestion.floor().min(self.limit));
        self.slow_start_until = self.blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerant(initial: u32, limit: u32, lossy_limit: u32) -> Window {
        Window::new(Congestion::Tolerant, initial, limit, lossy_limit)
    }

    fn aimd(initial: u32) -> Window {
        Window::new(Congestion::Aimd, initial, 1000, 250)
    }

    /// A saw-tooth: half after a loss, however many blocks it took, then one block a round trip.
    #[test]
    fn aimd_halves_once_a_round_trip_and_adds_one() {
        let mut window = aimd(64);
        window.handle_losses(1);
        assert_eq!(window.blocks(), 32);
        // What was under way at that time: its other losses are of the same event.
        window.handle_losses(5);
        for _ in 0..40 {
            window.handle_result(32);
        }
        window.handle_losses(3);
        assert!((32..=34).contains(&window.blocks()), "{}", window.blocks());
        for _ in 0..16 {
            window.handle_result(32);
        }
        let before = window.blocks();
        for _ in 0..10 {
            round(&mut window, 0);
        }
        assert!((9..=11).contains(&(window.blocks() - before)), "{}", window.blocks());
        // The next event halves it again.
        let before = window.blocks();
        window.handle_losses(1);
        assert_eq!(window.blocks(), before / 2);
    }

    /// The share of losses does not matter: one in a hundred holds the window near `sqrt(2/p)`
    /// blocks, where the tolerant one grows.
    #[test]
    fn aimd_follows_the_square_root_law() {
        let mut window = aimd(100);
        let mut blocks_sum = 0.0;
        for packet in 0..40_000_u32 {
            let blocks = window.blocks();
            if packet % 100 == 99 {
                window.handle_losses(1)
            } else {
                window.handle_result(blocks)
            }
            blocks_sum += f64::from(blocks);
        }
        // Packets, not round trips, are averaged over: a little more than 3/4 of the peak.
        let mean = blocks_sum / 40_000.0;
        assert!((9.0..18.0).contains(&mean), "{mean}");
    }

    #[test]
    fn aimd_looks_at_no_queue_and_keeps_two_blocks() {
        let mut window = aimd(100);
        window.handle_trip(LONGEST_QUEUE / 100);
        assert_eq!(rounds(&mut window, LONGEST_QUEUE * 9, 2), [200, 400]);
        for _ in 0..20 {
            window.handle_timeout();
        }
        assert_eq!(window.blocks(), 2);
    }

    fn round(window: &mut Window, losses: u32) {
        let blocks = window.blocks();
        window.handle_losses(losses);
        for _ in 0..blocks - losses {
            window.handle_result(blocks);
        }
    }

    #[test]
    fn it_doubles_then_grows_by_one_and_stops_at_the_limit() {
        let mut window = tolerant(10, 100, 100);
        round(&mut window, 0);
        assert_eq!(window.blocks(), 20);
        round(&mut window, 4); // a fifth lost: it leaves slow start
        let after = window.blocks();
        assert!((30..36).contains(&after), "{after}");
        for _ in 0..20 {
            round(&mut window, 0);
        }
        let grown = window.blocks() - after;
        assert!((18..=22).contains(&grown), "{grown}");
        for _ in 0..200 {
            round(&mut window, 0);
        }
        assert_eq!(window.blocks(), 100);
    }

    #[test]
    fn heavy_loss_halves_and_light_loss_does_not_starve() {
        let mut window = tolerant(100, 100, 100);
        round(&mut window, 40);
        assert!((48..=52).contains(&window.blocks()), "{}", window.blocks());
        // 1 % on each way: it grows. A fifth: it shrinks, but not to nothing.
        let mut window = tolerant(100, 1000, 1000);
        for _ in 0..500 {
            let losses = window.blocks() / 50;
            round(&mut window, losses);
        }
        assert!(window.blocks() > 500, "{}", window.blocks());
        for _ in 0..500 {
            let losses = window.blocks() / 5;
            round(&mut window, losses);
        }
        assert!((8..50).contains(&window.blocks()), "{}", window.blocks());
        for _ in 0..100 {
            window.handle_timeout();
        }
        assert_eq!(window.blocks(), 8);
    }

    #[test]
    fn any_loss_ends_growth_beyond_the_lossy_limit() {
        let mut window = tolerant(100, 1000, 250);
        for _ in 0..5 {
            round(&mut window, 0);
        }
        assert_eq!(window.blocks(), 1000);
        round(&mut window, 1);
        assert_eq!(window.blocks(), 250);
        round(&mut window, 0);
        assert!((250..=252).contains(&window.blocks()), "{}", window.blocks());
    }

    /// `count` rounds whose trips all take `trip`; the window at the end of each.
    fn rounds(window: &mut Window, trip: Duration, count: usize) -> Vec<u32> {
        let one = |_| {
            let blocks = window.blocks();
            for _ in 0..blocks {
                window.handle_trip(trip);
                window.handle_result(blocks);
            }
            window.blocks()
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn long_queues_shrink_it_and_slow_start_brings_it_back() {
        let (short, long) = (LONGEST_QUEUE / 100, LONGEST_QUEUE * 3);
        let mut window = tolerant(100, 1000, 1000);
        assert_eq!(rounds(&mut window, short, 2), [200, 400]);
        // A first round that began with short queues, then half of it each.
        let shrunk = rounds(&mut window, long, 3);
        assert!(shrunk[2] < 60, "{shrunk:?}");
        assert!(rounds(&mut window, long, 10).iter().all(|blocks| *blocks >= 8));
        let back = rounds(&mut window, short, 7);
        assert!(back[6] > 900, "{back:?}");
        // One trip of a round that did not wait for another worker is enough.
        let before = window.blocks();
        window.handle_trip(short);
        rounds(&mut window, long, 1);
        assert!(window.blocks() >= before, "{} of {before}", window.blocks());
    }

    #[test]
    fn slow_start_pauses_while_queues_grow() {
        let mut window = tolerant(100, 1000, 1000);
        window.handle_trip(LONGEST_QUEUE / 100);
        let paused = rounds(&mut window, LONGEST_QUEUE * 3 / 4, 4);
        assert!(paused[3] < 120, "{paused:?}");
        assert!(rounds(&mut window, LONGEST_QUEUE / 4, 1)[0] > 200);
    }

    #[test]
    fn a_long_path_is_no_queue() {
        let mut window = tolerant(100, 1000, 1000);
        assert_eq!(rounds(&mut window, LONGEST_QUEUE * 9, 2), [200, 400]);
        // Nor is what its trips vary by.
        let mut window = tolerant(100, 1000, 1000);
        window.handle_trip(LONGEST_QUEUE);
        assert_eq!(rounds(&mut window, LONGEST_QUEUE * 5 / 4, 2), [200, 400]);
    }

    #[test]
    fn a_wrong_timeout_is_undone() {
        let mut window = tolerant(100, 1000, 1000);
        window.handle_timeout();
        window.handle_timeout();
        assert_eq!(window.blocks(), 25);
        window.undo_timeout();
        assert_eq!(window.blocks(), 100);
        window.handle_timeout();
        window.confirm_timeout();
        window.undo_timeout();
        assert_eq!(window.blocks(), 50);
    }

    #[test]
    fn an_idle_window_does_not_grow() {
        let mut window = tolerant(32, 1000, 250);
        for _ in 0..1000 {
            window.handle_result(3);
        }
        assert_eq!(window.blocks(), 32);
    }
}
