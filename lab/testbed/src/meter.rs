//! Did the links keep their rate? Counted, not believed.
//!
//! XDP sends past queueing disciplines, so a shaper on a link proves nothing by being there. A
//! [`LinkMeter`] compares what the shaper let through and what the far end received with what the
//! rate allows. It does so for each direction of each link and over every window between samples.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::qdisc::Shape;
use crate::topology::{Direction, End, Topology};

/// Time between samples.
const INTERVAL: Duration = Duration::from_millis(50);
/// Shortest window of a peak rate: in a shorter one the burst would be most of it.
const PEAK_WINDOW: Duration = Duration::from_millis(200);
/// What a rate may be exceeded by: the kernel rounds the time that a byte takes.
const TOLERANCE: f64 = 0.002;
/// What the far end may count that the shaper has not, in bytes: super-packets that were on their
/// way between the two when the measurement began.
const IN_FLIGHT: u64 = 128 << 10;

/// What one direction of one link carried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkReport {
    /// Number of the link (see [`Topology::link_count`]).
    pub link: usize,
    /// Which way.
    pub direction: Direction,
    /// The rate that it was measured against, in bits a second.
    pub rate: u64,
    /// The burst that it was measured against, in bytes.
    pub burst: u32,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Bytes that went through the shaper, every segment with its headers.
    pub bytes: u64,
    /// Packets that went through the shaper.
    pub packets: u64,
    /// Packets that the shaper dropped because its queue was full.
    pub drops: u64,
    /// Bytes that the interface behind the shaper received, as its driver counts: a super-packet
    /// has one set of headers. If this is more than `bytes`, something went around the shaper.
    pub received: u64,
    /// Bits a second over the whole measurement, the larger of shaper and receiver.
    pub mean_bps: f64,
    /// The same over the busiest window of 200 ms or more.
    pub peak_bps: f64,
    /// Bytes beyond what rate and burst allow, in the worst window of any length; 0 if none.
    pub excess: u64,
    /// Bytes that went around the shaper; 0 if none.
    pub bypassed: u64,
    /// True if the link kept to its rate: no `excess` (with a tolerance of 0.2 % of the rate), and
    /// nothing `bypassed`.
    pub kept: bool,
}

impl std::fmt::Display for LinkReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { link, direction, bytes, drops, excess, bypassed, .. } = self;
        write!(
            f,
            "link {link} {direction:?}: {bytes} bytes, {:.1} Mbit/s (peak {:.1}) of {:.1}, \
             {drops} drops, {}",
            self.mean_bps / 1e6,
            self.peak_bps / 1e6,
            self.rate as f64 / 1e6,
            if self.kept {
                "kept".to_owned()
            } else {
                format!("NOT kept: {excess} bytes too many, {bypassed} past the shaper")
            }
        )
    }
}

/// Samples the counters of all links until it is stopped.
#[derive(Debug)]
pub struct LinkMeter<'a> {
    /// The network must stay for as long as it is measured.
    topology: &'a Topology,
    /// None: each link's own.
    shape: Option<Shape>,
    /// Dropped to stop the sampler.
    stop: Option<Sender<()>>,
    sampler: Option<JoinHandle<Result<Vec<Sample>, Error>>>,
}

/// Counters of all probes at some moment between two.
#[derive(Debug)]
struct Sample {
    before: Instant,
    after: Instant,
    readings: Vec<Reading>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    bytes: u64,
    packets: u64,
    drops: u64,
    received: u64,
}

impl<'a> LinkMeter<'a> {
    pub(crate) fn start(topology: &'a Topology, shape: Option<Shape>) -> Result<Self, Error> {
        let plan = Plan::new(topology);
        let first = plan.sample(&[Counter::Queue, Counter::Receiver])?;
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut samples = vec![first];
            loop {
                let end = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                samples.push(plan.sample(&[Counter::Receiver, Counter::Queue])?);
                if end {
                    return Ok(samples);
                }
            }
        };
        let sampler = thread::Builder::new()
            .name("link meter".into())
            .spawn(work)
            .map_err(Error::os("starting a thread"))?;
        Ok(Self { topology, shape, stop: Some(stop), sampler: Some(sampler) })
    }

    /// Ends the measurement: a report for each link and direction, in this order.
    ///
    /// # Errors
    /// Counters could not be read meanwhile.
    pub fn finish(mut self) -> Result<Vec<LinkReport>, Error> {
        let samples = self.end()?;
        let mut reports = Vec::new();
        for link in 0..self.topology.link_count() {
            for (i, direction) in Direction::BOTH.into_iter().enumerate() {
                let series = Series::new(&samples, 2 * link + i);
                let own = self.topology.links()[link].shape;
                let Some(shape) = self.shape.or(own) else { continue };
                reports.push(series.report(link, direction, &shape));
            }
        }
        Ok(reports)
    }

    fn end(&mut self) -> Result<Vec<Sample>, Error> {
        drop(self.stop.take());
        let lost = || Error::Config("the link meter has ended before".into());
        self.sampler.take().ok_or_else(lost)?.join().map_err(|_| lost())?
    }
}

