//! `cargo xtask demo` and `cargo xtask bench`: the programs, and then `xdp-agg-lab`, which knows
//! the rest. `bench figures` and `bench simulate` are left to `xdp-agg-flowsim`. The demo takes the
//! build of the tests, which a newcomer waits for half as long and needs anyway; benchmarks take
//! the optimised one.

use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, run, target};
use crate::{Passed, build, python, setup};

pub(crate) fn demo(args: &Passed) -> Result<()> {
    let torch = args.arguments.iter().any(|argument| argument == "--torch");
    lab("demo", args, (false, torch))
}

pub(crate) fn bench(args: &Passed) -> Result<()> {
    // These are simulated, and need neither a test network nor the programs.
    if let Some(command @ ("figures" | "simulate")) = args.arguments.first().map(String::as_str) {
        return flowsim(command, &args.arguments[1..]);
    }
    let torch = args.arguments.first().is_some_and(|scenario| scenario == "torch");
    lab("bench", args, (true, torch))
}

fn flowsim(command: &str, arguments: &[String]) -> Result<()> {
    setup::ensure_base()?;
    run(cargo().args(["build", "--quiet", "--package", "xdp-agg-flowsim", "--release"]))?;
    run(Command::new(target().join("release/xdp-agg-flowsim")).arg(command).args(arguments))
}

/// `torch`: what is run trains with PyTorch.
fn lab(command: &str, args: &Passed, (release, torch): (bool, bool)) -> Result<()> {
    setup::ensure_base()?;
    let program = target().join(if release { "release" } else { "debug" }).join("xdp-agg-lab");
    let mut lab = Command::new(program);
    if torch {
        build::with_extension(release)?;
        lab.env("XDP_AGG_PYTHON", python::interpreter(release)?);
    } else {
        build::programs(release)?;
    }
    run(lab.arg(command).args(&args.arguments))
}
