//! `cargo xtask demo` and `cargo xtask bench`: the programs, and then `xdp-agg-lab`, which knows
//! the rest. `bench figures` and `bench simulate` are left to `xdp-agg-flowsim`. The demo takes the
//! build of the tests, which a newcomer waits for half as long and needs anyway; benchmarks take
//! the optimised one.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, run, step, target};
use crate::{Passed, build, python, setup};

/// Benchmarks that are simulated, and need neither a test network nor the programs.
pub(crate) const SIMULATED: [&str; 2] = ["figures", "simulate"];

pub(crate) fn demo(args: &Passed) -> Result<()> {
    let torch = args.arguments.iter().any(|argument| argument == "--torch");
    lab("demo", args, (false, torch))
}

pub(crate) fn bench(args: &Passed) -> Result<()> {
    if let Some(command) = args.arguments.first().filter(|name| SIMULATED.contains(&name.as_str()))
    {
        return flowsim(command, &args.arguments[1..]);
    }
    let torch = args.arguments.first().is_some_and(|scenario| scenario == "torch");
    lab("bench", args, (true, torch))
}

/// `cargo xtask sim`: the deterministic simulation, optimised, and with every check that the
/// compiler can make while it runs. Its options are those of `xdp-agg-simulator`.
pub(crate) fn sim(args: &Passed) -> Result<()> {
    let mut command = built("xdp-agg-simulator", "xdp-agg-simulator", "sim")?;
    let status = command.args(&args.arguments).status().context("cannot run xdp-agg-simulator")?;
    match status.code() {
        Some(0) => Ok(()),
        // What was violated has been said: nothing is left to say about the program.
        Some(code) => std::process::exit(code),
        None => bail!("xdp-agg-simulator was ended by a signal ({status})"),
    }
}

/// Options of `cargo xtask budgets`.
#[derive(clap::Args)]
pub(crate) struct BudgetArgs {
    /// Store what is counted as the budgets.
    #[arg(long)]
    record: bool,
}

/// `cargo xtask budgets`: instructions, counted in the build of the tests.
pub(crate) fn budgets(args: &BudgetArgs) -> Result<()> {
    setup::ensure_tests()?;
    let package = "xdp-agg-budgets";
    run(cargo().args(["build", "--quiet", "--package", package]))?;
    let program = target().join("debug").join(package);
    run(Command::new(program).arg(if args.record { "record" } else { "check" }))
}

/// `cargo xtask fuzz`: the fuzzer, built as the simulation is. Crates of others, which read most of
/// its inputs, are optimised, too.
pub(crate) fn fuzz(args: &Passed) -> Result<()> {
    let built =
        step("building xdp-agg-fuzz", || built("xdp-agg-fuzz-kernel", "xdp-agg-fuzz", "sim"));
    run(built?.args(&args.arguments))
}

fn flowsim(command: &str, arguments: &[String]) -> Result<()> {
    let mut flowsim = built("xdp-agg-flowsim", "xdp-agg-flowsim", "release")?;
    run(flowsim.arg(command).args(arguments))
}

/// A program of one package, built.
fn built(package: &str, program: &str, profile: &str) -> Result<Command> {
    setup::ensure_base()?;
    run(cargo().args(["build", "--quiet", "--bins", "--package", package, "--profile", profile]))?;
    Ok(Command::new(target().join(profile).join(program)))
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
