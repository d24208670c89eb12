//! What goes up to a job's parent in a tree, and what comes down from it.

use std::net::SocketAddrV4;

use xdp_agg_common::admission::{Reply, Source, check_parent, is_from_above};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobConf, Reject, Uplink};
use xdp_agg_common::slot::{Contribution, take_result};
use xdp_agg_common::wire::{Header, Kind};

use super::bytes::chunks_mut;
use super::{Answer, Error, Sums, copies, uplink};

/// A sum of `len` bytes, whose header it would have as a result, goes up.
pub(super) fn up(uplink: &Uplink, job_id: u16, sum: &Header, len: usize) -> Answer {
    let Uplink { job, rank, .. } = *uplink;
    Answer::Parent { job_id, header: Header { kind: Kind::Contribution, job, rank, ..*sum }, len }
}

impl Sums {
    /// The job whose parent may have sent this, if only an aggregator sends such packets: the
    /// packet names it by the parent's number, so it is known by its cookie.
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
        let reply = check_parent(&job.conf, &job.uplink, header, source, len)?;
        let header = Header { job: at as u16, ..*header };
        match reply {
            Reply::Path => {
                job.uplink.learned_epoch = job.conf.epoch;
                Ok(Answer::Nothing)
            }
            Reply::Result(result) => Ok(self.deliver(at, header, &result, payload)),
            Reply::Pending => Ok(self.relay_to_asker(at, header, payload.len())),
            Reply::Mismatch => {
                self.counters[at].relays += 1;
                let rank = job.conf.members.trailing_zeros() as u16;
                Ok(Answer::Member { header: Header { rank, ..header }, len: payload.len() })
            }
        }
    }

    /// The parent's result: for all members, if the slot waits for it.
    fn deliver(
        &mut self,
        at: usize,
        header: Header,
        result: &Contribution,
        payload: &mut [u8],
    ) -> Answer {
        let Some(job) = &self.jobs[at] else { return Answer::Nothing };
        let index = (job.conf.slot_base + job.pool.slot_of(result.block)) as usize;
        let first = index * self.max_chunks;
        let lanes = &mut self.lanes[first..first + usize::from(result.chunks)];
        let slot = (&mut self.slots[index], lanes);
        let packet = chunks_mut(payload);
        let len = packet.len() * CHUNK_LEN;
        let counters = &mut self.counters[at];
        if !take_result(slot, job.pool, job.conf.members, result, packet) {
            counters.late += 1;
            return Answer::Nothing;
        }
        counters.deliveries += 1;
        counters.copies += copies(&job.conf);
        Answer::Members { header, len }
    }

    /// The parent's answer that others are missing: for the member that asked, if one did.
    fn relay_to_asker(&mut self, at: usize, header: Header, len: usize) -> Answer {
        let Some(job) = &self.jobs[at] else { return Answer::Nothing };
        let state = &self.slots[(job.conf.slot_base + job.pool.slot_of(header.block)) as usize];
        let asker = state.waiting(job.pool, job.conf.members, header.epoch, header.block);
        let counters = &mut self.counters[at];
        let Some(rank) = asker else {
            counters.late += 1;
            return Answer::Nothing;
        };
        counters.relays += 1;
        Answer::Member { header: Header { rank, ..header }, len }
    }
}
