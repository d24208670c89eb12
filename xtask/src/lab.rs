//! `cargo xtask demo` and `cargo xtask bench`: the programs, and then `xdp-agg-lab`, which knows
//! the rest; `bench figures` and `bench simulate` are the business of `xdp-agg-netsim`. The demo
//! takes the build of the tests, which a newcomer waits for half as long and needs anyway;
//! benchmarks take the optimised one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, root, run};
use crate::{build, setup};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Handed on to xdp-agg-lab or xdp-agg-netsim; `--help` prints what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn demo(args: &Args) -> Result<()> {
    lab("demo", args, false)
}

pub(crate) fn bench(args: &Args) -> Result<()> {
    // These are simulated, and need neither a test network nor the programs.
    if let Some(command @ ("figures" | "simulate")) = args.arguments.first().map(String::as_str) {
        return netsim(command, &args.arguments[1..]);
    }
    lab("bench", args, true)
}

fn netsim(command: &str, arguments: &[String]) -> Result<()> {
    setup::ensure_base()?;
    run(cargo().args(["build", "--quiet", "--package", "xdp-agg-netsim", "--release"]))?;
    run(Command::new(target().join("release/xdp-agg-netsim")).arg(command).args(arguments))
}

fn lab(command: &str, args: &Args, release: bool) -> Result<()> {
    setup::ensure_base()?;
    build::programs(release)?;
    let program = target().join(if release { "release" } else { "debug" }).join("xdp-agg-lab");
    run(Command::new(program).arg(command).args(&args.arguments))
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
