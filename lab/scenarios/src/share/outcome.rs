//! Who got how much, and how long the queue was.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use xdp_agg_report::quantile;
use xdp_agg_testbed::beside::RoundTrip;
use xdp_agg_workloads::Framing;

use super::{Case, Meeting, Sample, System};

/// The time from the first of some samples to the last.
#[derive(Clone, Debug)]
pub(super) struct Span {
    seconds: f64,
    /// Bytes on the link where all meet, with headers from Ethernet's on.
    link_bytes: f64,
    drops: u64,
    /// The same of each flow, by what its receiver read.
    flow_bytes: Vec<f64>,
    /// Round trips of the probe, in seconds.
    trips_s: Vec<f64>,
}

impl Span {
    pub(super) fn new(samples: &[Sample], began: Instant, trips: &[RoundTrip]) -> Result<Self> {
        let (first, last) = match samples {
            [first, .., last] => (first, last),
            _ => anyhow::bail!(
                "the calls were over before two samples were taken; more --bytes or --iters"
            ),
        };
        let [from, to] = [first.at, last.at].map(|at| at.duration_since(began));
        let within = trips.iter().filter(|trip| trip.sent >= from && trip.sent + trip.time <= to);
        let framing = Framing::tcp(1500);
        let flows = last.flows.iter().zip(&first.flows);
        Ok(Self {
            seconds: (to - from).as_secs_f64(),
            link_bytes: (last.link.0 - first.link.0) as f64,
            drops: last.link.1 - first.link.1,
            flow_bytes: flows.map(|(last, first)| framing.wire((last - first) as f64)).collect(),
            trips_s: within.map(|trip| trip.time.as_secs_f64()).collect(),
        })
    }

    /// The share of the all-reduces in what the link carried.
    fn share(&self) -> f64 {
        let flows: f64 = self.flow_bytes.iter().sum();
        ((self.link_bytes - flows) / self.link_bytes.max(1.0)).max(0.0)
    }

    /// Jain's index over the flows, and the all-reduces as one more: 1 is even.
    fn jain(&self) -> f64 {
        let flows: f64 = self.flow_bytes.iter().sum();
        let all = self.flow_bytes.iter().copied().chain([(self.link_bytes - flows).max(0.0)]);
        jain(&all.collect::<Vec<_>>())
    }

    fn use_of(&self, rate: u64) -> f64 {
        self.link_bytes * 8.0 / self.seconds / rate as f64
    }
}

/// Jain's index of fairness: the square of the sum over the count times the sum of squares.
fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 1.0 }
}

/// One round of a case.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) alone: Span,
    pub(super) flows_alone: Span,
    pub(super) beside: Span,
    pub(super) calls_alone_s: Vec<f64>,
    pub(super) calls_beside_s: Vec<f64>,
    pub(super) wrong: u64,
}

/// Median, least and most.
type Spread = [f64; 3];

/// One case's result; shares, indices and times are over the rounds, trips over all packets.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    system: System,
    congestion: String,
    tcp: String,
    flows: u16,
    hosts: u16,
    rate: String,
    oversubscription: f64,
    queue: u64,
    bytes: u64,
    /// Bits a second of the link where all meet, and whether that is an uplink.
    link_bits: u64,
    rounds: usize,
    /// Share of the all-reduces in the bytes on the link, while flows and calls are at it.
    share: Spread,
    jain: Spread,
    /// Of the flows alone.
    flows_jain: Spread,
    /// Seconds of a call, averaged over the ranks.
    alone_s: Spread,
    beside_s: Spread,
    /// Round trips of the probe in seconds: median and 99th percentile.
    trip_alone_s: [f64; 2],
    trip_flows_s: [f64; 2],
    trip_beside_s: [f64; 2],
    /// How much of the link was used.
    use_alone: f64,
    use_flows: f64,
    use_beside: f64,
    /// Packets that the link dropped, a second.
    drops_alone: f64,
    drops_flows: f64,
    drops_beside: f64,
    pub(super) wrong: u64,
    pub(super) caps_kept: bool,
}

/// The table's first line.
pub(super) const HEADING: &str = "\
# share: of the all-reduces in the bytes on the link, beside the flows; rtt: of a small UDP packet
system     congestion  tcp    k  share  (least-most)   jain  alone/ms beside/ms  ratio  \
rtt: alone  flows beside   p99/ms  drops/s  caps";

