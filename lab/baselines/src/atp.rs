//! ATP (Lao et al., NSDI 2021): a switch whose slots are taken by whichever block comes first, and
//! parameter servers for what finds its slot taken.
//!
//! ATP stands here as its paper has it, over UDP, in user space:
//!
//! * A job's blocks go round the slots in an order that a hash of the job gives ([`Packet::slot`]).
//!   In the authors' program, too, each place in a worker's window has a slot of its own, so only
//!   blocks of different jobs meet. There a server gives a place that met another job's block a
//!   new slot, which is not done here. The first fragment takes the slot if it is free. A fragment
//!   that finds another block there goes on to the server.
//! * When all workers' fragments of a block are in its slot, their sum goes to the server. The
//!   server sends the result back through the switch, which frees the slot and sends a copy to each
//!   worker (NSDI 2021, section 3.2).
//! * A slot may be freed between two fragments of a block, so part of a sum may wait at the switch
//!   and the rest at the server. A worker repeats a fragment whose result is overdue, with
//!   [`Packet::again`] set. Then the switch hands its part over to the server, which merges both,
//!   and the block's other fragments pass until its result has.
//! * A fragment that was counted is not counted again: partial sums carry the ranks in them. The
//!   server adds a sum of other ranks than it has, and takes a sum with more ranks instead of its
//!   own. It refuses a sum that shares some of its ranks, because none could be taken out of it.
//! * Blocks are at most [`LIMIT`] ahead of the oldest missing result, as in xdp-agg. A fragment of
//!   block `b` shows that all blocks up to `b - LIMIT` are done at its worker, and so everywhere.
//!   The server forgets them then, and the switch takes slots back that they hold.
//!
//! [`Worker`], [`Switch`] and [`Server`] decide; they have neither sockets nor clocks. The worker's
//! window, losses and timers are those of xdp-agg ([`xdp_agg_protocol::worker::flow`]), and so are
//! its numbers ([`xdp_agg_quantize`]). [`Client`] and the services have the sockets.

mod client;
mod port;
mod serve;
mod server;
mod switch;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

pub use client::{Client, Options};
pub use serve::{Stop, serve_sums, serve_switch};
pub use server::Server;
pub use switch::Switch;
pub use wire::{HEADER_LEN, Kind, Packet};
pub use worker::{TooLarge, Worker, WorkerOptions};

/// Most blocks from the oldest without result to the newest that was sent.
pub const LIMIT: u64 = 512;

/// Slots of the switch unless set otherwise: as many as an aggregator gives a job by default, so
/// that systems differ in what they do with them.
pub const SLOTS: u32 = 1024;

/// Where a switch listens unless an address says otherwise.
pub const PORT: u16 = 29_700;

/// What a switch and a server have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// At the switch: fragments that found another block in their slot, or that were repeated.
    pub passed: u64,
    /// At the switch: whole sums that went to the server.
    pub whole: u64,
    /// At the switch: parts of sums that went to the server because a fragment was repeated.
    pub flushed: u64,
    /// At the switch: slots that a block had left behind.
    pub reclaimed: u64,
    /// At the server: sums of other ranks that were added to what it had.
    pub merged: u64,
    /// At the server: sums that shared some ranks with what it had.
    pub refused: u64,
}
