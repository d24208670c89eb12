//! `cargo xtask build`: the programs, and nothing else of the workspace.

use anyhow::Result;

use crate::setup;
use crate::shell::{cargo, run, step};

/// Packages whose programs demo, tests and benchmarks start.
const PACKAGES: [&str; 5] =
    ["xdp-agg-cli", "xdp-agg-bench", "xdp-agg-demo", "xdp-agg-lab", "xdp-agg-testbed"];
/// The extension module of the Python package.
const EXTENSION: &str = "xdp-agg-python";
/// A test program; which one does not matter. See [`for_tests`].
const SOME_TEST: &str = "harness";

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
    step("building xdp-agg and the programs of the laboratory", || build(&[], release))
}

/// Builds the programs for tests, and the libraries for Python and C, which `cargo test` does not.
///
/// The features of shared crates are those of `cargo test --workspace`, which then builds none of
/// them again. So the whole workspace is named, and a test: without it, features that only tests
/// want would be left out.
pub(crate) fn for_tests() -> Result<()> {
    step("building the programs, and the libraries for Python and C", || {
        run(cargo().args(["build", "--workspace", "--lib", "--bins", "--test", SOME_TEST]))
    })
}

/// Builds the programs and the extension module for Python together: each set of packages wants
/// other features of the crates that they share, and alone it would have all these built anew.
pub(crate) fn with_extension(release: bool) -> Result<()> {
    step("building the programs, and the extension module for Python", || {
        build(&["--lib", "--package", EXTENSION], release)
    })
}

fn build(more: &[&str], release: bool) -> Result<()> {
    let packages = PACKAGES.into_iter().flat_map(|package| ["--package", package]);
    let release = release.then_some("--release");
    run(cargo().args(["build", "--bins"]).args(packages).args(more).args(release))
}
