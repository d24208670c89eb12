//! How many blocks may be under way: additive increase, decrease by the share of lost blocks.
//!
//! Slow start, then one block more a round trip, as long as the smoothed share of lost blocks stays
//! below a tolerance. Above it the window shrinks once a round trip: by half of that share, and by
//! half of itself when more than a quarter was lost. So a congested queue halves it as in plain
//! AIMD, and a link that loses one packet in a hundred at random does not starve it (the idea of
//! BBR's loss threshold). Halving at every loss would hold the window near ten blocks at 1 % loss
//! on each of four links, whatever the rate: see `docs/performance.md`.
//!
//! A round trip with any loss also ends growth beyond a quarter of the pool's limit: the pool rule
//! stops a worker that is one limit ahead of its oldest missing block, and until that block is
//! found missing, repeated and answered, two to three round trips pass.

/// Smallest window in blocks.
const FLOOR: f64 = 8.0;
/// Share of lost blocks in one round trip that halves the window.
const HALVING_SHARE: f64 = 0.25;
/// Weight of the newest round trip in the smoothed share.
const GAIN: f64 = 0.25;

/// Smoothed share of lost blocks that does not count as congestion: 2 % on the way up and as much
/// on the way down.
const TOLERANCE: f64 = 0.04;

/// The window of one flow.
#[derive(Clone, Debug)]
pub struct Window {
    blocks: f64,
    slow_start_until: f64,
    limit: f64,
    lossy_limit: f64,
    /// Window at the start of the round trip.
    round: f64,
    results: u32,
    losses: u32,
    share: f64,
}

impl Window {
    /// A window of `initial` blocks that never exceeds `limit`, and after a loss not `lossy_limit`.
    #[must_use]
    pub fn new(initial: u32, limit: u32, lossy_limit: u32) -> Self {
        let limit = f64::from(limit.max(1));
        let blocks = f64::from(initial.max(1)).min(limit);
        Self {
            blocks,
            round: blocks,
            slow_start_until: limit,
            limit,
            lossy_limit: f64::from(lossy_limit).max(FLOOR).min(limit),
            results: 0,
            losses: 0,
            share: 0.0,
        }
    }

    /// Blocks that may be under way.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks as u32
    }

    /// A new result. `in_use`: blocks that were under way; an idle window does not grow.
    pub fn on_result(&mut self, in_use: u32) {
        self.results += 1;
        if f64::from(in_use) * 2.0 >= self.blocks {
            let step = if self.blocks < self.slow_start_until { 1.0 } else { 1.0 / self.blocks };
            self.blocks = (self.blocks + step).min(self.limit);
        }
        if f64::from(self.results + self.losses) >= self.round.floor() {
            self.end_round();
        }
    }

    /// So many more transmissions are taken for lost.
    pub fn on_losses(&mut self, count: u32) {
        self.losses += count;
    }

    /// One of them was not lost after all.
    pub fn on_acquittal(&mut self) {
        self.losses = self.losses.saturating_sub(1);
    }

    /// Nothing came back for a whole timeout.
    pub fn on_timeout(&mut self) {
        self.shrink(0.5);
    }

    fn end_round(&mut self) {
        let share = f64::from(self.losses) / f64::from(self.results + self.losses);
        self.share += GAIN * (share - self.share);
        if self.losses > 0 {
            self.blocks = self.blocks.min(self.lossy_limit);
            self.slow_start_until = self.slow_start_until.min(self.lossy_limit);
        }
        if share > HALVING_SHARE || self.losses > 0 && self.share > TOLERANCE {
            self.shrink(if share > HALVING_SHARE { 0.5 } else { self.share / 2.0 });
        }
        self.round = self.blocks;
        self.results = 0;
        self.losses = 0;
    }

    fn shrink(&mut self, by: f64) {
        self.blocks = (self.blocks * (1.0 - by)).max(FLOOR.min(self.limit));
        self.slow_start_until = self.blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(window: &mut Window, losses: u32) {
        let blocks = window.blocks();
        window.on_losses(losses);
        for _ in 0..blocks - losses {
            window.on_result(blocks);
        }
    }

    #[test]
    fn it_doubles_then_grows_by_one_and_stops_at_the_limit() {
        let mut window = Window::new(10, 100, 100);
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
        let mut window = Window::new(100, 100, 100);
        round(&mut window, 40);
        assert!((48..=52).contains(&window.blocks()), "{}", window.blocks());
        // 1 % on each way: it grows. A fifth: it shrinks, but not to nothing.
        let mut window = Window::new(100, 1000, 1000);
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
            window.on_timeout();
        }
        assert_eq!(window.blocks(), 8);
    }

    #[test]
    fn any_loss_ends_growth_beyond_the_lossy_limit() {
        let mut window = Window::new(100, 1000, 250);
        for _ in 0..5 {
            round(&mut window, 0);
        }
        assert_eq!(window.blocks(), 1000);
        round(&mut window, 1);
        assert_eq!(window.blocks(), 250);
        round(&mut window, 0);
        assert!((250..=252).contains(&window.blocks()), "{}", window.blocks());
    }

    #[test]
    fn an_idle_window_does_not_grow() {
        let mut window = Window::new(32, 1000, 250);
        for _ in 0..1000 {
            window.on_result(3);
        }
        assert_eq!(window.blocks(), 32);
    }
}
