//! Virtual time: nanoseconds since the start of a run, and the queue of what happens when.

use std::collections::BTreeMap;
use std::time::Duration;

/// A moment or a span of virtual time, in nanoseconds.
pub(crate) type Nanos = u64;

/// A microsecond.
pub(crate) const MICRO: Nanos = 1_000;
/// A millisecond.
pub(crate) const MILLI: Nanos = 1_000_000;
/// A second.
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// As the state machines want it.
pub(crate) const fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

/// As the simulation wants it.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What happens when: by time, and what was queued first comes first at the same time.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    events: BTreeMap<(Nanos, u64), T>,
    count: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { events: BTreeMap::new(), count: 0 }
    }

    pub(crate) fn push(&mut self, at: Nanos, event: T) {
        self.events.insert((at, self.count), event);
        self.count += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, T)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_in_order() {
        let mut queue = Queue::new();
        for (at, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            queue.push(at, name);
        }
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, name)| name)).collect();
        assert_eq!(order, "abcde");
    }
}
