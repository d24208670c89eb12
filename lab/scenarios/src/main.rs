//! `xdp-agg-lab`: the demo and the benchmarks, each in a test network of its own.
//!
//! `cargo xtask demo` and `cargo xtask bench SCENARIO` build everything and call this.

mod auto;
mod bound;
mod broadcast;
mod compare;
mod cost;
mod demo;
mod files;
mod flood;
mod floor;
mod inhost;
mod kernel;
mod kill;
mod lab;
mod latency;
mod links;
mod machine;
mod openmpi;
mod passing;
mod racks;
mod row;
mod setting;
mod share;
mod torch;
mod torch_demo;
mod torchrun;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The demo and the benchmarks of xdp-agg, in network namespaces on this machine.
///
/// Nothing outside the namespaces is touched, and they are gone when this ends, in whatever way.
#[derive(Parser)]
#[command(name = "xdp-agg-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure systems side by side, or the kernel program alone.
    #[command(subcommand)]
    Bench(Scenario),
    Demo(demo::Args),
}

#[derive(Subcommand)]
enum Scenario {
    Links(links::Args),
    Latency(latency::Args),
    Auto(auto::Args),
    Kernel(kernel::Args),
    Kill(kill::Args),
    Flood(flood::Args),
    Floor(floor::Args),
    Inhost(inhost::Args),
    Passing(passing::Args),
    Broadcast(broadcast::Args),
    Racks(racks::Args),
    Share(share::Args),
    Torch(torch::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = lab::settle_privilege().and_then(|privilege| match &cli.command {
        Command::Bench(Scenario::Links(args)) => links::main(args, privilege),
        Command::Bench(Scenario::Latency(args)) => latency::main(args, privilege),
        Command::Bench(Scenario::Auto(args)) => auto::main(args, privilege),
        Command::Bench(Scenario::Kernel(args)) => kernel::main(args, privilege),
        Command::Bench(Scenario::Kill(args)) => kill::main(args, privilege),
        Command::Bench(Scenario::Flood(args)) => flood::main(args, privilege),
        Command::Bench(Scenario::Floor(args)) => floor::main(args, privilege),
        Command::Bench(Scenario::Inhost(args)) => inhost::main(args, privilege),
        Command::Bench(Scenario::Passing(args)) => passing::main(args, privilege),
        Command::Bench(Scenario::Broadcast(args)) => broadcast::main(args, privilege),
        Command::Bench(Scenario::Racks(args)) => racks::main(args, privilege),
        Command::Bench(Scenario::Share(args)) => share::main(args, privilege),
        Command::Bench(Scenario::Torch(args)) => torch::main(args, privilege),
        Command::Demo(args) => demo::main(args, privilege),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Options that scenarios share do not contradict their own.
    #[test]
    fn all_options_fit_together() {
        super::Cli::command().debug_assert();
    }
}
