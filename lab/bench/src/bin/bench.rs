//! `xdp-agg-bench`: one worker of an all-reduce benchmark.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::all_reduce;

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-bench", all_reduce::run(&all_reduce::Args::parse()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::all_reduce::Args::command().debug_assert();
    }
}
