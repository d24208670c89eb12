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

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::maps::{JobCounters, ResultMode};

/// Version of the control protocol.
pub const CONTROL_VERSION: u32 = 1;
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
    },
    /// Become rank `rank` of a job. The first to name a job creates it.
    Join(Join),
    /// My probe came back: my path is open.
    Ready,
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
}

/// One collective call, as its arguments must agree between the workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Number of the call in the communicator's life, from 0.
    pub sequence: u64,
    /// Elements.
    pub count: u64,
    /// `f32` or `i32`.
    pub element: String,
    /// `sum` or `average`.
    pub operation: String,
    /// Scale of the fixed-point numbers; 1 for integers.
    pub scale: f64,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, count, element, operation, scale } = self;
        write!(f, "call {sequence}: {operation} of {count} {element}, scale {scale}")
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
    pub cookie: u32,
    /// Membership number, never 0.
    pub epoch: u16,
    /// Block size: the smallest that all members and the aggregator can send.
    pub chunks: u16,
    /// Slots of the pool; the window is half of them.
    pub slots: u32,
    /// Where to send contributions.
    pub data: SocketAddrV4,
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
        /// `join` or `probe`.
        step: String,
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
}

/// One job, for people and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Name.
    pub job: String,
    /// Index on the data path.
    pub job_id: u16,
    /// `forming`, `probing` or `running`.
    pub phase: String,
    /// Number of workers.
    pub world_size: u16,
    /// Ranks that have joined.
    pub joined: Vec<u16>,
    /// Membership number.
    pub epoch: u16,
    /// Slots of its pool.
    pub slots: u32,
    /// Payload bytes of a block; 0 until all have joined.
    pub block_bytes: u32,
    /// How results go out, once running.
    pub mode: Option<ResultMode>,
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
    pub unattributed: JobCounters,
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
        Request::Hello { version: CONTROL_VERSION, agent: "test".into() }
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
