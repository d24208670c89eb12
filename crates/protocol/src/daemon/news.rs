//! What has happened to jobs and their members, for those that only watch.

use std::collections::VecDeque;
use std::time::Instant;

/// Events that are kept until they are taken.
const NEWS_MAX: usize = 1024;

/// What happened to a job or to a member of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happened {
    /// It runs for the first time.
    JobStarted,
    /// It runs in a further epoch.
    EpochStarted,
    /// It is over.
    JobEnded,
    /// A member is gone without a farewell.
    RankLost,
    /// A member has said farewell.
    RankLeft,
    /// An aggregator of its tree is lost.
    BranchLost,
    /// The tree takes it back.
    BranchBack,
    /// Its members were on a ring among themselves, and come back.
    RingEnded,
}

impl Happened {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::JobStarted,
        Self::EpochStarted,
        Self::JobEnded,
        Self::RankLost,
        Self::RankLeft,
        Self::BranchLost,
        Self::BranchBack,
        Self::RingEnded,
    ];

    /// Its name in metrics and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobStarted => "job_started",
            Self::EpochStarted => "epoch_started",
            Self::JobEnded => "job_ended",
            Self::RankLost => "rank_lost",
            Self::RankLeft => "rank_left",
            Self::BranchLost => "branch_lost",
            Self::BranchBack => "branch_back",
            Self::RingEnded => "ring_ended",
        }
    }
}

/// One such event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// When.
    pub at: Instant,
    /// What.
    pub what: Happened,
    /// The job's name.
    pub job: String,
    /// Its index.
    pub job_id: u16,
    /// The member, if it is about one.
    pub rank: Option<u16>,
    /// A sentence without the full stop.
    pub text: String,
}

/// Events that nobody has taken yet, and counts of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Chronicle {
    waiting: VecDeque<News>,
    happened: [u64; Happened::ALL.len()],
}

impl Chronicle {
    /// Notes what has happened.
    pub(super) fn write(&mut self, news: News) {
        self.happened[news.what as usize] += 1;
        if self.waiting.len() == NEWS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(news);
    }

    /// The latest events since the last call.
    pub(super) fn take(&mut self) -> Vec<News> {
        self.waiting.drain(..).collect()
    }

    /// How often each of [`Happened::ALL`] has happened.
    pub(super) const fn counts(&self) -> [u64; Happened::ALL.len()] {
        self.happened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_as_they_are_counted() {
        for (index, what) in Happened::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index);
        }
    }

    #[test]
    fn the_latest_events_are_kept_and_all_are_counted() {
        let mut chronicle = Chronicle::default();
        let at = Instant::now();
        for number in 0..=NEWS_MAX as u16 {
            let (job, text) = (String::new(), String::new());
            let what = Happened::RankLost;
            chronicle.write(News { at, what, job, job_id: number, rank: None, text });
        }
        assert_eq!(chronicle.waiting.len(), NEWS_MAX);
        assert_eq!(chronicle.waiting.front().map(|news| news.job_id), Some(1));
        assert_eq!(chronicle.happened[Happened::RankLost as usize], NEWS_MAX as u64 + 1);
    }
}
