//! `cargo xtask soak`: the test of that name, for longer.

use anyhow::Result;

use crate::shell::{cargo, run};
use crate::{build, setup};

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Jobs come and go and links flap for this long, in seconds
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
    /// And until there were as many joins
    #[arg(long, default_value_t = 200_000)]
    joins: u64,
    /// And until the job that runs all the while has made as many calls: ten a second for 12 hours
    #[arg(long, default_value_t = 432_000)]
    calls: u64,
    /// How often the daemon is killed and started again with its pinned data path, after that
    #[arg(long, default_value_t = 100)]
    restarts: u64,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_tests()?;
    build::for_tests()?;
    let mut test = cargo();
    test.args(["test", "--quiet", "--workspace", "--test", "soak", "--", "--nocapture"]);
    test.env("XDP_AGG_SOAK_SECONDS", args.seconds.to_string());
    test.env("XDP_AGG_SOAK_JOINS", args.joins.to_string());
    test.env("XDP_AGG_SOAK_CALLS", args.calls.to_string());
    run(test.env("XDP_AGG_SOAK_RESTARTS", args.restarts.to_string()))
}
