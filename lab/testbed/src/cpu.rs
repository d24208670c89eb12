//! How much of the machine's processors something took.

use std::io;
use std::time::{Duration, Instant};

use procfs::{CurrentSI, KernelStats};

use crate::error::Error;

/// Processor time of the whole machine from a moment on, whatever used it: the network's own work
/// happens in interrupts and belongs to no process.
#[derive(Debug)]
pub struct CpuMeter {
    start: Instant,
    ticks: Ticks,
}

/// What the processors did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTime {
    /// Time that passed.
    pub wall: Duration,
    /// Time that processors were busy, summed over all of them.
    pub busy: Duration,
    /// The part of it in soft interrupts, where packets are handled.
    pub softirq: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Ticks {
    busy: u64,
    softirq: u64,
}

impl CpuMeter {
    /// Starts to measure.
    pub fn start() -> Result<Self, Error> {
        Ok(Self { start: Instant::now(), ticks: read()? })
    }

    /// What was used since [`CpuMeter::start`].
    pub fn elapsed(&self) -> Result<CpuTime, Error> {
        let now = read()?;
        // The kernel shows hundredths of seconds on every architecture that this runs on.
        let time = |ticks: u64| Duration::from_millis(ticks * 10);
        Ok(CpuTime {
            wall: self.start.elapsed(),
            busy: time(now.busy.saturating_sub(self.ticks.busy)),
            softirq: time(now.softirq.saturating_sub(self.ticks.softirq)),
        })
    }
}

/// Idle and stolen time is not busy.
fn read() -> Result<Ticks, Error> {
    let stat = KernelStats::current().map_err(io::Error::other);
    let total = stat.map_err(Error::os("reading /proc/stat"))?.total;
    let softirq = total.softirq.unwrap_or(0);
    let busy = total.user + total.nice + total.system + total.irq.unwrap_or(0) + softirq;
    Ok(Ticks { busy, softirq })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_was_busy_since_the_start_of_the_machine() {
        let Ticks { busy, softirq } = read().expect("Linux");
        assert!(busy > softirq);
    }
}
