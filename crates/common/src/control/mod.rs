//! Control messages between workers, tools and the daemon.
//!
//! A TCP connection carries frames: a 32-bit big-endian length, then that many bytes of JSON, at
//! most [`MAX_FRAME`]. The first frame of each side names its protocol version ([`Request::Hello`],
//! [`Reply::Welcome`]); another version is answered with [`ErrorCode::Version`] and the connection
//! ends. A worker's connection stays open as long as it is a member: its end is the worker's end.
//!
//! First the processes of a job tell each other where they are: `Hello`, [`Request::Meet`] → (all
//! have come) [`Reply::Met`]. Then a worker's life: `Hello`, [`Request::Join`] → (all ranks are
//! there) [`Reply::Admitted`] → probes on the data path → [`Request::Ready`] → (all ranks are
//! ready) [`Reply::Go`] → calls → [`Request::Leave`] or the end of the connection. At any time:
//! [`Reply::Aborted`].
//!
//! Three things give a running job a new epoch, with other members or on another daemon. Each ends
//! in [`Reply::Admitted`] with a [`Plan`] and goes on from there (rules: [`crate::reform`]):
//! * A member is lost and the job's [`Policy`] is to shrink: [`Reply::Reform`] → from each survivor
//!   [`Request::Progress`].
//! * The connection to the daemon is lost and the policy is to resume: `Hello`, [`Request::Join`]
//!   with [`Resume`]. A daemon that kept its data path over its restart answers
//!   [`Reply::Resumed`] instead: the old epoch goes on. Members that met on a ring meanwhile find
//!   out first whether they would be taken back: [`Request::Offer`].
//! * A rank that is not a member (any more) joins: [`Reply::Pause`] → from each member
//!   [`Request::Paused`] → [`Reply::RunTo`] → from each, once there, [`Request::Progress`].
//!
//! Both sides send `Heartbeat` while a worker is a member. A heartbeat that cannot be delivered
//! shows that the host or the link is dead. One that is not answered shows only that the process is
//! stopped or busy.

mod address;
mod frame;
mod info;
mod policy;
mod reason;
mod standing;
mod tree;
pub mod words;

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::maps::ResultMode;
pub use crate::reform::{Held, Plan, Progress, Run, RunKind};
pub use address::{IPV4_ONLY, first_ipv4, ipv6};
pub use frame::{FrameError, decode, encode, read_message, write_message};
pub use info::{BranchInfo, Chosen, ControlCounters, JobInfo, JobStats, MemberInfo, Stats};
pub use policy::{AggregatorLoss, Policy, WorkerLoss};
pub use reason::{AbortReason, Cause, ErrorCode};
pub use standing::{Doing, Presence, Standing};
pub use tree::{
    Branch, BranchReply, BranchRequest, BranchSetup, LocalMembers, MAX_BRANCHES, MAX_SPARES, Tree,
    TreeError, Uplink,
};

/// Version of the control protocol.
pub const CONTROL_VERSION: u32 = 8;
/// Default TCP port of the daemon's control address.
pub const CONTROL_PORT: u16 = 9870;
/// Largest frame in bytes; a longer one is an error before anything of it is read.
pub const MAX_FRAME: usize = 1 << 20;
/// Longest job name in bytes.
pub const MAX_JOB_NAME: usize = 64;
/// Longest name of a run in bytes.
pub const MAX_RUN_NAME: usize = 256;

/// What a worker or a tool says to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "body", rename_all = "snake_case")]
pub enum Request {
    /// First frame of every connection.
    Hello {
        /// [`CONTROL_VERSION`] of the sender.
        version: u32,
        /// Name and version of the program, for logs.
        #[serde(deserialize_with = "words::name")]
        agent: String,
        /// The secret that the operator gave out, where the daemon asks for one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// Tell me what the others of this job say, when all have come. Answered by
    /// [`Reply::Meeting`] at once and [`Reply::Met`] later; may be said again, to hear who is
    /// missing. Binds nobody: the end of the connection takes it back.
    Meet(Meet),
    /// Become rank `rank` of a job. The first to name a job creates it.
    Join(Join),
    /// Would [`Request::Join`] with this [`Resume`] be taken? Said by a worker that goes on without
    /// the daemon; its progress does not matter. Answered by [`Reply::Done`] or [`Reply::Error`];
    /// it changes nothing, and binds nobody.
    Offer(Join),
    /// My probe came back: my path is open.
    Ready,
    /// Answer to [`Reply::Heartbeat`].
    Heartbeat,
    /// What I am doing; said before an answer to [`Reply::Heartbeat`], where it has changed.
    Doing(Doing),
    /// Answer to [`Reply::Reform`], and said unasked by a member that has come to the call that
    /// [`Reply::RunTo`] named: I take in no more results of this epoch, and this is what I have.
    Progress(Progress),
    /// Answer to [`Reply::Pause`]: I start no call from this one on until I am told how far.
    Paused {
        /// Number of the next call that I would start.
        next_sequence: u64,
    },
    /// I contributed to a block under another call than the others: the job cannot go on.
    CallMismatch {
        /// What this worker called.
        call: Call,
    },
    /// I cannot go on; end the job and tell the others why.
    Abort {
        /// One sentence for people.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
        /// What made it give up, for programs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Cause>,
    },
    /// Whose contribution to this block is missing?
    Missing {
        /// Block number.
        block: u64,
        /// Bit `r`: rank `r`'s contribution is waited for. None: all are. 0: no one's is yet, and
        /// the answer names the ranks that keep the job from its next epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u64>,
    },
    /// How are these members of my job, and what are they doing?
    Standing {
        /// Bit `r`: rank `r`.
        of: u64,
    },
    /// I am done.
    Leave,
    /// The root of a tree to one of its branches.
    Branch(BranchRequest),
    /// Tool: list the jobs.
    Jobs,
    /// Tool: everything that is counted.
    Stats,
    /// Tool: reserve a job before its workers come.
    Create(CreateJob),
    /// Tool: end a job; its members are told.
    Delete {
        /// Name of the job.
        job: String,
    },
    /// Tool on the daemon's own host: read token, certificates and limits again. Answered by
    /// [`Reply::Reloaded`], or by [`Reply::Error`] where all stay as they were.
    Reload,
}

/// A process that comes to a job, before it is known which of them are one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meet {
    /// Name of the job, 1 to [`MAX_JOB_NAME`] bytes.
    pub job: String,
    /// The run that it is of. Another run's processes are refused.
    pub run: Option<String>,
    /// Rank among the processes.
    pub rank: u16,
    /// Number of processes.
    pub world_size: u16,
    /// For the others; at most [`Self::MAX_WORDS`] bytes.
    pub words: String,
}

