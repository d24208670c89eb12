//! `cargo xtask demo` and `cargo xtask bench`: the programs, and then `xdp-agg-lab`, which knows
//! the rest. The demo takes the build of the tests, which a newcomer waits for half as long and
//! needs anyway; benchmarks take the optimised one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell::{root, run};
use crate::{build, setup};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Handed on to xdp-agg-lab; `--help` prints what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn demo(args: &Args) -> Result<()> {
    lab("demo", args, false)
}

pub(crate) fn bench(args: &Args) -> Result<()> {
    lab("bench", args, true)
}

fn lab(command: &str, args: &Args, release: bool) -> Result<()> {
    setup::ensure_base()?;
    build::programs(release)?;
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = target.join(if release { "release" } else { "debug" }).join("xdp-agg-lab");
    run(Command::new(program).arg(command).args(&args.arguments))
}