impl Drop for LinkMeter<'_> {
    fn drop(&mut self) {
        if self.sampler.is_some() {
            // A caller that drops a meter does not want its result.
            let _ = self.end();
        }
    }
}

/// Which counters to read, grouped by namespace: one request reads all of a namespace's.
struct Plan {
    count: usize,
    queues: Vec<(Namespace, Vec<(u32, usize)>)>,
    receivers: Vec<(Namespace, Vec<(u32, usize)>)>,
}

impl Plan {
    fn new(topology: &Topology) -> Self {
        let mut plan = Self { count: 0, queues: Vec::new(), receivers: Vec::new() };
        for link in topology.links() {
            for direction in Direction::BOTH {
                let place = plan.count;
                plan.count += 1;
                insert(&mut plan.queues, link.shaper(direction), place);
                insert(&mut plan.receivers, link.behind_shaper(direction), place);
            }
        }
        plan
    }

    /// Reads all counters in this order. The first sample begins with the queues and the later ones
    /// with the receivers, so that what passes between two readings never looks like a bypass.
    fn sample(&self, order: &[Counter]) -> Result<Sample, Error> {
        let before = Instant::now();
        let mut readings = vec![Reading::default(); self.count];
        for counter in order {
            match counter {
                Counter::Queue => self.read_queues(&mut readings)?,
                Counter::Receiver => self.read_receivers(&mut readings)?,
            }
        }
        Ok(Sample { before, after: Instant::now(), readings })
    }

    fn read_queues(&self, readings: &mut [Reading]) -> Result<(), Error> {
        for (namespace, places) in &self.queues {
            let all: HashMap<_, _> = namespace.netlink().queue_counters()?.into_iter().collect();
            for (index, place) in places {
                if let Some(counters) = all.get(index) {
                    readings[*place].bytes = counters.bytes;
                    readings[*place].packets = counters.packets;
                    readings[*place].drops = counters.drops;
                }
            }
        }
        Ok(())
    }

    fn read_receivers(&self, readings: &mut [Reading]) -> Result<(), Error> {
        for (namespace, places) in &self.receivers {
            let all: HashMap<_, _> = namespace.netlink().counters()?.into_iter().collect();
            for (index, place) in places {
                if let Some(counters) = all.get(index) {
                    readings[*place].received = counters.rx_bytes;
                }
            }
        }
        Ok(())
    }
}

/// Which of the two counters of a direction.
#[derive(Clone, Copy, Debug)]
enum Counter {
    Queue,
    Receiver,
}

fn insert(groups: &mut Vec<(Namespace, Vec<(u32, usize)>)>, end: &End, place: usize) {
    let group = groups.iter().position(|(namespace, _)| namespace.same(&end.namespace));
    let group = group.unwrap_or_else(|| {
        groups.push((end.namespace.clone(), Vec::new()));
        groups.len() - 1
    });
    groups[group].1.push((end.index, place));
}

/// The samples of one direction of one link: times in seconds, counters from 0.
struct Series {
    /// When the counters of a sample were read, at the earliest and at the latest.
    times: Vec<(f64, f64)>,
    readings: Vec<Reading>,
}

impl Series {
    fn new(samples: &[Sample], place: usize) -> Self {
        let start = samples[0].before;
        let base = samples[0].readings[place];
        let seconds = |time: Instant| time.duration_since(start).as_secs_f64();
        let times = samples.iter().map(|s| (seconds(s.before), seconds(s.after))).collect();
        let readings = samples.iter().map(|sample| {
            let now = sample.readings[place];
            Reading {
                bytes: now.bytes.saturating_sub(base.bytes),
                packets: now.packets.saturating_sub(base.packets),
                drops: now.drops.saturating_sub(base.drops),
                received: now.received.saturating_sub(base.received),
            }
        });
        Self { times, readings: readings.collect() }
    }

    /// Bytes beyond `rate * window + burst` in the worst window. A window is taken as long as it
    /// can have been, so what this finds did happen.
    fn excess(&self, counter: impl Fn(&Reading) -> u64, shape: &Shape) -> u64 {
        let bytes_a_second = shape.rate as f64 / 8.0 * (1.0 + TOLERANCE);
        // Largest value so far of (what the rate allowed by then) - (what was counted by then).
        let mut slack = f64::NEG_INFINITY;
        let mut worst = 0.0f64;
        for ((before, after), reading) in self.times.iter().zip(&self.readings) {
            let counted = counter(reading) as f64;
            worst = worst.max(counted - after * bytes_a_second + slack);
            slack = slack.max(before * bytes_a_second - counted);
        }
        (worst - f64::from(shape.burst)).max(0.0) as u64
    }

