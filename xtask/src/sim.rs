//! `cargo xtask sim`: the deterministic simulation, optimised, and with every check that the
//! compiler can make while it runs. Its options are those of `xdp-agg-simulator`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, run, target};
use crate::{Passed, setup};

pub(crate) fn main(args: &Passed) -> Result<()> {
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
