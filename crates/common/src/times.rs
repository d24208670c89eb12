//! How long blocks take, as a histogram that the kernel program can keep.

use core::hint::black_box;

/// Counts of durations, by powers of two. A count a CPU costs no lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(default))]
#[repr(C)]
pub struct Times {
    /// Durations below [`Self::bound`] of their index and of no smaller one; the last is for the
    /// rest.
    pub counts: [u64; Self::COUNT],
    /// The sum of all durations, in nanoseconds.
    pub nanos: u64,
}

impl Times {
    /// Number of counts: the last but one is for durations below 4.3 s.
    pub const COUNT: usize = 24;
    /// The first bound is this power of two in nanoseconds, about a microsecond.
    const FIRST: u32 = 10;

    /// The duration in nanoseconds that ends what is counted at `index`; None: it has no end.
    #[must_use]
    pub const fn bound(index: usize) -> Option<u64> {
        if index + 1 < Self::COUNT { Some(1 << (Self::FIRST as usize + index)) } else { None }
    }

    /// Counts a duration.
    #[inline(always)]
    pub fn note(&mut self, nanos: u64) {
        let bits = u64::BITS - (nanos >> Self::FIRST).leading_zeros();
        // The compiler knows how large it can be and would leave the check out. The verifier does
        // not know it.
        let index = black_box(bits.min(Self::COUNT as u32 - 1) as usize);
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
            self.nanos = self.nanos.wrapping_add(nanos);
        }
    }

    /// Adds the counts of another CPU.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.nanos = self.nanos.wrapping_add(other.nanos);
    }

    /// The counts since `base` was taken.
    #[must_use]
    pub fn since(&self, base: &Self) -> Self {
        let mut since = *self;
        for (count, before) in since.counts.iter_mut().zip(base.counts) {
            *count = count.saturating_sub(before);
        }
        since.nanos = self.nanos.saturating_sub(base.nanos);
        since
    }

    /// Durations that were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A duration in nanoseconds that `share` of all are not above, by even steps between two
    /// bounds. None: nothing was counted. What has no bound is taken for the largest bound.
    #[cfg(any(test, feature = "control"))]
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * total as f64;
        let (mut below, mut from) = (0_u64, 0_u64);
        for (index, count) in self.counts.into_iter().enumerate() {
            let Some(to) = Self::bound(index) else { break };
            if count > 0 && (below + count) as f64 >= wanted {
                let part = (wanted - below as f64).max(0.0) / count as f64;
                return Some(from as f64 + part * (to - from) as f64);
            }
            (below, from) = (below + count, to);
        }
        Some(from as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_below_its_bound_and_at_no_smaller_one() {
        for nanos in [0, 1, 1023, 1024, 1025, 2047, 2048, 999_999, (1 << 32) - 1, 1 << 32, u64::MAX]
        {
            let mut times = Times::default();
            times.note(nanos);
            let index = times.counts.iter().position(|count| *count == 1).expect("it is counted");
            assert_eq!((times.total(), times.nanos), (1, nanos));
            assert!(Times::bound(index).is_none_or(|bound| nanos < bound), "{nanos}: {index}");
            let before = index.checked_sub(1).and_then(Times::bound);
            assert!(before.is_none_or(|bound| nanos >= bound), "{nanos}: {index}");
        }
        assert_eq!((Times::bound(0), Times::bound(22)), (Some(1024), Some(1 << 32)));
        assert_eq!(Times::bound(Times::COUNT - 1), None);
    }

    #[test]
    fn quantiles_lie_between_the_bounds_of_their_count() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        (0..98).for_each(|_| times.note(3000));
        times.note(70_000);
        times.note(1 << 40);
        let half = times.quantile(0.5).expect("100 were counted");
        assert!((2048.0..4096.0).contains(&half), "{half}");
        let late = times.quantile(0.985).expect("100 were counted");
        assert!((65_536.0..131_072.0).contains(&late), "{late}");
        assert_eq!(times.quantile(1.0), Some((1_u64 << 32) as f64), "what has no bound");
        let first = times;
        (0..50).for_each(|_| times.note(600_000));
        let new = times.since(&first);
        assert_eq!((new.total(), new.nanos), (50, 30_000_000));
        let mut both = first;
        both.merge(&new);
        assert_eq!(both, times);
    }
}
