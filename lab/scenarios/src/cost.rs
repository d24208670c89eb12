//! What watching costs: the same calls with and without it, in turns, so that other load on this
//! machine meets both.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use xdp_agg_report::quantile;
use xdp_agg_testbed::http::get;

use super::compare::{self, Calls, Common, System};
use super::files::scratch;
use super::lab::{Lab, Plan};
use super::row::{HEADING, Row};
use super::setting::short_bytes;

/// Where the daemon serves its metrics, on its own host.
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9871);
/// Between two questions for metrics.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// How often a scraper looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(20);
/// Longest time for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A way to watch a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watching {
    /// The daemon serves HTTP, and its metrics are asked for each second; without: `--http off`.
    Scrape,
    /// Each worker writes a trace of its calls.
    Trace,
}

/// The options of a scenario that can tell what watching costs.
#[derive(clap::Args, Debug)]
pub(crate) struct Cost {
    /// Measure xdp-agg alone, with and without this, in turns; print the difference, and whether
    /// it is within the spread of the turns without.
    #[arg(long, value_enum, conflicts_with_all = ["report", "plot", "trace", "system"])]
    cost_of: Option<Watching>,
    /// Turns of --cost-of.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(3..=99))]
    turns: u32,
}

impl Cost {
    /// Measures what is asked for. None: nothing is.
    pub(crate) fn run(&self, common: &Common, plan: Plan, calls: &Calls<'_>) -> Option<Result<()>> {
        self.cost_of.map(|watching| self.compare(watching, common, plan, calls))
    }

    fn compare(
        &self,
        watching: Watching,
        common: &Common,
        plan: Plan,
        calls: &Calls<'_>,
    ) -> Result<()> {
        println!("# without and with {watching:?}, in {} turns\n{HEADING}", self.turns);
        let (mut without, mut with): (Vec<Row>, Vec<Row>) = (Vec::new(), Vec::new());
        for turn in 0..self.turns {
            let mut pair = [false, true];
            // Neither is always the first.
            if turn % 2 == 1 {
                pair.reverse();
            }
            for is_on in pair {
                let rows = measure(plan, watching, is_on, calls)?;
                if is_on { with.extend(rows) } else { without.extend(rows) }
            }
        }
        for bytes in calls.bytes {
            let of = |rows: &[Row], value: fn(&Row) -> f64| {
                rows.iter().filter(|row| row.bytes == *bytes).map(value).collect::<Vec<f64>>()
            };
            let told = |value: fn(&Row) -> f64, unit: &str| {
                Verdict::of(&of(&without, value), &of(&with, value)).words(unit)
            };
            let bytes = short_bytes(*bytes);
            println!("# {bytes}, median time of a call: {}", told(|row| row.time_us_median, "µs"));
            let cpu = told(|row| row.cpu_s * 1e3, "ms");
            println!("# {bytes}, processor time of all for a call: {cpu}");
        }
        without.extend(with);
        common.finish(&without)
    }
}

/// One turn: all sizes, with the watching or without.
fn measure(plan: Plan, of: Watching, is_on: bool, calls: &Calls<'_>) -> Result<Vec<Row>> {
    let lab = Lab::build(plan)?;
    match (of, is_on) {
        (Watching::Scrape, false) => {
            let lab = lab.serving(&["--http", "off"]);
            compare::measure(&lab, System::XdpAgg, calls)
        }
        (Watching::Scrape, true) => {
            let lab = lab.serving(&["--http", &HTTP.to_string()]);
            while_scraped(&lab, || compare::measure(&lab, System::XdpAgg, calls))
        }
        (Watching::Trace, false) => compare::measure(&lab, System::XdpAgg, calls),
        (Watching::Trace, true) => {
            let to = scratch()?;
            let file = to.path().join("all.json");
            let lab = lab.traced_into(Some((to.path(), &file)));
            compare::measure(&lab, System::XdpAgg, calls)
        }
    }
}

/// Does something while the daemon's metrics are asked for each second.
fn while_scraped<T>(lab: &Lab, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (stop, host) = (AtomicBool::new(false), lab.topology().aggregator());
    let scrape = || {
        let (mut answers, mut next) = (0_u32, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(GLANCE);
            if Instant::now() < next {
                continue;
            }
            // At the begin and at the end there is no daemon.
            if get(HTTP, "/metrics", ANSWER).is_some_and(|metrics| metrics.contains("xdp_agg_")) {
                answers += 1;
                next = Instant::now() + SCRAPE_EVERY;
            }
        }
        answers
    };
    thread::scope(|scope| {
        let scraping = scope.spawn(|| host.run(scrape));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let answers = scraping.join().expect("it does not panic")?;
        if answers == 0 {
            bail!("the daemon served no metrics at {HTTP}");
        }
        done
    })
}

/// How two sets of figures differ.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    /// Medians.
    without: f64,
    with: f64,
    /// The largest less the least figure without: how far apart equal turns are.
    spread: f64,
}

impl Verdict {
    fn of(without: &[f64], with: &[f64]) -> Self {
        let at = |q| quantile(without, q);
        Self { without: at(0.5), with: quantile(with, 0.5), spread: at(1.0) - at(0.0) }
    }

    fn is_within(&self) -> bool {
        (self.with - self.without).abs() <= self.spread
    }

    fn words(&self, unit: &str) -> String {
        let Self { without, with, spread } = self;
        let percent = |part: f64| if *without > 0.0 { part / without * 100.0 } else { 0.0 };
        format!(
            "{without:.2} {unit} without, {with:.2} {unit} with ({:+.1} %); turns without are \
             {:.1} % apart: {} their spread",
            percent(with - without),
            percent(*spread),
            if self.is_within() { "within" } else { "BEYOND" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_beyond_the_spread_of_equal_turns() {
        let without = [10.0, 10.4, 9.8];
        let same = Verdict::of(&without, &[10.3, 10.2, 10.5]);
        assert!(same.is_within(), "{same:?}");
        assert!(same.words("µs").ends_with("within their spread"), "{}", same.words("µs"));
        for with in [[10.7, 10.6, 10.9], [9.2, 9.3, 9.1]] {
            let other = Verdict::of(&without, &with);
            assert!(!other.is_within(), "{other:?}");
            assert!(other.words("µs").contains("BEYOND"), "{}", other.words("µs"));
        }
    }
}
