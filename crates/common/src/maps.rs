//! What the kernel program and the daemon share in BPF maps, and the limits of both.
//!
//! Layouts are `repr(C)` without hidden padding; addresses and ports are in host byte order.
//! The daemon alone writes [`JobConf`] and the registered half of [`Member`] and [`Uplink`]. The
//! data path alone writes the learned half of both, slots and counters.

use crate::slot::SlotState;
use crate::times::Times;
use crate::wire::MAX_WORKERS;

/// Most jobs at a time on one aggregator. Each has a device map, and a kernel program may use 64
/// maps in all.
pub const MAX_JOBS: usize = 48;
/// Most interfaces that one aggregator serves.
pub const MAX_PORTS: usize = 64;
/// Receive queues of a worker's interface that its program knows.
pub const QUEUES: usize = 256;
/// Entries of the member table: job `j`, rank `r` is entry `j * MAX_WORKERS + r`.
pub const MEMBER_ENTRIES: usize = MAX_JOBS * MAX_WORKERS;

/// Index of a member in the member table.
#[inline(always)]
#[must_use]
pub const fn member_index(job: u16, rank: u16) -> u32 {
    job as u32 * MAX_WORKERS as u32 + rank as u32
}

/// Index of the `copy`-th copy of a result of job `job` on port `port` in the table that names its
/// recipient (see [`ResultMode`]).
#[inline(always)]
#[must_use]
pub const fn copy_index(job: u16, port: u32, copy: u32) -> u32 {
    (job as u32 * MAX_PORTS as u32 + port) * MAX_WORKERS as u32 + copy
}

/// The rank in a result between the program that sends a copy to every member and the one that
/// addresses each copy: it never leaves a host.
pub const UNADDRESSED: u16 = 0xfe;

/// Entries of the recipient table.
pub const COPY_ENTRIES: usize = MAX_JOBS * MAX_PORTS * MAX_WORKERS;

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Phase {
    /// No such job: every packet is refused.
    Off = 0,
    /// Members are known, their paths are being learned from probes.
    Probing = 1,
    /// Contributions are summed.
    Running = 2,
}

/// How results reach the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "lowercase"))]
#[repr(u16)]
pub enum ResultMode {
    /// A port per worker: one copy on each (device-map broadcast).
    Ports = 1,
    /// Several workers behind one port: one unicast copy a worker, made in XDP.
    Fanout = 2,
    /// One packet to a group address; the ordinary switch copies it.
    Multicast = 3,
}

impl ResultMode {
    /// The mode with this number.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ports,
            2 => Self::Fanout,
            3 => Self::Multicast,
            _ => return None,
        })
    }

    /// The name that the command line and the control messages use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Fanout => "fanout",
            Self::Multicast => "multicast",
        }
    }
}

/// One job as the data path sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct JobConf {
    /// Bit `r` is set for every rank that is a member of the epoch.
    pub members: u64,
    /// Random number of the epoch.
    pub cookie: u64,
    /// Address that workers send to.
    pub addr: u32,
    /// First slot of the job's pool in the slot table.
    pub slot_base: u32,
    /// Slots of the pool, a power of two.
    pub slots: u32,
    /// Multicast group of the results, for [`ResultMode::Multicast`].
    pub group: u32,
    /// Nanoseconds between two admitted packets of the job, all members together, at its quota. 0:
    /// no limit.
    pub packet_interval: u32,
    /// How far ahead of that pace the job may be, in nanoseconds.
    pub packet_burst: u32,
    /// UDP port of that group.
    pub group_port: u16,
    /// UDP port that workers send to.
    pub port: u16,
    /// Membership, never 0 in a job that is not off.
    pub epoch: u16,
    /// World size: ranks are below it; not all need to be members.
    pub workers: u16,
    /// Most payload of a packet, in chunks.
    pub max_chunks: u16,
    /// A [`Phase`] as a number.
    pub phase: u16,
    /// A [`ResultMode`] as a number; 0 while probing.
    pub mode: u16,
    /// 1: the job's sums go up to a parent, its [`Uplink`]. 0: they are the results.
    pub forwards: u16,
}

/// The way from an aggregator to its parent in a tree: registered by the daemon, path learned from
/// the answer to a probe. All aggregators of a tree share cookie, epoch, block numbers, tags, the
/// number of slots and the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Uplink {
    /// The parent's data address. 0: no parent.
    pub addr: u32,
    /// The parent's UDP port.
    pub port: u16,
    /// Index of the job at the parent.
    pub job: u16,
    /// The rank under which we contribute there: the lowest one below us.
    pub rank: u16,
    /// Epoch in which the fields below were learned; another one means: not yet.
    pub learned_epoch: u16,
    /// Interface that the parent's latest packet came in on.
    pub ifindex: u32,
    /// The parent's link-layer address (or a router's).
    pub mac: [u8; 6],
    /// The address that this packet was sent to: ours.
    pub local_mac: [u8; 6],
}

