//! `xdp-agg doctor`: can this host run the XDP engine, and what is to be done?

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;
use xdp_agg::doctor::{Check, Options, Status, run as examine};
use xdp_agg_common::wire::DATA_PORT;

/// Check whether this host can run the XDP engine: one line each, and how to mend what is wrong
///
/// `ok`: nothing to do. `warn`: it works, but slower, or could not be seen. `fail`: the XDP engine
/// cannot run like this. The exit code is 0 if nothing fails, otherwise 1.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    /// Interface that workers are behind; repeat it for several
    #[arg(short, long, env = "XDP_AGG_INTERFACE", value_name = "IF", value_delimiter = ',')]
    interface: Vec<String>,
    /// Control address that the daemon is to listen on
    #[arg(long, env = "XDP_AGG_CONTROL", value_name = "ADDR:PORT", default_value = "0.0.0.0:9870")]
    control: SocketAddr,
    /// UDP port that the daemon is to serve
    #[arg(long, env = "XDP_AGG_DATA_PORT", value_name = "PORT", default_value_t = DATA_PORT)]
    data_port: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    checks: &'a [Check],
}

/// Runs the sub-command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime that asks the kernel")?;
    let options = Options {
        interfaces: args.interface.clone(),
        control: args.control,
        data_port: args.data_port,
    };
    let checks = runtime.block_on(examine(&options));
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if args.json {
        let report = Report { ok, checks: &checks };
        writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    } else {
        checks.iter().try_for_each(|check| writeln!(io::stdout(), "{}", line(check)))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(crate::exit::FAILED) })
}

fn line(check: &Check) -> String {
    let Check { subject, status, finding, remedy } = check;
    let mend = remedy.as_ref().map(|remedy| format!(" -> {remedy}")).unwrap_or_default();
    format!("{:<4}  {subject}: {finding}{mend}", status.name())
}
