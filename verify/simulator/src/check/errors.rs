//! Which errors a worker may end with: each has a cause that really was there (invariant 5).

use xdp_agg_common::control::{AbortReason, AggregatorLoss, Cause, ErrorCode, WorkerLoss};
use xdp_agg_protocol::worker::Error;

use super::Checker;
use crate::scenario::daemon_at;

impl Checker {
    /// A process or its control connection is gone.
    pub(crate) fn lost(&mut self, life: usize) {
        self.lives[life].lost = true;
    }

    /// Results have not reached a process for so long that it may be given up.
    pub(crate) fn cut_off(&mut self, life: usize) {
        self.lives[life].lost = true;
        self.lives[life].cut_off = true;
    }

    /// A process ended its membership of its own accord.
    pub(crate) fn gave_up(&mut self, life: usize) {
        self.lives[life].gave_up = true;
    }

    /// A process's membership or call has ended with an error.
    pub(crate) fn failed(&mut self, life: usize, error: &Error) {
        let (job, rank) = (self.lives[life].job, self.lives[life].rank);
        let waits = self.explain_wait(life, error);
        if let Err(why) = waits.and_then(|()| self.explain(life, error)) {
            self.fail(|| format!("rank {rank} of job {job} ends with {error:?}: {why}"));
        }
    }

    fn explain(&self, life: usize, error: &Error) -> Result<(), &'static str> {
        let me = &self.lives[life];
        let policy = self.jobs[me.job].1.policy;
        let of_rank =
            |rank: u16| self.lives.iter().filter(move |l| l.job == me.job && l.rank == rank);
        match error {
            Error::Aborted(AbortReason::MemberLost { rank }) => {
                if !of_rank(*rank).any(|life| life.lost) {
                    return Err("that rank was never lost");
                }
                let may_shrink = policy.worker_loss == WorkerLoss::Shrink && me.has_run;
                if may_shrink { Err("its policy is to go on without it") } else { Ok(()) }
            }
            Error::Aborted(AbortReason::Member { cause: Some(Cause::Left), .. }) => {
                Err("all make the same calls before they leave")
            }
            Error::Aborted(AbortReason::Member { rank, .. }) => {
                let true_ = of_rank(*rank).any(|life| life.gave_up || life.lost);
                if true_ { Ok(()) } else { Err("that rank never gave up") }
            }
            Error::Aborted(AbortReason::Operator { .. }) => {
                let of_job = || self.lives.iter().filter(|life| life.job == me.job);
                let may_shrink = policy.worker_loss == WorkerLoss::Shrink && me.has_run;
                if !of_job().any(|life| life.cut_off) {
                    Err("nobody was cut off for so long")
                } else if may_shrink && !me.cut_off {
                    Err("its policy is to go on without members that are cut off")
                } else {
                    Ok(())
                }
            }
            Error::Aborted(AbortReason::Expelled) => {
                if me.lost {
                    Ok(())
                } else {
                    Err("its connection was never lost")
                }
            }
            Error::Aborted(AbortReason::Branch { daemon, .. }) => {
                if policy.aggregator_loss != AggregatorLoss::Fail && me.has_run {
                    return Err("its policy is to go on without that branch");
                }
                let at = daemon_at((*daemon.ip()).into());
                if self.is_troubled(at) { Ok(()) } else { Err("that branch had no troubles") }
            }
            Error::Caller(_) if policy.aggregator_loss != AggregatorLoss::Ring => {
                Err("its policy is to do without")
            }
            Error::Caller(_) if !me.lost => Err("its connection was never lost"),
            Error::Caller(_) => Ok(()),
            Error::AggregatorLost(_) if policy.aggregator_loss != AggregatorLoss::Fail => {
                Err("its policy is to resume")
            }
            Error::AggregatorLost(_) if !me.lost => Err("its connection was never lost"),
            Error::Refused { code, .. } => match code {
                ErrorCode::RankTaken | ErrorCode::Busy | ErrorCode::NoRoom | ErrorCode::NoJob => {
                    Ok(())
                }
                _ => Err("the daemon has no reason to"),
            },
            Error::Deadline { sequence: Some(_), .. }
                if self.in_time[me.job] && !me.standing.was_stopped =>
            {
                Err("nothing happened that could have kept it so long")
            }
            Error::DataPath { .. } if me.has_run => Err("its path was open before"),
            Error::AggregatorLost(_)
            | Error::Aborted(AbortReason::Timeout { .. })
            | Error::Deadline { .. }
            | Error::DataPath { .. }
            | Error::Unreachable { .. } => Ok(()),
            _ => Err("that must never happen"),
        }
    }
}