    /// Bits a second in the busiest window that is long enough; over all if none is.
    fn peak(&self, counter: impl Fn(&Reading) -> u64 + Copy) -> f64 {
        let mut peak = self.mean(counter);
        let mut first = 0;
        for (last, (_, after)) in self.times.iter().enumerate() {
            // The latest start that makes the window long enough.
            while first < last && after - self.times[first + 1].0 >= PEAK_WINDOW.as_secs_f64() {
                first += 1;
            }
            let length = after - self.times[first].0;
            if length >= PEAK_WINDOW.as_secs_f64() {
                let bytes = counter(&self.readings[last]) - counter(&self.readings[first]);
                peak = peak.max(bytes as f64 * 8.0 / length);
            }
        }
        peak
    }

    fn mean(&self, counter: impl Fn(&Reading) -> u64) -> f64 {
        let seconds = self.seconds();
        let bytes = self.readings.last().map_or(0, counter);
        if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
    }

    fn seconds(&self) -> f64 {
        self.times.last().map_or(0.0, |&(_, after)| after)
    }

    fn report(&self, link: usize, direction: Direction, shape: &Shape) -> LinkReport {
        let total = self.readings.last().copied().unwrap_or_default();
        let bytes = |reading: &Reading| reading.bytes;
        let received = |reading: &Reading| reading.received;
        let excess = self.excess(bytes, shape).max(self.excess(received, shape));
        let around = total.received.saturating_sub(total.bytes);
        let bypassed = if around > IN_FLIGHT { around } else { 0 };
        LinkReport {
            link,
            direction,
            rate: shape.rate,
            burst: shape.burst,
            seconds: self.seconds(),
            bytes: total.bytes,
            packets: total.packets,
            drops: total.drops,
            received: total.received,
            mean_bps: self.mean(bytes).max(self.mean(received)),
            peak_bps: self.peak(bytes).max(self.peak(received)),
            excess,
            bypassed,
            kept: excess == 0 && bypassed == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { rate: 8_000_000, burst: 100_000, queue: 1 << 20 };

    /// A sample every 50 ms, read within 1 ms, of a path that had carried these totals of bytes.
    fn series(totals: &[u64]) -> Series {
        let time = |i: usize| i as f64 * 0.05;
        Series {
            times: (0..totals.len()).map(|i| (time(i), time(i) + 0.001)).collect(),
            readings: totals
                .iter()
                .map(|&bytes| Reading { bytes, received: bytes, ..Reading::default() })
                .collect(),
        }
    }

    #[test]
    fn a_link_at_its_rate_keeps_it() {
        // 1 MB/s: 50 000 bytes an interval, and the burst at once.
        let after_burst = |i: u64| if i == 0 { 0 } else { 100_000 + i * 50_000 };
        let totals: Vec<u64> = (0..40).map(after_burst).collect();
        let report = series(&totals).report(0, Direction::Up, &SHAPE);
        assert!(report.kept, "{report}");
    }

    #[test]
    fn a_short_excess_is_found_in_a_long_idle_measurement() {
        let mut totals = vec![0; 100];
        totals.extend([200_000; 100]);
        let report = series(&totals).report(0, Direction::Up, &SHAPE);
        assert!(!report.kept && report.mean_bps < SHAPE.rate as f64, "{report}");
        // 200 000 bytes within one interval, of which the burst and 51 ms at rate were allowed.
        assert!((48_000..50_000).contains(&report.excess), "{report}");
    }

    #[test]
    fn a_constant_excess_is_found() {
        let totals: Vec<u64> = (0..200).map(|i| i * 52_000).collect();
        let report = series(&totals).report(0, Direction::Up, &SHAPE);
        assert!(!report.kept, "{report}");
        assert!((report.peak_bps / 8.32e6 - 1.0).abs() < 0.02, "{report}");
    }

    #[test]
    fn bytes_that_only_the_receiver_saw_went_around_the_shaper() {
        let mut series = series(&[0, 10, 20]);
        for (i, reading) in series.readings.iter_mut().enumerate() {
            reading.received = 100_000 * i as u64;
        }
        // Two hundred thousand bytes in 0.1 s at 1 MB/s and a burst of the same: no excess.
        let report = series.report(0, Direction::Up, &SHAPE);
        assert_eq!((report.excess, report.bypassed, report.kept), (0, 199_980, false));
    }
}
