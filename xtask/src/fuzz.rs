//! `cargo xtask fuzz`: the fuzzer, built as the simulation is, with every check that the compiler
//! can make while it runs. Crates of others, which read most of its inputs, are optimised, too.

use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, run, step, target};
use crate::{Passed, setup};

pub(crate) fn main(args: &Passed) -> Result<()> {
    setup::ensure_base()?;
    step("building xdp-agg-fuzz", || {
        let package = ["--package", "xdp-agg-fuzz-kernel", "--bins"];
        run(cargo().arg("build").args(package).args(["--profile", "sim"]))
    })?;
    let program = target().join("sim").join("xdp-agg-fuzz");
    run(Command::new(program).args(&args.arguments))
}
