//! Falling asleep and ringing, so that no ring is lost: over any kind of atomics, so that loom can
//! try every interleaving (`tests/sleep.rs`).
//!
//! A thread that sleeps sets its bit ([`fall_asleep`]), looks once more, and sleeps. A thread that
//! rings advances a counter, then takes the bits ([`sleepers`]) and rings for those it found.
//! Between write and read both have a fence of sequential consistency, so that at least one of the
//! two sees what the other wrote: the sleeper the counter, or the ringer the bit.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A thread of the process sleeps in `poll(2)`.
pub const POLLS: u32 = 1;
/// A thread of the process sleeps on its bell's futex.
pub const FUTEX: u32 = 2;

/// A word of sleepers' bits.
pub trait Bits {
    /// Relaxed.
    fn get(&self) -> u32;
    /// Relaxed.
    fn set(&self, bits: u32);
    /// Relaxed; what was there before.
    fn take(&self) -> u32;
    /// Of sequential consistency.
    fn fence();
}

impl Bits for AtomicU32 {
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, bits: u32) {
        self.fetch_or(bits, Ordering::Relaxed);
    }

    fn take(&self) -> u32 {
        self.swap(0, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Before the last look.
pub fn fall_asleep<B: Bits>(asleep: &B, how: u32) {
    asleep.set(how);
    B::fence();
}

/// After a counter was advanced: once, before [`sleepers`] of any process.
pub fn advanced<B: Bits>() {
    B::fence();
}

/// The sleepers to ring for. A ring wakes all threads of a process that sleep in that way, so their
/// common bit is cleared: the next ringer need not ring.
pub fn sleepers<B: Bits>(asleep: &B) -> u32 {
    match asleep.get() {
        0 => 0,
        _ => asleep.take(),
    }
}
