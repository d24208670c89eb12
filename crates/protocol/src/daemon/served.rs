//! A job that another daemon leads, as a branch of its tree sees it.

use std::time::Instant;

use xdp_agg_common::control::{BranchSetup, JobInfo, MemberInfo, Policy};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobCounters, ResultMode};

use super::effect::ConnId;

/// Where a branch stands in its job's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Between epochs.
    Idle,
    /// The engine is registering the members.
    Preparing,
    /// The way up is being tried: when the next probe is due, and when it is over.
    Probing(Instant, Instant),
    /// It is open.
    Linked,
    /// The engine is opening the data path.
    Starting,
    Running,
}

/// A job that another daemon leads.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) conn: ConnId,
    pub(super) name: String,
    pub(super) world_size: u16,
    pub(super) slot_base: u32,
    pub(super) slots: u32,
    pub(super) step: Step,
    /// Why the latest probe of the way up could not be sent, if it could not.
    pub(super) unsent: Option<String>,
    /// It was running once.
    pub(super) ran: bool,
    pub(super) setup: Option<BranchSetup>,
    pub(super) mode: Option<ResultMode>,
    pub(super) base: JobCounters,
}

impl Served {
    pub(super) fn epoch(&self) -> u16 {
        self.setup.as_ref().map_or(0, |setup| setup.epoch)
    }

    /// When the next probe is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.step {
            Step::Probing(due, _) => Some(due),
            _ => None,
        }
    }

    /// For people and tools.
    pub(super) fn info(&self, job_id: u16) -> JobInfo {
        let phase = match self.step {
            Step::Idle => "forming",
            Step::Preparing | Step::Probing(..) | Step::Linked | Step::Starting => "probing",
            Step::Running => "running",
        };
        let members = self.setup.iter().flat_map(|setup| &setup.members);
        let chunks = self.setup.as_ref().map_or(0, |setup| setup.chunks);
        JobInfo {
            job: self.name.clone(),
            job_id,
            phase: phase.into(),
            world_size: self.world_size,
            joined: members.clone().map(|(rank, _)| *rank).collect(),
            epoch: self.epoch(),
            slots: self.slots,
            block_bytes: u32::from(chunks) * CHUNK_LEN as u32,
            mode: self.mode,
            policy: None::<Policy>,
            members: members
                .map(|(rank, data)| MemberInfo {
                    rank: *rank,
                    data: *data,
                    connected: true,
                    heartbeat_ms: None,
                    contributed_ms: None,
                })
                .collect(),
            reforms: 0,
            lost: Vec::new(),
            waiting: Vec::new(),
            branches: Vec::new(),
            parent: self.setup.as_ref().map(|setup| setup.uplink.data),
            chosen: None,
        }
    }
}