/// One member of a job: registered by the daemon, path learned from its probe, and again from each
/// packet that counts ([`crate::frame::may_be_learned`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Member {
    /// When its latest contribution was admitted, in nanoseconds of the kernel's monotonic clock;
    /// 0: not in this epoch. Written by the data path: it tells since when a member is silent.
    pub heard: u64,
    /// The worker's IPv4 address. 0: no such member.
    pub addr: u32,
    /// The worker's UDP port.
    pub port: u16,
    /// Epoch in which the fields below were learned; another one means: not yet.
    pub learned_epoch: u16,
    /// Interface that its latest packet came in on. Of a worker on this host the daemon registers
    /// it.
    pub ifindex: u32,
    /// Its link-layer address (or its router's), as its latest packet had it.
    pub mac: [u8; 6],
    /// The address that this packet was sent to: ours.
    pub local_mac: [u8; 6],
    /// Contributions in this epoch that came again. Written by the data path: an honest member of
    /// a network without loss has none.
    pub repetitions: u64,
}

/// How far a job is with its quota of packets: the generic cell rate algorithm (ITU-T I.371).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pace {
    /// When the next packet would be due if all came at the quota's pace, in nanoseconds.
    pub(crate) due: u64,
}

/// How far a job is with its quota of packets: a map value of its own, because it has a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Quota {
    /// The kernel's spin lock; reads as zero from user space.
    pub lock: u32,
    /// Zero.
    pub pad: u32,
    /// Its state.
    pub pace: Pace,
}

/// Why a packet that claims to be ours was refused. The number is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reject {
    /// Shorter than its headers say, or not whole chunks.
    Truncated = 0,
    /// Another version of the wire format.
    Version = 1,
    /// A value that this version does not define, or a kind that only an aggregator sends.
    Malformed = 2,
    /// No such job here.
    Job = 3,
    /// The cookie is not the job's.
    Cookie = 4,
    /// The epoch is not the job's.
    Epoch = 5,
    /// No such rank, or its packet comes from another address.
    Member = 6,
    /// No payload, or more than the job's blocks hold.
    Size = 7,
    /// A block beyond the window.
    Window = 8,
    /// Another tag, length or reduction than the other contributions to the block.
    Mismatch = 9,
    /// More packets than the job's quota allows.
    Quota = 10,
}

impl Reject {
    /// Number of reasons.
    pub const COUNT: usize = 11;
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Truncated,
        Self::Version,
        Self::Malformed,
        Self::Job,
        Self::Cookie,
        Self::Epoch,
        Self::Member,
        Self::Size,
        Self::Window,
        Self::Mismatch,
        Self::Quota,
    ];

    /// The name in statistics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Version => "version",
            Self::Malformed => "malformed",
            Self::Job => "job",
            Self::Cookie => "cookie",
            Self::Epoch => "epoch",
            Self::Member => "member",
            Self::Size => "size",
            Self::Window => "window",
            Self::Mismatch => "mismatch",
            Self::Quota => "quota",
        }
    }
}

/// Counters of one job on one CPU. Entry [`MAX_JOBS`] of the table counts what belongs to no job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(default))]
#[repr(C)]
pub struct JobCounters {
    /// Contributions that were stored or added: workers × blocks when a job is done.
    pub contributions: u64,
    /// Blocks whose sum was completed and sent: to all members, or up to the parent.
    pub blocks: u64,
    /// Repeated contributions (each is answered by a resent result or by `PENDING`).
    pub duplicates: u64,
    /// Results sent again to one worker.
    pub resends: u64,
    /// Answers `PENDING`.
    pub pendings: u64,
    /// Contributions older than what their slot holds.
    pub stale: u64,
    /// Probes answered.
    pub probes: u64,
    /// Packets that came from a member, or the parent, by another way than its packet before:
    /// another interface or link-layer address.
    pub moves: u64,
    /// Packets with a result that were handed to an interface or a socket, those of `resends`
    /// included. A result for all is one for each member; in [`ResultMode::Multicast`] it is one
    /// for each interface that members are behind, and one in user space.
    pub copies: u64,
    /// Sums sent up to the parent for the first time: blocks, at an aggregator that has one.
    pub forwards: u64,
    /// Sums sent up again, because a member asked for a result that has not come down.
    pub forwards_again: u64,
    /// Results of the parent that were taken in and sent to all members.
    pub deliveries: u64,
    /// Results of the parent that were not: repeated, or of a block that the slot does not hold.
    pub late: u64,
    /// The parent's answers `PENDING` and `MISMATCH` that were handed on to a member.
    pub relays: u64,
    /// Refused packets by [`Reject`].
    pub rejects: [u64; Reject::COUNT],
    /// How long timed blocks took to complete.
    pub times: Times,
}

