//! Every command that a person types in this repository: `cargo xtask COMMAND`.
//!
//! One file per command. Each command first does what `cargo xtask setup` does. So none fails for a
//! missing program that could have been installed, or without saying what to install.

mod build;
mod build_ebpf;
mod ci;
mod disasm;
mod lab;
mod package;
mod python;
mod setup;
mod shell;
mod soak;
mod test;
mod tidy;
mod toolchain;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Commands of the xdp-agg repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find what the other commands need and is missing; install it where that is possible.
    Setup(setup::Args),
    /// Build the programs: xdp-agg, and those of the laboratory.
    Build(build::Args),
    /// Rebuild the kernel programs and replace the compiled objects that are checked in.
    BuildEbpf,
    /// Run all tests; those that need root run where there is root.
    Test(test::Args),
    /// Train a small network on four hosts in network namespaces, summed by the XDP program.
    Demo(Passed),
    /// Measure: `bench links`, `latency`, `passing`, `kernel`, …; `bench links --help` for options.
    /// Simulate: `bench figures`, `bench simulate`.
    Bench(Passed),
    /// Run the tests of the Python package: `cargo xtask python -k import`, `--torch 2.7.1`.
    Python(python::Args),
    /// Build the Python package's wheel, and check it: into target/wheels.
    Wheel(python::WheelArgs),
    /// Make what administrators install: a .deb, an .rpm, a tarball, a list of what is inside.
    Package(package::Args),
    /// Run the protocol under a virtual clock and all kinds of faults, by seed: `sim --help`.
    Sim(Passed),
    /// Feed everything that reads others' bytes with mutated ones: `fuzz --help` for options.
    Fuzz(Passed),
    /// Count the instructions of the worker's code, and compare them with their budgets.
    Budgets(lab::BudgetArgs),
    /// Have jobs come and go, links flap and the daemon die, for long; memory has to stay flat.
    Soak(soak::Args),
    /// Have another revision's daemon and workers work with this one's: what goes on, what ends.
    UpgradeTest(upgrade::Args),
    /// What has to hold before a change is merged, apart from the tests.
    Ci,
    /// Line width, length of files and functions, leftovers, what docs/papers.md names: the checks
    /// that no compiler makes.
    Tidy,
}

/// What a command hands on to the program that it builds.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Passed {
    /// Handed on; `--help` prints what is taken.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(args) => setup::main(&args),
        Command::Build(args) => build::main(&args),
        Command::BuildEbpf => build_ebpf::main(),
        Command::Test(args) => test::main(&args),
        Command::Demo(args) => lab::demo(&args),
        Command::Bench(args) => lab::bench(&args),
        Command::Python(args) => python::main(&args),
        Command::Wheel(args) => python::wheel(&args),
        Command::Package(args) => package::main(&args),
        Command::Sim(args) => lab::sim(&args),
        Command::Fuzz(args) => lab::fuzz(&args),
        Command::Budgets(args) => lab::budgets(&args),
        Command::Soak(args) => soak::main(&args),
        Command::UpgradeTest(args) => upgrade::main(&args),
        Command::Ci => ci::main(),
        Command::Tidy => tidy::main(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
