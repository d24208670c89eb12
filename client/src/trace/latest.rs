//! The latest of something, in memory of a fixed size.

/// Calls that a flight recording has of each aggregator, and of the workers' own connections.
pub(super) const KEPT: usize = 1000;

/// The latest of something.
#[derive(Debug)]
pub(super) struct Latest<T> {
    kept: Vec<T>,
    next: usize,
}

impl<T: Copy> Latest<T> {
    pub(super) fn new() -> Self {
        // The memory is the system's until it is written to.
        Self { kept: Vec::with_capacity(KEPT), next: 0 }
    }

    pub(super) fn push(&mut self, one: T) {
        if self.kept.len() < KEPT {
            self.kept.push(one);
        } else {
            self.kept[self.next] = one;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// All of them, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let first = if self.kept.len() < KEPT { 0 } else { self.next };
        let (late, early) = self.kept.split_at(first);
        early.iter().chain(late)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_latest_are_kept_in_order() {
        let mut latest = Latest::new();
        let room = latest.kept.capacity();
        for number in 0..2 * KEPT + 7 {
            latest.push(number);
            let first = (number + 1).saturating_sub(KEPT);
            if number % 97 == 0 {
                assert!(latest.iter().copied().eq(first..=number), "{number}");
            }
        }
        assert_eq!(latest.kept.capacity(), room, "its memory has a fixed size");
    }

    /// Prints what it costs to keep a record: `cargo test -p xdp-agg-client --lib costs --
    /// --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn what_a_record_costs() {
        let mut latest = Latest::new();
        let record = [7_u64; size_of::<xdp_agg_protocol::worker::Record>() / 8];
        let count = 10_000_000_u32;
        let start = Instant::now();
        for _ in 0..count {
            latest.push(std::hint::black_box(record));
        }
        std::hint::black_box(&latest);
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(count);
        println!("{each:.1} ns to keep a record of {} bytes", size_of_val(&record));
    }
}
