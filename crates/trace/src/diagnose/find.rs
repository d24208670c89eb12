//! What is looked for in a call, and in the recordings of a job.

use std::collections::{BTreeMap, BTreeSet};

use super::{Differs, Hangs, How, LISTED, Stopped, Summary};
use crate::clock::{Basis, Clock};
use crate::model::{Call, Kind};
use crate::read::Recording;

/// How much shorter than the others' a rank's recording may be.
const QUIET: u64 = 1_000_000_000;

/// A call at a rank.
pub(super) struct At<'a> {
    pub(super) rank: u16,
    /// Processes that are one worker share a digest if they have the same place on their hosts.
    pub(super) place: (u16, u16),
    pub(super) call: &'a Call,
    pub(super) clock: &'a Clock,
}

impl At<'_> {
    fn made(&self) -> u64 {
        self.clock.common(self.call.made)
    }
}

/// The ranks that were late in a call, by how much, and how. The summaries count the last to come.
pub(super) fn lateness<'a>(
    ranks: &[&'a At<'a>],
    threshold: u64,
    summaries: &mut BTreeMap<u16, Summary>,
) -> Vec<(&'a At<'a>, u64, How)> {
    let mut found = Vec::new();
    let long = |at: &At<'_>| at.call.ended.map_or(u64::MAX, |ended| ended - at.call.made);
    for at in ranks.iter().filter(|at| at.call.gap >= threshold) {
        // A process may rest while nobody waits for it.
        let waited = ranks.iter().any(|o| o.rank != at.rank && long(o) >= at.call.gap / 2);
        if waited {
            found.push((*at, at.call.gap, How::DidNotRun));
        }
    }
    // A clock that nobody knows says nothing of who was late.
    let mut known: Vec<&&At<'_>> =
        ranks.iter().filter(|at| at.clock.basis != Basis::TimeOfDay).collect();
    known.sort_by_key(|at| at.made());
    let Some((last, others)) = known.split_last().filter(|(_, others)| !others.is_empty()) else {
        return found;
    };
    let middle = others[others.len() / 2].made();
    let error = known.iter().filter_map(|at| at.clock.error_ns).max().unwrap_or_default();
    if last.made().saturating_sub(middle) > error
        && let Some(summary) = summaries.get_mut(&last.rank)
    {
        summary.came_last += 1;
        summary.late_ms += (last.made() - middle) as f64 / 1e6;
    }
    // Several may be late: each against the rank in the middle of those that were not.
    for at in known.iter().rev() {
        let before = known.iter().filter(|other| other.made() + threshold <= at.made());
        let before: Vec<u64> = before.map(|other| other.made()).collect();
        if before.len() * 2 < known.len() {
            break;
        }
        let by = at.made() - before[before.len() / 2];
        if by >= threshold + error {
            found.push((**at, by, How::MadeTheCallLate));
        }
    }
    found
}

pub(super) fn differing(
    (among_workers, call): (bool, u64),
    ranks: &BTreeMap<u16, At<'_>>,
) -> Option<Differs> {
    let mut kinds: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for at in ranks.values() {
        kinds.entry(at.call.describe()).or_default().push(at.rank);
    }
    if kinds.len() == 1 {
        // The arguments that have no name of their own here: the scale, and the like.
        let mut digests: BTreeMap<(u16, u16), BTreeMap<u64, Vec<u16>>> = BTreeMap::new();
        for at in ranks.values() {
            let of_place = digests.entry(at.place).or_default();
            of_place.entry(at.call.digest).or_default().push(at.rank);
        }
        let unlike = digests.into_values().find(|digests| digests.len() > 1)?;
        let what = kinds.pop_first()?.0;
        for (digest, ranks) in unlike {
            kinds.insert(format!("{what}, with arguments of digest {digest:016x}"), ranks);
        }
    }
    let mut calls: Vec<(String, Vec<u16>)> = kinds.into_iter().collect();
    calls.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let total: usize = calls.iter().map(|(_, ranks)| ranks.len()).sum();
    let has_majority = calls[0].1.len() * 2 > total;
    let odd = calls[1..].iter().filter(|_| has_majority).flat_map(|(_, ranks)| ranks.clone());
    let mut odd: Vec<u16> = odd.collect();
    odd.sort_unstable();
    Some(Differs { call, among_workers, calls, odd })
}

/// Traces that end without a word, before the others do. A flight recording ends where it was
/// written.
pub(super) fn stopped(all: &[(&Recording, &Clock)]) -> Vec<Stopped> {
    let traces: Vec<_> =
        all.iter().filter(|(recording, _)| recording.source.kind == Kind::Trace).collect();
    let end = |(recording, clock): &(&Recording, &Clock)| clock.common(recording.latest);
    let latest = traces.iter().map(|both| end(both)).max().unwrap_or_default();
    let silent = traces.iter().filter(|(recording, _)| !recording.left);
    let silent = silent.filter(|both| {
        latest.saturating_sub(end(both)) >= QUIET || { traces.iter().any(|(other, _)| other.left) }
    });
    let told = silent.map(|both| {
        let last = both.0.calls.last();
        Stopped {
            rank: both.0.source.rank,
            last_call: last.map(|c| (c.number, c.describe(), c.ended.is_some())),
            before_ms: latest.saturating_sub(end(both)) as f64 / 1e6,
        }
    });
    told.collect()
}

/// The calls that some ranks are in, and others, which have a file, never made.
pub(super) fn hangs(
    calls: &BTreeMap<(bool, u64), BTreeMap<u16, At<'_>>>,
    has: &BTreeSet<u16>,
) -> Vec<Hangs> {
    let mut found = Vec::new();
    for ((among_workers, call), ranks) in calls {
        let mut waiting = ranks.values().filter(|at| !at.call.is_done());
        let Some(one) = waiting.next() else { continue };
        let what = one.call.describe();
        let waiting: Vec<u16> =
            ranks.values().filter(|a| !a.call.is_done()).map(|a| a.rank).collect();
        let absent: Vec<u16> = has.iter().filter(|r| !ranks.contains_key(r)).copied().collect();
        if !absent.is_empty() {
            let (call, among_workers) = (*call, *among_workers);
            found.push(Hangs { call, among_workers, what, waiting, absent });
        }
    }
    found.truncate(LISTED);
    found
}
