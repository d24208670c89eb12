//! Control messages between workers, tools and the daemon.
//!
//! A TCP connection carries frames: a 32-bit big-endian length, then that many bytes of JSON, at
//! most [`MAX_FRAME`]. The first frame of each side names its protocol version ([`Request::Hello`],
//! [`Reply::Welcome`]); another version is answered with [`ErrorCode::Version`] and the connection
//! ends. A worker's connection stays open as long as it is a member: its end is the worker's end.
//!
//! A worker's life: `Hello`, [`Request::Join`] → (all ranks are there) [`Reply::Admitted`] →
//! probes on the data path → [`Request::Ready`] → (all ranks are ready) [`Reply::Go`] → calls →
//! [`Request::Leave`] or the end of the connection. At any time: [`Reply::Aborted`].
//!
//! Three things give a running job a new epoch, with other members or on another daemon; each ends
//! in [`Reply::Admitted`] with a [`Plan`] and goes on from there (rules: [`crate::reform`]):
//! * A member is lost and the job's [`Policy`] is to shrink: [`Reply::Reform`] → from each survivor
//!   [`Request::Progress`].
//! * The connection to the daemon is lost and the policy is to resume: `Hello`, [`Request::Join`]
//!   with [`Resume`]. A daemon that kept its data path over its restart answers
//!   [`Reply::Resumed`] instead: the old epoch goes on.
//! * A rank that is no member (any more) joins: [`Reply::Pause`] → from each member
//!   [`Request::Paused`] → [`Reply::RunTo`] → from each, once there, [`Request::Progress`].
//!
//! Both sides send `Heartbeat` while a worker is a member. That a heartbeat cannot be delivered
//! shows that the host or the link is dead; that none is answered shows only that the process is
//! stopped or busy.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::maps::{JobCounters, ResultMode};
pub use crate::reform::{Held, Plan, Progress, Run, RunKind};

/// Version of the control protocol.
pub const CONTROL_VERSION: u32 = 3;
/// Default TCP port of the daemon's control address.
pub const CONTROL_PORT: u16 = 9870;
/// Largest frame in bytes; a longer one is an error before anything of it is read.
pub const MAX_FRAME: usize = 1 << 20;
/// Longest job name in bytes.
pub const MAX_JOB_NAME: usize = 64;

/// What a worker or a tool says to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "body", rename_all = "snake_case")]
pub enum Request {
    /// First frame of every connection.
    Hello {
        /// [`CONTROL_VERSION`] of the sender.
        version: u32,
        /// Name and version of the program, for logs.
        agent: String,
        /// The secret that the operator gave out, where the daemon asks for one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// Become rank `rank` of a job. The first to name a job creates it.
    Join(Join),
    /// My probe came back: my path is open.
    Ready,
    /// Answer to [`Reply::Heartbeat`].
    Heartbeat,
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
        reason: String,
    },
    /// Whose contribution to this block is missing?
    Missing {
        /// Block number.
        block: u64,
    },
    /// I am done.
    Leave,
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
}

/// A worker's wish to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// What happens to a job when somebody is lost. All members ask for the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// When a worker is lost.
    pub worker_loss: WorkerLoss,
    /// When the daemon is lost.
    pub aggregator_loss: AggregatorLoss,
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { worker_loss, aggregator_loss } = self;
        write!(f, "{} on worker loss, ", worker_loss.name())?;
        write!(f, "{} on aggregator loss", aggregator_loss.name())
    }
}

/// When a worker is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerLoss {
    /// The others' calls return an error that names its rank.
    #[default]
    Fail,
    /// The others go on without it, in a new epoch.
    Shrink,
}

impl WorkerLoss {
    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Shrink => "shrink",
        }
    }
}

/// When the daemon is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregatorLoss {
    /// Calls return an error.
    #[default]
    Fail,
    /// Workers connect again and go on, in a new epoch or in the old one.
    Resume,
    /// As `Resume`; where no daemon comes back in time, the workers go on over a TCP ring.
    Ring,
}

impl AggregatorLoss {
    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Resume => "resume",
            Self::Ring => "ring",
        }
    }
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
    pub element: String,
    /// `sum`, `average`, `min` or `max`.
    pub operation: String,
    /// How the numbers travel: scaling, and width of the lanes.
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
        agent: String,
        /// `xdp (native)`, `xdp (generic)` or `userspace`.
        engine: String,
    },
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
    /// Answer to [`Request::Jobs`].
    Jobs(Vec<JobInfo>),
    /// Answer to [`Request::Stats`].
    Stats(Stats),
    /// Done, with nothing to tell.
    Done,
    /// Refused; the connection stays open unless the code says otherwise.
    Error {
        /// For programs.
        code: ErrorCode,
        /// For people: what was wrong, what was expected, what to do.
        message: String,
    },
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
    /// What becomes of the blocks of earlier epochs. None: this is the job's first one.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Where the members take part in a ring, in order of their ranks; empty without
    /// [`AggregatorLoss::Ring`].
    #[serde(default)]
    pub ring: Vec<SocketAddrV4>,
}

/// Why a job ended before its members left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AbortReason {
    /// The connection of a member ended without `Leave`.
    MemberLost {
        /// Its rank.
        rank: u16,
    },
    /// A member's call differs from the others'.
    CallMismatch {
        /// The rank that found out.
        rank: u16,
        /// What it called.
        call: Call,
    },
    /// A member gave up.
    Member {
        /// Its rank.
        rank: u16,
        /// Its words.
        reason: String,
    },
    /// `Delete`, or the daemon is shutting down.
    Operator {
        /// Why.
        reason: String,
    },
    /// A rank did not join or did not get ready in time.
    Timeout {
        /// The ranks that were awaited.
        ranks: Vec<u16>,
        /// `join`, `probe`, `resume`, `report its progress` or `contribute`.
        step: String,
    },
    /// The job went on without this worker, whose connection was lost for too long.
    Expelled,
    /// A block was finished in an earlier epoch, some members have its result and others do not,
    /// and nobody who is left can give it to them.
    Unrecoverable {
        /// Number of the block in the job's life.
        block: u64,
    },
}

