//! What went wrong, and at which rank: what is told of it, and how a job's calls are brought
//! together. What is looked for in them is in `find`, the words are in `text`.

mod find;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::clock::{Basis, Clock};
use crate::model::{Kind, MESH};
use crate::read::Recording;
use find::{At, differing, hangs, lateness, stopped};

/// Findings of one kind that are listed for a rank.
const LISTED: usize = 10;

/// How a rank was late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It made the call later than the others.
    MadeTheCallLate,
    /// Its process did not run in the middle of the call.
    DidNotRun,
}

/// A rank that the others waited for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Late {
    /// The rank.
    pub rank: u16,
    /// Number of the call.
    pub call: u64,
    /// The call goes round a ring or a mesh of the workers, whose calls have numbers of their own.
    pub among_workers: bool,
    /// The call in words.
    pub what: String,
    /// How much, in milliseconds.
    pub by_ms: f64,
    /// How.
    pub how: How,
}

/// Ranks that called something else than the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differs {
    /// Number of the call.
    pub call: u64,
    /// As in [`Late`].
    pub among_workers: bool,
    /// What was called, and by which ranks: most of them first.
    pub calls: Vec<(String, Vec<u16>)>,
    /// The ranks that are fewer than half. Empty: no call has a majority.
    pub odd: Vec<u16>,
}

/// A rank that wrote no more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stopped {
    /// The rank.
    pub rank: u16,
    /// Its last call, and whether it ended.
    pub last_call: Option<(u64, String, bool)>,
    /// How long before the others' latest event its own was, in milliseconds.
    pub before_ms: f64,
}

/// A call in which some ranks wait, and to which others have not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hangs {
    /// Number of the call.
    pub call: u64,
    /// As in [`Late`].
    pub among_workers: bool,
    /// The call in words.
    pub what: String,
    /// Ranks that are in it.
    pub waiting: Vec<u16>,
    /// Ranks with a file that never made it.
    pub absent: Vec<u16>,
}

/// A rank in sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The rank.
    pub rank: u16,
    /// Its file.
    pub file: String,
    /// What the file is.
    pub kind: Kind,
    /// Its calls.
    pub calls: usize,
    /// Of these, calls to which it came last.
    pub came_last: usize,
    /// How much later than the others it made these, together, in milliseconds.
    pub late_ms: f64,
    /// Packets that it sent again.
    pub repetitions: u64,
    /// How its clock was found, and how wrong it is at most, in microseconds.
    pub clock: Basis,
    /// See [`Self::clock`].
    pub clock_error_us: Option<f64>,
    /// Why a flight recording was written.
    pub reason: Option<String>,
}

/// All that there is to say of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Name of the job.
    pub job: String,
    /// Workers of the job.
    pub world_size: u16,
    /// What is late, in milliseconds.
    pub threshold_ms: f64,
    /// Ranks that called something else.
    pub differs: Vec<Differs>,
    /// Ranks that wrote no more.
    pub stopped: Vec<Stopped>,
    /// Ranks of which there is no file.
    pub without_file: Vec<u16>,
    /// Calls to which not all came.
    pub hangs: Vec<Hangs>,
    /// Ranks that were late: the most first.
    pub late: Vec<Late>,
    /// How many were, listed or not.
    pub late_calls: usize,
    /// All ranks.
    pub ranks: Vec<Summary>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Diagnosis {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.differs.is_empty()
            && self.stopped.is_empty()
            && self.hangs.is_empty()
            && self.late.is_empty()
    }
}

/// Looks at the recordings of each job. `all` is sorted by job and rank; `clocks` are theirs.
/// `threshold` nanoseconds are late.
#[must_use]
pub fn diagnose(all: &[&Recording], clocks: &[Clock], threshold: u64) -> Vec<Diagnosis> {
    let jobs: BTreeSet<&str> = all.iter().map(|recording| &*recording.source.job).collect();
    let of = |job: &str| {
        let both = all.iter().copied().zip(clocks);
        let both = both.filter(|(recording, _)| recording.source.job == job);
        of_job(job, &both.collect::<Vec<_>>(), threshold)
    };
    jobs.into_iter().map(of).collect()
}

fn of_job(job: &str, all: &[(&Recording, &Clock)], threshold: u64) -> Diagnosis {
    let world_size = all.iter().map(|(r, _)| r.source.world_size).max().unwrap_or_default();
    let has: BTreeSet<u16> = all.iter().map(|(r, _)| r.source.rank).collect();
    let mut notes = Vec::new();
    let mut summaries: BTreeMap<u16, Summary> = BTreeMap::new();
    // By number, aggregators' calls and the workers' own: a rank counts once.
    let mut calls: BTreeMap<(bool, u64), BTreeMap<u16, At<'_>>> = BTreeMap::new();
    for (recording, clock) in all {
        let source = &recording.source;
        let summary = summaries.entry(source.rank).or_insert_with(|| Summary {
            rank: source.rank,
            file: recording.file.clone(),
            kind: source.kind,
            calls: 0,
            came_last: 0,
            late_ms: 0.0,
            repetitions: 0,
            clock: clock.basis,
            clock_error_us: clock.error_ns.map(|error| error as f64 / 1e3),
            reason: None,
        });
        if source.reason.is_some() {
            summary.reason.clone_from(&source.reason);
        }
        let place = (source.local_rank, source.local_size);
        for call in &recording.calls {
            let at = At { rank: source.rank, place, call, clock };
            summary.repetitions += u64::from(call.repetitions);
            let ranks = calls.entry((call.track == MESH, call.number)).or_default();
            match ranks.get_mut(&source.rank) {
                // Another aggregator's part of it, or the same call in another file.
                Some(known) if known.call.gap >= call.gap => {}
                Some(known) => *known = at,
                None => {
                    summary.calls += 1;
                    ranks.insert(source.rank, at);
                }
            }
        }
    }
    if all.iter().any(|(_, clock)| clock.basis == Basis::TimeOfDay) {
        notes.push(
            "some hosts have no call in common: their clocks are taken from the time of day, and \
             nobody is called late by them"
                .into(),
        );
    }
    if has.len() < usize::from(world_size) {
        let count = has.len();
        notes.push(format!("{count} of {world_size} ranks have a file"));
    }
    let mut late = Vec::new();
    for ((among_workers, number), ranks) in &calls {
        let ranks: Vec<&At<'_>> = ranks.values().collect();
        let found = lateness(&ranks, threshold, &mut summaries);
        late.extend(found.into_iter().map(|(at, by, how)| Late {
            rank: at.rank,
            call: *number,
            among_workers: *among_workers,
            what: at.call.describe(),
            by_ms: by as f64 / 1e6,
            how,
        }));
    }
    let late_calls = late.len();
    late.sort_by(|a, b| b.by_ms.total_cmp(&a.by_ms));
    let mut listed: BTreeMap<u16, usize> = BTreeMap::new();
    late.retain(|late| {
        let count = listed.entry(late.rank).or_default();
        *count += 1;
        *count <= LISTED
    });
    Diagnosis {
        job: job.to_owned(),
        world_size,
        threshold_ms: threshold as f64 / 1e6,
        differs: calls.iter().filter_map(|(key, ranks)| differing(*key, ranks)).collect(),
        stopped: stopped(all),
        without_file: (0..world_size).filter(|rank| !has.contains(rank)).collect(),
        hangs: hangs(&calls, &has),
        late,
        late_calls,
        ranks: summaries.into_values().collect(),
        notes,
    }
}
