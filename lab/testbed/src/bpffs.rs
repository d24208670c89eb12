//! A place to pin a data path in.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// A BPF file system of one's own, and a directory for the daemon's state. Both are gone with this.
#[derive(Debug)]
pub struct BpfFs(PathBuf);

impl BpfFs {
    /// Mounts one among the machine's temporary files.
    pub fn mount() -> Result<Self, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("xdp-agg-testbed-{}-{number}-bpf", std::process::id());
        let place = std::env::temp_dir().join(name);
        let what = format!("mounting a BPF file system at {}", place.display());
        fs::create_dir_all(&place).map_err(Error::os(what.clone()))?;
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&place).status();
        if mounted.map_err(Error::os(what.clone()))?.success() {
            Ok(Self(place))
        } else {
            Err(Error::Process(format!("{what} failed")))
        }
    }

    /// Where a data path may be pinned.
    pub fn pins(&self) -> PathBuf {
        self.0.join("data-path")
    }

    /// What the daemon is to be told.
    pub fn arguments(&self) -> Vec<String> {
        let pins = self.pins().to_string_lossy().into_owned();
        // A file system of BPF holds no files.
        let state = self.0.with_extension("state").to_string_lossy().into_owned();
        vec!["--pin".into(), pins, "--state-dir".into(), state]
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
