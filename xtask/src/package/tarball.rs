//! The tarball: the same files for systems that have neither dpkg nor rpm, and for containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::stage::{SHELLS, Stage};
use crate::shell::{root, run, step};

/// Files and folders of the repository that come along, and where to.
const SOURCES: [(&str, &str); 10] = [
    ("packaging/config.toml", "etc/xdp-agg/config.toml"),
    ("packaging/systemd", "lib/systemd/system"),
    ("packaging/kubernetes", "share/xdp-agg/kubernetes"),
    ("packaging/slurm", "share/xdp-agg/slurm"),
    ("packaging/container/Containerfile", "share/xdp-agg/Containerfile"),
    ("README.md", "share/doc/xdp-agg/README.md"),
    ("CHANGELOG.md", "share/doc/xdp-agg/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/xdp-agg/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/xdp-agg/LICENSE-APACHE"),
    ("docs/install.md", "share/doc/xdp-agg/install.md"),
];
/// Where each shell looks, below `share`.
const COMPLETIONS: [&str; 3] =
    ["bash-completion/completions", "zsh/site-functions", "fish/vendor_completions.d"];

/// Makes it.
pub(super) fn make(stage: &Stage, out: &Path) -> Result<PathBuf> {
    step("the tarball", || {
        let name = format!("xdp-agg-{}-{}-linux", stage.version, std::env::consts::ARCH);
        let tree = stage.directory.join(&name);
        for (from, to) in SOURCES {
            copy(&root().join(from), &tree.join(to))?;
        }
        // systemd-sysusers looks elsewhere.
        let sysusers = tree.join("lib/sysusers.d");
        fs::create_dir_all(&sysusers)?;
        fs::rename(
            tree.join("lib/systemd/system/xdp-agg.sysusers"),
            sysusers.join("xdp-agg.conf"),
        )?;
        let program = tree.join("bin/xdp-agg");
        copy(&stage.program, &program)?;
        run(Command::new("strip").arg(&program))?;
        copy(&stage.directory.join("man"), &tree.join("share/man/man1"))?;
        for ((shell, _), place) in SHELLS.into_iter().zip(COMPLETIONS) {
            let from = stage.directory.join("completions").join(shell);
            copy(&from, &tree.join("share").join(place))?;
        }
        let path = out.join(format!("{name}.tar.gz"));
        let archive = stage.directory.join(format!("{name}.tar"));
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go-w,a+rX"]);
        tar.arg(format!("--mtime=@{}", stage.epoch)).arg("-C").arg(&stage.directory);
        run(tar.arg("-cf").arg(&archive).arg(&name))?;
        run(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&archive))?;
        let made = archive.with_extension("tar.gz");
        fs::copy(&made, &path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    })
}

/// Copies a file, or a folder with what is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let place = || format!("cannot copy {} to {}", from.display(), to.display());
    if from.is_dir() {
        fs::create_dir_all(to).with_context(place)?;
        for entry in fs::read_dir(from).with_context(place)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(place).map(drop)
}
