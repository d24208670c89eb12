//! A worker: its membership, its calls, and when it sends which of their blocks.
//!
//! * [`Machine`]: all of it; [`Config`] its settings.
//! * [`flow`] in it: when to send which block.
//! * [`Blocks`]: the elements of a call, as a flow sees them; [`Local`]: those in one's own memory.

mod block;
mod blocks;
mod buffer;
mod call;
mod error;
pub mod flow;
pub mod layout;
mod machine;
mod record;
mod report;
mod standing;

pub use block::{DataBlock, EpochBlock, JobBlock};
pub use blocks::{Blocks, Local, Purpose, Share, block_len};
pub use buffer::{Buffer, Kept};
pub use call::{Call, numbers};
pub use error::{CallerError, Error, Limit};
pub use machine::{
    Batch, Config, Control, Counters, Endpoint, Lanes, Machine, PROBE_INTERVAL, PROBES, RETRY,
    Seat, State, Warning, packet_len,
};
pub use record::{Ending, Label, Record, Timeline};
pub use report::{Path, Report, rank_bit, rank_bits};
pub use standing::standing_aside;
