//! What a vector's bytes are on the wire.

use xdp_agg_common::frame::{ETH_LEN, IP_LEN, chunks_for_mtu, frame_len};
use xdp_agg_common::lanes::CHUNK_LEN;

/// Length of TCP's header with the timestamps option, which Linux always uses.
const TCP_LEN: u32 = 32;

/// Bytes on the wire for the bytes of a vector.
///
/// A shaped link counts the Ethernet header (14 bytes), as Linux' `tc` does, and neither preamble
/// nor check sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Framing {
    /// Bytes of a vector in a packet.
    pub payload: f64,
    /// Bytes of that packet on the wire.
    pub packet: f64,
}

impl Framing {
    /// Nothing but the vector, as the papers calculate.
    pub const NONE: Self = Self { payload: 1.0, packet: 1.0 };

    /// xdp-agg's full packets: at an MTU of 1500 1408 bytes of a vector and 64 of headers.
    pub const fn xdp(mtu: u32) -> Self {
        let chunks = chunks_for_mtu(mtu);
        let payload = (chunks as usize * CHUNK_LEN) as f64;
        Self { payload, packet: frame_len(chunks) as f64 }
    }

    /// Full TCP segments: 1448 bytes in 1500, and the Ethernet header. Acknowledgements, which go
    /// the other way, are left out.
    pub const fn tcp(mtu: u32) -> Self {
        let payload = mtu.saturating_sub(IP_LEN as u32 + TCP_LEN) as f64;
        Self { payload, packet: (mtu as usize + ETH_LEN) as f64 }
    }

    /// Bytes on the wire for `bytes` of a vector.
    pub fn wire(&self, bytes: f64) -> f64 {
        bytes * self.packet / self.payload
    }
}
