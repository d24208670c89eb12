//! `xdp-agg man`: the manual, a page for each sub-command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;

/// Write the manual's pages, one for each command, into a directory
///
/// Packages bring the pages along. After `cargo install`:
/// `xdp-agg man ~/.local/share/man/man1`, then `man xdp-agg-serve`.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Where the pages go; it is made if it is not there
    directory: PathBuf,
}

/// Runs the sub-command. `program` is the whole command line.
pub(crate) fn run(args: &Args, program: Command) -> Result<ExitCode> {
    let place = || format!("writing the manual to {}", args.directory.display());
    fs::create_dir_all(&args.directory).with_context(place)?;
    let mut program = program.disable_help_subcommand(true);
    // Names and usages of sub-commands begin with the program's.
    program.build();
    write_pages(program, &args.directory).with_context(place)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those below it.
fn write_pages(command: Command, directory: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), directory)?;
    }
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let source = format!("xdp-agg {version}");
    // No date: the same sources make the same page on any day.
    let page = Man::new(command).section("1").source(source).manual("User Commands");
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(directory.join(page.get_filename()), text)?;
    Ok(())
}
