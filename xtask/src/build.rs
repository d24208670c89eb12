//! `cargo xtask build`: the programs, and nothing else of the workspace.

use anyhow::Result;

use crate::setup;
use crate::shell::{cargo, run, step};

/// Packages whose programs demo, tests and benchmarks start.
const PACKAGES: [&str; 3] = ["xdp-agg-cli", "xdp-agg-demo", "xdp-agg-tests"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// With all optimisations, into target/release.
    #[arg(long)]
    release: bool,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_base()?;
    programs(args.release)
}

/// Builds the programs of one profile.
pub(crate) fn programs(release: bool) -> Result<()> {
    step("building xdp-agg, xdp-agg-demo and xdp-agg-lab", || {
        let mut command = cargo();
        command.args(["build", "--bins"]);
        for package in PACKAGES {
            command.args(["--package", package]);
        }
        if release {
            command.arg("--release");
        }
        run(&mut command)
    })
}
