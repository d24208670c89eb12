//! A directory for the files of one run, gone with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A directory that is removed with everything in it when this is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one among the machine's temporary files.
    pub(crate) fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("xdp-agg-lab-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    /// A file in it.
    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that stays behind is among temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