impl Meet {
    /// Most bytes that a process may have for the others.
    pub const MAX_WORDS: usize = 1024;
    /// Most processes of a job.
    pub const MAX_PROCESSES: u16 = 4096;
}

/// The processes of which a job is made, and how they met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The name that they met under. A host's processes make several jobs of it.
    pub name: String,
    /// Their run.
    pub run: Option<String>,
    /// Number of processes.
    pub world_size: u16,
    /// Processes that are one worker.
    pub local_size: u16,
    /// The meeting's random number.
    pub number: u64,
}

/// A worker's wish to become a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Name of the job, 1 to [`MAX_JOB_NAME`] bytes.
    pub job: String,
    /// Rank, below `world_size`.
    pub rank: u16,
    /// Number of workers, 1 to [`crate::wire::MAX_WORKERS`].
    pub world_size: u16,
    /// UDP port that the worker sends from and listens on.
    pub data_port: u16,
    /// Address that the worker sends from. None: the address of this connection.
    pub data_addr: Option<Ipv4Addr>,
    /// Most chunks that the worker's MTU allows ([`crate::frame::chunks_for_mtu`]).
    pub max_chunks: u16,
    /// Slots that the worker asks for (a power of two). None: the daemon's default.
    pub slots: Option<u32>,
    /// How results shall come. None: the daemon chooses.
    pub result_mode: Option<ResultMode>,
    /// What shall happen when a member or the daemon is lost: the same for all members.
    #[serde(default)]
    pub policy: Policy,
    /// TCP port where this worker takes part in a ring if the daemon is lost
    /// ([`AggregatorLoss::Ring`]).
    #[serde(default)]
    pub ring_port: Option<u16>,
    /// This worker was a member already, and lost the connection to its daemon.
    #[serde(default)]
    pub resume: Option<Resume>,
    /// How long the worker waits for the other ranks, in seconds: the daemon waits as long, as
    /// far as its operator lets it. None: as long as the operator says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_s: Option<u16>,
    /// The daemons below this one that take part. Empty: this one sums alone.
    #[serde(default)]
    pub tree: Tree,
    /// How the worker came to these aggregators. None: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Box<Chosen>>,
    /// Where it comes from. None: from no meeting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
}

/// What a worker remembers of the epoch in which it lost its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The epoch's number and cookie: a daemon that has kept it lets the worker go on in it.
    pub epoch: u16,
    /// See `epoch`.
    pub cookie: u64,
    /// The epoch's members: the job forms anew when all of these are back.
    pub members: u64,
    /// Chunks of a block: calls in flight are cut into such blocks.
    pub chunks: u16,
    /// What it has. It takes in no more results of this epoch unless [`Reply::Resumed`] comes.
    pub progress: Progress,
    /// How often the members have met on a ring since ([`AggregatorLoss::Ring`]). `members` are
    /// those of the last one. A worker that has met less often is left behind, and no worker that
    /// was on a ring can go on in the epoch itself.
    #[serde(default)]
    pub rings: u32,
}

/// A secret that the operator gave out. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A job that is reserved before its workers come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateJob {
    /// Name of the job.
    pub job: String,
    /// Number of workers.
    pub world_size: u16,
    /// Slots (a power of two). None: the daemon's default.
    pub slots: Option<u32>,
    /// How results shall come. None: the daemon chooses.
    pub result_mode: Option<ResultMode>,
    /// What shall happen when somebody is lost. None: as the first worker asks.
    #[serde(default)]
    pub policy: Option<Policy>,
}

