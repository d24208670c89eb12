//! What people and tools are told.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use super::Policy;
use super::words::clean;
use crate::maps::{JobCounters, ResultMode};

/// One job, for people and tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Name.
    pub job: String,
    /// Index on the data path.
    pub job_id: u16,
    /// `forming`, `connecting` (to the aggregators below), `resuming`, `probing`, `running`,
    /// `pausing` (a rank wants to join) or `reforming` (a rank was lost).
    pub phase: String,
    /// Number of workers.
    pub world_size: u16,
    /// Ranks that have joined and are connected.
    pub joined: Vec<u16>,
    /// Membership number.
    pub epoch: u16,
    /// Slots of its pool.
    pub slots: u32,
    /// Payload bytes of a block; 0 until all have joined.
    pub block_bytes: u32,
    /// How results go out, once running.
    pub mode: Option<ResultMode>,
    /// What happens when somebody is lost; None: no worker has said yet.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// Its members, by rank.
    #[serde(default)]
    pub members: Vec<MemberInfo>,
    /// How often it got a new epoch because a member was lost.
    #[serde(default)]
    pub reforms: u32,
    /// Ranks that were lost and have not joined again.
    #[serde(default)]
    pub lost: Vec<u16>,
    /// Ranks that wait to join in the next epoch.
    #[serde(default)]
    pub waiting: Vec<u16>,
    /// The aggregators below this one.
    #[serde(default)]
    pub branches: Vec<BranchInfo>,
    /// Where its sums go: this aggregator is a branch of another one's job.
    #[serde(default)]
    pub parent: Option<SocketAddrV4>,
    /// The strategy that its workers follow, and why. None: they have not said.
    #[serde(default)]
    pub chosen: Option<Chosen>,
}

/// By which strategy a job's workers sum, and why: shown, and nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Its name.
    pub strategy: String,
    /// Why, for people.
    pub reason: String,
}

impl Chosen {
    /// Most characters of the reason that a daemon keeps.
    pub const MAX_REASON: usize = 1024;
    /// Most characters of the name that a daemon keeps.
    pub const MAX_NAME: usize = 32;

    /// The same, no longer than a daemon keeps, and without characters that steer terminals.
    #[must_use]
    pub fn clipped(&self) -> Self {
        Self {
            strategy: clean(&self.strategy, Self::MAX_NAME),
            reason: clean(&self.reason, Self::MAX_REASON),
        }
    }
}

/// An aggregator that forwards sums to this one, or to another one below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchInfo {
    /// Its control address.
    pub daemon: SocketAddrV4,
    /// The branch that its sums go to; None: this aggregator.
    pub parent: Option<SocketAddrV4>,
    /// Ranks that send to it.
    pub ranks: Vec<u16>,
    /// Its way up is open, in this epoch.
    pub linked: bool,
}

/// One member of a job as the daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its rank.
    pub rank: u16,
    /// Where it sends from and listens.
    pub data: SocketAddrV4,
    /// False: the daemon was restarted, and it has not come back yet.
    pub connected: bool,
    /// Milliseconds since its process last answered a heartbeat. None: it has not yet.
    #[serde(default)]
    pub heartbeat_ms: Option<u64>,
    /// Milliseconds since its last contribution on the data path. None: not in this epoch, or the
    /// engine does not tell.
    #[serde(default)]
    pub contributed_ms: Option<u64>,
}

/// Everything that is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// As in [`super::Reply::Welcome`].
    pub engine: String,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// Slots in the whole pool and not yet given to a job.
    pub slots: u32,
    /// Of these, free.
    pub slots_free: u32,
    /// Per job that exists, with its counters.
    pub jobs: Vec<JobStats>,
    /// Packets that belong to no job.
    pub unattributed: Box<JobCounters>,
    /// Control connections.
    #[serde(default)]
    pub control: ControlCounters,
}

/// What became of control connections since the daemon started. All but the first count those that
/// the daemon refused or ended, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlCounters {
    /// Taken in.
    pub accepted: u64,
    /// Too many from one address in a short time: not taken in.
    pub rate: u64,
    /// Too many that are members of no job: had to make room for another one.
    pub crowded: u64,
    /// No message in time, or silent for too long without being a member.
    pub slow: u64,
    /// Too many requests in a short time.
    pub requests: u64,
    /// Not this protocol, another version of it, or a message out of place.
    pub garbled: u64,
    /// Without the right token.
    pub unauthorised: u64,
    /// Did not read what it asked for.
    pub deaf: u64,
    /// TLS failed: a certificate was missing or not accepted, or it was not TLS.
    pub tls_failures: u64,
}

impl ControlCounters {
    /// The refusals, by name.
    #[must_use]
    pub const fn refusals(&self) -> [(&'static str, u64); 8] {
        [
            ("rate", self.rate),
            ("crowded", self.crowded),
            ("slow", self.slow),
            ("requests", self.requests),
            ("garbled", self.garbled),
            ("unauthorised", self.unauthorised),
            ("deaf", self.deaf),
            ("tls", self.tls_failures),
        ]
    }
}

/// A job and its counters, summed over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStats {
    /// The job.
    pub info: JobInfo,
    /// Its counters since it was created.
    pub counters: JobCounters,
}
