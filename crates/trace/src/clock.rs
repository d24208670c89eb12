//! How far the clocks of the ranks are apart.
//!
//! Processes of one host have one clock. Between hosts the calls themselves tell: no rank has a
//! result before every rank has sent something. So for two ranks `a` and `b`, the first packet of
//! `a` left before the first result came to `b`, and the other way round. Each call bounds how far
//! the two clocks are apart, from both sides, and all calls together bound it closely. Within these
//! bounds the median of the differences between the ends of calls is taken: a result leaves for all
//! ranks at once. Where the bounds contradict each other, one clock runs faster; its drift is taken
//! out.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::Call;
use crate::read::Recording;

/// How a clock was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// It is the reference, or the same clock.
    Same,
    /// By the calls that ranks have in common.
    Calls,
    /// By the hosts' times of day, which may be anything apart.
    TimeOfDay,
}

/// A clock against the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clock {
    /// How it was found.
    pub basis: Basis,
    /// Nanoseconds that it shows more than the reference, at [`Self::from_ns`].
    pub ahead_ns: f64,
    /// Nanoseconds that it gains in one.
    pub drift: f64,
    /// On this clock.
    pub from_ns: u64,
    /// The clock is off by at most so much. None: nobody knows.
    pub error_ns: Option<u64>,
    /// Calls that it was found by.
    pub calls: usize,
}

impl Clock {
    const SAME: Self = Self {
        basis: Basis::Same,
        ahead_ns: 0.0,
        drift: 0.0,
        from_ns: 0,
        error_ns: Some(0),
        calls: 0,
    };

    /// A moment of this clock on the reference's.
    #[must_use]
    pub fn common(&self, at: u64) -> u64 {
        let since = at as f64 - self.from_ns as f64;
        (at as i64 - (self.ahead_ns + self.drift * since).round() as i64).max(0) as u64
    }
}

/// What one call says of two clocks.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// When, on the second clock.
    at: u64,
    /// The second clock shows at least so much more.
    least: f64,
    /// And at most so much.
    most: f64,
    /// The difference between the ends.
    ends: f64,
}

/// The clock of each recording, against that of the first one.
#[must_use]
pub fn clocks(all: &[&Recording]) -> Vec<Clock> {
    let Some(reference) = all.first() else { return Vec::new() };
    let mut found: BTreeMap<&str, Clock> = BTreeMap::new();
    found.insert(&reference.source.clock, Clock::SAME);
    let same = all.iter().filter(|other| other.source.clock == reference.source.clock);
    let same: Vec<&Recording> = same.copied().collect();
    for recording in all {
        let name = &*recording.source.clock;
        if found.contains_key(name) {
            continue;
        }
        let others = all.iter().filter(|other| other.source.clock == name);
        let others: Vec<&Recording> = others.copied().collect();
        let clock = by_calls(&same, &others).unwrap_or_else(|| by_day(reference, recording));
        found.insert(name, clock);
    }
    all.iter().map(|recording| found[&*recording.source.clock]).collect()
}

fn by_day(reference: &Recording, other: &Recording) -> Clock {
    let day = |r: &Recording| r.source.realtime_ns as f64 - r.source.monotonic_ns as f64;
    Clock {
        basis: Basis::TimeOfDay,
        ahead_ns: day(reference) - day(other),
        error_ns: None,
        ..Clock::SAME
    }
}

fn by_calls(reference: &[&Recording], others: &[&Recording]) -> Option<Clock> {
    let mut bounds = Vec::new();
    for (one, other) in reference.iter().flat_map(|one| others.iter().map(move |o| (one, o))) {
        if one.source.job == other.source.job && one.source.rank != other.source.rank {
            bounds.extend(in_common(one, other));
        }
    }
    if bounds.is_empty() {
        return None;
    }
    bounds.sort_by_key(|bound| bound.at);
    let from = bounds[0].at;
    let straight = fit(&bounds, from, 0.0);
    let (ahead, error, drift) = if straight.2 {
        (straight.0, straight.1, 0.0)
    } else {
        let drift = slope(&bounds);
        let bent = fit(&bounds, from, drift);
        (bent.0, bent.1, drift)
    };
    Some(Clock {
        basis: Basis::Calls,
        ahead_ns: ahead,
        drift,
        from_ns: from,
        error_ns: Some(error.ceil() as u64),
        calls: bounds.len(),
    })
}

