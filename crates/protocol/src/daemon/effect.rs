//! What a daemon's jobs and their caller tell each other: connections, effects and answers.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use xdp_agg_common::control::{LocalMembers, Policy, Reply, Request, Token};
use xdp_agg_common::maps::{JobCounters, ResultMode};

#[cfg(doc)]
use super::Jobs;
use super::Patience;
use crate::engine::{JobSetup, Started};

/// A connection, as the caller numbers it. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A connection to a branch of a job's tree. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What the caller is to do with a connection to a branch.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkEffect {
    /// Connect to this control address, for a job with this policy; then [`Jobs::handle_link_up`]
    /// or [`Jobs::handle_link_lost`].
    Dial(LinkId, SocketAddrV4, Policy),
    /// Send this.
    Say(LinkId, Request),
    /// End it when all is sent; no [`Jobs::handle_link_lost`] is needed for it.
    HangUp(LinkId),
}

/// One formation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formation {
    /// Index of the job.
    pub job_id: u16,
    /// Its epoch.
    pub epoch: u16,
}

/// Both ends of a connection, where they are IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of this host.
    pub local: Option<Ipv4Addr>,
    /// Address of the other side.
    pub remote: Option<Ipv4Addr>,
}

impl Peer {
    /// From the addresses of a connection.
    #[must_use]
    pub fn new(local: IpAddr, remote: IpAddr) -> Self {
        let ipv4 = |addr: IpAddr| match addr.to_canonical() {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        };
        Self { local: ipv4(local), remote: ipv4(remote) }
    }
}

/// What the daemon and its engine allow.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The engine's description.
    pub engine: String,
    /// Slots in the whole pool.
    pub slots: u32,
    /// Slots of a job that asks for none in particular (a power of two).
    pub job_slots: u32,
    /// Largest block that the engine takes, in chunks.
    pub max_chunks: u16,
    /// The engine takes no trains: see [`xdp_agg_common::control::Admitted::single_packets`].
    pub single_packets: bool,
    /// Address that workers send to; None: the one that they are connected to.
    pub data_addr: Option<Ipv4Addr>,
    /// UDP port that workers send to.
    pub data_port: u16,
    /// How long ranks may take to join, from the first one's join, where no worker asks for a time.
    pub join_timeout: Duration,
    /// The most that a worker may ask for.
    pub join_timeout_max: Duration,
    /// How long members may take to try their paths, and the branches of a tree for each step until
    /// the job runs.
    pub probe_timeout: Duration,
    /// For how long a lost branch must be there again, without a break, before a tree that runs
    /// takes it back: twice as long after each further loss. The first pause between attempts to
    /// reach it, too.
    pub return_after: Duration,
    /// How long the members of another daemon's job may take to come back, from the first one.
    pub resume_timeout: Duration,
    /// In what time a dead host is noticed. Heartbeats go out eight times as often; the caller sets
    /// its sockets so that what cannot be delivered ends a connection in this time.
    pub patience: Patience,
    /// How long others may wait for a member that contributes nothing until it counts as lost.
    /// None: for ever, as it may be a stopped process.
    pub straggler_timeout: Option<Duration>,
    /// The same for a member that answers no heartbeat either: for this long from its last answer.
    /// Its process is stopped, or it is gone while a copy of its connection is open elsewhere.
    pub silent_timeout: Option<Duration>,
    /// What a connection has to know: one of these. The first is said to branches. None: nothing.
    pub tokens: Vec<Token>,
    /// Most slots of a job; None: what there is.
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send; None or 0: no limit.
    pub job_packet_rate: Option<u64>,
}

/// What an operator may change while the daemon runs: of [`Limits`] those of the same names. A job
/// that is there keeps its slots, and its rate until its next epoch.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What a connection has to know: one of these.
    pub tokens: Vec<Token>,
    /// Slots of a job that asks for none in particular.
    pub job_slots: u32,
    /// Most slots of a job.
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send.
    pub job_packet_rate: Option<u64>,
}

/// Why counters are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A job was created: it counts from here.
    Base {
        /// Index of the job.
        job_id: u16,
    },
    /// Somebody wants to see them.
    Stats(ConnId),
}

/// Why the data path is asked which members contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Somebody wants to see the jobs.
    Jobs(ConnId),
    /// Somebody wants to see them and their counters.
    Stats(ConnId),
    /// Members of this epoch have been waiting for another one for long.
    Straggler(Formation),
    /// The root of a tree wants to know.
    Root {
        /// Its connection.
        conn: ConnId,
        /// Of its question.
        number: u64,
    },
}

/// When members last contributed, by rank. None: not in this epoch.
pub type Heard = Vec<(u16, Option<Duration>)>;

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this.
    Reply(ConnId, Reply),
    /// End the connection when all replies are sent; no [`Jobs::handle_closed`] is needed for it.
    Close(ConnId),
    /// Call `Engine::prepare` and answer [`Answer::Prepared`].
    Prepare(Prepare),
    /// Call `Engine::start` and answer [`Answer::Started`].
    Start(Formation, Option<ResultMode>),
    /// Call `Engine::stop`.
    Stop {
        /// Index of the job.
        job_id: u16,
    },
    /// Call `Engine::missing` and answer [`Answer::Missing`], as far as it is of
    /// these ranks.
    Missing {
        /// The connection that asks.
        conn: ConnId,
        /// Index of the job.
        job_id: u16,
        /// Block number.
        block: u64,
        /// Bitmap of the ranks that are asked about.
        of: u64,
    },
    /// Call `Engine::counters` and answer [`Answer::Counters`].
    Counters(Purpose),
    /// Call `Engine::heard` for each of these jobs and answer [`Answer::Heard`].
    Heard {
        /// Why.
        look: Look,
        /// Indexes of the jobs.
        jobs: Vec<u16>,
    },
    /// Call `Engine::probe_uplink` and answer [`Answer::Uplink`].
    ProbeUplink(Formation),
    /// Do this with a connection to a branch.
    Link(LinkEffect),
    /// This connection wants the settings to be read again; the caller replies.
    Reload(ConnId),
    /// [`Jobs::snapshot`] may have changed: save it, where the data path outlives the daemon.
    Persist,
}

/// A formation for the engine.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// Which one.
    pub formation: Formation,
    /// What the engine needs.
    pub setup: JobSetup,
}

impl PartialEq for Prepare {
    fn eq(&self, other: &Self) -> bool {
        let Self { formation, setup } = self;
        *formation == other.formation
            && setup.conf == other.setup.conf
            && setup.members == other.setup.members
            && setup.uplink == other.setup.uplink
            && setup.forwarders == other.setup.forwarders
            && setup.local == other.setup.local
    }
}

/// What the engine answered; errors as sentences.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Effect::Prepare`].
    Prepared(Formation, Result<Option<LocalMembers>, String>),
    /// To [`Effect::Start`].
    Started(Formation, Result<Started, String>),
    /// To [`Effect::ProbeUplink`]: whether the way up is open.
    Uplink(Formation, Result<bool, String>),
    /// To [`Effect::Missing`].
    Missing {
        /// The connection that asked.
        conn: ConnId,
        /// Block number.
        block: u64,
        /// Bitmap of ranks.
        ranks: Result<u64, String>,
    },
    /// To [`Effect::Counters`].
    Counters(Purpose, Result<Vec<JobCounters>, String>),
    /// To [`Effect::Heard`].
    Heard {
        /// Why it was asked.
        look: Look,
        /// By index of the job; those that the engine could not tell of are left out.
        heard: Vec<(u16, Heard)>,
    },
}