impl JobCounters {
    /// Adds the counts of another CPU.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            contributions,
            blocks,
            duplicates,
            resends,
            pendings,
            stale,
            probes,
            moves,
            copies,
            forwards,
            forwards_again,
            deliveries,
            late,
            relays,
            rejects,
            times,
        } = other;
        self.contributions += contributions;
        self.blocks += blocks;
        self.duplicates += duplicates;
        self.resends += resends;
        self.pendings += pendings;
        self.stale += stale;
        self.probes += probes;
        self.moves += moves;
        self.copies += copies;
        self.forwards += forwards;
        self.forwards_again += forwards_again;
        self.deliveries += deliveries;
        self.late += late;
        self.relays += relays;
        for (mine, theirs) in self.rejects.iter_mut().zip(rejects) {
            *mine += theirs;
        }
        self.times.merge(times);
    }
}

/// A rare event: a refused packet. The data path reports a reason's 1st, 2nd, 4th, 8th, … packet a
/// CPU, so a flood costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Block number of the packet, if it got that far.
    pub block: u64,
    /// Source address.
    pub addr: u32,
    /// How often this happened on this CPU.
    pub count: u32,
    /// Source port.
    pub port: u16,
    /// Job of the packet, if it got that far, else `u16::MAX`.
    pub job: u16,
    /// Rank in the packet.
    pub rank: u16,
    /// A [`Reject`] as a number.
    pub reason: u8,
    /// Version nibble of the packet.
    pub version: u8,
}

/// Where the broadcast that is leaving by one interface on one CPU has got to. Its copies come one
/// after the other, and the `next`-th is for the recipient at [`copy_index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fan {
    /// The broadcast: its block number. A block is completed once in an epoch, so block and cookie
    /// name a broadcast.
    pub block: u64,
    /// The broadcast's cookie: its job and epoch.
    pub cookie: u64,
    /// The interface's index among the served ones, below [`MAX_PORTS`]. Set by the daemon.
    pub port: u32,
    /// Copies of this broadcast that were seen here.
    pub next: u32,
}

/// The part of a slot's map value in front of its lanes, as user space reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SlotHead {
    /// The kernel's spin lock; reads as zero from user space.
    pub lock: u32,
    /// Zero.
    pub pad: u32,
    /// The slot machine's state.
    pub state: SlotState,
    /// Zero; puts the lanes on a cache line of their own.
    pub pad2: u64,
}

/// Bytes of a slot in the kernel's table.
pub const SLOT_LEN: usize = size_of::<SlotHead>() + crate::lanes::MAX_PAYLOAD;

/// Bytes of a job's quota in the kernel's table.
pub const QUOTA_LEN: usize = size_of::<Quota>();

/// Changes with the layout of the maps: what was pinned with another one cannot be used.
pub const LAYOUT: u64 = {
    /// To be raised where a value's meaning changes and no size does.
    const REVISION: usize = 7;
    let parts = [
        REVISION,
        SLOT_LEN,
        QUOTA_LEN,
        size_of::<JobConf>(),
        size_of::<Member>(),
        size_of::<Uplink>(),
        size_of::<JobCounters>(),
        size_of::<Event>(),
        size_of::<Fan>(),
        MAX_JOBS,
        MAX_PORTS,
        MEMBER_ENTRIES,
        COPY_ENTRIES,
    ];
    // FNV-1a over the numbers.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < parts.len() {
        hash = (hash ^ parts[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
};

const _: () = assert!(size_of::<SlotHead>() == 64);
const _: () = assert!(size_of::<JobConf>() == 56);
const _: () = assert!(size_of::<Member>() == 40);
const _: () = assert!(size_of::<Uplink>() == 28);
const _: () = assert!(size_of::<Quota>() == 16);
const _: () = assert!(size_of::<Event>() == 24);
const _: () = assert!(size_of::<Fan>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_they_are_counted() {
        for (i, reason) in Reject::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
        }
    }

    #[test]
    fn modes_survive_their_numbers() {
        for mode in [ResultMode::Ports, ResultMode::Fanout, ResultMode::Multicast] {
            assert_eq!(ResultMode::from_number(mode as u16), Some(mode));
        }
        assert_eq!(ResultMode::from_number(0), None);
    }
}
