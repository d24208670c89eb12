//! What a daemon's jobs and the engine that sums for them tell each other.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Instant;

use xdp_agg_common::maps::{self, JobConf, MAX_JOBS, ResultMode};
use xdp_agg_common::wire::MAX_WORKERS;

/// A job as an engine needs it before its workers probe their paths.
#[derive(Clone, Debug)]
pub struct JobSetup {
    /// Index of the job, below `MAX_JOBS`.
    pub job_id: u16,
    /// Everything but phase and result mode, which the engine sets.
    pub conf: JobConf,
    /// Data address of every member, by rank: the ranks whose bits `conf.members` has. A member
    /// may be another aggregator (see `forwarders`), under the lowest rank of those below it.
    pub members: BTreeMap<u16, SocketAddrV4>,
    /// The parent that this aggregator's sums go up to; None: they are the results.
    pub uplink: Option<Uplink>,
    /// Bit `r`: member `r` is an aggregator that forwards its own members' sum. Its results must
    /// be sent to it alone, so such a job has no multicast.
    pub forwarders: u64,
    /// Bit `r`: member `r` is a worker on the aggregator's own host. The engine finds out.
    pub local: u64,
}

/// Something that keeps members from the data path until it is mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A sentence that names the interface, and what to do.
    pub what: String,
    /// Job, and bitmap of its members that are cut off.
    pub members: Vec<(u16, u64)>,
}

/// A trouble that lasts.
#[derive(Clone, Debug)]
pub(crate) struct Lasting {
    pub(crate) trouble: Trouble,
    /// Since when.
    pub(crate) since: Instant,
}

impl Lasting {
    /// The ranks of a job that it is about.
    pub(crate) fn ranks(&self, job_id: u16) -> u64 {
        let of_job = self.trouble.members.iter().filter(|(job, _)| *job == job_id);
        of_job.fold(0, |bits, (_, ranks)| bits | ranks)
    }
}

/// The parent of an aggregator in a tree. Cookie, epoch, slots and ranks are the same there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The parent's data address.
    pub addr: SocketAddrV4,
    /// Index of the job at the parent.
    pub job: u16,
    /// The rank under which this aggregator contributes there: the lowest one below it.
    pub rank: u16,
}

impl Uplink {
    /// What the data path is told of it before its path is learned.
    #[must_use]
    pub fn registered(&self) -> maps::Uplink {
        let Self { addr, job, rank } = *self;
        let (addr, port) = (u32::from(*addr.ip()), addr.port());
        maps::Uplink { addr, port, job, rank, ..maps::Uplink::default() }
    }
}

impl JobSetup {
    /// A job of workers alone: no parent, no forwarders.
    #[must_use]
    pub const fn new(job_id: u16, conf: JobConf, members: BTreeMap<u16, SocketAddrV4>) -> Self {
        Self { job_id, conf, members, uplink: None, forwarders: 0, local: 0 }
    }

    /// Whether the members are those that the configuration names, all below the world size. The
    /// forwarders must be members, and the rank at the parent below the world size.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let up = self.uplink.is_none_or(|up| {
            up.rank < self.conf.workers
                && usize::from(up.job) < MAX_JOBS
                && !up.addr.ip().is_unspecified()
                && (*up.addr.ip(), up.addr.port()) != (self.conf.addr.into(), self.conf.port)
        });
        let named = self.members.keys().fold(0, |bits, rank| bits | 1_u64 << (rank & 63));
        let below = self.members.keys().all(|rank| *rank < self.conf.workers);
        up && self.forwarders & !named == 0
            && named == self.conf.members
            && below
            && named != 0
            && usize::from(self.conf.workers) <= MAX_WORKERS
    }
}

/// How results of a started job go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The chosen mode.
    pub mode: ResultMode,
    /// The group to join, in [`ResultMode::Multicast`].
    pub group: Option<SocketAddrV4>,
}
