//! Whether the memory limit has room for the segment.
//!
//! Taking up memory beyond a control group's limit does not fail: the kernel ends some process of
//! the group. So the limit is asked for first. A limit that cannot be read counts as none.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// How a version of control groups limits memory.
struct Version {
    /// Where its groups are.
    root: &'static str,
    /// The file with the limit.
    limit: &'static str,
    /// The file with what is used.
    used: &'static str,
    /// What the page cache holds, in `memory.stat`. It is given back on demand.
    given_back: &'static str,
}

const FIRST: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    given_back: "total_inactive_file",
};

const SECOND: Version = Version {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    given_back: "inactive_file",
};

/// Whether all control groups of this process have room for `wanted` bytes more. The groups of the
/// other processes are not known here.
pub(crate) fn room_for(wanted: usize) -> Result<(), Error> {
    let Ok(own) = fs::read_to_string("/proc/self/cgroup") else { return Ok(()) };
    for (version, path) in own.lines().filter_map(memory_group) {
        let mut group = PathBuf::from(version.root).join(path);
        while group.starts_with(version.root) {
            room_in(version, &group, wanted)?;
            group.pop();
        }
    }
    Ok(())
}

/// The group that a line of `/proc/self/cgroup` (`4:cpu,memory:/path`, `0::/path`) is about, if it
/// is one that may limit memory.
fn memory_group(line: &str) -> Option<(&'static Version, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.strip_prefix('/')?);
    match controllers {
        "" => Some((&SECOND, path)),
        _ if controllers.split(',').any(|name| name == "memory") => Some((&FIRST, path)),
        _ => None,
    }
}

fn room_in(version: &Version, group: &Path, wanted: usize) -> Result<(), Error> {
    let Version { limit: name, used, given_back, .. } = version;
    let (Some(limit), Some(used)) = (number(group, name), number(group, used)) else {
        return Ok(());
    };
    let given_back = fs::read_to_string(group.join("memory.stat"))
        .ok()
        .and_then(|text| field(&text, given_back))
        .unwrap_or(0);
    let room = limit.saturating_sub(used.saturating_sub(given_back));
    if room < wanted as u64 {
        return Err(Error::NoSpace {
            wanted,
            place: format!("control group {}", group.display()),
            reason: format!("{room} of {limit} bytes ({name}) are left"),
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

    fn group(version: &Version, limit: &str) -> tempfile::TempDir {
        let group = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(group.path().join(name), text).expect("a file");
        };
        write(version.limit, limit);
        write(version.used, "900\n");
        write("memory.stat", "anon 5\ninactive_file 100\ntotal_inactive_file 100\n");
        group
    }

    #[test]
    fn a_limit_is_kept() {
        for version in [&FIRST, &SECOND] {
            let group = group(version, "1000\n");
            room_in(version, group.path(), 200).expect("200 are left");
            let error = room_in(version, group.path(), 201).expect_err("200 are left");
            assert!(matches!(error, Error::NoSpace { wanted: 201, .. }), "{error}");
            assert!(error.to_string().contains(version.limit), "{error}");
        }
    }

    #[test]
    fn no_limit_is_no_error() {
        room_in(&SECOND, group(&SECOND, "max\n").path(), usize::MAX).expect("no limit");
        let most = group(&FIRST, "9223372036854771712\n");
        room_in(&FIRST, most.path(), 1 << 40).expect("no limit");
        room_in(&FIRST, Path::new("/nonexistent"), usize::MAX).expect("no limit");
    }

    #[test]
    fn the_groups_that_limit_memory_are_found() {
        let found = |line| memory_group(line).map(|(version, path)| (version.limit, path));
        assert_eq!(found("0::/a/b"), Some(("memory.max", "a/b")));
        assert_eq!(found("4:memory:/a:b"), Some(("memory.limit_in_bytes", "a:b")));
        assert_eq!(found("4:cpu,memory:/"), Some(("memory.limit_in_bytes", "")));
        assert_eq!(found("4:cpu:/a").or(found("")).or(found("9:name=systemd:/")), None);
    }
}
