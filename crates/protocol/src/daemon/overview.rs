//! What the jobs are and what has happened to them, for those that only watch.
//!
//! Nothing depends on it, and it is asked for from outside: a [`Jobs`] that nobody watches keeps
//! the latest events, and no more.

use std::collections::VecDeque;
use std::time::Instant;

use xdp_agg_common::control::JobInfo;
use xdp_agg_common::maps::JobCounters;

use super::Jobs;
use super::job::since;
use super::served::Step;

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

/// One job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// As `Jobs` and `Stats` show it.
    pub info: JobInfo,
    /// The data path's counters when it was created.
    pub base: JobCounters,
    /// Ranks that have left in this epoch.
    pub left: Vec<u16>,
    /// The way to its parent is open, or it has none.
    pub linked: bool,
}

impl Seen {
    /// Its counters since it was created, of those of all job indexes.
    #[must_use]
    pub fn counters(&self, all: &[JobCounters]) -> JobCounters {
        let its = all.get(usize::from(self.info.job_id)).copied().unwrap_or_default();
        since(&its, &self.base)
    }
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// The jobs.
    pub jobs: Vec<Seen>,
    /// Slots in the whole pool.
    pub slots: u32,
    /// Of these, free.
    pub slots_free: u32,
    /// Connections that are members of jobs or wait to be.
    pub members: usize,
    /// Sentences about what keeps members from the data path.
    pub troubles: Vec<String>,
    /// How often each of [`Happened::ALL`] has happened.
    pub happened: [u64; Happened::ALL.len()],
}

/// Events that nobody has taken yet, and counts of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Chronicle {
    waiting: VecDeque<News>,
    happened: [u64; Happened::ALL.len()],
}

impl Chronicle {
    fn write(&mut self, news: News) {
        self.happened[news.what as usize] += 1;
        if self.waiting.len() == NEWS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(news);
    }
}

impl Jobs {
    /// What there is.
    #[must_use]
    pub fn overview(&self, now: Instant) -> Overview {
        let answered = |conn| self.sessions.get(&conn).and_then(|session| session.answered);
        let led = self.jobs.values().map(|job| Seen {
            info: job.info(now, answered),
            base: job.base,
            left: job.life.left.iter().copied().collect(),
            linked: true,
        });
        let served = self.served.iter().map(|(job_id, served)| Seen {
            info: served.info(*job_id),
            base: served.base,
            left: Vec::new(),
            linked: !matches!(served.step, Step::Preparing | Step::Probing(..)),
        });
        Overview {
            jobs: led.chain(served).collect(),
            slots: self.pool.total(),
            slots_free: self.pool.free(),
            members: self.members(),
            troubles: self.troubles.iter().map(|lasting| lasting.trouble.what.clone()).collect(),
            happened: self.chronicle.happened,
        }
    }

    /// What has happened since the last call: the latest events, if there were very many.
    pub fn take_news(&mut self) -> Vec<News> {
        self.chronicle.waiting.drain(..).collect()
    }

    /// Notes what has happened to a job that is there.
    pub(super) fn tell(&mut self, job_id: u16, what: Happened, rank: Option<u16>, text: String) {
        let led = self.jobs.get(&job_id).map(|job| &job.name);
        let name = led.or_else(|| self.served.get(&job_id).map(|served| &served.name));
        if let Some(job) = name.cloned() {
            self.chronicle.write(News { at: self.clock, what, job, job_id, rank, text });
        }
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
