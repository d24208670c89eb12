//! What a level does with instructions of its own, for which plain Rust has no words that compile
//! to them.

use crate::kernels::TILE;

/// Largest magnitudes that were seen, as bits: one for each lane of a vector.
pub(crate) type Peaks = [u32; 16];

/// A level's own instructions. Only a [`Simd`](super::Simd) hands one to a kernel, so the CPU has
/// what it needs.
pub(crate) trait Path {
    /// Whether there is [`Self::quantize`].
    const QUANTISES: bool;

    /// Sums a tile of each source, in their order, and makes lanes: times `up`, the nearest integer
    /// (ties to even), plus the bias. A sum that is beyond an i32 or not a number becomes any lane.
    /// Keeps the largest magnitudes of sums.
    fn quantize<const N: usize>(
        sources: [&[f32; TILE]; N],
        up: f32,
        bias: u32,
        lanes: &mut [[u8; 4]; TILE],
        peaks: &mut Peaks,
    );
}

/// What every CPU of the target has.
pub(super) struct Portable;

impl Path for Portable {
    const QUANTISES: bool = false;

    fn quantize<const N: usize>(
        _: [&[f32; TILE]; N],
        _: f32,
        _: u32,
        _: &mut [[u8; 4]; TILE],
        _: &mut Peaks,
    ) {
        unreachable!("plain Rust does it");
    }
}

/// A path and its function. It is a function of its own because instructions are not inlined into
/// one that was not compiled for them. One vector at a time from all sources, in registers until it
/// is a lane. What is stored by halves and loaded as a whole would wait for the store.
#[cfg(target_arch = "x86_64")]
macro_rules! path {
    (
        $path:ident: $features:literal, $bytes:literal, $load:ident, $load_i:ident, $store:ident,
        $set:ident, $set_i:ident, $mul:ident, $nearest:ident, $cast:ident, $and:ident, $max:ident,
        $add:ident, $sum:ident
    ) => {
        /// The level of that name.
        pub(super) struct $path;

        impl Path for $path {
            const QUANTISES: bool = true;

            #[inline(always)]
            fn quantize<const N: usize>(
                sources: [&[f32; TILE]; N],
                up: f32,
                bias: u32,
                lanes: &mut [[u8; 4]; TILE],
                peaks: &mut Peaks,
            ) {
                #[inline]
                #[target_feature(enable = $features)]
                fn quantize<const N: usize>(
                    sources: [&[f32; TILE]; N],
                    up: f32,
                    bias: u32,
                    lanes: &mut [[u8; 4]; TILE],
                    peaks: &mut Peaks,
                ) {
                    use std::arch::x86_64::*;
                    const LANES: usize = $bytes / 4;
                    let (up, bias) = ($set(up), $set_i(bias.cast_signed()));
                    let magnitude = $set_i(i32::MAX);
                    for (peak, i) in peaks.as_chunks_mut::<LANES>().0.iter_mut().zip(0..) {
                        // SAFETY: all that is read or written is as long as a vector, and
                        // vectors may lie at any address.
                        let mut largest = unsafe { $load_i(peak.as_ptr().cast()) };
                        let mut at = i * LANES;
                        while at < TILE {
                            // SAFETY: as above.
                            unsafe {
                                let mut sum = $load(sources[0][at..at + LANES].as_ptr());
                                for source in &sources[1..] {
                                    sum = $sum(sum, $load(source[at..at + LANES].as_ptr()));
                                }
                                largest = $max(largest, $and($cast(sum), magnitude));
                                let lane = $add($nearest($mul(sum, up)), bias);
                                $store(lanes[at..at + LANES].as_mut_ptr().cast(), lane);
                            }
                            at += 16;
                        }
                        // SAFETY: as above.
                        unsafe { $store(peak.as_mut_ptr().cast(), largest) };
                    }
                }
                // SAFETY: this path is only run where the CPU has these features.
                unsafe { quantize(sources, up, bias, lanes, peaks) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
path! {
    Avx2: "avx2", 32, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm256_set1_ps, _mm256_set1_epi32, _mm256_mul_ps, _mm256_cvtps_epi32, _mm256_castps_si256,
    _mm256_and_si256, _mm256_max_epi32, _mm256_add_epi32, _mm256_add_ps
}

#[cfg(target_arch = "x86_64")]
path! {
    Avx512: "avx512f", 64, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_storeu_si512,
    _mm512_set1_ps, _mm512_set1_epi32, _mm512_mul_ps, _mm512_cvtps_epi32, _mm512_castps_si512,
    _mm512_and_si512, _mm512_max_epi32, _mm512_add_epi32, _mm512_add_ps
}

/// Says that the 64 bytes this far behind a place will soon be read: a hint, for which no address
/// is a wrong one.
#[inline(always)]
pub(crate) fn will_read<T>(place: &T, bytes_ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = std::ptr::from_ref(place).cast::<i8>().wrapping_add(bytes_ahead);
        // SAFETY: every CPU has it, and it neither fails nor changes anything.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, bytes_ahead);
}

/// As [`will_read`], for writing: the line is fetched as one that no other core keeps.
#[inline(always)]
pub(crate) fn will_write<T>(place: &T, bytes_ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let at = std::ptr::from_ref(place).cast::<i8>().wrapping_add(bytes_ahead);
        // SAFETY: as above (CPUs without it take it for no operation). The intrinsic would become
        // a hint for reading, because the compiler does not know that the CPU has the other.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, bytes_ahead);
}