/// One collective call, as its arguments must agree between the workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Number of the call in the communicator's life, from 0.
    pub sequence: u64,
    /// Elements.
    pub count: u64,
    /// Type of the elements: `f32`, `i32`, …
    #[serde(deserialize_with = "words::name")]
    pub element: String,
    /// `sum`, `average`, `min` or `max`.
    #[serde(deserialize_with = "words::name")]
    pub operation: String,
    /// How the numbers travel: scaling, width of the lanes, and where several aggregators or
    /// processes of a host have parts of the vector, which part this is.
    #[serde(deserialize_with = "words::name")]
    pub numbers: String,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, count, element, operation, numbers } = self;
        write!(f, "call {sequence}: {operation} of {count} {element}, {numbers}")
    }
}

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "body", rename_all = "snake_case")]
pub enum Reply {
    /// First frame of every connection.
    Welcome {
        /// [`CONTROL_VERSION`] of the daemon.
        version: u32,
        /// Name and version of the program.
        #[serde(deserialize_with = "words::name")]
        agent: String,
        /// `xdp (native)`, `xdp (generic)` or `userspace`.
        #[serde(deserialize_with = "words::name")]
        engine: String,
    },
    /// Answer to [`Request::Meet`]: not all have come yet.
    Meeting {
        /// Those that have not.
        missing: Vec<u16>,
        /// Where such ranks wait instead, in words: under another name of a job.
        #[serde(deserialize_with = "words::sentences")]
        elsewhere: Vec<String>,
    },
    /// All have come, and said this, in order of rank.
    Met {
        /// What they said.
        words: Vec<String>,
        /// A random number, the same for all.
        number: u64,
    },
    /// Answer to [`Request::Meet`]: the job is there already, made of these processes, and may take
    /// one in.
    Underway(Origin),
    /// All ranks have joined; try your path.
    Admitted(Admitted),
    /// All paths are open; contribute.
    Go {
        /// How results come.
        mode: ResultMode,
        /// The group to join, in [`ResultMode::Multicast`].
        group: Option<SocketAddrV4>,
    },
    /// The job is over; no later result is valid.
    Aborted(AbortReason),
    /// Are you there? Answer [`Request::Heartbeat`].
    Heartbeat,
    /// Members are lost, and the job goes on without them: answer [`Request::Progress`].
    Reform {
        /// The ranks that are lost.
        lost: Vec<u16>,
        /// Why, in words.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
    },
    /// Answer to [`Request::Join`] with [`Resume`]: the epoch goes on as it is.
    Resumed,
    /// A rank wants to join: answer [`Request::Paused`].
    Pause {
        /// The ranks that wait.
        joining: Vec<u16>,
    },
    /// Start no call from this one on: the new members take part in it. Say [`Request::Progress`]
    /// when all calls before it are done.
    RunTo {
        /// Number of the first call of the next epoch.
        sequence: u64,
    },
    /// Answer to [`Request::Missing`].
    Missing {
        /// The block that was asked for.
        block: u64,
        /// Ranks whose contribution is not there.
        ranks: Vec<u16>,
    },
    /// Answer to [`Request::Standing`], in ascending order of ranks.
    Standing(Vec<Standing>),
    /// A branch to the root of its tree.
    Branch(BranchReply),
    /// Answer to [`Request::Jobs`].
    Jobs(Vec<JobInfo>),
    /// Answer to [`Request::Stats`].
    Stats(Stats),
    /// Answer to [`Request::Reload`]: the settings were read again.
    Reloaded(Reloaded),
    /// Done, with nothing to tell.
    Done,
    /// Refused; the connection stays open unless the code says otherwise.
    Error {
        /// For programs.
        code: ErrorCode,
        /// For people: what was wrong, what was expected, what to do.
        #[serde(deserialize_with = "words::sentence")]
        message: String,
    },
}

/// What became of settings that were read again. Settings are named as in the daemon's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// These have changed, and hold now.
    #[serde(deserialize_with = "words::sentences")]
    pub changed: Vec<String>,
    /// These have changed, and the daemon goes on as it did: only a restart takes them over.
    #[serde(deserialize_with = "words::sentences")]
    pub needs_restart: Vec<String>,
}

/// What a member needs to know to use the data path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// Index of the job.
    pub job_id: u16,
    /// Random number of this epoch.
    pub cookie: u64,
    /// Membership number, never 0.
    pub epoch: u16,
    /// Bit `r`: rank `r` is a member of this epoch.
    pub members: u64,
    /// Block size: the smallest that all members and the aggregator can send.
    pub chunks: u16,
    /// Slots of the pool; the window is half of them.
    pub slots: u32,
    /// Where to send contributions.
    pub data: SocketAddrV4,
    /// Send packet by packet: a train (UDP segmentation offload) may reach this aggregator's data
    /// path as one long packet, which it refuses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub single_packets: bool,
    /// What becomes of the blocks of earlier epochs. None: this is the job's first one.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Where the members take part in a ring, in order of their ranks; empty without
    /// [`AggregatorLoss::Ring`].
    #[serde(default)]
    pub ring: Vec<SocketAddrV4>,
}
