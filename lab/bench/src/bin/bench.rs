//! `xdp-agg-bench`: one worker of an all-reduce benchmark.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::{EXIT_CODES, all_reduce};

#[derive(Debug, Parser)]
#[command(name = "xdp-agg-bench", version, after_help = EXIT_CODES, args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: all_reduce::Args,
}

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-bench", all_reduce::run(&Cli::parse().args))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
