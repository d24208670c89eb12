//! Copies past the caches.
//!
//! A store into memory that is in no cache reads the line first and writes it back later. A writer
//! that will not read its output until long after can avoid both with non-temporal stores, as the C
//! library does for copies above some size. The copies of a collective are parts of a larger one,
//! each below that size: only the caller knows how large the whole is.

use std::fs;
use std::sync::OnceLock;

/// Bytes of the largest cache, where the system does not say.
const USUAL: usize = 32 << 20;

/// How to copy a piece of an output of `output` bytes, which nobody reads before all of it is
/// there. So many processes write one at the same time: together, outputs that the largest cache
/// holds are written into it, and larger ones past it.
pub(crate) fn copy_for(output: usize, processes: usize) -> fn(&[u8], &mut [u8]) {
    static CACHE: OnceLock<usize> = OnceLock::new();
    let cache = *CACHE.get_or_init(|| largest_cache().unwrap_or(USUAL));
    if output.saturating_mul(processes) >= cache { copy } else { plain }
}

/// How to copy what is read again soon.
pub(crate) fn plain(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

/// Bytes of the largest cache of the first processor, as the system says.
fn largest_cache() -> Option<usize> {
    let size = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..8).filter_map(size).max().map(|kib| kib << 10)
}

/// Copies `from` to `to`, of one length, past the caches.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "slices of one length");
    #[cfg(target_arch = "x86_64")]
    lines::copy(from, to);
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };

    /// Bytes of a line.
    const LINE: usize = 64;
    /// How far ahead sources are fetched.
    const AHEAD: usize = 1024;

    pub(super) fn copy(from: &[u8], to: &mut [u8]) {
        let head = to.as_ptr().align_offset(LINE).min(to.len());
        let (head_from, from) = from.split_at(head);
        let (head_to, to) = to.split_at_mut(head);
        head_to.copy_from_slice(head_from);
        let ((from, tail_from), (to, tail_to)) = (from.as_chunks(), to.as_chunks_mut());
        for (from, to) in from.iter().zip(to) {
            line(from, to);
        }
        tail_to.copy_from_slice(tail_from);
        // SAFETY: every x86-64 CPU has it. Non-temporal stores are weakly ordered: after this, they
        // come before whatever this thread stores to tell others.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    fn line(from: &[u8; LINE], to: &mut [u8; LINE]) {
        let source = from.as_ptr().cast::<__m128i>();
        let target = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: four vectors of 16 bytes are a line; the target is on a line's boundary, the
        // source may be anywhere. A prefetch changes nothing and may be of any address. All of it
        // is SSE2, which every x86-64 CPU has.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(source.cast::<i8>().wrapping_add(AHEAD));
            let vectors = [0, 1, 2, 3].map(|i| _mm_loadu_si128(source.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm_stream_si128(target.add(i), vector);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_outputs_go_past_the_caches() {
        let past = |output, processes| {
            std::ptr::fn_addr_eq(copy_for(output, processes), copy as fn(&[u8], &mut [u8]))
        };
        assert!(!past(0, 64) && !past(4096, 4));
        assert!(past(1 << 40, 1) && past(1 << 36, 64) && past(usize::MAX, 2));
    }

    #[test]
    fn every_length_at_every_address() {
        let from: Vec<u8> = (0..700_u32).map(|i| (i * 7) as u8).collect();
        for start in 0..70 {
            for len in [0, 1, 15, 63, 64, 65, 127, 128, 200, 600] {
                let mut to = vec![0xee; 700];
                copy(&from[start..start + len], &mut to[70 - start..70 - start + len]);
                assert_eq!(to[70 - start..70 - start + len], from[start..start + len]);
                let rest = [&to[..70 - start], &to[70 - start + len..]];
                assert!(rest.iter().all(|part| part.iter().all(|&byte| byte == 0xee)));
            }
        }
    }
}
