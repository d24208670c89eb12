//! `xdp-agg completions`: what a shell needs to complete the command line.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap_complete::Shell;

/// Print the completions of a shell, for a file that the shell reads
///
/// Packages bring these files along. After `cargo install`:
/// `xdp-agg completions bash > ~/.local/share/bash-completion/completions/xdp-agg`.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Runs the sub-command. `program` is the whole command line.
pub(crate) fn run(args: &Args, mut program: clap::Command) -> Result<ExitCode> {
    // Into memory first: the writer of the completions panics where it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut program, "xdp-agg", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
