//! What goes up to a job's parent in a tree, and what comes down from it.

use std::net::SocketAddrV4;

use xdp_agg_common::admission::{Reply, Source, check_parent, is_from_above};
use xdp_agg_common::answer::take_reply;
use xdp_agg_common::maps::{JobConf, Reject, Uplink};
use xdp_agg_common::wire::Header;

use super::bytes::chunks_mut;
use super::{Answer, Error, Sums, uplink};

impl Sums {
    /// The job whose parent may have sent this, if only an aggregator sends such packets. The
    /// packet has the parent's number for the job, so the job is found by its cookie.
    pub(super) fn job_below(&self, header: &Header) -> Option<usize> {
        let is_below = |conf: &JobConf| header.kind.is_answer() && is_from_above(conf, header);
        self.jobs.iter().position(|job| job.as_ref().is_some_and(|job| is_below(&job.conf)))
    }

    /// The probe that a job's way up needs, and where it goes: what
    /// `Engine::probe_uplink` sends. None: nothing is to be learned (any more).
    ///
    /// # Errors
    /// The job is not on the data path.
    pub fn probe_up(&mut self, job_id: u16) -> Result<Option<(SocketAddrV4, Vec<u8>)>, Error> {
        let unlearned = self.unlearned(job_id)?;
        Ok(unlearned.map(|(conf, up)| (uplink::address(&up), uplink::probe(&conf, &up))))
    }

    /// Configuration and parent of a job whose parent has not answered a probe.
    pub fn unlearned(&mut self, job_id: u16) -> Result<Option<(JobConf, Uplink)>, Error> {
        let job = self.running(job_id)?;
        let learned = uplink::is_learned(&job.conf, &job.uplink);
        Ok((!learned).then_some((job.conf, job.uplink)))
    }

    /// Takes in a packet that may be the parent's of the job at `at`.
    pub(super) fn take_answer(
        &mut self,
        at: usize,
        header: &Header,
        source: Source,
        payload: &mut [u8],
    ) -> Result<Answer, Reject> {
        let job = self.jobs[at].as_mut().ok_or(Reject::Job)?;
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let (reply, said) = check_parent(&job.conf, &job.uplink, header, source, len)?;
        if reply == Reply::Path {
            job.uplink.learned_epoch = job.conf.epoch;
            return Ok(Answer::Nothing);
        }
        let (pool, members) = (job.pool, job.conf.members);
        let index = (job.conf.slot_base + pool.slot_of(said.block)) as usize;
        let first = index * self.max_chunks;
        let lanes = &mut self.lanes[first..first + usize::from(job.conf.max_chunks)];
        let slot = (&mut self.slots[index], lanes);
        let packet = chunks_mut(payload);
        let (reaction, rank) = take_reply(slot, pool, members, (reply, &said), packet);
        self.counters[at].note_reply(reaction);
        let header = Header { job: at as u16, rank, ..*header };
        Ok(self.send(at, header, (reaction, 0), payload))
    }
}
