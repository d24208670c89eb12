//! Digests for comparing data that is not secret.

use std::hash::Hasher;

use fnv::FnvHasher;

/// FNV-1a of bytes.
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mut state = FnvHasher::default();
    bytes.into_iter().for_each(|byte| state.write_u8(byte));
    state.finish()
}
