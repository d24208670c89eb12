//! What the jobs are, for those that only watch.
//!
//! Nothing depends on it, and it is asked for from outside: a [`Jobs`] that nobody watches keeps
//! the latest events, and no more.

use std::time::Instant;

use xdp_agg_common::control::JobInfo;
use xdp_agg_common::maps::JobCounters;

use super::Jobs;
use super::job::since;
use super::news::{Happened, News};
use super::served::Step;

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
            happened: self.chronicle.counts(),
        }
    }

    /// What has happened since the last call: the latest events, if there were very many.
    pub fn take_news(&mut self) -> Vec<News> {
        self.chronicle.take()
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
