//! `xdp-agg-inhost`: one process of a benchmark of collectives inside a host.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::inhost;

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-inhost", inhost::run(&inhost::Args::parse()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::inhost::Args::command().debug_assert();
    }
}
