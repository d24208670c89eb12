//! `xdp-agg-atp`: the switch and the servers of ATP, a baseline.

use std::process::ExitCode;

use clap::Parser;
use xdp_agg_bench::atp;

fn main() -> ExitCode {
    xdp_agg_bench::end("xdp-agg-atp", atp::run(&atp::Args::parse()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::atp::Args::command().debug_assert();
    }
}
