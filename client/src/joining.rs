//! How a worker begins: with one call at all aggregators and in all processes of its host.
//!
//! Each of them sums its part of a vector in a job of its own. A worker that comes to running jobs
//! begins each with the call to which that job's members come next. While calls go on these may be
//! different ones, and then no call would ever have all its parts. So such a worker is lost to its
//! jobs on purpose and joins again, all processes of the host at the same time, until the calls are
//! alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xdp_agg_common::control::WorkerLoss;
use xdp_agg_common::maps::ResultMode;
use xdp_agg_intranode::Group;

use crate::driver::Stripe;
use crate::error::{Error, JobError};
use crate::handle::globally;
use crate::intranode;
use crate::settings::{Builder, Place};

/// First and longest pause between two attempts: the others' calls go on meanwhile.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(320)];

/// What a communicator is made of.
pub(crate) struct Joined {
    pub(crate) stripes: Arc<[Stripe]>,
    /// The processes of this host, where there are several.
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) mode: ResultMode,
    /// Chunks of a block that all jobs can have.
    pub(crate) chunks: u16,
}

/// Joins the job at all aggregators, and meets the other processes of the host.
pub(crate) fn join(settings: &Builder, place: &Place, until: Instant) -> Result<Joined, Error> {
    let several = place.local_size > 1;
    let may_come_back = several && settings.policy.worker_loss == WorkerLoss::Shrink;
    let assembled = may_come_back.then(|| intranode::assemble(settings, place)).transpose()?;
    let mut joined = open(settings, place, until)?;
    if several {
        let group = intranode::join(settings, place, joined.chunks, assembled.as_deref());
        let group = group.inspect_err(|_| {
            if may_come_back {
                // As if this process were dead: the others go on without it at once.
                joined.stripes.iter().for_each(|stripe| stripe.shared.vanish());
            }
        });
        joined.group = Some(group?);
    }
    drop(assembled);
    let mut pause = PAUSES[0];
    while !joined.begins_alike()? {
        let Joined { stripes, group, chunks, .. } = joined;
        for stripe in &*stripes {
            stripe.shared.vanish();
        }
        drop(stripes);
        if Instant::now() >= until {
            return Err(Error::Job(JobError::Protocol(
                "the jobs of the aggregators, or of this host's processes, were at different calls \
                 at each attempt to join until XDP_AGG_JOIN_DEADLINE was over; start it again, or \
                 raise the deadline"
                    .into(),
            )));
        }
        tracing::debug!(rank = place.rank, "the jobs are at different calls: joining again");
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSES[1]);
        if let Some(group) = &group {
            // Jobs that are joined at the same moment are most likely at the same call.
            group.barrier()?;
        }
        joined = Joined { group, ..open(settings, place, until)? };
        if joined.chunks != chunks {
            return Err(Error::Job(JobError::Protocol(
                "the job has blocks of another length than a moment ago; connect again".into(),
            )));
        }
    }
    Ok(joined)
}

/// Joins the job at all aggregators, once.
fn open(settings: &Builder, place: &Place, until: Instant) -> Result<Joined, Error> {
    let explain = |error| settings.explain(error);
    let stripes = Stripe::open_all(settings, place, until).map_err(explain)?;
    let mut mode = ResultMode::Ports;
    let mut chunks = u16::MAX;
    for stripe in &*stripes {
        let joined = stripe.shared.wait_until_joined();
        mode = joined.map_err(|error| explain(globally(error, place)))?;
        let admitted = stripe.shared.lock().machine.admitted().map(|admitted| admitted.chunks);
        chunks = chunks.min(admitted.unwrap_or(u16::MAX));
    }
    Ok(Joined { stripes, group: None, mode, chunks })
}

impl Joined {
    /// All aggregators, and all processes of the host, begin with the same call. Each of these
    /// processes has the same answer.
    fn begins_alike(&self) -> Result<bool, Error> {
        let own = next_call(&self.stripes);
        Ok(match &self.group {
            None => own.is_some(),
            Some(group) => group.all_alike(own.unwrap_or(NONE))? && own.is_some(),
        })
    }
}

/// In place of a call's number: this process's own aggregators differ.
const NONE: u64 = u64::MAX;

/// The number of the next call, if all aggregators count alike.
pub(crate) fn next_call(stripes: &[Stripe]) -> Option<u64> {
    alike(stripes.iter().map(|stripe| stripe.shared.lock().machine.next_sequence()))
}

/// The number that all of these are.
fn alike(mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let first = numbers.next()?;
    numbers.all(|number| number == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_begins_with_one_call() {
        assert_eq!(alike([0, 0, 0].into_iter()), Some(0));
        assert_eq!(alike([41].into_iter()), Some(41));
        assert_eq!(alike([41, 42].into_iter()), None);
        assert_eq!(alike([42, 42, 41].into_iter()), None);
    }
}
