//! Received bytes as lanes.
#![expect(unsafe_code, reason = "a view of bytes as packed integers")]

use xdp_agg_common::lanes::Chunk;

/// The whole chunks at the start of `bytes`.
pub(super) fn chunks_mut(bytes: &mut [u8]) -> &mut [Chunk] {
    const { assert!(align_of::<Chunk>() == 1) };
    // SAFETY: a chunk is an array of packed integers: any bytes are a value, at any address.
    let (_, chunks, _) = unsafe { bytes.align_to_mut::<Chunk>() };
    chunks
}
