//! `xdp-agg-budgets`: instructions that the worker's code takes for its work, counted by callgrind
//! and compared with what is stored.
//!
//! Times vary with the machine and with what else runs on it; instructions hardly do. They say
//! nothing of caches, of the kernel, or of waiting.

mod budgets;
mod loopback;
mod workloads;

use std::hint::black_box;

use anyhow::Result;
use clap::{Parser, Subcommand};

use workloads::Workload;

/// Counts instructions, and compares them with budgets.
#[derive(Parser)]
#[command(name = "xdp-agg-budgets")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts each workload; fails where one takes over 3 % more than its budget.
    Check,
    /// Counts each workload, and stores what it takes as its budget.
    Record,
    /// Does a workload: what callgrind looks at.
    Run {
        /// Which one.
        workload: Workload,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Check => budgets::check(),
        Command::Record => budgets::record(),
        Command::Run { workload } => {
            black_box(workloads::run(workload)?);
            Ok(())
        }
    }
}
