//! The JSON that the HTTP server answers: `docs/observability.md` says what each field means.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};
use xdp_agg_common::times::Times;

/// Answer to `/api/v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The daemon.
    pub daemon: Daemon,
    /// The served interfaces.
    pub ports: Vec<Port>,
    /// Packets by what became of them.
    pub verdicts: BTreeMap<String, u64>,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Number of the latest event; 0 before the first.
    pub events_last: u64,
}

/// The daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Daemon {
    /// Of this program.
    pub version: String,
    /// `xdp (native)`, `xdp (generic)` or `userspace`.
    pub engine: String,
    /// The interfaces that it was told to serve.
    pub interfaces: Vec<String>,
    /// Where workers and tools connect.
    pub control: String,
    /// UDP port of the data path.
    pub data_port: u16,
    /// Since it started.
    pub uptime_seconds: f64,
    /// When this was seen, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// It can serve workers.
    pub ready: bool,
    /// Why not.
    pub not_ready: Vec<String>,
    /// What an operator should know.
    pub warnings: Vec<String>,
    /// Slots of the whole pool.
    pub slots: u32,
    /// Of these, free.
    pub slots_free: u32,
    /// Open control connections.
    pub connections: usize,
    /// Those of members of jobs, or of workers that wait to be.
    pub members: usize,
}

/// A network interface, with the kernel's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Up, and with a carrier.
    pub up: bool,
    /// Packets that came in.
    pub rx_packets: u64,
    /// Bytes that came in.
    pub rx_bytes: u64,
    /// Packets that went out.
    pub tx_packets: u64,
    /// Bytes that went out.
    pub tx_bytes: u64,
    /// Packets that came in and were lost.
    pub rx_dropped: u64,
    /// Packets that were to go out and were lost.
    pub tx_dropped: u64,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Index on the data path.
    pub id: u16,
    /// Name.
    pub name: String,
    /// As in `xdp-agg jobs`.
    pub phase: String,
    /// Membership number; 0 before the first.
    pub epoch: u16,
    /// World size.
    pub workers: u16,
    /// Epochs that began because a member was lost.
    pub reforms: u32,
    /// Slots of its pool.
    pub slots: u32,
    /// Blocks that were begun and are not finished.
    pub slots_in_use: u32,
    /// Payload bytes of a block; 0 until all have joined.
    pub block_bytes: u32,
    /// How results go out.
    pub mode: Option<String>,
    /// Sums that were completed.
    pub blocks_completed: u64,
    /// Packets that were added.
    pub contributions: u64,
    /// Repetitions of these.
    pub duplicates: u64,
    /// Results that were sent again.
    pub resends: u64,
    /// Packets that were refused.
    pub rejected: u64,
    /// How long blocks take from the first contribution to the last.
    pub completion: Completion,
    /// Since it was first seen running.
    pub uptime_seconds: Option<f64>,
    /// A rank is late, and nothing was completed since the last look.
    pub stalled: bool,
    /// Where its sums go: this daemon is a branch.
    pub parent: Option<Parent>,
    /// The aggregators that send their sums here, or to one another.
    pub branches: Vec<Branch>,
    /// By rank.
    pub ranks: Vec<Rank>,
}

/// How long timed blocks took: one in sixteen, none that its first contribution completes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Blocks that were timed since the job began.
    pub timed: u64,
    /// The time of all of these.
    pub seconds: f64,
    /// Half of those of the last 10 to 20 seconds took no longer. None: there were none.
    pub p50_seconds: Option<f64>,
    /// The same of 99 in 100.
    pub p99_seconds: Option<f64>,
    /// The timed blocks by their time, the shortest first; times that no block took are left out.
    pub buckets: Vec<Bucket>,
}

/// Blocks that took less time than this bound, and no less than half of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The bound; None: longer than all bounds.
    pub below_seconds: Option<f64>,
    /// How many.
    pub blocks: u64,
}

impl Completion {
    /// Of all timed blocks, and of the latest ones.
    #[must_use]
    pub fn new(all: &Times, recent: &Times) -> Self {
        let seconds = |nanos: f64| nanos / 1e9;
        let buckets = all.counts.into_iter().enumerate().filter(|(_, blocks)| *blocks > 0);
        Self {
            timed: all.total(),
            seconds: seconds(all.nanos as f64),
            p50_seconds: recent.quantile(0.5).map(seconds),
            p99_seconds: recent.quantile(0.99).map(seconds),
            buckets: buckets
                .map(|(index, blocks)| Bucket {
                    below_seconds: Times::bound(index).map(|bound| seconds(bound as f64)),
                    blocks,
                })
                .collect(),
        }
    }
}

/// The aggregator that results come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    /// Its data address.
    pub address: SocketAddrV4,
    /// The way to it is open.
    pub linked: bool,
    /// Sums that were sent to it and whose results have not come.
    pub lag_blocks: Option<u64>,
    /// How long the oldest of them has been waited for.
    pub lag_seconds: Option<f64>,
    /// That is 0.5 s or more.
    pub late: bool,
}

/// An aggregator of a job's tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// Its control address.
    pub daemon: SocketAddrV4,
    /// Ranks that send to it.
    pub ranks: Vec<u16>,
    /// Its way up is open.
    pub linked: bool,
    /// As for a rank; None where its sums go to another branch.
    pub lag_blocks: Option<u64>,
    /// The same.
    pub lag_seconds: Option<f64>,
    /// Others have waited for it for 0.5 s or more.
    pub late: bool,
}

/// How a rank does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankState {
    /// A member, and nobody waits for it.
    #[default]
    Ok,
    /// Others have waited for it for 0.5 s or more.
    Late,
    /// The job goes on without it.
    Lost,
    /// It said farewell.
    Left,
    /// It has not joined yet, or not come back.
    Missing,
    /// It joins with the next epoch.
    Waiting,
}

impl RankState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::Late, Self::Lost, Self::Left, Self::Missing, Self::Waiting];

    /// As in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Lost => "lost",
            Self::Left => "left",
            Self::Missing => "missing",
            Self::Waiting => "waiting",
        }
    }
}

/// A rank of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number.
    pub rank: u16,
    /// Where it sends from and listens, while it is a member.
    pub address: Option<SocketAddrV4>,
    /// Control address of the branch that it sends to.
    pub branch: Option<SocketAddrV4>,
    /// How it does.
    pub state: RankState,
    /// The block that it has to contribute next, in this epoch.
    pub blocks_contributed: Option<u64>,
    /// Blocks behind the foremost rank.
    pub lag_blocks: Option<u64>,
    /// How long others have been waiting for it.
    pub lag_seconds: Option<f64>,
    /// Since its process answered a heartbeat.
    pub heartbeat_seconds: Option<f64>,
    /// Since its last contribution.
    pub contributed_seconds: Option<f64>,
    /// Its contributions that came again, since the job began. None where this daemon cannot know.
    pub repetitions: Option<u64>,
}

/// Answer to `/api/v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Number of the oldest event that is kept; 1 before the first.
    pub first: u64,
    /// Number of the latest one; 0 before the first.
    pub last: u64,
    /// Those that were asked for, oldest first.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// They are numbered from 1.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// What: see [`super::events::KINDS`].
    pub kind: String,
    /// Name of the job that it is about.
    pub job: Option<String>,
    /// Its index.
    pub job_id: Option<u16>,
    /// The rank that it is about.
    pub rank: Option<u16>,
    /// For people.
    pub text: String,
}
