//! Files that the daemon may write once it runs, by Landlock (`landlock(7)`).
//!
//! Reading is left to the owners and modes of files. A certificate that is renewed may be a link to
//! a new place, and must be readable years later.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};

/// The kernel's rules that this module was written for. An older kernel enforces those it has.
const RULES: ABI = ABI::V3;

/// Has this thread, and those that it starts from now on, execute no program, and write nowhere but
/// below these directories. Returns whether the kernel can do that.
///
/// # Errors
/// It can, and refuses.
pub(super) fn write_only_below(directories: &[PathBuf]) -> Result<bool, RulesetError> {
    let all = AccessFs::from_write(RULES) | AccessFs::Execute;
    let below = AccessFs::from_write(RULES);
    let mut rules = Ruleset::default().handle_access(all)?.create()?;
    for directory in directories {
        rules = allow(rules, directory, below)?;
        // At its end the daemon removes the directory itself.
        if let Some(parent) = directory.parent() {
            rules = allow(rules, parent, AccessFs::RemoveDir.into())?;
        }
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// A directory that cannot be opened is not there, and needs no rule.
fn allow<R: RulesetCreatedAttr>(
    rules: R,
    directory: &Path,
    access: BitFlags<AccessFs>,
) -> Result<R, RulesetError> {
    match PathFd::new(directory) {
        Ok(opened) => rules.add_rule(PathBeneath::new(opened, access)),
        Err(_) => Ok(rules),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// On a thread of its own: the other tests write where they want to.
    #[test]
    fn a_confined_thread_writes_in_its_directories_alone() {
        let base = tempfile::tempdir().expect("a directory");
        let [own, other] = ["own", "other"].map(|name| base.path().join(name));
        for directory in [&own, &other] {
            fs::create_dir(directory).expect("there is room");
            fs::write(directory.join("file"), "before").expect("there is room");
        }
        let confined = std::thread::spawn(move || {
            let absent = own.join("absent");
            assert!(write_only_below(&[own.clone(), absent]).expect("it may"), "no Landlock here");
            fs::write(own.join("file"), "after").expect("it is its own");
            fs::write(own.join("aside"), "new").expect("it is its own");
            fs::rename(own.join("aside"), own.join("file")).expect("it is its own");
            fs::write(other.join("file"), "after").expect_err("it is not its own");
            fs::write(other.join("new"), "").expect_err("it is not its own");
            fs::remove_file(other.join("file")).expect_err("it is not its own");
            // What is read again may be anywhere.
            assert_eq!(fs::read_to_string(other.join("file")).expect("it is there"), "before");
            Command::new("/bin/true").status().expect_err("it executes nothing");
            fs::remove_file(own.join("file")).expect("it is its own");
            fs::remove_dir(&own).expect("it ends");
        });
        confined.join().expect("it is confined");
    }
}
