//! Round-trip estimate and retransmission timeout (RFC 6298), with a floor for data-centre trips.

use std::time::Duration;

/// Estimator of RFC 6298, section 2.
#[derive(Clone, Debug)]
pub struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    min: Duration,
    max: Duration,
}

impl Rtt {
    /// An estimator without samples; timeouts stay between `min` and `max`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { smoothed: None, variation: Duration::ZERO, min, max }
    }

    /// A transmission's result came this much later.
    pub fn sample(&mut self, trip: Duration) {
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(trip);
            self.variation = trip / 2;
            return;
        };
        let off = smoothed.abs_diff(trip);
        self.variation = self.variation * 3 / 4 + off / 4;
        self.smoothed = Some(smoothed * 7 / 8 + trip / 8);
    }

    /// The smoothed round-trip time.
    #[must_use]
    pub const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How long a trip takes at most, unless something is wrong: the smoothed time and twice its
    /// variation. Zero before the first sample.
    #[must_use]
    pub fn usual_longest(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |smoothed| smoothed + self.variation * 3)
    }

    /// The timeout after `backoff` expiries in a row: the smoothed time and four times its
    /// variation, or the floor where that is more (rule 2.3's clock granularity). Trips along a
    /// path that is long and even vary by nothing, until a process waits for a processor.
    ///
    /// Before the first sample: 20 times the floor, because a worker's first result waits for the
    /// slowest worker's start.
    #[must_use]
    pub fn timeout(&self, backoff: u32) -> Duration {
        let base = match self.smoothed {
            Some(smoothed) => smoothed + self.min.max(self.variation * 4),
            None => self.min * 20,
        };
        base.max(self.min).saturating_mul(1 << backoff.min(16)).min(self.max)
    }
}

/// The shortest of the latest trips: between [`Shortest::SPAN`] and twice as many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortest {
    /// Of the span before this one.
    before: Option<Duration>,
    /// Of this span, and how many trips are in it.
    now: Option<Duration>,
    count: u32,
}

impl Shortest {
    const SPAN: u32 = 64;

    /// Takes in a trip; the shortest, with it.
    pub(super) fn with(&mut self, trip: Duration) -> Duration {
        if self.count == Self::SPAN {
            *self = Self { before: self.now, now: None, count: 0 };
        }
        let now = self.now.map_or(trip, |now| now.min(trip));
        self.now = Some(now);
        self.count += 1;
        self.before.map_or(now, |before| before.min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timeouts_follow_the_trips_and_back_off() {
        let mut rtt = Rtt::new(MS, MS * 500);
        assert_eq!(rtt.timeout(0), MS * 20);
        rtt.sample(MS * 4);
        assert_eq!(rtt.timeout(0), MS * 12); // RFC 6298 (2.2): R + 4 * R/2
        for _ in 0..100 {
            rtt.sample(MS * 4);
        }
        assert_eq!(rtt.timeout(0).as_millis(), 5); // not at once after an even trip's time
        assert_eq!(rtt.timeout(1), rtt.timeout(0) * 2);
        assert_eq!(rtt.timeout(60), MS * 500);
        for _ in 0..100 {
            rtt.sample(Duration::from_micros(50));
        }
        assert!((MS..MS * 11 / 10).contains(&rtt.timeout(0)));
    }
}
