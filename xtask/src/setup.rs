//! `cargo xtask setup`: what is missing, and how it gets here.
//!
//! The demo needs a C linker and nothing else: the compiled kernel programs are checked in, and the
//! test network speaks netlink itself. The tests build their hosts with `ip`, `ethtool` and `nft`,
//! as users do. (Without a linker, cargo could not even build this program: `xtask/linker.sh`
//! installs it at that moment. So the check here rarely finds it missing.)

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::package;
use crate::python::{self, NEWEST_TORCH};
use crate::shell::{is_root, run, say, step, target, which};
use crate::toolchain::Toolchain;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also what rebuilding the kernel programs needs: a compiler with the sources of its `core`,
    /// and bpf-linker for that compiler's LLVM.
    #[arg(long)]
    ebpf: bool,
    /// Also OpenMPI, which `bench links` measures beside ours where it is installed.
    #[arg(long)]
    openmpi: bool,
    /// Also what the tests of the Python package need: PyTorch without its GPU packages, pytest …
    #[arg(long)]
    python: bool,
    /// The version of PyTorch for that.
    #[arg(long, value_name = "VERSION", requires = "python", default_value = NEWEST_TORCH)]
    torch: String,
}

/// Something that has to be installed.
pub(crate) struct Need<'a> {
    /// For people.
    pub(crate) what: &'a str,
    /// Debian packages.
    pub(crate) packages: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    ensure_base()?;
    if args.openmpi && (which("mpirun").is_none() || which("mpicc").is_none()) {
        let packages = vec!["openmpi-bin".to_owned(), "libopenmpi-dev".to_owned()];
        install(&[Need { what: "OpenMPI", packages }])?;
    }
    if args.ebpf {
        let toolchain = Toolchain::ensure()?;
        say(&format!("kernel programs are built with {}", toolchain.describe()));
    }
    if args.python {
        python::setup(&args.torch)?;
    }
    Ok(())
}

/// What every command needs. Says nothing where nothing is missing.
pub(crate) fn ensure_base() -> Result<()> {
    if which("cc").is_some() {
        return Ok(());
    }
    let packages = vec!["gcc".to_owned(), "libc6-dev".to_owned()];
    install(&[Need { what: "a C linker (cc)", packages }])
}

/// What the tests need besides.
pub(crate) fn ensure_tests() -> Result<()> {
    ensure_base()?;
    if !is_root() {
        // Tests that make network namespaces say so and are left out.
        return Ok(());
    }
    let tools = [
        ("ip", "iproute2"),
        ("ethtool", "ethtool"),
        ("nft", "nftables"),
        ("valgrind", "valgrind"),
        ("systemd-analyze", "systemd"),
        // The daemon's page is looked at.
        ("chromium", "chromium"),
        ("chromedriver", "chromium-driver"),
    ];
    let missing = tools.into_iter().filter(|(program, _)| !has_tool(program));
    let needs: Vec<_> =
        missing.map(|(what, package)| Need { what, packages: vec![package.to_owned()] }).collect();
    install(&needs)?;
    fetch_prometheus()?;
    package::ensure_for_tests()
}

/// Puts the programs of Debian's package `prometheus` where a test looks for them. Installed, the
/// package would start a service and bring 30 others along.
fn fetch_prometheus() -> Result<()> {
    let place = target().join("prometheus");
    let there = ["prometheus", "promtool"]
        .into_iter()
        .all(|name| which(name).is_some() || place.join("usr/bin").join(name).exists());
    if there || which("apt-get").is_none() {
        return Ok(());
    }
    fs::create_dir_all(&place)?;
    let apt = |arguments: &[&str]| run(Command::new("apt-get").args(arguments).current_dir(&place));
    step("apt-get download prometheus", || {
        apt(&["download", "-q", "prometheus"]).or_else(|_| {
            apt(&["update", "-q"])?;
            apt(&["download", "-q", "prometheus"])
        })?;
        for entry in fs::read_dir(&place)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&place))?;
                fs::remove_file(path)?;
            }
        }
        Ok(())
    })
}

/// Whether a tool for administrators is there: their directory is not on everybody's path.
fn has_tool(program: &str) -> bool {
    which(program).is_some() || Path::new("/usr/sbin").join(program).exists()
}

/// Installs packages where this process may, or fails with the command that a person has to type.
pub(crate) fn install(needs: &[Need<'_>]) -> Result<()> {
    let packages: Vec<&str> =
        needs.iter().flat_map(|need| need.packages.iter().map(String::as_str)).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let whats = needs.iter().map(|need| need.what).collect::<Vec<_>>().join(", ");
    let by_hand = format!("apt-get install {}", packages.join(" "));
    if which("apt-get").is_none() {
        bail!(
            "missing: {whats}. This is no Debian-like system, so install by hand what `{by_hand}` \
             would install there, then run this again"
        );
    }
    if !is_root() {
        bail!("missing: {whats}. Run `sudo {by_hand}`, then run this again");
    }
    say(&format!("missing: {whats}; installing the Debian packages {}", packages.join(" ")));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    // A fresh machine has no package lists at all.
    step("apt-get update", || run(apt().args(["update", "-q"])))?;
    step("apt-get install", || {
        run(apt().args(["install", "-q", "-y", "--no-install-recommends"]).args(&packages))
    })
}
