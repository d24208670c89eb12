//! `xdp-agg-ps`: a parameter server, the baseline.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::server;

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-ps", server::run(&server::Args::parse()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::server::Args::command().debug_assert();
    }
}
