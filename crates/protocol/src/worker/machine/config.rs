//! What a machine is told at its start, and what it tells.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use serde::Serialize;
use xdp_agg_common::control::{CONTROL_PORT, Chosen, Origin, Policy, Request, Token, Tree};
use xdp_agg_common::frame::{IP_OVERHEAD, chunks_for_mtu};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::wire::HEADER_LEN;

use crate::worker::flow::{self, Congestion};

/// Settings of a [`super::Machine`].
#[derive(Clone, Debug)]
pub struct Config {
    /// This worker's number, below `world_size`.
    pub rank: u16,
    /// Number of workers.
    pub world_size: u16,
    /// Processes of a worker, which is a host then; ranks in the world count them.
    pub local_size: u16,
    /// Which of these this is.
    pub local_rank: u16,
    /// It is the only worker, and its processes sum over shared memory alone: calls have no blocks
    /// in the job.
    pub alone: bool,
    /// Name of the job.
    pub job: String,
    /// Slots that are asked for; none: the daemon's default.
    pub slots: Option<u32>,
    /// How results shall come; none: the daemon chooses.
    pub result_mode: Option<ResultMode>,
    /// What shall happen when somebody is lost.
    pub policy: Policy,
    /// The operator's secret.
    pub token: Option<Token>,
    /// The daemon's control address, for messages.
    pub aggregator: SocketAddr,
    /// UDP port that packets are sent from and received on.
    pub data_port: u16,
    /// Address that packets are sent from. None: that of the control connection.
    pub data_addr: Option<Ipv4Addr>,
    /// The daemons below the one that leads the job.
    pub tree: Tree,
    /// By which strategy the job sums, and why, for the daemon to show.
    pub chosen: Option<Chosen>,
    /// The processes of which the job is made, and how they met.
    pub origin: Option<Box<Origin>>,
    /// TCP port of this worker's listener for a ring.
    pub ring_port: Option<u16>,
    /// The ranks as a ring is to visit them, the same at all workers: rack by rack. Ranks that are
    /// not named come last, in ascending order.
    pub ring_order: Vec<u16>,
    /// Most chunks of a block that the path allows.
    pub max_chunks: u16,
    /// Blocks that the receiver has room for: the window never exceeds it.
    pub window_room: u32,
    /// Pace in bits per second on the wire. None: as fast as results come back.
    pub rate: Option<u64>,
    /// What makes windows smaller.
    pub congestion: Congestion,
    /// Shortest retransmission timeout.
    pub rto_min: Duration,
    /// Longest time to wait for the daemon and for the other workers when joining.
    pub join_deadline: Duration,
    /// How long a call may stand still although all its workers are in it.
    pub stall_deadline: Duration,
    /// After how long a wait is told of for the first time ([`super::Machine::poll_warning`]).
    pub warn_after: Duration,
    /// How long no daemon could be reached before the workers go on over a ring, if the policy says
    /// so.
    pub fallback_after: Duration,
    /// On a ring: pause before the daemon is looked for. Each attempt in vain doubles it, up to
    /// eight times as much.
    pub return_pause: Duration,
}

impl Config {
    /// Default settings for a rank of a job.
    #[must_use]
    pub fn new(job: impl Into<String>, rank: u16, world_size: u16) -> Self {
        Self {
            rank,
            world_size,
            local_size: 1,
            local_rank: 0,
            alone: false,
            job: job.into(),
            slots: None,
            result_mode: None,
            policy: Policy::default(),
            token: None,
            aggregator: SocketAddrV4::new(Ipv4Addr::LOCALHOST, CONTROL_PORT).into(),
            data_port: 0,
            data_addr: None,
            tree: Tree::default(),
            chosen: None,
            origin: None,
            ring_port: None,
            ring_order: Vec::new(),
            max_chunks: chunks_for_mtu(1500),
            window_room: 1 << 16,
            rate: None,
            congestion: Congestion::default(),
            rto_min: Duration::from_millis(4),
            join_deadline: Duration::from_secs(60),
            stall_deadline: Duration::from_secs(30),
            warn_after: Duration::from_secs(10),
            fallback_after: Duration::from_secs(2),
            return_pause: Duration::from_millis(500),
        }
    }

    /// Time between two packets of `packet` bytes (behind UDP) at the allowed rate.
    pub(super) fn block_interval(&self, packet: usize) -> Duration {
        let bits = (packet + IP_OVERHEAD - HEADER_LEN + 14) as u64 * 8;
        match self.rate {
            Some(rate) if rate > 0 => Duration::from_nanos(bits * 1_000_000_000 / rate),
            _ => Duration::ZERO,
        }
    }
}

/// What the caller shall do with the control connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Open one; tell how it went by [`super::Machine::handle_connected`] or
    /// [`super::Machine::handle_connect_failed`].
    Connect,
    /// Close it, without telling.
    Disconnect,
    /// Send this.
    Send(Request),
}

/// Where data goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The epoch that this is for.
    pub epoch: u16,
    /// The aggregator's address of the data path.
    pub data: SocketAddrV4,
    /// Bytes of a full packet (UDP payload).
    pub packet_len: usize,
    /// Packets leave one by one, not as trains.
    pub single_packets: bool,
    /// The group where results come to, in [`ResultMode::Multicast`], once running.
    pub group: Option<SocketAddrV4>,
}

/// What a machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Becoming a member for the first time.
    Joining,
    /// Trying the path of a new epoch, or waiting until all members' are open.
    Probing,
    /// A member, and the daemon is there.
    Running,
    /// The epoch is over, the next one has not begun.
    Reforming,
    /// The daemon is lost. Where its data path goes on, so do calls.
    Reconnecting,
    /// No daemon came back: calls run over a TCP ring until one does.
    OnRing,
    /// An error ended the membership: see [`super::Machine::failure`].
    Failed,
}

/// What a communicator did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Transmissions, results, losses.
    #[serde(flatten)]
    pub flow: flow::Counters,
    /// Calls that ended with a result.
    pub calls: u64,
    /// Of these, calls that ran over the ring, wholly or in part.
    pub ring_calls: u64,
    /// Elements that were clamped, over all calls.
    pub saturated: u64,
    /// Blocks that came back as NaN because some worker had a NaN or an infinity in them.
    pub non_finite_blocks: u64,
    /// Packets that were not for this job, epoch or call, and were dropped.
    pub foreign: u64,
    /// Errors of the data path's socket, such as those that an ICMP packet gives. None of them ends
    /// a call.
    pub socket_errors: u64,
    /// Packets of the aggregator that came by `AF_XDP`, around the stack.
    pub af_xdp_packets: u64,
    /// Current window in blocks.
    pub window: u32,
    /// Smoothed round-trip time in nanoseconds; 0 before the first measurement.
    pub round_trip_ns: u64,
    /// The membership's number; 0 before the first.
    pub epoch: u16,
    /// New epochs since this worker joined.
    pub reforms: u64,
    /// Times that the daemon was lost and found again.
    pub resumes: u64,
}

impl Counters {
    /// Of two aggregators together. Calls are the same ones, and so is the epoch of the first.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.flow.merge(&other.flow);
        self.ring_calls = self.ring_calls.max(other.ring_calls);
        self.saturated += other.saturated;
        self.non_finite_blocks += other.non_finite_blocks;
        self.foreign += other.foreign;
        self.socket_errors += other.socket_errors;
        self.af_xdp_packets += other.af_xdp_packets;
        self.window = self.window.saturating_add(other.window);
        self.round_trip_ns = self.round_trip_ns.max(other.round_trip_ns);
        self.reforms += other.reforms;
        self.resumes += other.resumes;
        self
    }
}
