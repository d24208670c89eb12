//! What a link's rate allows at best: bytes on the wire over the rate.
//!
//! Bytes count from the Ethernet header on, which is what Linux's rate limiters count. Each worker
//! has one link, and its two directions carry the same, so one direction decides.

use xdp_agg_common::frame::{PAYLOAD_OFFSET, chunks_for_mtu};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_workloads::Framing;

/// Bytes that one direction of a worker's link carries for a vector that the aggregator sums.
pub(crate) fn aggregated_wire_bytes(bytes: u64, mtu: u32) -> f64 {
    let chunk = CHUNK_LEN as u64;
    let block = u64::from(chunks_for_mtu(mtu)) * chunk;
    let chunks = bytes.div_ceil(chunk);
    (chunks * chunk + bytes.div_ceil(block) * PAYLOAD_OFFSET as u64) as f64
}

/// Bytes that one direction of a worker's link carries for a vector that goes round a ring of TCP
/// connections: every rank sends `2 (N - 1) / N` of it.
pub(crate) fn ring_wire_bytes(bytes: u64, mtu: u32, workers: u16) -> f64 {
    let workers = f64::from(workers);
    Framing::tcp(mtu).wire(2.0 * (workers - 1.0) / workers * bytes as f64)
}

/// The time of `wire_bytes` at this rate, in microseconds.
pub(crate) fn time_us(wire_bytes: f64, rate_bits: u64) -> f64 {
    wire_bytes * 8.0 / rate_bits as f64 * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_costs_its_payload_and_64_bytes() {
        assert_eq!(aggregated_wire_bytes(1408, 1500), 1472.0);
        assert_eq!(aggregated_wire_bytes(1412, 1500), 1472.0 + 128.0);
        assert_eq!(aggregated_wire_bytes(4, 1500), 128.0);
        assert_eq!(aggregated_wire_bytes(0, 1500), 0.0);
    }

    #[test]
    fn the_ring_of_four_carries_one_and_a_half_times_the_vector() {
        let bytes = ring_wire_bytes(1448 * 1000, 1500, 4);
        assert!((bytes - 1514.0 * 1500.0).abs() < 1e-6, "{bytes}");
        assert_eq!(ring_wire_bytes(4096, 1500, 1), 0.0);
    }

    #[test]
    fn a_megabyte_at_eight_megabits_takes_a_second() {
        assert_eq!(time_us(1e6, 8_000_000), 1e6);
    }
}
