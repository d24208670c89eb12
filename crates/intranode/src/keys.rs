//! The keys that an owner makes of all processes' peaks of its blocks, and keeps to itself.

use std::fmt;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

type Of = dyn Fn(&[f64]) -> u16 + Send + Sync;

/// Makes a block's key of all processes' peaks, in order of local rank: the same in all processes.
#[derive(Clone)]
pub struct Key(Arc<Of>);

impl Key {
    /// By this function.
    pub fn new(of: impl Fn(&[f64]) -> u16 + Send + Sync + 'static) -> Self {
        Self(Arc::new(of))
    }

    pub(crate) fn of(&self, peaks: &[f64]) -> u16 {
        (self.0)(peaks)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

/// The keys of a process's own blocks. How many tiles are known, the counter `keyed` says.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: Vec<AtomicU16>,
    /// Held by the thread that makes keys.
    pub(crate) turn: Mutex<()>,
}

impl Keys {
    pub(crate) fn new(own_blocks: u64) -> Self {
        Self { keys: (0..own_blocks).map(|_| AtomicU16::new(0)).collect(), turn: Mutex::new(()) }
    }

    pub(crate) fn set(&self, j: u64, key: u16) {
        self.keys[j as usize].store(key, Relaxed);
    }

    pub(crate) fn get(&self, j: u64) -> u16 {
        self.keys[j as usize].load(Relaxed)
    }
}
