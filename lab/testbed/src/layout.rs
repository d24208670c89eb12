//! What the test network's kernel program and the harness share: map values and limits.
//!
//! This file is compiled into both: the kernel half takes it in by path. Nothing here allocates,
//! and every layout is `repr(C)` without hidden padding.

/// Interfaces of the `wires` namespace, by index: the size of the tables below.
pub const MAX_INTERFACES: u32 = 256;
/// Packets that one direction of a link can hold at a time; one more is passed on unheld.
pub const HOLD_DEPTH: u32 = 16;
/// Longest frame that can be held, in bytes; a longer one is passed on unheld.
pub const MAX_HELD: usize = 9216;
/// Chance of a UDP packet being damaged where that was asked for, in millionths.
pub const DAMAGED_PPM: u32 = 20_000;

/// What happens to the packets that come in on one interface of the `wires` namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Path {
    /// Interface that they leave by. 0: none, they are dropped.
    pub target: u32,
    /// Not 0 where anything below is not 0: the one test of the undisturbed path.
    pub faulty: u32,
    /// Chance of being lost, in millionths.
    pub loss_ppm: u32,
    /// Chance of being sent twice, in millionths.
    pub duplicate_ppm: u32,
    /// Chance of being held back, in millionths (UDP only).
    pub hold_ppm: u32,
    /// A held packet waits for this many later ones.
    pub hold_packets: u32,
    /// And for this many nanoseconds.
    pub hold_ns: u64,
    /// Faults meet only UDP packets from or to this port. 0: every packet.
    pub udp_port: u32,
    /// Which row of the hold tables is this direction's.
    pub line: u32,
    /// UDP packets to `vlan_port` get the tag of this VLAN, tagged ones lose theirs. 0: neither.
    pub vlan: u32,
    /// See `vlan`.
    pub vlan_port: u32,
}

/// What happened on one path, on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Packets on the wire: a train of segments counts as many.
    pub packets: u64,
    /// Their bytes from the Ethernet header on, the headers of each segment included.
    pub bytes: u64,
    /// Packets that faults could have met.
    pub seen: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets sent twice.
    pub duplicated: u64,
    /// Packets held back.
    pub held: u64,
    /// Held packets sent on, each behind a packet that was sent after it.
    pub released: u64,
    /// Packets that should have been held, but could not be: no room, or too long.
    pub crowded: u64,
    /// Trains of segments that faults did not meet because they came in one piece.
    pub whole: u64,
}

/// What the counting programs saw, on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}
