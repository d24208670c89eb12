//! Jobs: who is a member of what.
//!
//! It is driven as [the crate](crate) says: what is to be done comes out of [`Jobs::poll_effect`],
//! and what came of it goes in by [`Jobs::handle_answer`].
//!
//! The table of a job's phases is in `phase`. A job forms (ranks join), probes (members try their
//! paths), runs, and ends: finished, when all members have left, or aborted, which each remaining
//! member is told once. A job made by `Create` then forms again; one made by its first `Join`
//! vanishes. A rank that leaves or dies while the job forms only frees its place.
//!
//! A job that has run may get further epochs (`membership`): without a member that was lost, where
//! its policy is to shrink; with the members of another daemon's job that come back (`resume`);
//! with ranks that join anew. Until it has run once, a loss ends it, whatever its policy.
//!
//! Every epoch has a fresh cookie and a number that no job of this daemon had before (until the
//! numbers have gone round): slots that another job used hold nothing that could be mistaken for
//! this one's. It is later than that of the epoch that returning workers come from; what these
//! name moves the daemon's numbers only when their job forms.
//!
//! A member says `Progress` once between two `Admitted`: in answer to `Reform`, or before it, when
//! it had come to the call of `RunTo`. `Resumed` ends a pause; where it is still wanted, `Pause` or
//! `RunTo` is said again.
//!
//! There is no limit to the time in which a member says its `Progress` or `Paused`, unless
//! [`Limits::straggler_timeout`] is set: a stopped process is not dead, and the others' calls have
//! deadlines. After `RunTo` it counts from the first `Progress` on. Before that a member may have
//! calls to make, and who waits for its contributions to them says so.

mod branch;
mod checks;
mod handle;
mod heartbeat;
mod job;
mod join;
mod late;
mod membership;
mod numbers;
mod phase;
mod question;
mod reform;
mod resume;
mod setup;
mod slots;
mod snapshot;
mod straggler;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use xdp_agg_common::control::{AbortReason, ErrorCode, LocalMembers, Reply, Request, Token};
use xdp_agg_common::maps::{JobCounters, ResultMode};

use crate::engine::{JobSetup, Started};
use branch::Served;
use job::Job;
use question::Question;
use slots::SlotRanges;
use straggler::OpenLook;

pub use snapshot::{JobSnapshot, MemberSnapshot, Snapshot};

/// Waits that a job can have at a time.
const WAITS_MAX: usize = 4;

/// A connection, as the caller numbers it. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A connection to a branch of a job's tree. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What the caller is to do with a connection to a branch.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkEffect {
    /// Connect to this control address; then [`Jobs::handle_link_up`] or
    /// [`Jobs::handle_link_lost`].
    Dial(LinkId, SocketAddrV4),
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
#[derive(Clone, Debug)]
pub struct Limits {
    /// The engine's description.
    pub engine: String,
    /// Slots in the whole pool.
    pub slots: u32,
    /// Slots of a job that asks for none in particular (a power of two).
    pub job_slots: u32,
    /// Largest block that the engine takes, in chunks.
    pub max_chunks: u16,
    /// Address that workers send to; None: the one that they are connected to.
    pub data_addr: Option<Ipv4Addr>,
    /// UDP port that workers send to.
    pub data_port: u16,
    /// How long ranks may take to join, from the first one's join.
    pub join_timeout: Duration,
    /// How long members may take to try their paths, and the branches of a tree for each step until
    /// the job runs.
    pub probe_timeout: Duration,
    /// How long the members of another daemon's job may take to come back, from the first one.
    pub resume_timeout: Duration,
    /// In what time a dead host is noticed. Heartbeats go out eight times as often; the caller sets
    /// its sockets so that what cannot be delivered ends a connection in this time.
    pub dead_after: Duration,
    /// How long others may wait for a member that contributes nothing until it counts as lost.
    /// None: for ever, as it may be a stopped process.
    pub straggler_timeout: Option<Duration>,
    /// What a connection has to know. None: nothing.
    pub token: Option<Token>,
    /// Most slots of a job; None: what there is.
    pub job_slots_max: Option<u32>,
    /// Packets a second that a job may send; None or 0: no limit.
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

/// Why the data path is asked who contributes.
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
        /// Who asks.
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
        /// Who asked.
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

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Session {
    peer: Peer,
    /// It has said `Hello`.
    greeted: bool,
    /// Job and rank, if it is a member or waits to become one.
    member: Option<(u16, u16)>,
    /// The job that it leads, and this daemon serves as a branch.
    branch: Option<u16>,
    /// Heartbeats since its last answer to one.
    unanswered: u32,
    /// When that was.
    answered: Option<Instant>,
}

impl Session {
    /// More than a stranger.
    const fn is_bound(&self) -> bool {
        self.member.is_some() || self.branch.is_some()
    }
}

/// All jobs of a daemon. See the module's text for the order of calls.
#[derive(Debug)]
pub struct Jobs {
    limits: Limits,
    rng: StdRng,
    /// A random number by which other daemons know this one, whatever address it is reached at.
    daemon: u64,
    started: Instant,
    /// The latest time that was told.
    clock: Instant,
    next_heartbeat: Instant,
    sessions: BTreeMap<ConnId, Session>,
    jobs: BTreeMap<u16, Job>,
    /// Jobs that another daemon leads.
    served: BTreeMap<u16, Served>,
    /// Connections to branches: job, and the branch's control address.
    links: BTreeMap<LinkId, (u16, SocketAddrV4)>,
    next_link: u64,
    /// Asked by whom, and not answered by all aggregators of a tree yet.
    questions: BTreeMap<ConnId, Question>,
    /// Branches are to tell who contributes, and have not all done so.
    looks: BTreeMap<u64, OpenLook>,
    next_look: u64,
    pool: SlotRanges,
    last_epoch: u16,
    effects: VecDeque<Effect>,
    /// What a snapshot shows may have changed since the last [`Effect::Persist`].
    changed: bool,
}

impl Jobs {
    /// No jobs yet. `rng` makes the cookies: seed it from the system's randomness.
    #[must_use]
    pub fn new(limits: Limits, mut rng: StdRng, now: Instant) -> Self {
        let pool = SlotRanges::new(limits.slots);
        Self {
            limits,
            daemon: rng.random(),
            rng,
            started: now,
            clock: now,
            next_heartbeat: now,
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            served: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 0,
            questions: BTreeMap::new(),
            looks: BTreeMap::new(),
            next_look: 0,
            pool,
            last_epoch: 0,
            effects: VecDeque::new(),
            changed: false,
        }
    }

