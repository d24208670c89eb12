//! The clock of the kernel programs, as this process reads it.
//!
//! A program's monotonic clock is the machine's. A process in a time namespace
//! (`time_namespaces(7)`: a container that was moved from another host) reads it shifted.

use std::fs;
use std::time::Duration;

use super::sys;

/// How far this process's monotonic clock is ahead of the machine's. A process with threads never
/// changes its time namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelClock {
    ahead_ns: i128,
}

impl KernelClock {
    /// As the kernel says it is. Kernels without time namespaces say nothing.
    pub(super) fn of_this_process() -> Self {
        let offsets = fs::read_to_string("/proc/self/timens_offsets");
        Self { ahead_ns: offsets.ok().and_then(|text| monotonic_of(&text)).unwrap_or(0) }
    }

    /// The time by which a kernel program stamps what it sees.
    pub(super) fn now(self) -> Duration {
        let here = sys::monotonic().as_nanos();
        let there = i128::try_from(here).unwrap_or(0) - self.ahead_ns;
        Duration::from_nanos(u64::try_from(there).unwrap_or(0))
    }
}

/// The line `monotonic SECONDS NANOSECONDS`.
fn monotonic_of(offsets: &str) -> Option<i128> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i128>);
    let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic      100000         7\nboottime            0         0\n";
        assert_eq!(monotonic_of(text), Some(100_000_000_000_007));
        let behind = "monotonic           -3 500000000\nboottime            0         0\n";
        assert_eq!(monotonic_of(behind), Some(-2_500_000_000));
        for other in ["", "boottime 1 2\n", "monotonic\n", "monotonic x 1\n"] {
            assert_eq!(monotonic_of(other), None, "{other}");
        }
    }
}
