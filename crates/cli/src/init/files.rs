//! Files that are written all or none, for one owner, and over others only if that is wished.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exit::WrongConfig;

/// The users that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Everybody.
    Public,
    /// The daemon's user.
    Secret,
    /// Whoever writes it, as root: the daemon has no use for it.
    Root,
}

/// Files of a directory that are to be written.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    owner: Option<(u32, u32)>,
    force: bool,
    all: Vec<(String, Mode, String)>,
}

impl Files {
    /// None of them yet. They will belong to this user, where root writes and there is one.
    pub(super) fn new(dir: &Path, user: Option<&str>, force: bool) -> Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let owner = user.filter(|_| is_root).map(lookup).transpose()?.flatten();
        let dir = std::path::absolute(dir).context("finding the directory of the settings")?;
        Ok(Self { dir, owner, force, all: Vec::new() })
    }

    pub(super) const fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Contents of a file that is there and stays.
    pub(super) fn kept(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// A file that everybody may read.
    pub(super) fn public(&mut self, name: &str, text: &str) -> Result<()> {
        self.secret(name, Mode::Public, false, || Ok(text.to_owned()))
    }

    /// A file. With `keep`, one that is there stays as it is.
    pub(super) fn secret(
        &mut self,
        name: &str,
        mode: Mode,
        keep: bool,
        text: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        let path = self.path(name);
        let is_there = fs::symlink_metadata(&path).is_ok() && !only_comments(&path);
        if is_there && !self.force {
            let why = format!(
                "{} is there already: --force overwrites settings and certificates, and keeps \
                 token and authority; --dir writes elsewhere",
                path.display()
            );
            return Err(WrongConfig(why).into());
        }
        if !(is_there && keep) {
            self.all.push((name.to_owned(), mode, text()?));
        }
        Ok(())
    }

    /// Writes them; returns their paths.
    pub(super) fn write(&self) -> Result<Vec<PathBuf>> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.dir);
        made.with_context(|| format!("making {}", self.dir.display()))?;
        let aside = |name: &str| self.path(&format!(".{name}.new"));
        for (name, mode, text) in &self.all {
            let path = aside(name);
            self.write_one(&path, *mode, text)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let mut written = Vec::new();
        for (name, ..) in &self.all {
            let path = self.path(name);
            fs::rename(aside(name), &path)
                .with_context(|| format!("writing {}", path.display()))?;
            written.push(path);
        }
        Ok(written)
    }

    fn write_one(&self, path: &Path, mode: Mode, text: &str) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let bits = if mode == Mode::Public { 0o644 } else { 0o600 };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(bits).open(path)?;
        file.write_all(text.as_bytes())?;
        if let Some((user, group)) = self.owner.filter(|_| mode == Mode::Secret) {
            chown(path, Some(user), Some(group))?;
        }
        file.sync_all()
    }
}

/// Whether a file sets nothing, as that of a package does before anybody has changed it.
fn only_comments(path: &Path) -> bool {
    let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
    fs::read_to_string(path).is_ok_and(|text| text.lines().map(str::trim).all(is_comment))
}

/// Numbers of a user and its group. None: there is no such user.
fn lookup(name: &str) -> Result<Option<(u32, u32)>> {
    let text = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let of = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let [this, _, user, group, ..] = fields[..] else { return None };
        (this == name).then_some((user.parse().ok()?, group.parse().ok()?))
    };
    Ok(text.lines().find_map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_package_brings_is_replaced_and_what_somebody_wrote_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |text: &str| fs::write(dir.path().join("config.toml"), text).expect("written");
        let add = || Files::new(dir.path(), None, false)?.public("config.toml", "slots = 64");
        for nothing in ["", "# Settings\n\n  # slots = 8192\n"] {
            write(nothing);
            add().expect("it sets nothing");
        }
        write("# Settings\nslots = 8\n");
        add().expect_err("it sets something");
    }
}