impl std::fmt::Display for AbortReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MemberLost { rank } => write!(f, "rank {rank} is gone (its connection ended)"),
            Self::CallMismatch { rank, call } => {
                write!(f, "rank {rank} made another call than the others: {call}")
            }
            Self::Member { rank, reason } => write!(f, "rank {rank} gave up: {reason}"),
            Self::Operator { reason } => f.write_str(reason),
            Self::Timeout { ranks, step } => {
                write!(f, "ranks {ranks:?} did not {step} in time")
            }
            Self::Expelled => f.write_str(
                "the others went on without this worker, because its connection was lost for too \
                 long; connect again to rejoin",
            ),
            Self::Unrecoverable { block } => write!(
                f,
                "block {block} was finished before, and no member that is left can give its result \
                 to those that lack it"
            ),
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Another [`CONTROL_VERSION`]; the connection ends.
    Version,
    /// Not a frame of this protocol, or not allowed now; the connection ends.
    Protocol,
    /// A value out of its range.
    Invalid,
    /// Another worker has this rank.
    RankTaken,
    /// The job has another world size.
    WorldSize,
    /// No slots or job entries are left, or MTU too small.
    NoRoom,
    /// No such job.
    NoJob,
    /// The job exists already, or is running.
    Busy,
    /// The engine failed; see the daemon's log.
    Engine,
    /// The token is missing or wrong; the connection ends.
    Unauthorised,
    /// Too many connections or requests; the connection ends.
    Limit,
}

/// One job, for people and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Name.
    pub job: String,
    /// Index on the data path.
    pub job_id: u16,
    /// `forming`, `resuming`, `probing`, `running`, `pausing` (a rank wants to join) or `reforming`
    /// (a rank was lost).
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
    /// As in [`Reply::Welcome`].
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

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed or ended.
    #[error("control connection: {0}")]
    Io(#[from] io::Error),
    /// The length in front is over [`MAX_FRAME`]: this is not our protocol.
    #[error(
        "a control frame of {0} bytes (at most {MAX_FRAME} are allowed): \
         the peer does not speak the xdp-agg control protocol; check the address and port"
    )]
    TooLong(usize),
    /// Not the JSON that was expected.
    #[error("a control frame that cannot be understood ({0}); are both sides of one version?")]
    Json(#[from] serde_json::Error),
}

/// A message as the bytes of a frame.
///
/// # Errors
/// Longer than [`MAX_FRAME`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let len = frame.len() - 4;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    frame[..4].copy_from_slice(&(len as u32).to_be_bytes());
    Ok(frame)
}

/// Takes the next message off the front of `buffer`, if all its bytes are there.
///
/// # Errors
/// A frame that is too long, or not a message.
pub fn decode<M: DeserializeOwned>(buffer: &mut Vec<u8>) -> Result<Option<M>, FrameError> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    let Some(body) = buffer.get(4..4 + len) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body)?;
    buffer.drain(..4 + len);
    Ok(Some(message))
}

/// Writes one message to a blocking stream.
///
/// # Errors
/// The stream's, or a message that is too long.
pub fn write_message<M: Serialize>(stream: &mut impl Write, message: &M) -> Result<(), FrameError> {
    Ok(stream.write_all(&encode(message)?)?)
}

/// Reads one message from a blocking stream; no byte beyond it.
///
/// # Errors
/// The stream's, a frame that is too long, or not a message.
pub fn read_message<M: DeserializeOwned>(stream: &mut impl Read) -> Result<M, FrameError> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = u32::from_be_bytes(prefix) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Request {
        Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token: None }
    }

    #[test]
    fn messages_survive_every_split() {
        let frame = encode(&hello()).expect("it is short");
        for cut in 0..frame.len() {
            let mut buffer = frame[..cut].to_vec();
            assert!(decode::<Request>(&mut buffer).expect("a part is no error").is_none());
            buffer.extend_from_slice(&frame[cut..]);
            buffer.extend_from_slice(&frame);
            assert_eq!(decode(&mut buffer).expect("whole"), Some(hello()));
            assert_eq!(decode(&mut buffer).expect("whole"), Some(hello()));
            assert!(buffer.is_empty());
        }
        assert_eq!(read_message::<Request>(&mut &frame[..]).expect("whole"), hello());
    }

    #[test]
    fn every_shape_of_message_survives() {
        for reply in [
            Reply::Done,
            Reply::Jobs(vec![]),
            Reply::Aborted(AbortReason::Member { rank: 1, reason: "why".into() }),
            Reply::Go { mode: ResultMode::Ports, group: None },
        ] {
            let mut frame = encode(&reply).expect("it is short");
            assert_eq!(decode(&mut frame).expect("whole"), Some(reply));
        }
    }

    #[test]
    fn foreign_bytes_are_named_as_such() {
        let mut http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        assert!(matches!(decode::<Request>(&mut http), Err(FrameError::TooLong(_))));
        let mut nonsense = vec![0, 0, 0, 2, b'{', b'x'];
        assert!(matches!(decode::<Request>(&mut nonsense), Err(FrameError::Json(_))));
    }
}
