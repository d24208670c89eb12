//! The kernel's maps, as far as a job is written to them.

use xdp_agg_common::maps::{JobConf, Member, Quota, Uplink, member_index};
use xdp_agg_common::wire::MAX_WORKERS;

use super::object::{Object, other};
use super::phases::Tables;
use super::sys::{self, RawSlot};
use crate::engine::{EngineError, JobSetup};

impl Object {
    /// A member's entry.
    pub(super) fn member(&self, job_id: u16, rank: u16) -> Result<Member, EngineError> {
        let member = self.members.get(&member_index(job_id, rank), 0);
        member.map_err(|error| other("a member", error))
    }

    /// A job's parent, as it is registered and as far as it is learned.
    pub(super) fn uplink(&self, job_id: u16) -> Result<Uplink, EngineError> {
        self.uplinks.get(&job_id.into(), 0).map_err(|error| other("a parent", error))
    }
}

impl Tables for Object {
    type Error = EngineError;

    fn conf(&self, job_id: u16) -> Result<JobConf, EngineError> {
        self.jobs.get(&job_id.into(), 0).map_err(|error| other("a job", error))
    }

    fn write_conf(&mut self, job_id: u16, conf: &JobConf) -> Result<(), EngineError> {
        self.jobs.set(job_id.into(), conf, 0).map_err(|error| other("a job", error))
    }

    fn write_rest(&mut self, job: &JobSetup) -> Result<(), EngineError> {
        for rank in 0..MAX_WORKERS as u16 {
            let member = job.members.get(&rank).map_or_else(Member::default, |at| Member {
                addr: u32::from(*at.ip()),
                port: at.port(),
                // The program takes in packets by this interface from these members alone, and
                // packets of these members by no other interface.
                ifindex: if job.local >> rank & 1 == 1 { self.local_ifindex } else { 0 },
                ..Member::default()
            });
            let index = member_index(job.job_id, rank);
            self.members.set(index, member, 0).map_err(|error| other("a member", error))?;
        }
        // Another job may have used these slots in an epoch of the same number.
        let conf = &job.conf;
        for slot in conf.slot_base..conf.slot_base + conf.slots {
            let set = self.slots.set(slot, RawSlot::empty(), 0);
            set.map_err(|error| other("a slot", error))?;
        }
        let uplink = job.uplink.map_or_else(Uplink::default, |up| up.registered());
        let set = self.uplinks.set(job.job_id.into(), uplink, 0);
        set.map_err(|error| other("a parent", error))?;
        let quota = self.quotas.set(job.job_id.into(), Quota::default(), 0);
        quota.map_err(|error| other("a quota", error))?;
        self.set_ports(job.job_id, &[])
    }

    fn wait(&mut self) {
        sys::wait_for_running_programs();
    }
}