    /// A connection came in.
    pub fn handle_connected(&mut self, conn: ConnId, peer: Peer) {
        let session = Session {
            peer,
            greeted: false,
            member: None,
            branch: None,
            unanswered: 0,
            answered: None,
        };
        self.sessions.insert(conn, session);
    }

    /// A connection said something.
    pub fn handle_request(&mut self, conn: ConnId, request: Request, now: Instant) {
        self.clock = now.max(self.clock);
        // A connection that was told to close may have said more before it heard that.
        if let Some(session) = self.sessions.get(&conn).copied() {
            self.handle(conn, session, request);
        }
    }

    /// A connection said something that is no message: `why` says what was wrong.
    pub fn handle_garbled(&mut self, conn: ConnId, why: &str) {
        if self.sessions.contains_key(&conn) {
            self.refuse_and_close(conn, ErrorCode::Protocol, why);
        }
    }

    /// A connection is beyond the daemon's limits: it is told why, and closed.
    pub fn dismiss(&mut self, conn: ConnId, why: &str) {
        if self.sessions.contains_key(&conn) {
            self.refuse_and_close(conn, ErrorCode::Limit, why);
        }
    }

    /// A connection ended.
    pub fn handle_closed(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        self.questions.remove(&conn);
        if let Some((job_id, rank)) = session.member {
            self.connection_lost(job_id, rank, conn);
        }
        if let Some(job_id) = session.branch {
            self.root_lost(job_id);
        }
    }

    /// True while the connection is a member of a job, waits to become one, or leads a job of which
    /// this daemon is a branch.
    #[must_use]
    pub fn is_member(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(Session::is_bound)
    }

    /// Connections that are members of jobs, or wait to become members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.jobs.values().map(|job| job.conns().count()).sum()
    }

    /// When [`Self::handle_timeout`] is due; None: not until the next event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.jobs.values().filter_map(|job| self.deadline(job));
        let probes = self.served.values().filter_map(Served::due);
        let looks = self.looks.values().map(|look| look.until);
        let others = [self.questions_due(), self.heartbeat_due()].into_iter().flatten();
        waits.chain(probes).chain(looks).chain(others).min()
    }

    /// Ends the waits that are over, and sends heartbeats.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock = now.max(self.clock);
        self.send_heartbeats();
        self.probe_uplinks();
        self.end_looks();
        self.end_questions();
        // A job may have several waits that are over; each is dealt with once.
        for _ in 0..WAITS_MAX {
            let over = |job: &&Job| self.deadline(job).is_some_and(|end| end <= now);
            let over: Vec<_> = self.jobs.values().filter(over).map(|job| job.job_id).collect();
            for job_id in over {
                self.wait_is_over(job_id);
            }
        }
    }

    /// Ends all jobs, reserved ones too: the daemon is going.
    pub fn shut_down(&mut self, reason: &str) {
        let all: Vec<_> = self.jobs.keys().copied().collect();
        for job_id in all {
            if let Some(job) = self.jobs.get_mut(&job_id) {
                job.reserved = false;
            }
            self.abort(job_id, &AbortReason::Operator { reason: reason.into() });
        }
    }

    /// The next thing to do; None when all is done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front();
        effect.or_else(|| std::mem::take(&mut self.changed).then_some(Effect::Persist))
    }
}
