//! The maps once more, for another thread.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{Array, Map, MapData, MapError, PerCpuArray};
use xdp_agg_common::maps::{JobConf, JobCounters, MAX_JOBS, Member, Phase, member_index};
use xdp_agg_common::slot::SlotState;
use xdp_agg_protocol::sum::since;

use super::clocks::KernelClock;
use super::sys::RawSlot;
use crate::engine::EngineError;
use crate::engine::watch::{Eye, Watch, Watched};

const BPF_F_LOCK: u64 = 4;

/// Descriptors of the maps that are watched.
#[derive(Debug)]
pub(super) struct Descriptors {
    pub(super) slots: OwnedFd,
    pub(super) jobs: OwnedFd,
    pub(super) members: OwnedFd,
    pub(super) counters: OwnedFd,
}

/// A map's descriptor once more.
pub(super) fn again(map: &Map) -> io::Result<OwnedFd> {
    match map {
        Map::Array(data) | Map::PerCpuArray(data) => data.fd().as_fd().try_clone_to_owned(),
        _ => Err(io::Error::other("a map of another kind was expected")),
    }
}

/// Reads the maps of a running XDP engine. To read through a descriptor needs no capability.
pub(super) struct XdpWatch {
    slots: Array<MapData, RawSlot>,
    jobs: Array<MapData, JobConf>,
    members: Array<MapData, Member>,
    counters: PerCpuArray<MapData, JobCounters>,
    clock: KernelClock,
}

impl XdpWatch {
    pub(super) fn open(watched: &Descriptors, clock: KernelClock) -> Result<Self, EngineError> {
        let Descriptors { slots, jobs, members, counters } = watched;
        Ok(Self {
            slots: Map::Array(data(slots)?).try_into().map_err(failed)?,
            jobs: Map::Array(data(jobs)?).try_into().map_err(failed)?,
            members: Map::Array(data(members)?).try_into().map_err(failed)?,
            counters: Map::PerCpuArray(data(counters)?).try_into().map_err(failed)?,
            clock,
        })
    }

    /// The job as the data path has it, if it is there.
    fn conf(&self, job_id: u16) -> Result<Option<JobConf>, EngineError> {
        let conf = self.jobs.get(&u32::from(job_id), 0).map_err(failed)?;
        Ok((conf.phase != Phase::Off as u16).then_some(conf))
    }
}

impl Watch for XdpWatch {
    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError> {
        let of = |job| {
            let values = self.counters.get(&job, 0).map_err(failed)?;
            let mut sum = JobCounters::default();
            values.iter().for_each(|cpu| sum.merge(cpu));
            Ok(sum)
        };
        (0..=MAX_JOBS as u32).map(of).collect()
    }

    fn look(&mut self, job_id: u16, eye: &mut dyn Eye) -> Result<bool, EngineError> {
        let Some(conf) = self.conf(job_id)? else {
            return Ok(false);
        };
        let slots = &self.slots;
        // Under its lock: a state that was written in part would show ranks that are not there.
        eye.see(&conf, &mut |index| {
            let raw = slots.get(&(conf.slot_base + index), BPF_F_LOCK);
            raw.map_or_else(|_| SlotState::default(), |raw| raw.head.state)
        });
        Ok(true)
    }

    fn members(&mut self, job_id: u16) -> Result<Vec<Watched>, EngineError> {
        let Some(conf) = self.conf(job_id)? else {
            return Ok(Vec::new());
        };
        let members = (0..conf.workers).filter(|rank| conf.members >> rank & 1 == 1);
        let watched = |rank| {
            let member = self.members.get(&member_index(job_id, rank), 0).map_err(failed)?;
            // The clock is read after the entry: no member was heard later than that.
            let heard = since(member.heard, self.clock.now());
            Ok(Watched { rank, epoch: conf.epoch, heard, repetitions: member.repetitions })
        };
        members.map(watched).collect()
    }
}

fn data(descriptor: &OwnedFd) -> Result<MapData, EngineError> {
    let descriptor = descriptor.try_clone().map_err(|error| other(error.into()))?;
    MapData::from_fd(descriptor).map_err(failed)
}

fn failed(error: MapError) -> EngineError {
    other(Box::new(error))
}

fn other(source: Box<dyn std::error::Error + Send + Sync>) -> EngineError {
    EngineError::Other { what: "watching the data path".into(), source }
}