impl Row {
    pub(super) fn new(
        case: &Case<'_>,
        meeting: Meeting,
        rounds: &[Round],
        caps_kept: bool,
    ) -> Result<Self> {
        let spread = |of: &dyn Fn(&Round) -> f64| spread(rounds.iter().map(of));
        let calls = |of: &dyn Fn(&Round) -> &Vec<f64>| {
            self::spread(rounds.iter().flat_map(|round| of(round).iter().copied()))
        };
        let median = |of: &dyn Fn(&Round) -> f64| spread(of)[0];
        let trips = |of: &dyn Fn(&Round) -> &Span| -> Result<[f64; 2]> {
            let all: Vec<f64> =
                rounds.iter().flat_map(|round| &of(round).trips_s).copied().collect();
            ensure!(!all.is_empty(), "no packet of the probe came back");
            Ok([quantile(&all, 0.5), quantile(&all, 0.99)])
        };
        let drops = |of: &dyn Fn(&Round) -> &Span| {
            median(&|round| of(round).drops as f64 / of(round).seconds)
        };
        let used = |of: &dyn Fn(&Round) -> &Span| median(&|round| of(round).use_of(meeting.rate));
        let args = case.args;
        Ok(Self {
            system: case.system,
            congestion: case.congestion.to_owned(),
            tcp: case.tcp.to_owned(),
            flows: args.flows,
            hosts: args.hosts,
            rate: args.rate.to_string(),
            oversubscription: args.oversubscription,
            queue: args.queue,
            bytes: args.bytes,
            link_bits: meeting.rate,
            rounds: rounds.len(),
            share: spread(&|round| round.beside.share()),
            jain: spread(&|round| round.beside.jain()),
            flows_jain: spread(&|round| jain(&round.flows_alone.flow_bytes)),
            alone_s: calls(&|round| &round.calls_alone_s),
            beside_s: calls(&|round| &round.calls_beside_s),
            trip_alone_s: trips(&|round| &round.alone)?,
            trip_flows_s: trips(&|round| &round.flows_alone)?,
            trip_beside_s: trips(&|round| &round.beside)?,
            use_alone: used(&|round| &round.alone),
            use_flows: used(&|round| &round.flows_alone),
            use_beside: used(&|round| &round.beside),
            drops_alone: drops(&|round| &round.alone),
            drops_flows: drops(&|round| &round.flows_alone),
            drops_beside: drops(&|round| &round.beside),
            wrong: rounds.iter().map(|round| round.wrong).sum(),
            caps_kept,
        })
    }

    /// A line of the table that [`HEADING`] begins.
    pub(super) fn line(&self) -> String {
        let name = self.system.to_possible_value().map(|value| value.get_name().to_owned());
        let [share, least, most] = self.share;
        let ms = |seconds: f64| seconds * 1e3;
        format!(
            "{:10} {:10} {:6} {:2}  {share:5.3} ({least:5.3}-{most:5.3})  {:5.3} {:9.1} {:9.1} \
             {:6.2}  {:10.1} {:6.1} {:6.1} {:8.1} {:8.1} {:>5}",
            name.unwrap_or_default(),
            self.congestion,
            self.tcp,
            self.flows,
            self.jain[0],
            ms(self.alone_s[0]),
            ms(self.beside_s[0]),
            self.beside_s[0] / self.alone_s[0],
            ms(self.trip_alone_s[0]),
            ms(self.trip_flows_s[0]),
            ms(self.trip_beside_s[0]),
            ms(self.trip_beside_s[1]),
            self.drops_beside,
            if self.caps_kept { "yes" } else { "NO" },
        )
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let values: Vec<f64> = values.collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [quantile(&values, 0.5), least, most]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn jains_index_is_one_for_even_and_a_share_for_one_alone() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        // (1 + 2 + 3)^2 / (3 * (1 + 4 + 9))
        assert!((jain(&[1.0, 2.0, 3.0]) - 36.0 / 42.0).abs() < 1e-12);
    }

    #[test]
    fn what_the_flows_did_not_carry_is_the_calls() {
        let began = Instant::now();
        let sample = |ms: u64, link: u64, flow: u64| Sample {
            at: began + Duration::from_millis(ms),
            link: (link, 0),
            flows: vec![flow],
        };
        // A flow's thousand segments with their headers are three quarters of these bytes.
        let samples = [sample(0, 0, 0), sample(1000, 1514 * 4000 / 3, 1448 * 1000)];
        let trip = |sent, time| RoundTrip {
            sent: Duration::from_millis(sent),
            time: Duration::from_millis(time),
        };
        // The second one's answer comes when all is over.
        let span = Span::new(&samples, began, &[trip(10, 2), trip(999, 2)]).expect("two samples");
        assert!((span.share() - 0.25).abs() < 1e-3, "{span:?}");
        assert_eq!(span.trips_s, [0.002]);
        assert!((span.use_of(1514 * 4000 / 3 * 8) - 1.0).abs() < 1e-9);
        assert!(Span::new(&samples[..1], began, &[]).is_err());
    }
}
