//! A directory for the files of one run, gone with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

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
        // What is left over is in a directory for what may be left over.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A BPF file system to pin a data path in, gone with this.
pub(crate) struct BpfFs(PathBuf);

impl BpfFs {
    /// Mounts one among the machine's temporary files.
    pub(crate) fn mount() -> Result<Self> {
        let place = std::env::temp_dir().join(format!("xdp-agg-lab-{}-bpf", std::process::id()));
        fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "bpf", "bpf"]).arg(&place).status();
        match status.context("cannot run mount")? {
            status if status.success() => Ok(Self(place)),
            status => bail!("mounting a BPF file system at {} failed: {status}", place.display()),
        }
    }

    /// What the daemon is to be told.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.0.join(name).to_string_lossy().into_owned();
        // The state may not be in the file system of BPF, which holds nothing else.
        let state = self.0.with_extension("state").to_string_lossy().into_owned();
        vec!["--pin".into(), path("data-path"), "--state-dir".into(), state]
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        // What is left over is in a directory for what may be left over.
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
        let _ = fs::remove_dir_all(self.0.with_extension("state"));
    }
}
