//! Jobs: who is a member of what, as a state machine without sockets, clocks or threads.
//!
//! Events go in ([`Jobs::connected`], [`Jobs::request`], [`Jobs::closed`], [`Jobs::answer`],
//! [`Jobs::handle_timeout`]); effects come out ([`Jobs::next_effect`], to be taken until it is
//! empty after each event); [`Jobs::poll_timeout`] says when time alone will matter.
//!
//! A job forms (ranks join), probes (members try their paths), runs, and ends: finished, when all
//! members have left, or aborted, which each remaining member is told once. A job made by `Create`
//! then forms again; one made by its first `Join` vanishes. A rank that leaves or dies while the
//! job forms only frees its place. Every formation has a fresh cookie and an epoch that no job of
//! this daemon had before (until 65 535 formations have passed): slots that another job used hold
//! nothing that could be mistaken for this one's.

mod checks;
mod handle;
mod job;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use xdp_agg_common::control::{AbortReason, ErrorCode, Reply, Request};
use xdp_agg_common::maps::{JobCounters, ResultMode};

use crate::engine::{JobSetup, Started};
use job::Job;
use slots::SlotRanges;

/// A connection, as the caller numbers it. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

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
    /// How long members may take to try their paths.
    pub probe_timeout: Duration,
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

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this.
    Reply(ConnId, Reply),
    /// End the connection when all replies are sent; no [`Jobs::closed`] is needed for it.
    Close(ConnId),
    /// Call [`crate::engine::Engine::prepare`] and answer [`Answer::Prepared`].
    Prepare(Prepare),
    /// Call [`crate::engine::Engine::start`] and answer [`Answer::Started`].
    Start(Formation, Option<ResultMode>),
    /// Call [`crate::engine::Engine::stop`].
    Stop {
        /// Index of the job.
        job_id: u16,
    },
    /// Call [`crate::engine::Engine::missing`] and answer [`Answer::Missing`].
    Missing {
        /// Who asks.
        conn: ConnId,
        /// Index of the job.
        job_id: u16,
        /// Block number.
        block: u64,
    },
    /// Call [`crate::engine::Engine::counters`] and answer [`Answer::Counters`].
    Counters(Purpose),
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
    }
}

/// What the engine answered; errors as sentences.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Effect::Prepare`].
    Prepared(Formation, Result<(), String>),
    /// To [`Effect::Start`].
    Started(Formation, Result<Started, String>),
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
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Session {
    peer: Peer,
    /// It has said `Hello`.
    greeted: bool,
    /// Job and rank, if it is a member.
    member: Option<(u16, u16)>,
}

/// All jobs of a daemon. See the module's text for the order of calls.
#[derive(Debug)]
pub struct Jobs {
    limits: Limits,
    rng: StdRng,
    started: Instant,
    sessions: BTreeMap<ConnId, Session>,
    jobs: BTreeMap<u16, Job>,
    pool: SlotRanges,
    last_epoch: u16,
    effects: VecDeque<Effect>,
}

impl Jobs {
    /// No jobs yet. `rng` makes the cookies: seed it from the system's randomness.
    #[must_use]
    pub fn new(limits: Limits, rng: StdRng, now: Instant) -> Self {
        let pool = SlotRanges::new(limits.slots);
        Self {
            limits,
            rng,
            started: now,
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            pool,
            last_epoch: 0,
            effects: VecDeque::new(),
        }
    }

    /// A connection came in.
    pub fn connected(&mut self, conn: ConnId, peer: Peer) {
        self.sessions.insert(conn, Session { peer, greeted: false, member: None });
    }

    /// A connection said something.
    pub fn request(&mut self, conn: ConnId, request: Request, now: Instant) {
        // A connection that was told to close may have said more before it heard that.
        if let Some(session) = self.sessions.get(&conn).copied() {
            self.handle(conn, session, request, now);
        }
    }

    /// A connection said something that is no message: `why` says what was wrong.
    pub fn garbled(&mut self, conn: ConnId, why: &str) {
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
    pub fn closed(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        if let Some((job_id, rank)) = session.member {
            self.member_lost(job_id, rank);
        }
    }

    /// True while the connection is a member of a job.
    #[must_use]
    pub fn is_member(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(|session| session.member.is_some())
    }

    /// Connections that are members of jobs.
    #[must_use]
    pub fn members(&self) -> usize {
        self.jobs.values().map(|job| job.members.len()).sum()
    }

    /// When [`Self::handle_timeout`] is due; None: not until the next event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.jobs.values().filter_map(Job::deadline).map(|(end, _)| end).min()
    }

    /// Ends the waits that are over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let over: Vec<_> = self
            .jobs
            .values()
            .filter_map(|job| job.deadline().map(|(end, step)| (job.job_id, end, step)))
            .filter(|(_, end, _)| *end <= now)
            .collect();
        for (job_id, _, step) in over {
            if let Some(job) = self.jobs.get(&job_id) {
                let reason = AbortReason::Timeout { ranks: job.awaited(), step: step.into() };
                self.abort(job_id, &reason);
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
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}
