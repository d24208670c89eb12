//! The file in which a daemon leaves its running jobs to the next one.
//!
//! It holds the jobs' cookies, so only its owner may read it. It is replaced as a whole, never
//! changed: a daemon that dies while it writes leaves the old one. Each pinned data path has a file
//! of its own, for two daemons may share the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use xdp_agg_protocol::daemon::Snapshot;

use crate::private;

/// Version of its contents: a daemon reads no other.
pub const VERSION: u32 = 1;
/// Longest file that is read: jobs and members are few.
const LEN_MAX: u64 = 4 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The system refuses.
    #[error("{path}: {source}; --state-dir names the directory", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its contents are not ours.
    #[error("{path} is not a state file of this release: {why}", path = path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The file.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Contents<S> {
    version: u32,
    #[serde(flatten)]
    snapshot: S,
}

impl StateFile {
    /// The file in `dir`, which is made if it is not there, for its owner alone. It belongs to the
    /// data path that is pinned in `pins`, and is named after it.
    ///
    /// # Errors
    /// The directory cannot be made, or others may write to it or to the file; no file can have
    /// that name.
    pub fn in_dir(dir: &Path, pins: &Path) -> Result<Self, StateError> {
        let made = private::make_directory(dir);
        made.map_err(|source| StateError::Io { path: dir.into(), source })?;
        let path = dir.join(name_of(pins));
        match private::open(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StateError::Io { path, source })
            }
            _ => {
                let state = Self { path };
                state.clean_up(dir);
                Ok(state)
            }
        }
    }

    /// The directory that it is in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Removes what daemons left that were killed while they wrote: it has cookies in it.
    fn clean_up(&self, dir: &Path) {
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let aside = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('.'));
            let writer = aside.and_then(|rest| rest.strip_suffix(".tmp"));
            let writer = writer.and_then(|number| number.parse::<u32>().ok());
            let is_left = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
            if writer.is_some_and(is_left) {
                // If it cannot be removed, it can no more be read by others than before.
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    /// What the last daemon left. None: nothing.
    ///
    /// # Errors
    /// The file cannot be read, or is not of this release.
    pub fn read(&self) -> Result<Option<Snapshot>, StateError> {
        let bytes = match self.bytes() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Io { path: self.path.clone(), source }),
        };
        let wrong = |why: String| StateError::Contents { path: self.path.clone(), why };
        let contents: Contents<Snapshot> =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if contents.version != VERSION {
            return Err(wrong(format!("version {}, {VERSION} is expected", contents.version)));
        }
        Ok(Some(contents.snapshot))
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let file = private::open(&self.path)?;
        let len = file.metadata()?.len();
        if len > LEN_MAX {
            return Err(io::Error::other(format!("{len} bytes, at most {LEN_MAX} are expected")));
        }
        let mut bytes = Vec::new();
        file.take(LEN_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces what is there.
    ///
    /// # Errors
    /// The system refuses; then the old contents are still there.
    pub fn write(&self, snapshot: &Snapshot) -> Result<(), StateError> {
        let aside = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = write_aside(&aside, snapshot).and_then(|()| fs::rename(&aside, &self.path));
        written.map_err(|source| {
            // It may not even be there.
            drop(fs::remove_file(&aside));
            StateError::Io { path: self.path.clone(), source }
        })
    }
}

/// `sys+fs+bpf+xdp-agg.json` for `/sys/fs/bpf/xdp-agg`: no two directories have the same.
fn name_of(pins: &Path) -> String {
    let escaped = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(*byte).to_string()
        }
        byte => format!("%{byte:02x}"),
    };
    let parts = pins.components().filter(|part| *part != Component::RootDir);
    let parts = parts.map(|part| part.as_os_str().as_bytes().iter().map(escaped).collect());
    parts.collect::<Vec<String>>().join("+") + ".json"
}

fn write_aside(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    // A process with the same number may have died while it wrote.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(&Contents { version: VERSION, snapshot })?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn snapshot(last_epoch: u16) -> Snapshot {
        Snapshot { last_epoch, jobs: Vec::new() }
    }

    #[test]
    fn what_was_written_last_is_read_and_is_nobody_elses() {
        let dir = tempfile::tempdir().expect("a directory");
        let pins = Path::new("/sys/fs/bpf/xdp-agg");
        let state = StateFile::in_dir(&dir.path().join("below/it"), pins).expect("it is made");
        assert!(state.read().expect("nothing is no error").is_none());
        for epoch in [3, 4] {
            state.write(&snapshot(epoch)).expect("there is room");
            assert_eq!(state.read().expect("it is ours"), Some(snapshot(epoch)));
        }
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode(&state.path) & 0o777, 0o600);
        assert_eq!(mode(&dir.path().join("below/it")) & 0o777, 0o700);
        let files = fs::read_dir(dir.path().join("below/it")).expect("it is there");
        assert_eq!(files.count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_a_killed_daemon_had_half_written_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = std::process::id();
        let kept = ["a.json", &format!("a.{own}.tmp"), "a+b.4194305.tmp", "a.x.tmp", "b.1.tmp"];
        for name in kept.into_iter().chain(["a.4194305.tmp"]) {
            fs::write(dir.path().join(name), "").expect("there is room");
        }
        StateFile::in_dir(dir.path(), Path::new("/a")).expect("it is ours");
        let names = fs::read_dir(dir.path()).expect("it is there").flatten();
        let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        names.sort();
        let mut kept = kept.map(std::ffi::OsString::from);
        kept.sort();
        assert_eq!(names, kept);
    }

    #[test]
    fn daemons_that_share_the_directory_do_not_share_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |pins: &str| StateFile::in_dir(dir.path(), Path::new(pins)).expect("it is made");
        let all = ["/bpf/a", "/bpf/b", "/bpf/a/b", "/bpf/a+b", "/bpf/a%2bb", "/bpf/a b", "/bpf+a"];
        for (epoch, pins) in (1..).zip(all) {
            of(pins).write(&snapshot(epoch)).expect("there is room");
        }
        for (epoch, pins) in (1..).zip(all) {
            assert_eq!(of(pins).read().expect("it is ours"), Some(snapshot(epoch)), "{pins}");
        }
        // The next daemon may be told the same in another way.
        assert_eq!(of("/bpf//a/").read().expect("it is ours"), Some(snapshot(1)));
        let long = format!("/bpf/{}", "é".repeat(100));
        let error = StateFile::in_dir(dir.path(), Path::new(&long)).expect_err("it is too long");
        assert!(error.to_string().contains("--state-dir"), "{error}");
    }

    #[test]
    fn what_is_not_ours_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let pins = Path::new("/sys/fs/bpf/xdp-agg");
        let state = StateFile::in_dir(dir.path(), pins).expect("it is there");
        for (text, word) in [
            ("nonsense", "line 1"),
            ("{\"version\":9,\"last_epoch\":1,\"jobs\":[]}", "version 9"),
            ("{\"version\":1}", "last_epoch"),
        ] {
            fs::write(&state.path, text).expect("there is room");
            let error = state.read().expect_err(text).to_string();
            assert!(error.contains(word) && error.contains("bpf+xdp-agg.json"), "{error}");
        }
    }
}
