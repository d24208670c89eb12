//! `xdp-agg`: sums gradients in the network. The daemon, and tools that talk to it.
//!
//! One file a sub-command: each has `Args` and `run`.

mod control;
mod doctor;
mod jobs;
mod quantile;
mod serve;
mod stats;
mod table;
mod topology;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xdp_agg::config::ConfigError;
use xdp_agg_tls::{SecretError, TlsError};
use xdp_agg_topology::FileError;

/// Sum gradients in the network: an XDP program on a Linux host plays the switch.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg", version, after_help = EXIT_CODES, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Jobs(jobs::Args),
    Stats(stats::Args),
    Doctor(doctor::Args),
    Tune(tune::Args),
    Topology(topology::Args),
}

/// What the process ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed or refused; the message says what was wrong, what was expected and what to do
  2  wrong usage or configuration
  3  no daemon answers at the control address";

/// What was given does not fit what it is for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongConfig(String);

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const NO_DAEMON: u8 = 3;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(*args),
        Command::Jobs(args) => jobs::run(args),
        Command::Stats(args) => stats::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Topology(args) => topology::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If not even that can be written, the exit code says enough.
            drop(writeln!(io::stderr(), "xdp-agg: {}", sentence(&error)));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<control::NoDaemon>() {
        NO_DAEMON
    } else if error.is::<ConfigError>()
        || error.is::<TlsError>()
        || error.is::<SecretError>()
        || error.is::<FileError>()
        || error.is::<WrongConfig>()
        || is_wrong_setting(error)
    {
        WRONG_USAGE
    } else {
        FAILED
    }
}

/// A worker's settings, in the words of the library that it sums by.
fn is_wrong_setting(error: &anyhow::Error) -> bool {
    let client = matches!(error.downcast_ref(), Some(xdp_agg_client::Error::Config { .. }));
    let mesh = matches!(error.downcast_ref(), Some(xdp_agg_mesh::Error::Setting { .. }));
    client || mesh
}

/// `xdp-agg stats --watch 1 | head`: whoever reads has read enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes, without those that the text before them quotes already.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = anyhow::anyhow!("it is broken");
        let quoting = inner.context("cannot open: it is broken").context("serve");
        assert_eq!(sentence(&quoting), "serve: cannot open: it is broken");
    }
}