/// How far the second clock is ahead, at most how wrong that is, and whether the bounds agree.
fn fit(bounds: &[Bound], from: u64, drift: f64) -> (f64, f64, bool) {
    let gained = |bound: &Bound| drift * (bound.at as f64 - from as f64);
    let least = bounds.iter().map(|b| b.least - gained(b)).fold(f64::NEG_INFINITY, f64::max);
    let most = bounds.iter().map(|b| b.most - gained(b)).fold(f64::INFINITY, f64::min);
    let middle = median(bounds.iter().map(|b| b.ends - gained(b)).collect());
    if least <= most {
        let ahead = middle.clamp(least, most);
        return (ahead, (ahead - least).max(most - ahead), true);
    }
    (middle, (middle - most).abs().max((least - middle).abs()), false)
}

/// How much the second clock gains: from the first quarter of the calls to the last one.
fn slope(bounds: &[Bound]) -> f64 {
    let quarter = bounds.len().div_ceil(4);
    let of = |part: &[Bound]| {
        let at = part.iter().map(|b| b.at as f64).sum::<f64>() / part.len() as f64;
        (at, median(part.iter().map(|b| b.ends).collect()))
    };
    let (first, last) = (of(&bounds[..quarter]), of(&bounds[bounds.len() - quarter..]));
    let time = last.0 - first.0;
    if time > 0.0 { (last.1 - first.1) / time } else { 0.0 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn in_common<'a>(
    one: &'a Recording,
    other: &'a Recording,
) -> impl Iterator<Item = Bound> + use<'a> {
    let key = |call: &Call| (call.track, call.number);
    let known: BTreeMap<_, &Call> = one.calls.iter().map(|call| (key(call), call)).collect();
    other.calls.iter().filter_map(move |b| {
        let a = known.get(&key(b))?;
        let fits = a.signature() == b.signature() && a.is_done() && b.is_done();
        if !fits || !a.waits_for_all() || !b.waits_for_all() {
            return None;
        }
        let start = |call: &Call| call.first_sent.unwrap_or(call.made) as f64;
        let end = |call: &Call| call.last_result.or(call.ended).map(|at| at as f64);
        let first = |call: &Call| call.first_result.or(call.ended).map(|at| at as f64);
        Some(Bound {
            at: b.ended?,
            least: start(b) - first(a)?,
            most: first(b)? - start(a),
            ends: end(b)? - end(a)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{MS, World};

    fn worst(clock: &Clock, ahead: impl Fn(u64) -> i64, times: impl Iterator<Item = u64>) -> u64 {
        let off = times.map(|at| (clock.common((at as i64 + ahead(at)) as u64)).abs_diff(at));
        off.max().unwrap_or_default()
    }

    proptest! {
        /// However far the clocks are apart, the true offset is within the stated bound.
        #[test]
        fn a_clock_is_as_right_as_it_says(
            ahead in -1_000_000_000_000_i64..1_000_000_000_000,
            jitter in prop::collection::vec((0..3 * MS, 0..3 * MS, 0..MS), 1..40),
        ) {
            let mut world = World::new(2);
            world.ahead(1, ahead);
            for (first, second, trip) in jitter {
                world.call(&[first, second], trip);
            }
            let files = world.files();
            let all: Vec<&Recording> = files.iter().flat_map(|file| &file.recordings).collect();
            let clocks = clocks(&all);
            prop_assert_eq!(clocks[0].basis, Basis::Same);
            prop_assert_eq!(clocks[1].basis, Basis::Calls);
            let error = clocks[1].error_ns.expect("calls bound it");
            let off = worst(&clocks[1], |_| ahead, [world.now()].into_iter());
            prop_assert!(off <= error + 1000, "{} of at most {}", off, error);
            prop_assert!(error < 8 * MS);
        }
    }

    #[test]
    fn a_clock_that_runs_faster_is_followed() {
        let mut world = World::new(2);
        // 50 millionths, for an hour.
        let drift = |at: u64| (at / 20_000) as i64;
        world.clock(1, drift);
        for call in 0..3600 {
            world.pause(1000 * MS);
            world.call(&[call % 7 * 10_000, call % 5 * 10_000], 100_000);
        }
        let files = world.files();
        let all: Vec<&Recording> = files.iter().flat_map(|file| &file.recordings).collect();
        let clock = clocks(&all)[1];
        assert!((clock.drift * 1e6 - 50.0).abs() < 1.0, "{clock:?}");
        let times = (1..3600).map(|second| world.start() + second * 1000 * MS);
        let off = worst(&clock, drift, times);
        assert!(off < 200_000 && clock.error_ns.is_some_and(|e| e < MS), "{off} {clock:?}");
    }

    #[test]
    fn ranks_without_a_call_in_common_have_the_time_of_day() {
        let mut world = World::new(2);
        world.ahead(1, 5_000 * MS as i64);
        let files = world.files();
        let all: Vec<&Recording> = files.iter().flat_map(|file| &file.recordings).collect();
        let clock = clocks(&all)[1];
        assert_eq!((clock.basis, clock.error_ns), (Basis::TimeOfDay, None));
        assert_eq!(clock.ahead_ns, 5e9);
    }

    /// The second rank's clock, 7 s ahead, after calls that `change` has changed; and by how much
    /// it is wrong.
    fn found(change: impl Fn(&mut World)) -> (Clock, u64) {
        let ahead = 7_000 * MS as i64;
        let mut world = World::new(2);
        world.ahead(1, ahead);
        for _ in 0..10 {
            world.call(&[0, 20_000], 50_000);
            change(&mut world);
        }
        let files = world.files();
        let all: Vec<&Recording> = files.iter().flat_map(|file| &file.recordings).collect();
        let clock = clocks(&all)[1];
        (clock, worst(&clock, |_| ahead, [world.now()].into_iter()))
    }

    fn later(call: &mut Call, nanos: u64) {
        call.last_result = call.last_result.map(|at| at + nanos);
        call.ended = call.ended.map(|at| at + nanos);
    }

    #[test]
    fn a_rank_whose_results_take_longer_is_not_taken_for_ahead() {
        let (clock, off) = found(|world| later(world.last(1), 50 * MS));
        assert!(off < MS && clock.error_ns.is_some_and(|error| error < MS), "{off} {clock:?}");
    }

    #[test]
    fn the_first_result_bounds_a_clock_however_long_the_call() {
        let (clock, off) = found(|world| (0..2).for_each(|rank| later(world.last(rank), 50 * MS)));
        assert!(off < MS && clock.error_ns.is_some_and(|error| error < MS), "{off} {clock:?}");
    }

    #[test]
    fn a_broadcast_says_nothing_of_clocks() {
        let (clock, off) = found(|world| {
            // Its root is done long before the other rank comes.
            world.call(&[0, 500 * MS], 50_000);
            let root = world.last(0);
            let done = Some(root.made + 60_000);
            (root.first_result, root.last_result, root.ended) = (done, done, done);
            (0..2).for_each(|rank| world.last(rank).what = "broadcast from 0".into());
        });
        assert!(off < MS && clock.error_ns.is_some_and(|error| error < MS), "{off} {clock:?}");
        assert_eq!(clock.calls, 10);
    }
}
