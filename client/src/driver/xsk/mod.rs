//! Results by `AF_XDP`: the kernel copies them from the driver's buffer into memory of ours, and
//! the worker reads them there. No packet of them passes the stack.
//!
//! A small program on the interface (`xdp-agg-ebpf/src/worker.rs`) takes out this worker's results,
//! and leaves all other packets alone. It hands over what is intact, and knows the socket of one
//! receive queue: the one that results have come by. Whatever it does not hand over comes by the
//! UDP socket. So nothing is lost if results change their queue, are damaged, or find the socket
//! full.

mod choice;
mod link;
mod program;
mod results;
mod ring;
mod socket;

pub(crate) use results::Results;
