//! Whether the memory limit has room for the segment.
//!
//! Taking up memory beyond a control group's limit does not fail: the kernel ends some process of
//! the group. So the limit is asked for first. A limit that cannot be read counts as none.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

const ROOT: &str = "/sys/fs/cgroup";

/// Whether all control groups (version 2) of this process have room for `wanted` bytes more.
pub(crate) fn room_for(wanted: usize) -> Result<(), Error> {
    let Ok(own) = fs::read_to_string("/proc/self/cgroup") else { return Ok(()) };
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Ok(()) };
    let mut group = PathBuf::from(ROOT).join(path);
    while group.starts_with(ROOT) {
        room_in(&group, wanted)?;
        group.pop();
    }
    Ok(())
}

fn room_in(group: &Path, wanted: usize) -> Result<(), Error> {
    let (Some(limit), Some(used)) = (number(group, "memory.max"), number(group, "memory.current"))
    else {
        return Ok(());
    };
    // What the page cache holds is given back on demand.
    let given_back = fs::read_to_string(group.join("memory.stat"))
        .ok()
        .and_then(|text| field(&text, "inactive_file"))
        .unwrap_or(0);
    let room = limit.saturating_sub(used.saturating_sub(given_back));
    if room < wanted as u64 {
        return Err(Error::NoSpace {
            wanted,
            place: format!("control group {}", group.display()),
            reason: format!("{room} of {limit} bytes (memory.max) are left"),
            advice: "raise the memory limit, or lower `segment`",
        });
    }
    Ok(())
}

/// A file's number; `None` for `max` and for what cannot be read.
fn number(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(limit: &str) -> tempfile::TempDir {
        let group = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(group.path().join(name), text).expect("a file");
        };
        write("memory.max", limit);
        write("memory.current", "900\n");
        write("memory.stat", "anon 5\ninactive_file 100\n");
        group
    }

    #[test]
    fn a_limit_is_kept() {
        let group = group("1000\n");
        room_in(group.path(), 200).expect("200 are left");
        let error = room_in(group.path(), 201).expect_err("200 are left");
        assert!(matches!(error, Error::NoSpace { wanted: 201, .. }), "{error}");
    }

    #[test]
    fn no_limit_is_no_error() {
        room_in(group("max\n").path(), usize::MAX).expect("no limit");
        room_in(Path::new("/nonexistent"), usize::MAX).expect("no limit");
    }
}
