//! `cargo xtask sim`: the deterministic simulation, optimised, and with every check that the
//! compiler can make while it runs. Its options are those of `xdp-agg-simulator`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::shell::{cargo, run, target};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Handed on to xdp-agg-simulator; `--help` prints what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_base()?;
    run(cargo().args(["build", "--quiet", "--package", "xdp-agg-simulator", "--profile", "sim"]))?;
    let mut command = Command::new(target().join("sim/xdp-agg-simulator"));
    command.args(&args.arguments);
    let status = command.status().context("cannot run xdp-agg-simulator")?;
    match status.code() {
        Some(0) => Ok(()),
        // What was violated has been said: nothing is left to say about the program.
        Some(code) => std::process::exit(code),
        None => anyhow::bail!("xdp-agg-simulator was ended by a signal ({status})"),
    }
}
