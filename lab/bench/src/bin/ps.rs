//! `xdp-agg-ps`: a parameter server, the baseline.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::{EXIT_CODES, server};

#[derive(Debug, Parser)]
#[command(name = "xdp-agg-ps", version, after_help = EXIT_CODES, args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: server::Args,
}

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-ps", server::run(&Cli::parse().args))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
