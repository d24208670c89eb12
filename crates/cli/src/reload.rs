//! `xdp-agg reload`: has the daemon read its settings again, and says what came of it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use xdp_agg::config::Partial;
use xdp_agg_common::control::{Reloaded, Reply, Request};

use crate::control::Target;

/// Have the daemon of this host read token, certificates and limits again
///
/// Prints which settings have changed. Token, certificates, --job-slots, --job-slots-max and
/// --job-packet-rate then hold for new connections and jobs. Jobs that run go on.
///
/// If a file is wrong, all stay as they were, and this ends with 1 and the reason. It also ends
/// with 1, and names them, where other settings have changed: those need a restart.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The daemon's settings in TOML: where it listens, and what it has to be shown, as far as
    /// options and environment do not say so
    #[arg(long, env = "XDP_AGG_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let settings = args.config.as_deref().map(Partial::from_file).transpose()?;
    let target = args.target.of_daemon(&settings.unwrap_or_default())?;
    let Reloaded { changed, needs_restart } = match target.connect()?.ask(&Request::Reload)? {
        Reply::Reloaded(reloaded) => reloaded,
        other => bail!("an unexpected answer of the daemon: {other:?}"),
    };
    let what = if changed.is_empty() { "nothing".into() } else { changed.join(", ") };
    writeln!(io::stdout(), "changed: {what}")?;
    if !needs_restart.is_empty() {
        bail!(
            "these settings have changed, too, and need a restart: {}; until then the daemon goes \
             on with the old ones",
            needs_restart.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}
