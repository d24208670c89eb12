//! The fixed window of systems that have one.

use std::time::Duration;

use xdp_agg_common::frame::{chunks_for_mtu, frame_len};

/// How long a block takes on its way where no queue is: most of it is what processes wait for a
/// processor.
const TRIP: Duration = Duration::from_millis(1);

/// The smallest and the largest window.
const LEAST: f64 = 8.0;
const MOST: f64 = 512.0;

/// Blocks that a worker of SwitchML keeps under way on links of this rate, in bits a second: what
/// a link carries in a trip, as a power of two, which is how SwitchML (NSDI 2021) sizes its pool.
///
/// A window that grows until queues are long makes a call begin late. The windows of a host's
/// workers enter its link one behind the other. No sum is whole before the first block of the last
/// one has crossed it.
#[must_use]
pub fn window(bits: u64, mtu: u32) -> u32 {
    let packet = frame_len(chunks_for_mtu(mtu)) as f64 * 8.0;
    let blocks = (bits as f64 * TRIP.as_secs_f64() / packet).ceil().clamp(LEAST, MOST);
    (blocks as u32).next_power_of_two()
}

#[cfg(test)]
mod tests;
