//! How much of something there may be in a time: arithmetic without clocks.

use std::time::{Duration, Instant};

/// `rate` a second, and `burst` at once.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// How many a second.
    pub rate: u32,
    /// How many at once.
    pub burst: u32,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    allowance: Allowance,
    /// When it is full (again). Everything taken moves this on.
    full: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub const fn new(allowance: Allowance, now: Instant) -> Self {
        Self { allowance, full: now }
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let Allowance { rate, burst } = self.allowance;
        let one = Duration::from_secs(1) / rate;
        let full = self.full.max(now) + one;
        let allowed = full - now <= one * burst;
        if allowed {
            self.full = full;
        }
        allowed
    }

    /// Whether it has its whole burst (again).
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full <= now
    }
}

/// Lets some lines of a flood through.
#[derive(Debug)]
pub struct Lines {
    bucket: Bucket,
    left_out: u64,
}

impl Lines {
    /// None was left out yet.
    #[must_use]
    pub const fn new(allowance: Allowance, now: Instant) -> Self {
        Self { bucket: Bucket::new(allowance, now), left_out: 0 }
    }

    /// Whether to write a line now, and how many were left out before it.
    pub fn write(&mut self, now: Instant) -> Option<u64> {
        if self.bucket.take(now) {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }

    /// How many were left out since the last line, if no flood hides them any more.
    pub fn rest(&mut self, now: Instant) -> Option<u64> {
        let told = self.left_out > 0 && self.bucket.take(now);
        told.then(|| std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Allowance { rate: 10, burst: 5 }, start);
        let mut taken =
            |at: Duration, tries: u32| (0..tries).filter(|_| bucket.take(start + at)).count();
        assert_eq!(taken(Duration::ZERO, 100), 5);
        assert_eq!(taken(Duration::from_millis(99), 100), 0);
        assert_eq!(taken(Duration::from_millis(100), 100), 1);
        assert_eq!(taken(Duration::from_millis(450), 100), 3);
        assert_eq!(taken(Duration::from_secs(3600), 100), 5);
    }

    #[test]
    fn a_flood_of_lines_is_summed_up() {
        let start = Instant::now();
        let mut lines = Lines::new(Allowance { rate: 2, burst: 20 }, start);
        let written = (0..1000).filter(|_| lines.write(start) == Some(0)).count();
        assert_eq!(written, 20);
        assert_eq!(lines.rest(start), None);
        let later = start + Duration::from_secs(1);
        assert_eq!(lines.rest(later), Some(980));
        assert_eq!((lines.rest(later), lines.write(later)), (None, Some(0)));
    }
}
