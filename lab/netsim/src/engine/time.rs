//! An order on seconds and rates.

use std::cmp::Ordering;

/// Seconds, or another number that is never NaN, with a total order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) f64);

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
