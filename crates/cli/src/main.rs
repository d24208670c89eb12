//! `xdp-agg`: sums gradients in the network. The daemon, and tools that talk to it.
//!
//! One file a sub-command: each has `Args` and `run`.

mod completions;
mod control;
mod doctor;
mod exit;
mod init;
mod jobs;
mod logging;
mod man;
mod reload;
mod serve;
mod stats;
mod table;
mod top;
mod topology;
mod trace;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use exit::{EXIT_CODES, exit_code, is_closed_pipe, sentence};

/// Sum gradients in the network: an XDP program on a Linux host plays the switch.
#[derive(Debug, Parser)]
#[command(name = "xdp-agg", version, after_help = EXIT_CODES, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(Box<init::Args>),
    Serve(Box<serve::Args>),
    Jobs(jobs::Args),
    Reload(reload::Args),
    Stats(stats::Args),
    Top(top::Args),
    Doctor(doctor::Args),
    Tune(tune::Args),
    Topology(topology::Args),
    Trace(trace::Args),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Init(args) => init::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Jobs(args) => jobs::run(args),
        Command::Reload(args) => reload::run(args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Topology(args) => topology::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
