//! A bare Debian 12, in which the tests install the package: made once, under `target`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::{Need, install};
use crate::shell::{run, step, target, which};

/// The release, and what it has beyond the least: a service manager, `man`, and `rpm` for the
/// package of other distributions.
const SUITE: &str = "bookworm";
const INCLUDE: &str = "systemd,man-db,rpm";
/// Where packages come from, unless this system has them from elsewhere.
const MIRROR: &str = "http://deb.debian.org/debian";

/// Finds it, or makes it. For root only.
pub(super) fn ensure() -> Result<PathBuf> {
    // No part of a version of ours: it is kept for as long as what is asked for is the same.
    let name = format!("{SUITE}-{}", INCLUDE.replace(',', "-"));
    let root = target().join("roots").join(name);
    let whole = root.join("etc/debian_version");
    if whole.is_file() && !root.join("debootstrap").exists() {
        return Ok(root);
    }
    if which("debootstrap").is_none() && !Path::new("/usr/sbin/debootstrap").exists() {
        let packages = vec!["debootstrap".to_owned()];
        install(&[Need { what: "debootstrap, for a bare Debian to install in", packages }])?;
    }
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(&root)?;
    step("a bare Debian 12 (half a minute, once)", || {
        let mut debootstrap = Command::new("/usr/sbin/debootstrap");
        debootstrap.args(["--variant=minbase", "--include", INCLUDE, SUITE]);
        run(debootstrap.arg(&root).arg(mirror()).stdout(std::process::Stdio::null()))
    })
    .with_context(|| format!("a bare Debian in {}", root.display()))?;
    Ok(root)
}

/// The mirror that this system's own packages come from.
fn mirror() -> String {
    let lists = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"];
    let texts = lists.iter().filter_map(|list| fs::read_to_string(list).ok());
    texts.filter_map(|text| mirror_in(&text)).next().unwrap_or_else(|| MIRROR.to_owned())
}

/// The first address of a mirror of Debian itself in a list of sources, of the old form or the new.
fn mirror_in(text: &str) -> Option<String> {
    let lines = text.lines().filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let words = lines.flat_map(str::split_whitespace);
    let mut words = words.map(|word| word.trim_end_matches('/'));
    let found = words.find(|word| word.starts_with("http") && word.ends_with("/debian"));
    found.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::mirror_in;

    #[test]
    fn the_mirror_is_found_in_both_forms() {
        let new = "Types: deb\n# http://a/debian\nURIs: http://m.example/debian/\nSuites: x\n";
        assert_eq!(mirror_in(new).as_deref(), Some("http://m.example/debian"));
        let old = "deb http://s.example/debian-security x main\ndeb http://m/debian x main\n";
        assert_eq!(mirror_in(old).as_deref(), Some("http://m/debian"));
        assert_eq!(mirror_in("# nothing\n"), None);
    }
}
