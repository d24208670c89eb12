//! Digests, to compare by: of what is no secret, and of what only the holders of a key may make.

use std::hash::Hasher;

use fnv::FnvHasher;
use siphasher::sip::SipHasher24;

/// FNV-1a of bytes.
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mut state = FnvHasher::default();
    bytes.into_iter().for_each(|byte| state.write_u8(byte));
    state.finish()
}

/// `SipHash` 2-4 of bytes under a cookie: shows that its maker knows the cookie, and does not tell
/// it.
pub(crate) fn keyed(cookie: u64, bytes: &[u8]) -> u64 {
    SipHasher24::new_with_keys(cookie, u64::from_le_bytes(*b"xdp-agg\0")).hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper (Aumasson, Bernstein: SipHash, appendix A).
    #[test]
    fn it_is_siphash() {
        let (low, high) = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(SipHasher24::new_with_keys(low, high).hash(&bytes), 0xa129_ca61_49be_45e5);
        assert_ne!(keyed(1, &bytes), keyed(2, &bytes));
    }
}
