//! How much of the machine's processors something took.

use std::fs;
use std::time::{Duration, Instant};

use crate::error::Error;

/// Processor time of the whole machine from a moment on, whoever used it: the network's own work
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
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn start() -> Result<Self, Error> {
        Ok(Self { start: Instant::now(), ticks: read()? })
    }

    /// What was used since [`CpuMeter::start`].
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
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

fn read() -> Result<Ticks, Error> {
    let text = fs::read_to_string("/proc/stat").map_err(Error::os("reading /proc/stat"))?;
    parse(&text).ok_or_else(|| Error::Config("/proc/stat does not begin as expected".into()))
}

/// First line: `cpu user nice system idle iowait irq softirq steal …`.
fn parse(text: &str) -> Option<Ticks> {
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let &[user, nice, system, _idle, _iowait, irq, softirq, ..] = &fields[..] else { return None };
    Some(Ticks { busy: user + nice + system + irq + softirq, softirq })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        let ticks = parse("cpu  1 2 3 100 200 4 5 1000 0 0\ncpu0 1 1 1 1\n").expect("it is whole");
        assert_eq!((ticks.busy, ticks.softirq), (15, 5));
        assert!(parse("cpu  1 2 3\n").is_none());
    }
}
