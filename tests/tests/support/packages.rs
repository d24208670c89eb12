//! What `cargo xtask package` makes, and where it is tried.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository")
}

/// The root that `cargo xtask test` makes. None, with a message: it is not there.
pub fn bare_debian() -> Option<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let root = repository().join(target).join("roots/bookworm-systemd-man-db-rpm");
    if root.join("etc/debian_version").exists() && !root.join("debootstrap").exists() {
        return Some(root);
    }
    let what = "there is no bare Debian to install in: `cargo xtask test` makes it, as root";
    assert!(env::var_os("CI").is_none(), "{what}");
    eprintln!("skipped: {what}");
    None
}

/// The .deb and the tarball of the program that was built for the tests.
pub fn packages(out: &Path) -> (PathBuf, PathBuf) {
    let mut made = make(out, &[]).into_iter();
    (made.next().expect("the .deb"), made.next().expect("the tarball"))
}

/// The same, and the .rpm.
pub fn all_packages(out: &Path) -> [PathBuf; 3] {
    make(out, &["--rpm"]).try_into().expect("three files")
}

fn make(out: &Path, more: &[&str]) -> Vec<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut package = Command::new(cargo);
    package.current_dir(repository()).args(["xtask", "package", "--debug", "--out"]).arg(out);
    let printed = package.args(more).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "cargo xtask package: {said}");
    let text = String::from_utf8(printed.stdout).expect("paths");
    text.lines().map(PathBuf::from).collect()
}
