//! What the observer remembers of a job from one look to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use xdp_agg_common::maps::JobCounters;
use xdp_agg_common::times::Times;

use super::lag::{Lag, Pace};

/// Quantiles are of this time, and of up to twice as much.
const RECENT: Duration = Duration::from_secs(10);

/// What is remembered of a job.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) lag: Lag,
    pub(super) running_since: Option<Instant>,
    /// Its counters at the last look; None: they could not be read.
    pub(super) counters: Option<JobCounters>,
    pub(super) late: BTreeSet<u16>,
    pub(super) recent: Recent,
    pub(super) members: BTreeMap<u16, Repeater>,
}

/// What a member has sent again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repeater {
    /// In epochs that are over.
    before: u64,
    /// In this one.
    now: u64,
    epoch: u16,
}

impl Repeater {
    /// Takes in what the data path counts, which begins anew with each epoch. Returns all.
    pub(super) fn take(&mut self, epoch: u16, count: u64) -> u64 {
        if self.epoch != epoch {
            self.before += std::mem::take(&mut self.now);
            self.epoch = epoch;
        }
        self.now = count;
        self.before + self.now
    }
}

/// How long blocks took until two times in the past.
#[derive(Debug, Default)]
pub(super) struct Recent {
    older: Times,
    newer: (Option<Instant>, Times),
}

impl Recent {
    /// What has come in the last [`RECENT`] to twice as much, of all that there was until `now`.
    pub(super) fn take(&mut self, now: Instant, all: &Times) -> Times {
        let (at, times) = self.newer;
        if at.is_none_or(|at| now.saturating_duration_since(at) >= RECENT) {
            self.older = times;
            self.newer = (Some(now), *all);
        }
        all.since(&self.older)
    }
}

/// What a job has done between two looks at its counters.
pub(super) fn pace(before: Option<&JobCounters>, now: &JobCounters) -> Pace {
    let taken_in = |counters: &JobCounters| (counters.contributions, counters.deliveries);
    match before {
        Some(before) if before.blocks != now.blocks => Pace::Busy,
        Some(before) if taken_in(before) == taken_in(now) => Pace::Still,
        Some(_) => Pace::Quiet,
        // Whether it completes blocks is not known: it is looked at with care.
        None => Pace::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_those_of_all_epochs() {
        let mut member = Repeater::default();
        let all = [(1, 0), (1, 5), (1, 7), (2, 7), (2, 9), (3, 0)];
        let said = all.map(|(epoch, count)| member.take(epoch, count));
        assert_eq!(said, [0, 5, 7, 14, 16, 16]);
    }

    #[test]
    fn recent_times_are_of_ten_to_twenty_seconds() {
        let (mut recent, begin) = (Recent::default(), Instant::now());
        let mut all = Times::default();
        let mut seen = Vec::new();
        for second in 0..=45 {
            all.note(5000);
            let now = begin + Duration::from_secs(second);
            seen.push(recent.take(now, &all).total());
        }
        assert_eq!(seen[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let (least, most) = (seen[10..].iter().min(), seen[10..].iter().max());
        assert_eq!((least, most), (Some(&10), Some(&19)), "{seen:?}");
    }

    #[test]
    fn a_job_is_still_only_where_nothing_was_taken_in() {
        let before = JobCounters { contributions: 9, blocks: 3, ..JobCounters::default() };
        let of = |now: &JobCounters| pace(Some(&before), now);
        assert_eq!(of(&before), Pace::Still);
        assert_eq!(of(&JobCounters { duplicates: 8, pendings: 8, ..before }), Pace::Still);
        assert_eq!(of(&JobCounters { contributions: 10, ..before }), Pace::Quiet);
        assert_eq!(of(&JobCounters { deliveries: 1, ..before }), Pace::Quiet);
        assert_eq!(of(&JobCounters { contributions: 12, blocks: 4, ..before }), Pace::Busy);
        assert_eq!(pace(None, &before), Pace::Busy);
    }
}
