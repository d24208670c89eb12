//! Checks: of the files under `packaging`, which `cargo xtask ci` makes, and of finished packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::python;
use crate::setup::{Need, install};
use crate::shell::{output, root, run, say, sources, which};

/// Files that every form of the package has, below its own prefix.
const EVERYWHERE: [&str; 8] = [
    "bin/xdp-agg",
    "lib/systemd/system/xdp-agg.service",
    "share/man/man1/xdp-agg.1.gz",
    "share/man/man1/xdp-agg-serve.1.gz",
    "share/bash-completion/completions/xdp-agg",
    "etc/xdp-agg/config.toml",
    "share/doc/xdp-agg/README.md",
    "share/xdp-agg/slurm/prolog.sh",
];

/// Scripts, the recipe of the image, and the manifests. The tools come from PyPI, so the check is
/// left out, with a message, on a person's machine that does not reach it.
pub(crate) fn main() -> Result<()> {
    let Some(tools) = python::packaging_tools()? else { return Ok(()) };
    let names = sources()?;
    let below = |ending: &'static str| {
        let names = names.iter().filter(move |name| name.starts_with("packaging/"));
        names.filter(move |name| name.ends_with(ending)).map(|name| root().join(name))
    };
    let maintainer =
        ["postinst", "prerm", "postrm"].map(|name| root().join("packaging/debian").join(name));
    let mut shellcheck = tools("shellcheck");
    shellcheck.args(["--severity=style", "--shell=sh"]).args(&maintainer).args(below(".sh"));
    let mut batch = tools("shellcheck");
    batch.args(["--severity=style", "--shell=bash"]).args(below(".sbatch"));
    let mut hadolint = tools("hadolint");
    hadolint.args(["--failure-threshold", "style"]).args(below("Containerfile"));
    let mut manifests = tools("python");
    manifests.arg(root().join("packaging/check/manifests.py"));
    // All of them, whatever fails.
    let all = [shellcheck, batch, hadolint, manifests];
    let failed: Vec<String> = all
        .into_iter()
        .filter_map(|mut check| run(&mut check).err())
        .map(|error| format!("{error:#}"))
        .collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}

/// Whether finished packages hold what they should, as the systems' own tools see it.
pub(super) fn packages(deb: &Path, rpm: &Path, tarball: &Path) -> Result<()> {
    if which("rpm").is_none() {
        install(&[Need { what: "rpm, to read the .rpm", packages: vec!["rpm".to_owned()] }])?;
    }
    let listed = output(Command::new("dpkg-deb").arg("--contents").arg(deb))?;
    holds_all(deb, &listed, "usr/")?;
    let depends = output(Command::new("dpkg-deb").arg("--field").arg(deb).arg("Depends"))?;
    if !depends.contains("libc6 (>= ") {
        bail!("{}: no version of libc6 is asked for: {depends}", deb.display());
    }
    say(&format!("{}: Depends: {}", name(deb), depends.trim()));
    let listed = output(Command::new("rpm").args(["-q", "--list", "--package"]).arg(rpm))?;
    holds_all(rpm, &listed, "usr/")?;
    // Of checksums and signatures only the checksums: nobody has signed it yet.
    run(Command::new("rpm").args(["--checksig", "--nosignature"]).arg(rpm))?;
    let listed = output(Command::new("tar").arg("-tzf").arg(tarball))?;
    holds_all(tarball, &listed, "")?;
    if which("lintian").is_none() {
        say("lintian is not here, so its rules are not checked (`apt-get install lintian`)");
        return Ok(());
    }
    // It is no part of Debian, whose bugs it could close, and has no address for mail. Debian's own
    // tool knows no instances of a unit.
    let beside = [
        "initial-upload-closes-no-bugs",
        "bogus-mail-host",
        "bogus-mail-host-in-debian-changelog",
        "maintainer-script-calls-systemctl",
    ];
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--suppress-tags", &beside.join(","), "--no-cfg"]);
    run(lintian.arg("--allow-root").arg(deb))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a listing names every file; those outside of the prefix have none.
fn holds_all(package: &Path, listed: &str, prefix: &str) -> Result<()> {
    let missing: Vec<&str> = EVERYWHERE
        .into_iter()
        .filter(|file| {
            let prefix = if file.starts_with("etc/") { "" } else { prefix };
            let ending = format!("/{prefix}{file}");
            let mut lines = listed.lines().map(str::trim_end);
            !lines.any(|line| {
                line.ends_with(&ending)
                    || line.ends_with(&ending.replace("/usr/lib/systemd", "/lib/systemd"))
            })
        })
        .collect();
    if !missing.is_empty() {
        bail!("{} lacks {}", package.display(), missing.join(", "));
    }
    Ok(())
}

/// Whether the list of crates is well formed, and of this program.
pub(super) fn sbom(file: &Path, version: &str) -> Result<()> {
    let text = fs::read_to_string(file).context("the list of crates")?;
    for part in ["\"bomFormat\": \"CycloneDX\"", "\"name\": \"aya\"", "\"name\": \"rustls\""] {
        if !text.contains(part) {
            bail!("{}: {part} is expected in it", file.display());
        }
    }
    if !text.contains(&format!("\"version\": \"{version}\"")) {
        say(&format!("{}: the crates bear the workspace's version, not {version}", name(file)));
    }
    let Some(tools) = python::packaging_tools()? else { return Ok(()) };
    run(tools("python").arg(root().join("packaging/check/sbom.py")).arg(file))
}
