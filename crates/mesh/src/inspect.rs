//! What is read from other ranks, for fuzzing. Not part of the interface.

use xdp_agg_common::control::decode;

pub use crate::wire::HEADER_LEN;

/// A message's header, decoded and encoded again. None: it is not a header.
#[must_use]
pub fn rewrite_header(bytes: &[u8; HEADER_LEN]) -> Option<[u8; HEADER_LEN]> {
    crate::wire::Header::decode(bytes).map(|header| header.encode())
}

/// Whether these are the first words of a caller, or of the rank that answers it.
#[must_use]
pub fn are_first_words(bytes: &[u8]) -> bool {
    let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(bytes);
    let is = |read: fn(&mut Vec<u8>) -> bool| read(&mut frame.clone());
    is(|frame| matches!(decode::<crate::rendezvous::Hello>(frame), Ok(Some(_))))
        || is(|frame| matches!(decode::<crate::rendezvous::Answer>(frame), Ok(Some(_))))
        || is(|frame| matches!(decode::<crate::meeting::Greeting>(frame), Ok(Some(_))))
        || is(|frame| matches!(decode::<crate::meeting::Visit>(frame), Ok(Some(_))))
        || is(|frame| matches!(decode::<crate::meeting::Outcome>(frame), Ok(Some(_))))
}
